"""Sums of doubles without any rounding, in whatever order they are added and taken away again.

A sum is an integer of many bits in balanced digits of 32 bits. Those that are not 0 are a list of
entries, as `csrc/th_sum.h` says. It is the same list however the sum has come about. NaN and
infinities are counted beside the digits. Reading rounds once, to the nearest double.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from timerheap._native._core import SUM_DIGITS, add_sums, round_sums, sum_doubles
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._changes.aggregates.row_groups import RowGroups

TYPE = pa.list_(pa.int64())


def sums_of(values: np.ndarray, weights: np.ndarray | None, groups: RowGroups, power: int = 1) -> pa.Array:
    """Return the sum of values, or of their squares, in each group, each as often as its weight says.

    values: float64, shape (n,), with 0 where there is none
    """
    return _sums_in(*sum_doubles(values, weights, groups.order, groups.sizes, power))


def added_sums(sums: pa.Array, groups: RowGroups) -> pa.Array:
    """Return the sum of the sums in each group; null is 0."""
    try:
        return _sums_in(*add_sums(*_columns(sums), groups.order, groups.sizes))
    except ValueError as e:
        raise _damaged(e) from None


def rounded(sums: pa.Array) -> np.ndarray:
    """Return the doubles nearest to sums: float64, shape (n,)."""
    try:
        return round_sums(*_columns(sums))
    except ValueError as e:
        raise _damaged(e) from None


def _damaged(e: ValueError) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"a sum must have digits at places that there are: {e}")


def _columns(sums: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of all sums, and where those of each begin."""
    lengths = np.asarray(sums.value_lengths().fill_null(0))
    return sums.flatten().to_numpy(), np.append(0, np.cumsum(lengths, dtype=np.int64))


def _sums_in(lengths: np.ndarray, entries: np.ndarray) -> pa.Array:
    offsets = np.append(0, np.cumsum(lengths))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(entries))


def as_integers(sums: pa.Array) -> Iterator[int | None]:
    """Yield sums as integers, in units of 2 ** -SUM_BASE; None where there is NaN or an infinity."""
    packed, offsets = _columns(sums)
    entries = list(zip((packed >> 48).tolist(), ((packed << 16) >> 16).tolist(), strict=True))
    for start, stop in pairwise(offsets.tolist()):
        some = entries[start:stop]
        special = any(place >= SUM_DIGITS and digit > 0 for place, digit in some)
        yield None if special else sum(digit << 32 * place for place, digit in some if place < SUM_DIGITS)
