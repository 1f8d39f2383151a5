"""Timers in a SortedList of sortedcontainers, with a set for fast membership tests."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedList

Entry = tuple[int, int]


class SortedListSet:
    """Timers (timestamp, key_hash) with the identity of a `TimerHeap`."""

    def __init__(self) -> None:
        self.list: SortedList[Entry] = SortedList()
        self.live: set[Entry] = set()

    def fill(self, timers: Iterable[Entry]) -> None:
        """Push in bulk, with the result of single pushes."""
        self.list.update(timers)
        self.live.update(self.list)

    def push(self, timestamp: int, key_hash: int) -> bool:
        entry = (timestamp, key_hash)
        if entry in self.live:
            return False
        self.live.add(entry)
        self.list.add(entry)
        return True

    def remove(self, timestamp: int, key_hash: int) -> bool:
        entry = (timestamp, key_hash)
        if entry not in self.live:
            return False
        self.live.remove(entry)
        self.list.remove(entry)
        return True

    def reschedule(self, timestamp: int, new_timestamp: int, key_hash: int) -> bool:
        return self.remove(timestamp, key_hash) and self.push(new_timestamp, key_hash)

    def pop(self) -> Entry:
        entry: Entry = self.list.pop(0)
        self.live.remove(entry)
        return entry

    def pop_due(self, watermark: int) -> list[Entry]:
        end = self.list.bisect_left((watermark + 1,))
        due: list[Entry] = self.list[:end]
        del self.list[:end]
        self.live.difference_update(due)
        return due


class SortedListDict:
    """Timers with the identity of a `KeyTimerHeap`."""

    def __init__(self) -> None:
        self.list: SortedList[Entry] = SortedList()
        self.at: dict[int, int] = {}

    def fill(self, timers: Iterable[Entry]) -> None:
        """Push in bulk, for timers with distinct keys."""
        self.list.update(timers)
        self.at.update((key_hash, timestamp) for timestamp, key_hash in self.list)

    def push(self, timestamp: int, key_hash: int) -> bool:
        old = self.at.get(key_hash)
        if old is not None:
            self.list.remove((old, key_hash))
        self.at[key_hash] = timestamp
        self.list.add((timestamp, key_hash))
        return old is None
