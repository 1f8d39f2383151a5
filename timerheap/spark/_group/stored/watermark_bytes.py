"""The bytes of a watermark's state: what they hold, written and read.

Little-endian, in two halves: the times, which most micro-batches change, and the names of the channels.

The times begin with the version u8, the number of inputs u8, the watermark i64, the size of this half u32 and
the run of the query. Each input has its watermark i64, the number of channels u32, the begin of the run i64,
the begin of the first run i64 and whether it is idle u8; then, for all channels, the watermarks, the largest
timestamps, the times of activity, whether they are active u8, and a text with the state of their generators,
a JSON object.

The names are, for each input, its channel column, the lengths of the names i32, and the names.

A text is its length i32 and its UTF-8; the length -1 stands for None. Times are stored as differences, so
that large states compress well: from the input's watermark, and the largest timestamps from the channel's.
They are in 8 planes: the first bytes of all numbers, then the second, and so on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.errors import DamagedCheckpointError
from timerheap.spark._group.stored.formats import WATERMARK
from timerheap.timer import MIN_WATERMARK

_HEADER = struct.Struct("<BBqI")
_LENGTH = struct.Struct("<i")
_INPUT = struct.Struct("<qIqqB")


@dataclass(slots=True)
class InputWatermark:
    """The channels of one input, n of them; the arrays have the shape (n,)."""

    column: str | None  # the channel column; None: a single channel for all rows
    watermark: int
    names: list[str | None]
    watermarks: np.ndarray
    max_timestamps: np.ndarray
    active: np.ndarray
    # When a channel had its last row by the clock, epoch ms, or MIN_WATERMARK if that is not known. If
    # micro-batches have a time, it is one of those.
    active_at: np.ndarray
    begun_at: int = MIN_WATERMARK  # the time of the first micro-batch of the run, if micro-batches have one
    idle: bool = False
    since: int = MIN_WATERMARK  # that of the first run
    generators: str | None = None  # of `_Generators.state`


@dataclass(slots=True)
class StoredWatermark:
    """The watermark of a key group and the channels of its inputs."""

    watermark: int
    run: str | None  # the run of the query that the times of activity belong to
    inputs: list[InputWatermark] = field(default_factory=list)


def encode_watermark(stored: StoredWatermark) -> bytes:
    """Return the bytes of a watermark's state; equal states have equal bytes."""
    times, names = _encoded_text(stored.run), []
    for input_ in stored.inputs:
        times.append(
            _INPUT.pack(input_.watermark, len(input_.names), input_.begun_at, input_.since, input_.idle)
        )
        base = np.int64(input_.watermark)
        times += [_planes(input_.watermarks - base), _planes(input_.max_timestamps - input_.watermarks)]
        times.append(_planes(input_.active_at - base))
        times += [input_.active.astype(np.uint8).tobytes(), *_encoded_text(input_.generators)]
        lengths = pc.binary_length(pa.array(input_.names, pa.string())).fill_null(-1).to_numpy()
        text = "".join(filter(None, input_.names))
        names += [*_encoded_text(input_.column), lengths.astype("<i4").tobytes(), text.encode()]
    size = _HEADER.size + sum(map(len, times))
    header = _HEADER.pack(WATERMARK.written, len(stored.inputs), stored.watermark, size)
    return b"".join([header, *times, *names])


def halves(data: bytes) -> tuple[bytes, bytes]:
    """Return the times and the names in the bytes of a watermark's state."""
    size = _HEADER.unpack_from(data)[-1]
    return data[:size], data[size:]


def _planes(numbers: np.ndarray) -> bytes:
    return numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T.tobytes()


def _encoded_text(text: str | None) -> list[bytes]:
    data = b"" if text is None else text.encode()
    return [_LENGTH.pack(-1 if text is None else len(data)), data]


def decode_watermark(data: bytes) -> StoredWatermark:
    """Return the state of `encode_watermark`; raise a `CheckpointError` for any other bytes."""
    reader = _Reader(data)
    WATERMARK.expect(reader.peek(1))
    _, inputs, watermark, size = reader.struct(_HEADER)
    run = reader.text()
    times = [reader.times() for _ in range(inputs)]
    if reader.at != size:
        raise DamagedCheckpointError(
            f"the times of a watermark's state must have {size} bytes, got {reader.at}"
        )
    stored = StoredWatermark(watermark, run, [reader.named(input_) for input_ in times])
    if reader.left():
        raise DamagedCheckpointError(
            f"the watermark's state must end after its inputs, got {reader.left()} bytes more"
        )
    return stored


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.at = 0

    def left(self) -> int:
        return len(self._data) - self.at

    def peek(self, n: int) -> memoryview:
        return self._data[self.at : self.at + n]

    def bytes(self, n: int) -> memoryview:
        if not 0 <= n <= self.left():
            raise DamagedCheckpointError(
                f"the watermark's state is cut off: {n} bytes wanted, {self.left()} left"
            )
        self.at += n
        return self._data[self.at - n : self.at]

    def struct(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.bytes(layout.size))

    def array(self, dtype: npt.DTypeLike, n: int) -> np.ndarray:
        return np.frombuffer(self.bytes(np.dtype(dtype).itemsize * n), dtype)

    def planes(self, n: int) -> np.ndarray:
        return np.ascontiguousarray(self.array(np.uint8, 8 * n).reshape(8, n).T).view("<i8").reshape(n)

    def text(self) -> str | None:
        (length,) = self.struct(_LENGTH)
        return None if length == -1 else str(self.bytes(length), "utf-8")

    def times(self) -> InputWatermark:
        """Return an input whose channels have no names yet."""
        watermark, n, begun_at, since, idle = self.struct(_INPUT)
        base = np.int64(watermark)
        watermarks = self.planes(n) + base
        max_timestamps = self.planes(n) + watermarks
        active_at = self.planes(n) + base
        active = self.array(np.uint8, n)
        if active.max(initial=idle) > 1:
            raise DamagedCheckpointError("the watermark's state has an invalid flag")
        columns = watermarks, max_timestamps, active.view(bool), active_at
        return InputWatermark(None, watermark, [], *columns, begun_at, bool(idle), since, self.text())

    def named(self, input_: InputWatermark) -> InputWatermark:
        column, n = self.text(), len(input_.watermarks)
        lengths = self.array("<i4", n)
        if lengths.min(initial=0) < -1:
            raise DamagedCheckpointError("the watermark's state has an invalid length")
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
        named, text = pa.array(lengths >= 0).buffers()[1], pa.py_buffer(self.bytes(int(offsets[-1])))
        texts = pa.Array.from_buffers(pa.large_string(), n, [named, pa.py_buffer(offsets), text])
        texts.validate(full=True)
        return replace(input_, column=column, names=texts.to_pylist())
