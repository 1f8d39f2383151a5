"""Timers in plain Python: heapq with a set of the live timers; deleted entries are skipped by pops."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

Entry = tuple[int, int]


class HeapqSet:
    """Timers (timestamp, key_hash) with the identity of a `TimerHeap`."""

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.live: set[Entry] = set()

    def fill(self, timers: Iterable[Entry]) -> None:
        """Push in bulk, with the result of single pushes."""
        self.heap.extend(timers)
        heapify(self.heap)
        self.live.update(self.heap)

    def push(self, timestamp: int, key_hash: int) -> bool:
        entry = (timestamp, key_hash)
        if entry in self.live:
            return False
        self.live.add(entry)
        heappush(self.heap, entry)
        return True

    def remove(self, timestamp: int, key_hash: int) -> bool:
        entry = (timestamp, key_hash)
        if entry not in self.live:
            return False
        self.live.remove(entry)
        return True

    def reschedule(self, timestamp: int, new_timestamp: int, key_hash: int) -> bool:
        return self.remove(timestamp, key_hash) and self.push(new_timestamp, key_hash)

    def pop(self) -> Entry:
        while True:
            entry = heappop(self.heap)
            if entry in self.live:
                self.live.remove(entry)
                return entry

    def pop_due(self, watermark: int) -> list[Entry]:
        due = []
        while self.heap and self.heap[0][0] <= watermark:
            entry = heappop(self.heap)
            if entry in self.live:
                self.live.remove(entry)
                due.append(entry)
        return due


class HeapqDict:
    """Timers with the identity of a `KeyTimerHeap`; pops skip the old entries of moved timers."""

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.at: dict[int, int] = {}

    def fill(self, timers: Iterable[Entry]) -> None:
        """Push in bulk, for timers with distinct keys."""
        self.heap.extend(timers)
        heapify(self.heap)
        self.at.update((key_hash, timestamp) for timestamp, key_hash in self.heap)

    def push(self, timestamp: int, key_hash: int) -> bool:
        new = key_hash not in self.at
        self.at[key_hash] = timestamp
        heappush(self.heap, (timestamp, key_hash))
        return new
