"""Sums of doubles equal those of fractions, whatever the order, and are rounded once."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from timerheap._native._core import SUM_BASE, SUM_DIGITS, add_sums, round_sums, sum_doubles

SPECIAL = [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1.7e308, -1.7e308, 0.1, 1e17, -1e17]
UNENDING = [math.nan, -math.nan, math.inf, -math.inf]


def double(rng: random.Random) -> float:
    kind = rng.randrange(6)
    if kind == 0:
        found: float = struct.unpack("d", rng.randbytes(8))[0]
        return found
    if kind == 1:
        return rng.choice(SPECIAL if rng.random() < 0.8 else UNENDING)
    return rng.choice([rng.uniform(-1, 1), float(rng.randrange(-99, 99)), math.ldexp(rng.uniform(-1, 1), 40)])


def as_double(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def model(pairs: Sequence[tuple[float, int]]) -> float:
    nan, plus, minus = (
        sum(weight for value, weight in pairs if (value != value if one != one else value == one)) > 0
        for one in (math.nan, math.inf, -math.inf)
    )
    if nan or (plus and minus):
        return math.nan
    if plus or minus:
        return math.inf if plus else -math.inf
    finite = (Fraction(value) * weight for value, weight in pairs if math.isfinite(value))
    return as_double(sum(finite, Fraction()))


def grouped(numbers: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    return np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=groups)


def offsets(lengths: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(lengths))


def fraction(entries: np.ndarray) -> Fraction:
    pairs = zip((entries >> 48).tolist(), ((entries << 16) >> 16).tolist(), strict=True)
    return Fraction(sum(digit << 32 * place for place, digit in pairs if place < SUM_DIGITS), 1 << SUM_BASE)


@pytest.mark.parametrize("seed", range(200))
def test_sums_are_those_of_fractions(seed: int) -> None:
    rng = random.Random(seed)
    n, groups = rng.randrange(40), rng.randrange(1, 6)
    values = np.array([double(rng) for _ in range(n)])
    weights = np.array([rng.choice([1, 1, -1]) for _ in range(n)], np.int64)
    numbers = np.array([rng.randrange(groups) for _ in range(n)], np.int64)
    lengths, entries = sum_doubles(values, weights, *grouped(numbers, groups))
    found = round_sums(entries, offsets(lengths))
    pairs = list(zip(values.tolist(), weights.tolist(), strict=True))
    wanted = [model([pairs[at] for at in np.flatnonzero(numbers == group)]) for group in range(groups)]
    np.testing.assert_array_equal(found, wanted)
    # The same entries in two parts, of rows in a different order.
    order = np.array(rng.sample(range(n), n), np.int64)
    some = [order[: n // 3], order[n // 3 :]]
    parts = [sum_doubles(values[rows], weights[rows], *grouped(numbers[rows], groups)) for rows in some]
    both = np.tile(np.arange(groups), 2)
    again = add_sums(
        np.concatenate([part[1] for part in parts]),
        offsets(np.concatenate([part[0] for part in parts])),
        *grouped(both, groups),
    )
    np.testing.assert_array_equal(again[0], lengths)
    np.testing.assert_array_equal(again[1], entries)


@pytest.mark.parametrize("seed", range(50))
def test_squares_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    values = [double(rng) for _ in range(20)]
    finite = np.array([value for value in values if math.isfinite(value)])
    lengths, entries = sum_doubles(finite, None, np.arange(len(finite)), np.array([len(finite)]), power=2)
    assert lengths.tolist() == [len(entries)]
    assert fraction(entries) == sum((Fraction(value) ** 2 for value in finite.tolist()), Fraction())


def test_what_comes_and_goes_leaves_nothing() -> None:
    values = np.array([0.1, 1e300, math.nan, math.inf, -math.inf] * 2)
    weights = np.array([1] * 5 + [-1] * 5)
    lengths, entries = sum_doubles(values, weights, np.arange(10), np.array([10]))
    assert lengths.tolist() == [0]
    assert not len(entries)
    assert round_sums(entries, np.array([0, 0])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("units", "wanted"),
    [
        ((1 << 53) + 1, float(1 << 53)),
        ((1 << 53) + 3, float((1 << 53) + 4)),
        ((1 << 80) + (1 << 27) + 1, None),
    ],
)
def test_halves_are_rounded_to_even(units: int, wanted: float | None) -> None:
    parts = [float(1 << bit) for bit in range(units.bit_length()) if units >> bit & 1]
    lengths, entries = sum_doubles(np.array(parts), None, np.arange(len(parts)), np.array([len(parts)]))
    assert round_sums(entries, offsets(lengths)).tolist() == [float(units) if wanted is None else wanted]


def test_arguments_are_checked() -> None:
    values, order = np.ones(2), np.arange(2)
    with pytest.raises(ValueError, match="order must be of rows from 0 to 1"):
        sum_doubles(values, None, order + 1, np.array([2]))
    with pytest.raises(ValueError, match="sizes must add up to the 2 rows"):
        sum_doubles(values, None, order, np.array([3]))
    with pytest.raises(ValueError, match="offsets must be from 0 to 1"):
        round_sums(np.zeros(1, np.int64), np.array([0, 2]))
    with pytest.raises(ValueError, match="offsets must not descend"):
        round_sums(np.zeros(1, np.int64), np.array([0, 2, 1]))
    for entry in (-1, 1 << 62):
        with pytest.raises(ValueError, match="entries must be of places that a sum has"):
            round_sums(np.array([entry]), np.array([0, 1]))
        with pytest.raises(ValueError, match="entries must be of places that a sum has"):
            add_sums(np.array([entry]), np.array([0, 1]), np.array([0]), np.array([1]))
