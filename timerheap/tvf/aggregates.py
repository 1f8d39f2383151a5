"""SQL's COUNT, SUM, AVG, MIN, MAX, variances and deviations."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.tvf.aggregate import (
    Accumulators,
    Cells,
    Field,
    FieldAggregate,
    object_ufunc,
    scan_by_doubling,
)
from timerheap.tvf.columns import Groups, Nullable

_INT64 = np.dtype(np.int64)
_LOW = 0xFFFFFFFF
_HALF = 1 << 31
_EXACT = Context(prec=100, rounding=ROUND_DOWN)  # any sum of decimals of 38 digits; the default rounds to 28
_QUOTIENT = Context(prec=39, rounding=ROUND_DOWN)


def _counter(name: str = "count") -> Field:
    return Field(name, _INT64, np.add, 0)


class Count(FieldAggregate):
    """COUNT(*), or COUNT of a column's values that are not null.

    Parameters
    ----------
    column : str, optional
        The column; without one, rows are counted.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> counts = Aggregation([Count(), Count("delay")])
    >>> flights = counts.accumulate([7, 7], np.array([60, 60]), {"delay": [12, None]})
    >>> counts.results(flights)
    (masked_array(data=[2], mask=False, fill_value=999999), masked_array(data=[1], mask=False,
    fill_value=999999))
    """

    def __init__(self, column: str | None = None) -> None:
        columns = () if column is None else (column,)
        super().__init__(columns, object, f"count({column or '*'})", [_counter()])

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Count the rows, or the values that are not null."""
        valid = inputs[0].valid if inputs else np.ones(len(groups.order), np.bool_)
        return (count(groups, valid),)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the counts, which are never null."""
        return np.ma.masked_array(accumulators[0])


class Sum(FieldAggregate):
    """SUM of a column; null where all values are null.

    Parameters
    ----------
    column : str
        The column to add up.
    dtype : dtype
        int64: exact, with an OverflowError where the sum does not fit; float64; or object, for decimals.

    Notes
    -----
    A sum of int64 is kept in two halves, which cannot overflow with fewer than 2**31 rows. Only the result
    can be out of range, so rows that cancel each other out may arrive in any order. A sum of decimals is
    exact, whatever the decimal context.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> total = Aggregation([Sum("v", np.int64)])
    >>> total.results(total.accumulate([7, 7, 7], np.array([60] * 3), {"v": [2**63 - 1, 1, -2]}))[0].item()
    9223372036854775806
    """

    function = "sum"

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        wanted = np.dtype(dtype)
        halves = ("high", "low") if wanted == _INT64 else ("sum",)
        self._add = object_ufunc(_exact_sum) if wanted.kind == "O" else np.add
        zero = [Field(half, wanted, self._add, 0) for half in halves]
        super().__init__([column], wanted, f"{self.function}({column})", [*zero, _counter()])

    def __reduce__(self) -> tuple[Any, ...]:
        # A ufunc over objects cannot be pickled.
        return type(self), (*self.columns, self.dtype), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Add up the values of each group."""
        (values, valid) = inputs[0]
        counts = count(groups, valid)
        if not valid.all():
            values = np.where(valid, values, 0)
        if self.dtype != _INT64:
            return self._add.reduceat(values[groups.order], groups.starts), counts
        ordered = values[groups.order]
        if len(values) * max(abs(int(ordered.max(initial=0))), abs(int(ordered.min(initial=0)))) < 2**63:
            return (*_halves(np.add.reduceat(ordered, groups.starts)), counts)
        high, low = _halves(ordered)
        return np.add.reduceat(high, groups.starts), np.add.reduceat(low, groups.starts), counts

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Add up, and carry from the low half into the high half."""
        merged = super().merge(groups, accumulators)
        if self.dtype != _INT64:
            return merged
        high, low, counts = (np.asarray(column) for column in merged)
        return high + (low >> 32), low & _LOW, counts

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the sums."""
        *parts, counts = accumulators
        null = np.asarray(counts) == 0
        if self.dtype != _INT64:
            return np.ma.masked_array(parts[0], null)
        total, fits = _whole(np.asarray(parts[0]), np.asarray(parts[1]))
        if not (fits | null).all():
            at = int(np.argmin(fits | null))
            exact = _exact(parts, at)
            raise OverflowError(
                f"{self.name} must fit into int64, got {exact}; sum the column as float64 or as decimals"
            )
        return np.ma.masked_array(total, null)


