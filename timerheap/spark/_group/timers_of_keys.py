"""Answers about some of the timers in a heap that do not cost a scan of all of them."""

from __future__ import annotations

import numpy as np

from timerheap._native._heap import KeyTimerHeap, TimerHeap

__all__ = ["TimersOfKeys", "due_keys"]

_SCANS = 32


def due_keys(heap: TimerHeap | KeyTimerHeap, time: int, limit: int) -> np.ndarray:
    """Return the key ids of the timers up to `time`, or of the first `limit` to fire; O(due timers)."""
    rows = heap._due_rows(time)
    ids: np.ndarray = heap.key_hashes[rows]
    if len(rows) > limit:  # timers of one timestamp fire in the order of their keys
        times = heap.timestamps[rows]
        last = np.partition(times, limit - 1)[limit - 1]
        before, among = ids[times < last], ids[times == last]
        ids = np.concatenate([before, np.partition(among, limit - len(before) - 1)[: limit - len(before)]])
    return ids


class TimersOfKeys:
    """The timers of single keys in a `TimerHeap`.

    The first questions scan the heap. Further ones sort it once, and then cost what they return; timers that
    were pushed later are remembered.

    Parameters
    ----------
    heap : TimerHeap
    """

    def __init__(self, heap: TimerHeap) -> None:
        self._heap = heap
        self._scans = 0
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None  # key ids and timestamps, by key id
        self._pushed: dict[int, set[int]] = {}  # timestamps by key id, since then

    def push(self, timestamp: int, key_id: int) -> None:
        """Record a new timer."""
        if self._sorted is not None:
            self._pushed.setdefault(key_id, set()).add(timestamp)

    def timestamps(self, key_id: int) -> list[int]:
        """Return the timestamps of a key's timers, of namespace 0, in ascending order."""
        if self._sorted is None and self._scans < _SCANS:
            self._scans += 1
            rows = (self._heap.key_hashes == key_id) & (self._heap.namespaces == 0)
            scanned: list[int] = np.sort(self._heap.timestamps[rows]).tolist()
            return scanned
        if self._sorted is None:
            order = np.argsort(self._heap.key_hashes)
            self._sorted = self._heap.key_hashes[order], self._heap.timestamps[order]
        ids, timestamps = self._sorted
        start, stop = ids.searchsorted(key_id), ids.searchsorted(key_id, "right")
        found = {*timestamps[start:stop].tolist(), *self._pushed.get(key_id, ())}
        return sorted(timestamp for timestamp in found if (timestamp, key_id, 0) in self._heap)
