"""Rows that a function gets before a timer that event time would have fired first: counted, and warned of."""

from __future__ import annotations

from heapq import heappop

import numpy as np

from timerheap._native._core import IdIndex
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.timer import MAX_WATERMARK


def _earliest(ids: np.ndarray, timestamps: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the earliest timestamp of each wanted id, MAX_WATERMARK for one that is not in `ids`."""
    latest_first = np.argsort(timestamps)[::-1]
    earliest = IdIndex()
    earliest.put_many(ids[latest_first], timestamps[latest_first])  # of an id the last value stays
    timestamps, found = earliest.find_many(wanted)
    return np.where(found, timestamps, MAX_WATERMARK)


class RowsAhead:
    """Counts the rows that were processed ahead of a due timer of their key, and what else to warn of.

    In event-time order the timer would have fired first. A timer is due if its timestamp is at most the
    watermark that follows on the rows.

    count: the number of such rows so far
    warnings: a message about the first of them, and one about a timer that is far too early, by "about"
    """

    def __init__(self) -> None:
        self.count = 0
        self.warnings: dict[str, str] = {}
        self._timers: dict[int, list[tuple[int, int]]] = {}

    def begin(self, group: KeyGroup, watermark: int) -> None:
        """Begin the rows of a key group, on which `watermark` follows."""
        self._group, self._watermark = group, watermark

    def due(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the key ids and the timestamps of the due timers, both of shape (n,)."""
        heap = self._group.event_timers.heap
        rows = heap._due_rows(self._watermark)
        return heap.key_hashes[rows], heap.timestamps[rows]

    def due_by_key(self) -> dict[int, list[tuple[int, int]]]:
        """Return a heap of (timestamp, namespace) of each key's due timers, to which more may be pushed."""
        heap = self._group.event_timers.heap
        rows = heap._due_rows(self._watermark)
        columns = (column[rows].tolist() for column in (heap.timestamps, heap.key_hashes, heap.namespaces))
        due = sorted(zip(*columns, strict=True))
        self._timers = {}
        for timestamp, id_, namespace in due:  # a sorted list is a heap
            self._timers.setdefault(id_, []).append((timestamp, namespace))
        return self._timers

    def check(self, id_: int, timestamp: int) -> None:
        """Check a row of a key in `due_by_key` that is about to be processed."""
        timers, heap = self._timers[id_], self._group.event_timers.heap
        while (timers[0][0], id_, timers[0][1]) not in heap:  # deleted
            heappop(timers)
            if not timers:
                del self._timers[id_]
                return
        if timers[0][0] < timestamp:
            self._add(1, timestamp, timers[0][0])

    def check_many(self, rows: KeyedRows, before: tuple[np.ndarray, np.ndarray]) -> None:
        """Check rows that were processed in one call; `before` is what `due` returned before the call."""
        after = self.due()
        if not len(before[0]) + len(after[0]):
            return
        # The first row of a key may have moved a timer that was before its other rows.
        first = _earliest(rows.ids, rows.timestamps, rows.ids) == rows.timestamps
        timers = np.where(first, _earliest(*before, rows.ids), MAX_WATERMARK)
        timers = np.minimum(timers, _earliest(*after, rows.ids))
        ahead = np.flatnonzero(timers < rows.timestamps)
        if len(ahead):
            row = ahead[0]
            self._add(len(ahead), int(rows.timestamps[row]), int(timers[row]))

    def _add(self, count: int, timestamp: int, timer: int) -> None:
        self.count += count
        if "rows ahead" not in self.warnings:
            self.warnings["rows ahead"] = (
                f"in order of arrival, a row with timestamp {timestamp} was processed before a timer of its "
                f'key at {timer}, which was due; order="event_time" fires the timer first'
            )

    def too_early(self, timer: int, now: int) -> None:
        """Warn of a timer that is more than 30 years before its row."""
        if "too early" not in self.warnings:
            self.warnings["too early"] = (
                f"a timer was registered for {timer}, more than 30 years before {now}, the time of its row; "
                "timers are in epoch milliseconds: pass seconds * 1000, or a datetime"
            )
