"""While many timers are due, the watermark rises in steps of as many as fire in a short time."""

from __future__ import annotations

import numpy as np
import pytest

from timerheap import TimerHeap
from timerheap.spark._real_time.slices import Slices


def heap_of(times: np.ndarray) -> TimerHeap:
    heap = TimerHeap()
    heap.push_many(times, np.arange(len(times)), 0)
    return heap


def steps(times: np.ndarray, newest: int, slices: Slices, seconds: float = 0.03) -> list[int]:
    """Return how many timers fire in each step until the watermark is the newest."""
    counts, before, heap = [], -1, heap_of(times)
    while before < newest:
        reached = slices.reach([heap], before, newest)
        assert before < reached <= newest
        counts.append(len(heap.pop_due(reached)))
        before = reached
        slices.took(seconds)
    return counts


@pytest.mark.parametrize("newest", [1_000, 10_000])
def test_a_million_timers_of_a_second_fire_in_steps(newest: int) -> None:
    times = np.random.default_rng(1).integers(0, 1_000, 1_000_000)
    counts = steps(times, newest, Slices())
    assert sum(counts) == 1_000_000
    assert max(counts) < 10_000
    assert len(counts) < 400


def test_few_timers_and_those_of_one_time_fire_in_one_step() -> None:
    assert steps(np.arange(4_000), 10_000, Slices()) == [4_000]
    assert max(steps(np.full(1_000_000, 7), 10_000, Slices())) == 1_000_000


def test_timers_of_the_past_do_not_stop_the_watermark() -> None:
    times = np.full(100_000, -50)
    assert Slices().reach([heap_of(times)], 100, 10_000) == 101


def test_steps_that_take_long_become_shorter_and_others_longer() -> None:
    times = np.arange(1_000_000) // 10
    slow, quick = Slices(), Slices()
    before, after = steps(times, 2_000, slow, 0.3)[:2]
    assert after < 0.6 * before
    before, after = steps(times, 2_000, quick, 0.001)[:2]
    assert after > 1.5 * before
