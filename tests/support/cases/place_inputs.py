"""Inputs of the fuzzer for the numbers of places and the order of waves, beside a model in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from timerheap._native._core import PlaceNumbers, wave_order

MOST_CALLS = 4  # per input, for speed
EXTREMES = (-1, -(2**63), 2**63 - 1, 2**32, 2**31)
END = 255  # the byte between the arguments of two calls


def values(data: bytes) -> list[int]:
    """Return a small number for each byte, or an extreme one for the largest bytes."""
    return [EXTREMES[byte % len(EXTREMES)] if byte >= 240 else byte % 48 for byte in data]


def column(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


def place_calls(places: int, data: bytes) -> None:
    """Number places, of which the last call has each one."""
    numbers, twin = PlaceNumbers(places), dict[int, int]()
    for part in data.split(bytes([END]))[:MOST_CALLS]:
        wanted = values(part)
        good = next((i for i, place in enumerate(wanted) if not 0 <= place < places), len(wanted))
        before = len(twin)
        expected = [(twin.setdefault(place, len(twin)), len(twin)) for place in wanted[:good]]
        if good < len(wanted):
            try:
                numbers.number_many(column(wanted))
            except ValueError:
                assert before <= len(numbers) <= len(twin)
                return
            raise AssertionError("a place that is not there got a number")
        found, added = numbers.number_many(column(wanted))
        assert found.tolist() == [number for number, _ in expected]
        sizes = [before, *(size for _, size in expected)]
        assert added.tolist() == [size > last for last, size in pairwise(sizes)]
        assert len(numbers) == len(twin)
    every, _ = numbers.number_many(np.arange(places))
    assert sorted(every.tolist()) == list(range(places))
    assert all(every[place] == number for place, number in twin.items())


def wave_calls(keys: int, data: bytes) -> None:
    """Order rows by waves; rows and numbers may be out of range."""
    head, _, tail = data.partition(bytes([END]))
    rows, numbers = values(head), values(tail)
    fit = all(0 <= row < len(numbers) and 0 <= numbers[row] < keys for row in rows)
    try:
        order, ordered, stops = wave_order(column(rows), column(numbers), keys)
    except ValueError:
        assert not fit, "good rows were refused"
        return
    assert fit, "bad rows were accepted"
    waves: list[list[int]] = []
    seen: dict[int, int] = {}
    for row in rows:
        rank = seen[numbers[row]] = seen.get(numbers[row], -1) + 1
        waves += [[]] * (rank == len(waves))
        waves[rank] = [*waves[rank], row]
    wanted = [row for wave in waves for row in wave]
    assert order.tolist() == wanted
    assert ordered.tolist() == [numbers[row] for row in wanted]
    assert stops.tolist() == np.cumsum([len(wave) for wave in waves]).tolist()


def run(data: bytes) -> None:
    """Run an input: the first byte says what, and how many places or keys there are."""
    if data:
        (place_calls if data[0] & 1 else wave_calls)(data[0] >> 1, data[1:])


def seeds() -> Iterator[bytes]:
    """Yield the initial inputs: some of each kind, good and bad."""
    rng = np.random.default_rng(0)
    for first in (0, 1, 2, 3, 20, 21, 96, 97):
        yield bytes([first])
        for most in (first // 2 + 1, 256):
            yield bytes([first, *rng.integers(0, most, 20), END, *rng.integers(0, most, 40)])
