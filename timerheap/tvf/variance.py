"""VAR_POP, VAR_SAMP, STDDEV_POP and STDDEV_SAMP, numerically stable under any order of merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.aggregate import Accumulators, Field, FieldAggregate, Signs
from timerheap.tvf.columns import Groups, Nullable
from timerheap.tvf.grid import Cells, scan_by_doubling

__all__ = ["StddevPop", "StddevSamp", "VarPop", "VarSamp"]

_FLOAT64 = np.dtype(np.float64)


class VarPop(FieldAggregate):
    """VAR_POP of a column: the mean squared distance from the mean; null where there is no value.

    Parameters
    ----------
    column : str
        A numeric column, converted to float64.

    Notes
    -----
    An accumulator is the count, the mean and the sum of squared distances from the mean, computed in two
    passes over a batch and merged by the formulas of Chan, Golub and LeVeque (1979), so a small variance
    around a large mean is accurate. Retracted rows have an accumulator of their own, subtracted at the end.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> spread = Aggregation([VarPop("v"), StddevSamp("v")])
    >>> values = spread.accumulate([7, 7, 7], np.array([60] * 3), {"v": [1e9, 1e9 + 1, 1e9 + 2]})
    >>> [result.item() for result in spread.results(values)]
    [0.6666666666666666, 1.0]
    """

    function: ClassVar[str] = "var_pop"
    _sample: ClassVar[int] = 0
    _root: ClassVar[bool] = False

    def __init__(self, column: str) -> None:
        fields = [
            Field(f"{part}{side}", np.dtype(dtype), np.add, 0)  # the ufunc is unused: merge is overridden
            for side in ("", "_retracted")
            for part, dtype in (("count", np.int64), ("mean", np.float64), ("m2", np.float64))
        ]
        super().__init__([column], np.float64, f"{self.function}({column})", fields)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns that `from_parts` expects: the moments of rows without retraction."""
        return self.fields[:3]

    def from_parts(self, *parts: object) -> Accumulators:
        """Build accumulators from counts, means and sums of squared distances."""
        columns = self._columns(parts, [np.dtype(np.int64), _FLOAT64, _FLOAT64])
        moments = tuple(np.where(column.valid, column.values, 0) for column in columns)
        return (*moments, *(np.zeros_like(column) for column in moments))

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable], signs: Signs) -> Accumulators:
        """Compute the moments of each group."""
        (values, valid) = inputs[0]
        if signs is None:
            nothing = np.zeros(len(groups.starts))
            return (*_moments(groups, values, valid), nothing.astype(np.int64), nothing, nothing)
        coming = _moments(groups, values, valid & (signs > 0))
        return (*coming, *_moments(groups, values, valid & (signs < 0)))

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Merge the moments of each group."""
        columns = [np.asarray(column)[groups.order] for column in accumulators]
        return (*_merge(groups, *columns[:3]), *_merge(groups, *columns[3:]))

    def combine(self, left: Cells, right: Cells) -> Cells:
        """Merge two columns of accumulators, element by element."""
        return (*_chan(left[:3], right[:3]), *_chan(left[3:], right[3:]))

    def scan(self, cells: Cells) -> Cells:
        """Merge each accumulator with all accumulators before it in its line."""
        return scan_by_doubling(cells, self.combine)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the variances, or the standard deviations."""
        count, mean, m2, gone, gone_mean, gone_m2 = (np.asarray(column) for column in accumulators)
        left = count - gone
        null = left <= self._sample
        with np.errstate(invalid="ignore", over="ignore"):
            rows = np.where(left <= 0, 1, left)
            # The moments of the remaining rows: those of all rows less those of the retracted ones.
            rest_mean = mean + gone * (mean - gone_mean) / rows
            all_around = m2 + count * (mean - rest_mean) ** 2
            gone_around = gone_m2 + gone * (gone_mean - rest_mean) ** 2
            rest = np.where(gone == 0, m2, np.maximum(all_around - gone_around, 0))
            variance = rest / np.where(null, 1, left - self._sample)
            return np.ma.masked_array(np.sqrt(variance) if self._root else variance, null)


class VarSamp(VarPop):
    """VAR_SAMP of a column: like `VarPop`, but divided by the count minus 1; null for a single value.

    Parameters
    ----------
    column : str
        A numeric column, converted to float64.
    """

    function = "var_samp"
    _sample = 1


class StddevPop(VarPop):
    """STDDEV_POP of a column: the square root of `VarPop`.

    Parameters
    ----------
    column : str
        A numeric column, converted to float64.
    """

    function = "stddev_pop"
    _root = True


class StddevSamp(VarSamp):
    """STDDEV_SAMP of a column: the square root of `VarSamp`.

    Parameters
    ----------
    column : str
        A numeric column, converted to float64.
    """

    function = "stddev_samp"
    _root = True


def _moments(groups: Groups, values: NDArray[Any], valid: NDArray[np.bool_]) -> tuple[NDArray[Any], ...]:
    order, starts, sizes = groups
    weights = valid[order].astype(np.int64)
    counts = np.add.reduceat(weights, starts)
    ordered = np.where(valid, values, 0)[order]
    rows = np.maximum(counts, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(ordered, starts) / rows
        away = np.where(weights == 1, ordered - np.repeat(mean, sizes), 0)
        # The remaining sum of the distances corrects the rounding of the mean.
        drift = np.add.reduceat(away, starts)
        m2 = np.add.reduceat(away * away, starts) - drift * drift / rows
        return counts, mean + drift / rows, np.maximum(m2, 0)


def _merge(
    groups: Groups, count: NDArray[Any], mean: NDArray[Any], m2: NDArray[Any]
) -> tuple[NDArray[Any], ...]:
    """Merge many accumulators by Chan's formula, around the first mean and then around the common one."""
    starts, sizes = groups.starts, groups.sizes
    counts = np.add.reduceat(count, starts)
    rows = np.maximum(counts, 1)
    # The first accumulator of each group that has rows; any one if none of them has rows.
    first = np.minimum.reduceat(np.where(count > 0, np.arange(len(count)), len(count) - 1), starts)
    around = mean[first]
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(count > 0, mean - np.repeat(around, sizes), 0)
        shift = np.add.reduceat(count * away, starts) / rows
        rest = away - np.repeat(shift, sizes)
        total = np.add.reduceat(m2 + count * rest * rest, starts)
        return counts, np.where(counts == 0, 0, around + shift), total


def _chan(left: Cells, right: Cells) -> Cells:
    count = left[0] + right[0]
    with np.errstate(invalid="ignore", over="ignore"):
        away = right[1] - left[1]
        weight = right[0] / np.maximum(count, 1)
        # A side without rows has mean 0, which may be far from the other's, and must not contribute.
        mean = np.where(left[0] == 0, right[1], np.where(right[0] == 0, left[1], left[1] + away * weight))
        m2 = (
            left[2] + right[2] + np.where((left[0] == 0) | (right[0] == 0), 0, away * away * left[0] * weight)
        )
    return count, mean, m2
