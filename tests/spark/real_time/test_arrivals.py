"""Rows off a stream that Spark writes piece by piece, beside the rows that were written."""

from __future__ import annotations

import pickle
import random
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BufferedReader
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from timerheap.spark._compat import TaskInput
from timerheap.spark._real_time.arrivals import Arrivals

NAMES = ["number", "text"]
TYPE = pa.struct([("c0", pa.int64()), ("c1", pa.string()), ("push", pa.int32())])
BEHIND = b"what PySpark reads"
END = b"\xff\xff\xff\xff\0\0\0\0"
LONG = 30.0


def stream_of(rows: list[tuple[int, str | None]], copies: tuple[int, ...] = (0, 1)) -> bytes:
    """Rows as Spark sends them: each in a batch of its own, with a copy behind it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("_0", TYPE)])) as writer:
        for number, text in rows:
            for push in copies:
                column = pa.array([{"c0": number, "c1": text, "push": push}], TYPE)
                writer.write_batch(pa.record_batch([column], ["_0"]))
    return sink.getvalue().to_pybytes()


@contextmanager
def connected(
    taken: bytes = b"", longest: float = 0.0, many: float = 0.0
) -> Iterator[tuple[socket.socket, Arrivals, BufferedReader]]:
    """The end that writes, and the rows of the other one, of which PySpark has read some for its buffer."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs), theirs.makefile("rb") as stream:
        ours.sendall(b"x" + taken)
        assert stream.read(1) == b"x"
        task = pickle.loads(pickle.dumps(TaskInput()))
        batches = ArrowStreamSerializer().load_stream(stream)
        yield ours, Arrivals(task, NAMES, batches, longest, many), stream


def taken(arrivals: Arrivals) -> list[tuple[int, str | None]]:
    """All rows until the end."""
    rows: list[tuple[int, str | None]] = []
    while (found := arrivals.take(LONG)) is not None:
        rows += rows_in(found)
    return rows


def rows_in(batches: list[pa.RecordBatch] | None) -> list[tuple[int, str | None]]:
    rows: list[tuple[int, str | None]] = []
    for batch in batches or ():
        assert batch.schema.names == NAMES
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_rows_come_however_the_stream_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    rows = [(n, draw.choice([None, "", "text" * draw.randrange(2_000)])) for n in range(draw.randrange(300))]
    data, at = stream_of(rows) + BEHIND, 0
    pieces = []
    while at < len(data):
        size = draw.choice([1, 4, 8, 100, 10_000, 1_000_000])
        pieces.append(data[at : at + size])
        at += size
    before = pieces.pop(0) if draw.random() < 0.5 and len(pieces[0]) <= 10_000 else b""

    with connected(before) as (ours, arrivals, stream):
        writer = Thread(target=lambda: [ours.sendall(piece) for piece in pieces])
        writer.start()
        assert taken(arrivals) == rows
        assert arrivals.take(LONG) is None
        assert stream.read(len(BEHIND)) == BEHIND
        writer.join()


def test_rows_that_wait_come_together() -> None:
    rows = [(n, str(n)) for n in range(50)]
    data = stream_of(rows)
    with connected(data) as (_, arrivals, _stream):
        found = arrivals.take(LONG)
    assert found is not None
    assert [batch.num_rows for batch in found] == [50]


def test_rows_that_follow_others_come_together() -> None:
    """They would wait for an age, but the stream ends."""
    rows = [(n, str(n)) for n in range(200)]
    data, first = stream_of(rows) + BEHIND, stream_of(rows[:1]).removesuffix(END)
    with connected(longest=1e12) as (ours, arrivals, stream):
        ours.sendall(first)
        assert rows_in(arrivals.take(LONG)) == rows[:1]
        pieces = [data[at : at + 100] for at in range(len(first), len(data), 100)]
        writer = Thread(target=lambda: [ours.sendall(piece) for piece in pieces])
        writer.start()
        assert rows_in(arrivals.take(LONG)) == rows[1:]
        assert arrivals.take(LONG) is None
        assert stream.read(len(BEHIND)) == BEHIND
        writer.join()


def test_a_row_of_few_does_not_wait() -> None:
    rows = [(n, str(n)) for n in range(20)]
    begin = len(stream_of([])) - len(END)
    with connected(stream_of([])[:begin], longest=1e12, many=1e6) as (ours, arrivals, _):
        for row in rows:
            ours.sendall(stream_of([row])[begin:].removesuffix(END))
            assert rows_in(arrivals.take(LONG)) == [row]


def test_a_time_without_rows_ends() -> None:
    with connected() as (ours, arrivals, _):
        assert arrivals.take(0.01) == []
        ours.sendall(stream_of([]))
        assert taken(arrivals) == []


class WrongPoll:
    """Says a few times that there are bytes, as the poll of a kernel may do."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.times, self.own = 0, arrivals._poll

    def poll(self, timeout: float) -> object:
        self.times += 1
        return self.own.poll(timeout) if self.times == 50 else True


def test_a_poll_without_bytes_is_not_the_end() -> None:
    with connected() as (ours, arrivals, _):
        wrong = arrivals._poll = WrongPoll(arrivals)  # type: ignore[assignment]
        assert arrivals.take(0.05) == []
        assert wrong.times > 1
        ours.sendall(stream_of([(1, "a")]))
        assert taken(arrivals) == [(1, "a")]
    with connected() as (ours, arrivals, _):
        arrivals._poll = WrongPoll(arrivals)  # type: ignore[assignment]
        ours.close()
        with pytest.raises(EOFError, match="Spark has closed the input"):
            arrivals.take(LONG)


def test_a_closed_stream_is_an_error_and_not_an_end() -> None:
    data = stream_of([(1, "a")])
    with connected() as (ours, arrivals, _):
        ours.sendall(data[:-8])
        assert arrivals.take(LONG)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError, match="Spark has closed the input"):
            arrivals.take(LONG)


def test_a_stream_that_is_closed_ends_a_wait() -> None:
    rows, begin = [(1, "a"), (2, "b")], len(stream_of([(1, "a")])) - len(END)
    data = stream_of(rows).removesuffix(END)
    with connected(longest=1e12) as (ours, arrivals, _):
        ours.sendall(data[:begin])
        assert rows_in(arrivals.take(LONG)) == rows[:1]
        ours.sendall(data[begin:])
        ours.shutdown(socket.SHUT_WR)
        assert rows_in(arrivals.take(LONG)) == rows[1:]
        with pytest.raises(EOFError, match="Spark has closed the input"):
            arrivals.take(LONG)


def test_a_stream_that_ends_within_a_row_is_an_error() -> None:
    with connected() as (ours, arrivals, _):
        ours.sendall(stream_of([(1, "a" * 1000)])[:-600])
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError, match="Spark has closed the input"):
            taken(arrivals)


def test_rows_without_copies_are_an_error() -> None:
    data = stream_of([(1, "a"), (2, "b")], copies=(0, 1, 1))
    error = pytest.raises(RuntimeError, match="otherwise than in turn")
    with connected(data) as (_, arrivals, _stream), error:
        taken(arrivals)


def test_pyspark_reads_the_next_stream_itself() -> None:
    load = ArrowStreamSerializer.load_stream
    with connected(stream_of([(1, "a")])):
        assert ArrowStreamSerializer.load_stream is load
