"""The rows of a task, read off Spark's stream as they come: those that wait together come together.

Spark sends each row in a message of its own, an Arrow batch of one row, and behind it a copy, which makes it
send the row. PySpark reads messages in a thread and hands them over one by one, so that each wakes up the
task. That costs more than what is done with a row.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from select import POLLIN, POLLRDHUP, poll
from socket import MSG_DONTWAIT, MSG_PEEK, socket

import pyarrow as pa

from timerheap.spark._compat import TaskInput
from timerheap.spark._real_time.linger import Linger

PUSH = "push"
"""The last column of the input, which tells a row, 0, from the copy behind it."""

LONG = 3600.0
"""Seconds to wait for rows in a task that has nothing to do without them."""

_HEAD = struct.Struct("<Ii")  # a mark, and the length of the metadata, 0 at the end of the stream
_END = _HEAD.pack(0xFFFFFFFF, 0)
_INT16, _INT32, _INT64 = (struct.Struct(kind).unpack_from for kind in ("<H", "<i", "<q"))
_BODY = 10  # where the table of offsets in the metadata has that of the length of the body
_GATHER = 0.0003  # seconds in which more rows may come with the first, where they did the last time
_CLOSED = "Spark has closed the input of a task in real-time mode"
_MOST = 4 << 20  # bytes that are taken together
_LOOK = int(MSG_PEEK | MSG_DONTWAIT)  # as flags, each call would make an object of an enum


class Arrivals:
    """The rows that come in the input of a task of ``mapInArrow``.

    names: of the columns before `PUSH`
    batches: what PySpark reads of the input, which is nothing
    longest, many: of `Linger`, how long rows wait for others
    """

    def __init__(
        self,
        task: TaskInput,
        names: list[str],
        batches: Iterator[pa.RecordBatch],
        longest: float = 0.0,
        many: float = 0.0,
    ) -> None:
        for _ in batches:
            raise RuntimeError("PySpark has read rows of a task in real-time mode itself")
        self._stream, self._names, self._linger = task.stream, names, Linger(longest, many)
        self._poll = poll()
        self._poll.register(self._stream, POLLIN)
        self._hang_up = poll()
        self._hang_up.register(self._stream, POLLRDHUP)
        self._socket = socket(fileno=os.dup(self._stream.fileno()))
        self._schema = b""
        self._messages: list[bytes] = []
        self._copy = False  # whether the next message is a copy
        self._together = False  # whether several rows came together the last time
        self._ended = False

    def take(self, timeout: float) -> list[pa.RecordBatch] | None:
        """Return the rows that have come as one batch, none if the time is over before; None at the end."""
        until = time.monotonic() + timeout
        while not self._ended:
            gather = 0.0
            if not self._buffered():
                if not self._wait(until):
                    return []
                gather = _GATHER if self._together else 0.0
            self._read_until(time.monotonic() + (self._linger.seconds() or gather))
            if rows := self._rows():  # else copies alone
                return rows
        return None

    def _read_until(self, until: float) -> None:
        """Read the bytes that have come, and those that come before `until`, up to the end of the input."""
        nap, size = self._linger.nap(), self._read_all()
        while (left := until - time.monotonic()) > 0 and not self._ended and size < _MOST:
            time.sleep(min(left, nap))
            closed = self._hang_up.poll(0)
            size += self._read_all()
            if closed:
                break

    def _wait(self, until: float) -> bool:
        """Return whether there are bytes by that time; raise EOFError if the stream is closed."""
        while self._poll.poll(max(until - time.monotonic(), 0) * 1000):
            try:
                if self._socket.recv(1, _LOOK):
                    return True
            except BlockingIOError:  # a poll may be wrong
                if time.monotonic() >= until:
                    return False
                time.sleep(_GATHER)
            else:
                raise EOFError(_CLOSED)
        return False

    def _read_all(self) -> int:
        """Read what can be read without waiting, and return its bytes."""
        size = 0
        while size < _MOST and not self._ended and (left := self._buffered()):
            size += self._read(left)
        return size

    def _buffered(self) -> bytes:
        """Return bytes that can be read without waiting, and leave them in the stream."""
        file = self._stream.fileno()
        os.set_blocking(file, False)
        try:
            return self._stream.peek()
        finally:
            os.set_blocking(file, True)

    def _read(self, left: bytes) -> int:
        """Read the whole messages of `left`, or else the first one; never beyond the end of the Arrow stream.

        What is behind the end is for PySpark.
        """
        at = 0
        while not self._ended and (end := _end_of(left, at)):
            self._keep(left[at:end])
            at = end
        if at:
            self._stream.read(at)
            return at
        head = self._exactly(_HEAD.size)
        metadata = self._exactly(_HEAD.unpack(head)[1])
        message = head + metadata + (self._exactly(_length_of_body(metadata, 0)) if metadata else b"")
        self._keep(message)
        return len(message)

    def _exactly(self, size: int) -> bytes:
        found = self._stream.read(size)
        if len(found) < size:
            raise EOFError(_CLOSED)
        return found

    def _keep(self, message: bytes) -> None:
        if message == _END:
            self._ended = True
            self._socket.close()
        elif not self._schema:
            self._schema = message
        else:
            if not self._copy:
                self._messages.append(message)
            self._copy = not self._copy

    def _rows(self) -> list[pa.RecordBatch]:
        self._together = len(self._messages) > 1
        self._linger.came(len(self._messages))
        if not self._messages:
            return []
        rows = pa.ipc.open_stream(b"".join([self._schema, *self._messages, _END])).read_all()
        self._messages = []
        columns = rows.column(0).combine_chunks().flatten()
        if columns.pop().to_numpy().any():
            raise RuntimeError("Spark has sent rows and copies in real-time mode otherwise than in turn")
        return [pa.RecordBatch.from_arrays(columns, self._names)]


def _end_of(data: bytes, at: int) -> int | None:
    """Return where the message that begins at `at` ends, None if `data` ends before."""
    body = at + _HEAD.size
    if body > len(data):
        return None
    size = _HEAD.unpack_from(data, at)[1]
    end = body + size
    if end <= len(data) and size:
        end += _length_of_body(data, body)
    return end if end <= len(data) else None


def _length_of_body(data: bytes, at: int) -> int:
    """Return the length of the body of the message whose metadata, a flatbuffer, begins at `at`."""
    table: int = at + _INT32(data, at)[0]
    offsets = table - _INT32(data, table)[0]
    place = _INT16(data, offsets + _BODY)[0] if _INT16(data, offsets)[0] > _BODY else 0
    return int(_INT64(data, table + place)[0]) if place else 0
