"""Event-time order for many keys at once: waves, in which each key has at most one row or one timer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from timerheap.spark._group.staged_timers import StagedTimers
from timerheap.timer import TimerBatch

__all__ = ["fire_before", "fire_rest", "wave_order"]

Fire = Callable[[np.ndarray, TimerBatch], None]


def wave_order(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order that puts the first row of each key before the second ones, and so on.

    Parameters
    ----------
    numbers : ndarray of int64, shape (n,)
        The number of each row's key, 0 to the number of keys; rows of a key are in their order.

    Returns
    -------
    order : ndarray of int64, shape (n,)
    stops : ndarray of int64
        Where each wave ends in that order.
    """
    counts = np.bincount(numbers)
    if counts.max(initial=0) <= 1:
        return np.arange(len(numbers)), np.array([len(numbers)])
    by_key = _stable_order(numbers)
    ranks = np.empty(len(numbers), np.int64)
    ranks[by_key] = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
    return _stable_order(ranks), np.cumsum(np.bincount(ranks))


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """Sort like a stable argsort; 16 bits at a time, which NumPy does in O(n)."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    high = numbers >> 16
    while high.any():
        order = order[np.argsort(high[order].astype(np.uint16), kind="stable")]
        high = high >> 16
    return order


def fire_before(staged: StagedTimers, numbers: np.ndarray, timestamps: np.ndarray, fire: Fire) -> None:
    """Fire the timers of these keys that are due before their rows of these times, one of a key at a time."""
    due = staged.next[numbers] < timestamps
    if np.count_nonzero(due):  # faster than any(), which counts with one key in a call
        due &= staged.watermarks[numbers] < timestamps - 1  # no timer comes between rows of one timestamp
    while np.count_nonzero(due):
        numbers, timestamps = numbers[due], timestamps[due]
        _fire(staged, numbers, fire)
        due = staged.next[numbers] < timestamps


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