class Avg(Sum):
    """AVG of a column: int64 truncated toward zero for int64 (as in Flink), otherwise the quotient.

    Parameters
    ----------
    column : str
        The column to average.
    dtype : dtype
        As in `Sum`, but an average of int64 cannot overflow. With float64, integers are not truncated.
    scale : int, default 6
        Digits after the point of an average of decimals, which is rounded half up, as in Spark.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> average = Aggregation([Avg("delay", np.int64), Avg("delay", np.float64)])
    >>> results = average.results(average.accumulate([7, 7], np.array([60, 60]), {"delay": [-1, -2]}))
    >>> results[0].item(), results[1].item()
    (-1, -1.5)
    """

    function = "avg"

    def __init__(self, column: str, dtype: DTypeLike, scale: int = 6) -> None:
        super().__init__(column, dtype)
        self.scale = scale

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.columns, self.dtype, self.scale), {"name": self.name}

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the averages."""
        *parts, counts = (np.asarray(column) for column in accumulators)
        null = counts == 0
        rows = np.where(null, 1, counts)
        if self.dtype.kind == "O":
            pairs = zip(np.where(null, 0, parts[0]).tolist(), rows.tolist(), strict=True)
            averages = np.empty(len(rows), object)
            averages[:] = [_quotient(Decimal(total), number, self.scale) for total, number in pairs]
            return np.ma.masked_array(averages, null)
        if self.dtype != _INT64:
            return np.ma.masked_array(np.where(null, 0, parts[0]) / rows, null)
        total, fits = _whole(parts[0], parts[1])
        floor, rest = np.divmod(total, rows)
        average = floor + ((floor < 0) & (rest != 0))
        for at in np.flatnonzero(~fits & ~null).tolist():
            exact, divisor = _exact(parts, at), int(rows[at])
            average[at] = (abs(exact) // divisor) * (-1 if exact < 0 else 1)
        return np.ma.masked_array(average, null)


class Min(FieldAggregate):
    """MIN of a column; null where all values are null; NaN is greater than any number, as in Spark.

    Parameters
    ----------
    column : str
        The column whose minimum is computed.
    dtype : dtype
        int64, float64, or object for any values that can be compared.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> extremes = Aggregation([Min("delay", np.float64), Max("delay", np.float64)])
    >>> delays = extremes.accumulate([7, 7], np.array([60, 60]), {"delay": [1.5, np.nan]})
    >>> [result.item() for result in extremes.results(delays)]
    [1.5, nan]
    """

    function = "min"

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        wanted = np.dtype(dtype)
        self._ufunc, self._identity = extreme(self.function, wanted)
        best = Field(self.function, wanted, self._ufunc, self._identity)
        super().__init__([column], wanted, f"{self.function}({column})", [best, _counter()])

    def __reduce__(self) -> tuple[Any, ...]:
        # A ufunc over objects cannot be pickled.
        return type(self), (*self.columns, self.dtype), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Find the extreme value of each group."""
        (values, valid) = inputs[0]
        if not valid.all():
            values = np.where(valid, values, self._identity)
        return self._ufunc.reduceat(values[groups.order], groups.starts), count(groups, valid)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the extreme values."""
        return np.ma.masked_array(accumulators[0], np.asarray(accumulators[1]) == 0)


class Max(Min):
    """MAX of a column; otherwise like `Min`.

    Parameters
    ----------
    column, dtype
        As in `Min`.
    """

    function = "max"


def extreme(function: str, dtype: np.dtype[Any]) -> tuple[np.ufunc, Any]:
    """Return the ufunc that computes "min" or "max", and its identity."""
    if dtype.kind == "O":
        return object_ufunc(min if function == "min" else max), None
    if dtype == _INT64:
        limits = np.iinfo(np.int64)
        return (np.minimum, limits.max) if function == "min" else (np.maximum, limits.min)
    return (np.fmin, np.nan) if function == "min" else (np.maximum, -np.inf)


def count(groups: Groups, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the valid rows of each group."""
    if valid.all():
        return groups.sizes.astype(np.int64)
    return np.add.reduceat(valid.astype(np.int64)[groups.order], groups.starts)


def _exact_sum(left: Any, right: Any) -> Any:
    return _EXACT.add(left, right) if Decimal in (type(left), type(right)) else left + right


def _quotient(total: Decimal, rows: int, scale: int) -> Decimal:
    """Divide as Spark does: 39 digits, then rounded half up."""
    quotient = _QUOTIENT.divide(total, Decimal(rows))
    return quotient.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)


def _halves(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return values >> 32, values & _LOW


def _whole(high: NDArray[np.int64], low: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Join the halves, and return which sums fit into int64."""
    carried = high + (low >> 32)
    fits = (carried >= -_HALF) & (carried < _HALF)
    return (np.where(fits, carried, 0) << 32) + (low & _LOW), fits


def _exact(halves: Sequence[Any], at: int) -> int:
    return (int(halves[0][at]) << 32) + int(halves[1][at])


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
    around a large mean is accurate.

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
            Field(part, np.dtype(dtype), np.add, 0)  # the ufunc is unused: merge is overridden
            for part, dtype in (("count", np.int64), ("mean", np.float64), ("m2", np.float64))
        ]
        super().__init__([column], np.float64, f"{self.function}({column})", fields)

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Compute the moments of each group."""
        (values, valid) = inputs[0]
        return _moments(groups, values, valid)

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Merge the moments of each group."""
        return _merge(groups, *(np.asarray(column)[groups.order] for column in accumulators))

    def combine(self, left: Cells, right: Cells) -> Cells:
        """Merge two columns of accumulators, element by element."""
        return _chan(left, right)

    def scan(self, cells: Cells) -> Cells:
        """Merge each accumulator with all accumulators before it in its line."""
        return scan_by_doubling(cells, self.combine)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the variances, or the standard deviations."""
        count, _, m2 = (np.asarray(column) for column in accumulators)
        null = count <= self._sample
        with np.errstate(invalid="ignore", over="ignore"):
            variance = m2 / np.where(null, 1, count - self._sample)
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
