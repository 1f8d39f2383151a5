"""Rows that a function gets, in order of arrival, before a timer that was due earlier."""

from __future__ import annotations

from heapq import heappop

import numpy as np

from timerheap._native._heap import IdIndex
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import KeyedRows

__all__ = ["RowsAhead"]


class RowsAhead:
    """Counts the rows that were processed ahead of a due timer of their key, and describes the first.

    In event-time order the timer would have fired first. A timer is due if its timestamp is at most the
    watermark that follows on the rows.

    Attributes
    ----------
    count : int
        The number of such rows so far.
    first : str or None
        A message about the first of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: str | None = None
        self._timers: dict[int, list[int]] = {}

    def begin(self, group: KeyGroup, watermark: int) -> None:
        """Begin the rows of a key group, on which `watermark` follows."""
        self._group, self._watermark = group, watermark

    def due(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the key ids and the timestamps of the due timers, both of shape (n,)."""
        heap = self._group.event_timers.heap
        rows = heap._due_rows(self._watermark)
        return heap.key_hashes[rows], heap.timestamps[rows]

    def due_by_key(self) -> dict[int, list[int]]:
        """Return a heap of the timestamps of the due timers of each key, to which more may be pushed."""
        ids, timestamps = self.due()
        order = np.argsort(timestamps)  # a sorted list is a heap
        self._timers = {}
        for id_, timestamp in zip(ids[order].tolist(), timestamps[order].tolist(), strict=True):
            self._timers.setdefault(id_, []).append(timestamp)
        return self._timers

    def check(self, id_: int, timestamp: int) -> None:
        """Check a row of a key in `due_by_key` that is about to be processed."""
        timers, heap = self._timers[id_], self._group.event_timers.heap
        while (timers[0], id_, 0) not in heap:  # deleted
            heappop(timers)
            if not timers:
                del self._timers[id_]
                return
        if timers[0] < timestamp:
            self._add(1, timestamp, timers[0])

    def check_many(self, rows: KeyedRows, before: tuple[np.ndarray, np.ndarray]) -> None:
        """Check rows that were processed in one call; `before` is what `due` returned before the call."""
        ids, timestamps = (np.concatenate(pair) for pair in zip(before, self.due(), strict=True))
        if not len(ids):
            return
        latest_first = np.argsort(timestamps)[::-1]
        earliest = IdIndex()
        earliest.put_many(ids[latest_first], timestamps[latest_first])  # of an id the last value stays
        timers, found = earliest.find_many(rows.ids)
        ahead = np.flatnonzero(found & (timers < rows.timestamps))
        if len(ahead):
            row = ahead[0]
            self._add(len(ahead), int(rows.timestamps[row]), int(timers[row]))

    def _add(self, count: int, timestamp: int, timer: int) -> None:
        self.count += count
        if self.first is None:
            self.first = (
                f"in order of arrival, a row with timestamp {timestamp} was processed before a timer of its "
                f'key at {timer}, which was due; order="event_time" fires the timer first'
            )
