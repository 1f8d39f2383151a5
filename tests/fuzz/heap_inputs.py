"""The inputs of the fuzzer: bytes that are interpreted as stored bytes, calls, a head, or a frame.

`run` raises for every defect: an error of an undocumented class, or one that changes the heap; stored bytes
that are accepted but not a heap, or the reverse; a bulk call that differs from single calls; a broken
invariant. Arguments have memory of exactly their size, so that the sanitizers detect accesses beyond it.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1].glob("support/*"))

import frame_inputs
import numpy as np
import place_inputs
from arena import Arena

from timerheap import KeyTimerHeap, TimerHeap
from timerheap._native._core import IdIndex, seal, xxh64

REFUSALS = (TypeError, ValueError, OverflowError)
KINDS = (TimerHeap, KeyTimerHeap)
MOST_CALLS = 4  # per input, for speed

# The value of each byte: a small int64, or an extreme of int64 for the extreme bytes.
WIDE = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int64)
WIDE[[128, 129, 130, 125, 126, 127]] = [-(2**63), -(2**63) + 1, -(2**32), 2**32, 2**63 - 2, 2**63 - 1]


def exactly(data: bytes) -> np.ndarray:
    """Copy data to separate memory, so that a sanitizer detects accesses beyond it."""
    return np.frombuffer(data, np.uint8).copy()


def widened(data: bytes) -> np.ndarray:
    return WIDE[np.frombuffer(data, np.uint8)]


# ---- stored bytes ----


def is_heap(kind: type, payload: bytes) -> bool:
    n = len(payload) // 24
    ts, key, ns = np.frombuffer(payload[: 24 * n], "<i8").reshape(3, n).tolist()
    rows = list(zip(ts, key, ns, strict=True))
    identities = rows if kind is TimerHeap else [row[1:] for row in rows]
    ordered = all(rows[(i - 1) // 8] <= rows[i] for i in range(1, n))
    return len(payload) % 24 == 0 and ordered and len(set(identities)) == n


def restore(kind: type, data: bytes, expected: bool | None = None) -> None:
    try:
        heap = kind.from_bytes(exactly(data))
    except ValueError:
        assert not expected, "the bytes of a heap were rejected"
        return
    assert expected is not False, "bytes that are not a heap were accepted"
    heap._check()
    assert heap.to_bytes() == data
    heap.push(0, 0)
    heap.pop_due(2**63 - 1)
    heap._check()


def raw(kind: type, data: bytes) -> None:
    restore(kind, data)


def with_checksum(kind: type, data: bytes) -> None:
    """Restore from any header with a correct checksum."""
    payload = data[16:]
    header = data[:16].ljust(16, b"\0")
    data = header + struct.pack("<Q", xxh64(header + payload)) + payload
    good = struct.pack("<4sHHQ", b"TMRH", 1, 1 + KINDS.index(kind), len(payload))
    restore(kind, data, header == good and is_heap(kind, payload))


def with_header(kind: type, payload: bytes) -> None:
    restore(kind, seal(1 + KINDS.index(kind), payload), is_heap(kind, payload))


def with_small_columns(kind: type, data: bytes) -> None:
    with_header(kind, widened(data[: len(data) // 3 * 3]).tobytes())


# ---- bulk calls ----

Maker = Callable[[np.ndarray], Any]

GOOD: list[Maker] = [
    lambda v: v,
    lambda v: v[::-1].copy()[::-1],
    lambda v: np.repeat(v, 3)[::3],
    lambda v: np.frombuffer(b"x" + v.tobytes(), np.int64, offset=1),
    lambda v: v.astype(">i8"),
    lambda v: v.astype(np.int8),
    lambda v: (v & 2**62).astype(np.uint64),
    lambda v: v.astype(np.uint16)[::-1],
    lambda v: v.tolist(),
    lambda v: tuple(v.tolist()),
    lambda v: range(len(v)),
    lambda v: memoryview(v),
    lambda v: np.broadcast_to(v[:1], len(v)) if len(v) else v,
    lambda v: np.ma.masked_array(v, np.zeros(len(v), bool)),
    lambda v: np.rec.fromarrays([v.astype(np.int8), v])["f1"],
    lambda v: int(v.sum()),
    lambda v: np.array(v.sum()),
    lambda v: np.int32(len(v)),
]
BAD: list[Maker] = [
    lambda v: v.astype(float),
    lambda v: v.astype(bool),
    lambda v: v.astype(object),
    lambda v: v.view("M8[ms]"),
    lambda v: v.reshape(1, -1),
    lambda v: v.reshape(-1, 1, 1),
    lambda v: [*v.tolist(), None],
    lambda v: [*v.tolist(), 2**63],
    lambda v: [-(2**70), *v.tolist()],
    lambda v: [*v.tolist(), 0.5],
    lambda v: [[], *v.tolist()],
    lambda v: np.append(v, -1).astype(np.uint64),
    lambda v: np.ma.masked_array(np.append(v, 1), np.append(v != v, True)),
    lambda v: v.tobytes(),
    lambda v: v.astype("U"),
    lambda v: v.astype(complex),
    lambda v: {1, 2},
    lambda v: None,
    lambda v: 2**63,
    lambda v: 1.0,
    lambda v: True,
]


class Calls:
    """The calls that bytes stand for."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def column(self, n: int, own: int) -> tuple[Any, list[int] | int | None]:
        """Return an argument and its meaning: rows, a single value, or None if it is invalid."""
        form, step, size = self.byte(), self.byte() % 7 - 3, min(n, 1 + self.byte() % 32)
        text = self.data[self.at : self.at + size] or b"\0"
        self.at += size
        values = widened((text * (n // len(text) + 1))[:n])
        if step:
            values += step * np.arange(n)
        if form >= 248:
            return BAD[(form + step + n) % len(BAD)](values), None
        if form >= 240:
            view = self.view(own + form)[:: -1 if form % 2 else 1]
            return view, view.tolist()
        argument = GOOD[form % len(GOOD) if form < 180 else 0](values)
        return argument, np.asarray(argument).tolist()

    def columns(self, count: int) -> tuple[list[Any], list[tuple[int, ...]] | None]:
        """Return arguments and their rows, or None if they must be rejected."""
        n = self.byte()
        n = 64 + n % 8 if n >= 248 else n % 16  # the bulk algorithms need 64 rows or more
        arguments, plain = zip(*[self.column(n, own) for own in range(count)], strict=True)
        lengths = {len(column) for column in plain if isinstance(column, list)}
        if None in plain or len(lengths) > 1 or (not lengths and count > 1):
            return list(arguments), None
        n = lengths.pop() if lengths else 1
        rows = [column if isinstance(column, list) else [column] * n for column in plain]  # type: ignore[list-item]
        return list(arguments), list(zip(*rows, strict=True))

    def refused(self, call: Callable[..., Any], arguments: list[Any]) -> None:
        before = self.contents()
        try:
            call(*arguments)
        except REFUSALS:
            assert self.contents() == before, "an error changed the contents"
        else:
            raise AssertionError(f"{call.__name__} must reject {arguments}")

    def view(self, number: int) -> np.ndarray:
        raise NotImplementedError

    def contents(self) -> Any:
        raise NotImplementedError


class Program(Calls):
    """Calls of one heap, which are repeated on a twin by single calls. Some heaps are on lent memory."""

    def __init__(self, kind: type, data: bytes) -> None:
        super().__init__(data)
        self.kind = kind
        self.heap, self.twin = kind(), kind()
        self.memory = Arena(size=1 << 18) if self.byte() % 2 else None
        if self.memory:
            self.heap._lend(self.memory)
        self.views: list[np.ndarray] = []

    def view(self, number: int) -> np.ndarray:
        return (self.heap.timestamps, self.heap.key_hashes, self.heap.namespaces)[number % 3]

    def contents(self) -> bytes:
        return self.heap.to_bytes()

    def bulk(self, method: str, single: str, count: int) -> None:
        arguments, rows = self.columns(count)
        call, one = getattr(self.heap, method), getattr(self.twin, single)
        if rows is None:
            self.refused(call, arguments)
            return
        result = call(*arguments)
        expected = [one(*row) for row in rows]
        if method == "timestamps_of":
            timestamps, found = result
            assert timestamps.tolist() == [timestamp or 0 for timestamp in expected]
            assert found.tolist() == [timestamp is not None for timestamp in expected]
        else:
            assert result.tolist() == expected, (method, arguments)

    def remove_keys(self) -> None:
        arguments, rows = self.columns(1)
        if rows is None:
            self.refused(self.heap.remove_keys, arguments)
            return
        keys = {key for (key,) in rows}
        gone = [timer for timer in self.twin if timer.key_hash in keys]
        assert self.heap.remove_keys(*arguments) == len(gone)
        for timer in gone:
            assert self.twin.remove(*(timer if self.kind is TimerHeap else timer[1:]))

    def pop_due(self) -> None:
        watermark, limit = int(WIDE[self.byte()]), self.byte()
        expected = []
        while len(expected) < limit and self.twin and self.twin.peek().timestamp <= watermark:
            expected.append(self.twin.pop())
        assert list(self.heap.pop_due(watermark, limit)) == expected

    def elsewhere(self) -> None:
        """Move the heap to other memory, while views of the old memory stay."""
        self.views = [*self.views[-6:], self.heap.timestamps, self.heap.key_hashes, self.heap.namespaces]
        way = self.byte() % 5
        if self.memory and way not in (2, 3):
            self.heap = self.kind._attach(self.memory, self.heap._head())
        elif way == 0:
            self.heap = pickle.loads(pickle.dumps(self.heap))
        elif way == 1:
            self.heap = self.heap.copy()
        elif way == 2:
            self.heap.reserve(self.byte())
        elif way == 3:
            self.heap.clear()
            self.twin.clear()
        else:
            self.heap = self.kind.from_bytes(exactly(self.heap.to_bytes()))

    def check(self) -> None:
        self.heap._check()
        assert self.heap.pop_due(2**63 - 1) == self.twin.pop_due(2**63 - 1)
        for view in self.views:  # stale, but their memory must be valid
            view.sum()

    def calls(self) -> Iterator[Callable[[], None]]:
        keyed = self.kind is KeyTimerHeap
        few = 2 if keyed else 3
        calls: list[Callable[[], None]] = [
            lambda: self.bulk("push_many", "push", 3),
            lambda: self.bulk("push_many", "push", 2),
            lambda: self.bulk("remove_many", "remove", few),
            (lambda: self.bulk("timestamps_of", "timestamp_of", 2))
            if keyed
            else lambda: self.bulk("reschedule_many", "reschedule", 4),
            self.pop_due,
            self.remove_keys,
            self.elsewhere,
        ]
        for _ in range(MOST_CALLS):
            if self.at >= len(self.data):
                return
            yield calls[self.byte() % len(calls)]


def bulk_calls(kind: type, data: bytes) -> None:
    program = Program(kind, data)
    for call in program.calls():
        call()
        program.heap._check()
    program.check()


# ---- the index ----


class IndexProgram(Calls):
    """Calls of an index, which are repeated on a dict."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.memory = Arena(size=1 << 18) if self.byte() % 2 else None
        self.index = IdIndex(self.memory)
        self.twin: dict[int, int] = {}

    def view(self, number: int) -> np.ndarray:
        return self.index.items()[number % 2]

    def contents(self) -> dict[int, int]:
        ids, values = self.index.items()
        return dict(zip(ids.tolist(), values.tolist(), strict=True))

    def look_up(self, method: str, one: Callable[..., int]) -> None:
        arguments, rows = self.columns(1)
        call = getattr(self.index, method)
        if rows is None or not np.ndim(arguments[0]):
            self.refused(call, arguments)
            return
        values, found = call(*arguments)
        for (id_,), value, was_found in zip(rows, values.tolist(), found.tolist(), strict=True):
            assert was_found == (id_ in self.twin)
            assert value == one(id_, 0)

    def put(self) -> None:
        arguments, rows = self.columns(2)
        if rows is None:
            self.refused(self.index.put_many, arguments)
            return
        added = self.index.put_many(*arguments)
        for (id_, value), was_added in zip(rows, added.tolist(), strict=True):
            assert was_added == (id_ not in self.twin)
            self.twin[id_] = value

    def elsewhere(self) -> None:
        if self.memory:
            self.index = IdIndex._attach(self.memory, self.index._head())
        elif not self.byte() % 5:
            self.index.clear()
            self.twin.clear()

    def step(self) -> None:
        way = self.byte() % 6
        if way < 3:
            self.put()
        elif way == 3:
            self.look_up("find_many", self.twin.get)
        elif way == 4:
            self.look_up("remove_many", self.twin.pop)
        else:
            self.elsewhere()
        self.index._check()
        assert self.contents() == self.twin


def index_calls(kind: type, data: bytes) -> None:
    program = IndexProgram(data)
    for _ in range(MOST_CALLS):
        if program.at < len(data):
            program.step()


# ---- heads ----


def heads(kind: type, data: bytes) -> None:
    """Attach to a block with a head in which numbers are changed."""
    memory = Arena(size=1 << 16)
    heap = kind()
    heap._lend(memory)
    heap.push_many(np.arange(data[0] if data else 0), 7 * np.arange(data[0] if data else 0))
    head = heap._head()
    for field, change in zip(data[1::2], data[2::2], strict=False):
        head[field % len(head)] += int(WIDE[change])
    try:
        other = kind._attach(memory, head)
    except ValueError:
        assert head != heap._head(), "a good head was rejected"
        return
    try:
        other._check()
    except AssertionError:  # not everything can be noticed
        assert head != heap._head(), "a good head leads to a broken heap"


def frames(kind: type, data: bytes) -> None:
    """Read or pack a frame."""
    frame_inputs.run(data)


def places(kind: type, data: bytes) -> None:
    """Number places, or order rows by waves."""
    place_inputs.run(data)


MODES = (raw, with_checksum, with_header, with_small_columns, bulk_calls, frames, index_calls, heads, places)


def run(data: bytes) -> None:
    """Run an input, whose first byte determines the heap and the meaning of the rest."""
    if data:
        MODES[(data[0] & 127) % len(MODES)](KINDS[data[0] >> 7], data[1:])


def seeds() -> Iterator[bytes]:
    """Yield the initial inputs: heaps of both kinds in each form, and a few calls."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(KINDS):
        for n in (0, 1, 2, 7, 30):
            heap = kind()
            heap.push_many(rng.integers(-99, 99, n), np.arange(n))
            stored = heap.to_bytes()
            head = number << 7
            columns = np.frombuffer(stored[24:], np.int64).astype(np.int8).tobytes()
            yield bytes([head]) + stored
            yield bytes([head | 1]) + stored[:16] + stored[24:]
            yield bytes([head | 2]) + stored[24:]
            yield bytes([head | 3]) + columns
        for _ in range(20):
            yield bytes([head | 4]) + rng.bytes(100)
            yield bytes([head | 6]) + rng.bytes(100)
        for n in (0, 3, 200):
            yield bytes([head | 7, n])
    for mode, inputs in ((5, frame_inputs), (8, place_inputs)):
        for seed in inputs.seeds():
            yield bytes([mode]) + seed


if __name__ == "__main__":  # without a fuzzer: run the seeds and a number of random inputs
    for seed in seeds():
        run(seed)
    rng = np.random.default_rng(0)
    for _ in range(int(sys.argv[1])):
        run(rng.bytes(int(rng.integers(1, 200))))
    print(f"{sys.argv[1]} random inputs")
