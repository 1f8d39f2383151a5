"""The benchmark's timers, and each operation on them for timerheap and its peers."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from peers.heapq_set import HeapqDict, HeapqSet
from peers.sorted_list import SortedListDict, SortedListSet

from timerheap import KeyTimerHeap, TimerHeap

SPAN = 10**9  # timestamps are spread over 11 days

Columns = tuple[np.ndarray, ...]
Rows = list[tuple[int, ...]]
Shape = Callable[[np.random.Generator, int], Columns]


# ---- timers ----


def random(rng: np.random.Generator, n: int) -> Columns:
    """Return timestamps, the timestamps to move to, and keys."""
    times, moved = rng.integers(0, SPAN, (2, n))
    return times, moved, rng.integers(-(2**63), 2**63, n)


def tenfold(rng: np.random.Generator, n: int) -> Columns:
    return random(rng, 10 * n)


def descending(rng: np.random.Generator, n: int) -> Columns:
    times, moved, keys = random(rng, n)
    return np.sort(times)[::-1].copy(), moved, keys


def equal(rng: np.random.Generator, n: int) -> Columns:
    _, _, keys = random(rng, n)
    return np.full(n, 1), np.full(n, 2), keys


def crafted(rng: np.random.Generator, n: int) -> Columns:
    """Return timers that would all collide if th_hash had no seed, that is, if it folded timestamp * key.

    The upper 32 bits of the hash choose the index line and the lowest byte is the tag; both would be 0.
    """
    chosen = 256 * rng.permutation(2**22)[: 2 * n]
    return chosen[:n], chosen[n:], rng.integers(0, 4, n)


class Timers:
    """Timers in two orders, as columns and as Python ints, so that no side has to convert them."""

    def __init__(self, shape: Shape, n: int) -> None:
        rng = np.random.default_rng(20130101)
        self.times, self.moved, self.keys = shape(rng, n)
        self.n = len(self.times)
        chosen = rng.permutation(self.n)
        self.chosen = self.times[chosen], self.keys[chosen]
        self.changes = self.times[chosen], self.moved, self.keys[chosen]

    @cached_property
    def rows(self) -> Rows:
        return rows(self.times, self.keys)

    @cached_property
    def chosen_rows(self) -> Rows:
        return rows(*self.chosen)

    @cached_property
    def change_rows(self) -> Rows:
        return rows(*self.changes)

    @cached_property
    def move_rows(self) -> Rows:
        return rows(*self.changes[1:])

    def heap(self) -> TimerHeap:
        heap = TimerHeap()
        heap.push_many(self.times, self.keys)
        return heap

    def key_heap(self) -> KeyTimerHeap:
        heap = KeyTimerHeap()
        heap.push_many(self.times, self.keys)
        return heap

    def peer(self, kind: type) -> Any:
        peer = kind()
        peer.fill(rows(self.times, self.keys))
        return peer


timers = lru_cache(maxsize=2)(Timers)


def rows(*columns: np.ndarray) -> Rows:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def each(call: Callable[..., object], rows: Rows) -> None:
    for row in rows:
        call(*row)


def pops(heap: Any, n: int) -> None:
    pop = heap.pop
    for _ in range(n):
        pop()


# ---- operations ----


Start = Callable[[Timers], Any]
Run = Callable[[Timers, Any], object]


class Side(NamedTuple):
    """One implementation of an operation: a function for its initial state, and the operation."""

    start: Start
    run: Run
    shape: Shape = random

    def nanoseconds(self, n: int, share: float) -> float:
        """Return the processor time of this thread per timer, which other processes hardly affect."""
        data = timers(self.shape, n)
        copies, spent = copies_of(data.n), 0
        gc.collect()
        gc.disable()  # like timeit
        try:
            for _ in range(copies):
                state = self.start(data)
                begin = time.thread_time_ns()
                result = self.run(data, state)  # freed after the measurement
                spent += time.thread_time_ns() - begin
                del result, state
        finally:
            gc.enable()
        return (spent / copies - clock_ns()) / (data.n * share)


class Operation(NamedTuple):
    ours: dict[str, Side]
    peers: dict[str, Side]
    share: float = 1  # the share of n that it processes
    flink: Callable[[int], tuple[str, int]] | None = None  # the command for FlinkQueue


def copies_of(n: int) -> int:
    """Return the number of heaps per round, so that small heaps are measured many times."""
    return max(1, 100_000 // n)


@cache
def clock_ns() -> float:
    """Return the cost of reading the clock."""
    begin = time.thread_time_ns()
    for _ in range(10_000):
        time.thread_time_ns()
    return (time.thread_time_ns() - begin) / 10_000


def fresh(kind: type) -> Start:
    return lambda t: kind()


def filled(kind: type) -> Start:
    return lambda t: t.peer(kind)


def python_peers(run: Run, start: Callable[[type], Start] = filled) -> dict[str, Side]:
    kinds = {"heapq + set": HeapqSet, "sortedcontainers": SortedListSet}
    return {name: Side(start(kind), run) for name, kind in kinds.items()}


def due(name: str, share: float, flink: Callable[[int], tuple[str, int]]) -> Operation:
    watermark = int(SPAN * share)

    def run(t: Timers, heap: Any) -> object:
        return heap.pop_due(watermark)

    return Operation({name: Side(Timers.heap, run)}, python_peers(run), share, flink)


OPERATIONS = {
    "push": Operation(
        {
            "push": Side(fresh(TimerHeap), lambda t, heap: each(heap.push, t.rows)),
            "push_many": Side(fresh(TimerHeap), lambda t, heap: heap.push_many(t.times, t.keys)),
        },
        python_peers(lambda t, peer: each(peer.push, t.rows), fresh),
        flink=lambda n: ("add", 0),
    ),
    "remove": Operation(
        {
            "remove": Side(Timers.heap, lambda t, heap: each(heap.remove, t.chosen_rows)),
            "remove_many": Side(Timers.heap, lambda t, heap: heap.remove_many(*t.chosen)),
        },
        python_peers(lambda t, peer: each(peer.remove, t.chosen_rows)),
        flink=lambda n: ("remove", 0),
    ),
    "reschedule": Operation(
        {
            "reschedule": Side(Timers.heap, lambda t, heap: each(heap.reschedule, t.change_rows)),
            "reschedule_many": Side(Timers.heap, lambda t, heap: heap.reschedule_many(*t.changes)),
        },
        python_peers(lambda t, peer: each(peer.reschedule, t.change_rows)),
        flink=lambda n: ("move", 0),
    ),
    "move a key's timer": Operation(
        {
            "push that moves": Side(Timers.key_heap, lambda t, heap: each(heap.push, t.move_rows)),
            "push_many that moves": Side(Timers.key_heap, lambda t, heap: heap.push_many(*t.changes[1:])),
        },
        {
            "heapq + set": Side(filled(HeapqDict), lambda t, peer: each(peer.push, t.move_rows)),
            "sortedcontainers": Side(filled(SortedListDict), lambda t, peer: each(peer.push, t.move_rows)),
        },
        flink=lambda n: ("move", 0),
    ),
    "pop": Operation(
        {"pop": Side(Timers.heap, lambda t, heap: pops(heap, t.n // 10))},
        python_peers(lambda t, peer: pops(peer, t.n // 10)),
        share=0.1,
        flink=lambda n: ("poll", n // 10),
    ),
    "pop all that is due": due("pop_due, all due", 1, lambda n: ("poll", n)),
    "pop 10 %": due("pop_due, 10 % due", 0.1, lambda n: ("drain", SPAN // 10)),
    "pop 1 %": due("pop_due, 1 % due", 0.01, lambda n: ("drain", SPAN // 100)),
}


# ---- yardsticks: other operations for comparison, each at one n ----


@cache
def empty_method() -> Callable[[int, int, int], None]:
    """Return a Cython method that takes three ints and does nothing, compiled on demand."""
    import pyximport

    pyximport.install(build_dir="build/bench", language_level=3)
    from empty import Empty

    return Empty().call


OPERATION_OF = {method: operation for operation in OPERATIONS.values() for method in operation.ours}


def one_call(method: str) -> Operation:
    """Compare single calls of a method with calls of the empty method."""
    ours, _, share, _ = OPERATION_OF[method]
    empty = Side(lambda t: (empty_method(), t.change_rows[: int(t.n * share)]), lambda t, state: each(*state))
    return Operation({method: ours[method]}, {"an empty method": empty}, share)


def copied(t: Timers, state: tuple[TimerHeap, np.ndarray]) -> None:
    heap, target = state
    for row, column in zip(target, (heap.timestamps, heap.key_hashes, heap.namespaces), strict=True):
        row[:] = column


def shaped(shape: Shape, name: str, method: str, beside: str = "random") -> Operation:
    """Compare an operation on timers of another shape with the same operation on random timers."""
    ours, _, share, _ = OPERATION_OF[method]
    return Operation({f"{method}, {name}": ours[method]._replace(shape=shape)}, {beside: ours[method]}, share)


ONE_CALL = ["push", "remove", "reschedule", "pop"]
BY_TIMER = [*ONE_CALL, "push_many", "remove_many", "reschedule_many", "pop_due, all due"]
BY_KEY = ["push that moves", "push_many that moves"]  # crafted timers share keys, so cannot be used here

YARDSTICKS: list[tuple[int, Operation]] = [
    *[(10**4, one_call(method)) for method in ONE_CALL],
    (
        10**6,
        Operation(
            {"to_bytes": Side(Timers.heap, lambda t, heap: heap.to_bytes())},
            {"memcpy": Side(lambda t: (t.heap(), np.ones((3, t.n), np.int64)), copied)},
        ),
    ),
    (
        10**6,
        Operation(
            {"from_bytes": Side(lambda t: t.heap().to_bytes(), lambda t, data: TimerHeap.from_bytes(data))},
            {"push_many": OPERATION_OF["push_many"].ours["push_many"]},
        ),
    ),
    (10**6, shaped(descending, "descending", "push_many")),
    *[(10**6, shaped(equal, "equal timestamps", method)) for method in (*BY_TIMER, *BY_KEY)],
    *[(10**6, shaped(crafted, "crafted to collide", method)) for method in BY_TIMER],
    (10**6, shaped(tenfold, "ten times as many", "push_many", beside="push_many")),
]


# ---- memory ----


def held_by_ours(n: int) -> float:
    """Return the bytes per timer after n single pushes, including room to grow."""
    heap = TimerHeap()
    each(heap.push, timers(random, n).rows)
    return heap.nbytes / n


def held_by_peer(kind: type, n: int) -> float:
    """Return the bytes per timer of a peer from Python's allocator; no two timers share an int."""
    data = timers(random, n)
    gc.collect()  # otherwise tuples may come from a free list, which is not counted
    tracemalloc.start()
    peer = kind()
    each(peer.push, rows(data.times, data.keys))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(peer.live) == n
    return size / n


MEMORY: dict[str, Callable[[int], float]] = {
    "timerheap": held_by_ours,
    "heapq + set": lambda n: held_by_peer(HeapqSet, n),
    "sortedcontainers": lambda n: held_by_peer(SortedListSet, n),
}
