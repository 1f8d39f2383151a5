"""A user's program, which only type checkers read: `make lint` runs mypy --strict over it."""

import copy
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from timerheap import KeyTimerHeap, Timer, TimerBatch, TimerHeap


def fire(heap: TimerHeap, watermark: int) -> list[Timer]:
    return list(heap.pop_due(watermark, limit=10))


def single_calls() -> None:
    heap = TimerHeap(capacity=100)
    assert_type(heap.push(5, key_hash=1), bool)
    assert_type(heap.push(np.int64(5), 1, namespace=2), bool)
    assert_type(heap.remove(5, 1), bool)
    assert_type(heap.reschedule(5, 6, key_hash=1), bool)
    assert_type(heap.peek(), Timer | None)
    assert_type(heap.pop().timestamp, int)
    assert_type(len(heap), int)
    assert_type((5, 1) in heap, bool)
    assert_type([timer.key_hash for timer in heap], list[int])
    heap.push("5", 1)  # type: ignore[arg-type]
    heap.push(5)  # type: ignore[call-arg]
    heap.timestamps = np.zeros(3, np.int64)  # type: ignore[misc]


def bulk_calls(timestamps: NDArray[np.int64], keys: NDArray[np.int32]) -> None:
    heap = TimerHeap()
    assert_type(heap.push_many(timestamps, keys), NDArray[np.bool_])
    assert_type(heap.push_many([1, 2], range(2), 0), NDArray[np.bool_])
    assert_type(heap.remove_many(timestamps, keys), NDArray[np.bool_])
    assert_type(heap.reschedule_many(timestamps, timestamps + 5, keys), NDArray[np.bool_])
    assert_type(heap.remove_keys(keys), int)
    assert_type(heap.count_due(9), int)
    assert_type(heap.pop_due(9), TimerBatch)
    assert_type(heap.timestamps, NDArray[np.int64])
    heap.reserve(1000)
    heap.clear()


def keyed() -> None:
    heap = KeyTimerHeap()
    assert_type(heap.remove(1), bool)
    assert_type(heap.timestamp_of(1), int | None)
    timestamps, found = heap.timestamps_of([1, 2])
    assert_type(timestamps, NDArray[np.int64])
    assert_type(found, NDArray[np.bool_])
    assert_type(1 in heap, bool)
    heap.reschedule(1, 2, 3)  # type: ignore[attr-defined]


def stored(heap: KeyTimerHeap) -> KeyTimerHeap:
    assert_type(copy.copy(heap), KeyTimerHeap)
    assert_type(heap.copy(), KeyTimerHeap)
    return KeyTimerHeap.from_bytes(memoryview(heap.to_bytes()))
