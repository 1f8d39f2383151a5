"""Event-time order for many keys at once: waves, in which each key has at most one row or one timer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timerheap.spark._group.staged_timers import StagedTimers
from timerheap.timer import TimerBatch

__all__ = ["fire_before", "fire_rest"]

Fire = Callable[[np.ndarray, TimerBatch], None]


def fire_before(staged: StagedTimers, numbers: np.ndarray, timestamps: np.ndarray, fire: Fire) -> None:
    """Fire the timers of these keys that are due before their rows of these times, one of a key at a time."""
    if len(numbers) == 1:
        _fire_before_one(staged, numbers, timestamps.item(), fire)
        return
    due = staged.next[numbers] < timestamps
    if np.count_nonzero(due):  # faster than any()
        due &= staged.watermarks[numbers] < timestamps - 1  # no timer comes between rows of one timestamp
    while np.count_nonzero(due):
        numbers, timestamps = numbers[due], timestamps[due]
        _fire(staged, numbers, fire)
        due = staged.next[numbers] < timestamps


def _fire_before_one(staged: StagedTimers, numbers: np.ndarray, timestamp: int, fire: Fire) -> None:
    """Do the same for one key, in a fraction of the time: a key with many rows has as many waves."""
    number = numbers.item()
    if staged.watermarks.item(number) < timestamp - 1:
        while staged.next.item(number) < timestamp:
            _fire(staged, numbers, fire)


def fire_rest(staged: StagedTimers, fire: Fire) -> None:
    """Fire all staged timers, one of a key at a time."""
    while len(numbers := np.flatnonzero(staged.staged)):
        while len(numbers):
            _fire(staged, numbers, fire)
            numbers = numbers[staged.staged[numbers]]


def _fire(staged: StagedTimers, numbers: np.ndarray, fire: Fire) -> None:
    numbers, due = staged.take(numbers)
    if len(due):
        fire(numbers, due)
