"""Heaps with many timers, for tests of both kinds."""

from __future__ import annotations

import numpy as np
import pytest

from timerheap import KeyTimerHeap, TimerHeap

both = pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])


def columns(n: int, seed: int = 0, span: int = 10**9) -> tuple[np.ndarray, np.ndarray]:
    """Return random timestamps, and key hashes that are all different."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, span, n), rng.permutation(n)


def filled(kind: type[TimerHeap] | type[KeyTimerHeap], n: int) -> TimerHeap | KeyTimerHeap:
    """Return a heap of this kind with `n` timers."""
    heap = kind()
    assert heap.push_many(*columns(n)).all()
    return heap
