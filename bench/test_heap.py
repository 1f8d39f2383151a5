"""The heaps beside heapq + set: each operation at 1e4 and 1e6 timers, ours and the peer's in turn.

$ python -m pytest bench/test_heap.py --benchmark-json=heap.json && python bench/report.py heap.json
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from heapq_set import HeapqDict, HeapqSet

from timerheap import KeyTimerHeap, TimerHeap

SPAN = 10**9  # timestamps are spread over 11 days


class Timers:
    """n random timers in two orders, as columns and as Python's ints, so that neither side has to convert."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(20130101)
        self.n, chosen = n, rng.permutation(n)
        self.times, self.moved = rng.integers(0, SPAN, (2, n))
        self.keys = rng.integers(-(2**63), 2**63, n)
        self.rows = list(zip(self.times.tolist(), self.keys.tolist(), strict=True))
        self.chosen = self.times[chosen], self.keys[chosen]
        self.chosen_rows = list(zip(*(column.tolist() for column in self.chosen), strict=True))
        self.changes = self.times[chosen], self.moved, self.keys[chosen]
        self.change_rows = list(zip(*(column.tolist() for column in self.changes), strict=True))
        self.move_rows = [row[1:] for row in self.change_rows]

    def heap(self) -> TimerHeap:
        heap = TimerHeap()
        heap.push_many(self.times, self.keys)
        return heap

    def key_heap(self) -> KeyTimerHeap:
        heap = KeyTimerHeap()
        heap.push_many(self.times, self.keys)
        return heap

    def peer(self, kind: type = HeapqSet) -> Any:
        peer = kind()
        each(peer.push, self.rows)
        return peer


timers = cache(Timers)


def each(call: Callable[..., object], rows: list[tuple[int, ...]]) -> None:
    for row in rows:
        call(*row)


def pops(heap: Any, n: int) -> None:
    pop = heap.pop
    for _ in range(n):
        pop()


class Side(NamedTuple):
    start: Callable[[Timers], Any]  # what the operation is run on
    run: Callable[[Timers, Any], object]


def due(share: float) -> tuple[Side, Side]:
    watermark = int(SPAN * share)
    return (
        Side(Timers.heap, lambda t, heap: heap.pop_due(watermark)),
        Side(Timers.peer, lambda t, peer: peer.pop_due(watermark)),
    )


# operation: ours, the peer's, how much of n it handles
OPERATIONS: dict[str, tuple[Side, Side, float]] = {
    "push": (
        Side(lambda t: TimerHeap(), lambda t, heap: each(heap.push, t.rows)),
        Side(lambda t: HeapqSet(), lambda t, peer: each(peer.push, t.rows)),
        1,
    ),
    "push_many": (
        Side(lambda t: TimerHeap(), lambda t, heap: heap.push_many(t.times, t.keys)),
        Side(lambda t: HeapqSet(), lambda t, peer: each(peer.push, t.rows)),
        1,
    ),
    "remove": (
        Side(Timers.heap, lambda t, heap: each(heap.remove, t.chosen_rows)),
        Side(Timers.peer, lambda t, peer: each(peer.remove, t.chosen_rows)),
        1,
    ),
    "remove_many": (
        Side(Timers.heap, lambda t, heap: heap.remove_many(*t.chosen)),
        Side(Timers.peer, lambda t, peer: each(peer.remove, t.chosen_rows)),
        1,
    ),
    "reschedule": (
        Side(Timers.heap, lambda t, heap: each(heap.reschedule, t.change_rows)),
        Side(Timers.peer, lambda t, peer: each(peer.reschedule, t.change_rows)),
        1,
    ),
    "reschedule_many": (
        Side(Timers.heap, lambda t, heap: heap.reschedule_many(*t.changes)),
        Side(Timers.peer, lambda t, peer: each(peer.reschedule, t.change_rows)),
        1,
    ),
    "push_many that moves": (
        Side(Timers.key_heap, lambda t, heap: heap.push_many(t.moved, t.changes[2])),
        Side(lambda t: t.peer(HeapqDict), lambda t, peer: each(peer.push, t.move_rows)),
        1,
    ),
    "pop": (
        Side(Timers.heap, lambda t, heap: pops(heap, t.n // 10)),
        Side(Timers.peer, lambda t, peer: pops(peer, t.n // 10)),
        0.1,
    ),
    "pop_due, all due": (*due(1), 1),
    "pop_due, 10 % due": (*due(0.1), 0.1),
    "pop_due, 1 % due": (*due(0.01), 0.01),
}


@pytest.mark.benchmark(timer=time.process_time)  # what others do on the machine costs us caches, but no time
@pytest.mark.parametrize("side", ["timerheap", "heapq + set"])
@pytest.mark.parametrize("n", [10**4, 10**6])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(benchmark: Any, operation: str, n: int, side: str) -> None:
    *sides, share = OPERATIONS[operation]
    start, run = sides[side != "timerheap"]
    data = timers(n)
    benchmark.group = f"{operation}, n = {n:.0e}"
    benchmark.extra_info.update(operation=operation, n=n, side=side, timers=round(n * share))

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        gc.collect()
        return (data, start(data)), {}

    gc.disable()  # as timeit does
    try:
        benchmark.pedantic(run, setup=setup, rounds=5 if n > 10**5 else 20, warmup_rounds=1)
    finally:
        gc.enable()


@pytest.mark.parametrize("side", ["timerheap", "heapq + set"])
@pytest.mark.parametrize("n", [10**4, 10**6])
def test_bytes_a_timer(benchmark: Any, n: int, side: str) -> None:
    """Memory after n single pushes, room to grow included; the peer's as its allocator counts it."""
    rows = timers(n).rows

    def held() -> float:
        if side == "timerheap":
            heap = TimerHeap()
            each(heap.push, rows)
            return heap.nbytes / n
        tracemalloc.start()
        peer = HeapqSet()
        # As timers arrive in real life: each with ints of its own.
        each(peer.push, [(timestamp + 0, key + 0) for timestamp, key in rows])
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(peer.live) == n
        return size / n

    result = benchmark.pedantic(held, rounds=1)
    benchmark.extra_info.update(operation="bytes a timer", n=n, side=side, bytes=result)
