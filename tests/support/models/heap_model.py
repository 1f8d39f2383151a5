"""Simple models of the heaps in Python, for comparison with the native heaps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Due(NamedTuple):
    timestamp: int
    key_hash: int
    namespace: int


class TimerHeapModel:
    """A set of timers that is sorted when the first one is needed."""

    def __init__(self, timers: Iterable[tuple[int, int, int]] = ()) -> None:
        self.timers = {Due(*timer) for timer in timers}

    def push(self, timestamp: int, key_hash: int, namespace: int = 0) -> bool:
        new = (timestamp, key_hash, namespace) not in self.timers
        self.timers.add(Due(timestamp, key_hash, namespace))
        return new

    def remove(self, timestamp: int, key_hash: int, namespace: int = 0) -> bool:
        there = (timestamp, key_hash, namespace) in self.timers
        self.timers.discard(Due(timestamp, key_hash, namespace))
        return there

    def reschedule(self, timestamp: int, new_timestamp: int, key_hash: int, namespace: int = 0) -> bool:
        there = self.remove(timestamp, key_hash, namespace)
        if there:
            self.push(new_timestamp, key_hash, namespace)
        return there

    def peek(self) -> Due | None:
        return min(self.timers, default=None)

    def pop(self) -> Due:
        first = min(self.timers)
        self.timers.remove(first)
        return first

    def count_due(self, watermark: int) -> int:
        return sum(timer.timestamp <= watermark for timer in self.timers)

    def pop_due(self, watermark: int, limit: int | None = None) -> list[Due]:
        due = sorted(timer for timer in self.timers if timer.timestamp <= watermark)[:limit]
        self.timers.difference_update(due)
        return due

    def remove_keys(self, key_hashes: Iterable[int]) -> int:
        before = len(self.timers)
        self.timers = {timer for timer in self.timers if timer.key_hash not in set(key_hashes)}
        return before - len(self.timers)

    def clear(self) -> None:
        self.timers = set()


class KeyTimerHeapModel(TimerHeapModel):
    """A model with one timer for each (key_hash, namespace)."""

    def push(self, timestamp: int, key_hash: int, namespace: int = 0) -> bool:
        new = not self.remove(key_hash, namespace)
        self.timers.add(Due(timestamp, key_hash, namespace))
        return new

    def remove(self, key_hash: int, namespace: int = 0) -> bool:  # type: ignore[override]
        timestamp = self.timestamp_of(key_hash, namespace)
        self.timers.discard(Due(timestamp, key_hash, namespace))  # type: ignore[arg-type]
        return timestamp is not None

    def timestamp_of(self, key_hash: int, namespace: int = 0) -> int | None:
        found = [timer.timestamp for timer in self.timers if timer[1:] == (key_hash, namespace)]
        return found[0] if found else None
