"""Aggregates: SQL's COUNT, SUM and so on, functions in Python, and their accumulators by key and slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.errors import ArgumentRangeError, ArgumentTypeError, ArgumentValueError
from timerheap.functions import AggregateFunction
from timerheap.tvf.accumulators import (
    Accumulators,
    Aggregate,
    Cells,
    Field,
    FieldAggregate,
    object_ufunc,
    scan_by_doubling,
)
from timerheap.tvf.columns import (
    Accumulator,
    Groups,
    Int64s,
    Nullable,
    column,
    concatenate,
    group_by,
    group_rows,
    nbytes,
    nullable_column,
)
from timerheap.tvf.distinct import ApproxCountDistinct, CountDistinct

_INT64 = np.dtype(np.int64)
_LOW = 0xFFFFFFFF
_HALF = 1 << 31
_EXACT = Context(prec=100, rounding=ROUND_DOWN)  # any sum of decimals of 38 digits; the default rounds to 28
_QUOTIENT = Context(prec=39, rounding=ROUND_DOWN)
_COUNT = Field("count", _INT64, np.add, 0)


class Count(FieldAggregate):
    """COUNT(*), or COUNT of a column's values that are not null."""

    def __init__(self, column: str | None = None) -> None:
        columns = () if column is None else (column,)
        super().__init__(columns, object, f"count({column or '*'})", [_COUNT])

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        valid = inputs[0].valid if inputs else np.ones(len(groups.order), np.bool_)
        return (count(groups, valid),)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        return np.ma.masked_array(accumulators[0])


class Sum(FieldAggregate):
    """SUM of a column; null where all values are null.

    A sum of int64 is kept in two halves, which cannot overflow with fewer than 2**31 rows. Only the result
    can be out of range, so rows that cancel each other out may arrive in any order. A sum of decimals (of
    dtype object) is exact, whatever the decimal context.
    """

    function = "sum"

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        wanted = np.dtype(dtype)
        halves = ("high", "low") if wanted == _INT64 else ("sum",)
        self._add = object_ufunc(_exact_sum) if wanted.kind == "O" else np.add
        zero = [Field(half, wanted, self._add, 0) for half in halves]
        super().__init__([column], wanted, f"{self.function}({column})", [*zero, _COUNT])

    def __reduce__(self) -> tuple[Any, ...]:
        # A ufunc over objects cannot be pickled.
        return type(self), (*self.columns, self.dtype), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
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
        *parts, counts = accumulators
        null = np.asarray(counts) == 0
        if self.dtype != _INT64:
            return np.ma.masked_array(parts[0], null)
        total, fits = _joined_halves(np.asarray(parts[0]), np.asarray(parts[1]))
        if not (fits | null).all():
            at = int(np.argmin(fits | null))
            exact = _exact(parts, at)
            raise ArgumentRangeError(
                f"{self.name} must fit into int64, got {exact}; sum the column as float64 or as decimals"
            )
        return np.ma.masked_array(total, null)


class Avg(Sum):
    """AVG of a column: int64 truncated toward zero for int64 (as in Flink), otherwise the quotient.

    An average of decimals is rounded half up to `scale` digits after the point, as in Spark.
    """

    function = "avg"

    def __init__(self, column: str, dtype: DTypeLike, scale: int = 6) -> None:
        super().__init__(column, dtype)
        self.scale = scale

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.columns, self.dtype, self.scale), {"name": self.name}

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        *parts, counts = (np.asarray(column) for column in accumulators)
        null = counts == 0
        rows = np.where(null, 1, counts)
        if self.dtype.kind == "O":
            pairs = zip(np.where(null, 0, parts[0]).tolist(), rows.tolist(), strict=True)
            averages = (_decimal_average(Decimal(total), number, self.scale) for total, number in pairs)
            return np.ma.masked_array(np.fromiter(averages, object, len(rows)), null)
        if self.dtype != _INT64:
            return np.ma.masked_array(np.where(null, 0, parts[0]) / rows, null)
        total, fits = _joined_halves(parts[0], parts[1])
        floor, rest = np.divmod(total, rows)
        average = floor + ((floor < 0) & (rest != 0))
        for at in np.flatnonzero(~fits & ~null).tolist():
            exact, divisor = _exact(parts, at), int(rows[at])
            average[at] = (abs(exact) // divisor) * (-1 if exact < 0 else 1)
        return np.ma.masked_array(average, null)


class Min(FieldAggregate):
    """MIN of a column; null where all values are null; NaN is greater than any number, as in Spark."""

    function = "min"

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        wanted = np.dtype(dtype)
        self._ufunc, self._identity = extreme(self.function, wanted)
        best = Field(self.function, wanted, self._ufunc, self._identity)
        super().__init__([column], wanted, f"{self.function}({column})", [best, _COUNT])

    __reduce__ = Sum.__reduce__

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        (values, valid) = inputs[0]
        if not valid.all():
            values = np.where(valid, values, self._identity)
        return self._ufunc.reduceat(values[groups.order], groups.starts), count(groups, valid)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        return np.ma.masked_array(accumulators[0], np.asarray(accumulators[1]) == 0)


class Max(Min):
    """MAX of a column; otherwise like `Min`."""

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


def _decimal_average(total: Decimal, rows: int, scale: int) -> Decimal:
    """Divide as Spark does: 39 digits, then rounded half up."""
    quotient = _QUOTIENT.divide(total, Decimal(rows))
    return quotient.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)


def _halves(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return values >> 32, values & _LOW


def _joined_halves(
    high: NDArray[np.int64], low: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Join the halves, and return which sums fit into int64."""
    carried = high + (low >> 32)
    fits = (carried >= -_HALF) & (carried < _HALF)
    return (np.where(fits, carried, 0) << 32) + (low & _LOW), fits


def _exact(halves: Sequence[Any], at: int) -> int:
    return (int(halves[0][at]) << 32) + int(halves[1][at])


class Variance(FieldAggregate):
    """VAR_POP, VAR_SAMP, STDDEV_POP or STDDEV_SAMP of a column; null where there are too few values.

    An accumulator is the count, the mean and the sum of squared distances from the mean, computed in two
    passes over a batch and merged by the formulas of Chan, Golub and LeVeque (1979), so a small variance
    around a large mean is accurate.
    """

    def __init__(self, function: str, column: str) -> None:
        self._sample = int(function.endswith("samp"))
        self._root = function.startswith("stddev")
        fields = [
            Field(part, np.dtype(dtype), np.add, 0)  # the ufunc is unused: merge is overridden
            for part, dtype in (("count", np.int64), ("mean", np.float64), ("m2", np.float64))
        ]
        super().__init__([column], np.float64, f"{function}({column})", fields)

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        (values, valid) = inputs[0]
        return _mean_and_distances(groups, values, valid)

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        return _merge(groups, *(np.asarray(column)[groups.order] for column in accumulators))

    def combine(self, left: Cells, right: Cells) -> Cells:
        return _chan(left, right)

    def scan(self, cells: Cells) -> Cells:
        return scan_by_doubling(cells, self.combine)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        count, _, m2 = (np.asarray(column) for column in accumulators)
        null = count <= self._sample
        with np.errstate(invalid="ignore", over="ignore"):
            variance = m2 / np.where(null, 1, count - self._sample)
            return np.ma.masked_array(np.sqrt(variance) if self._root else variance, null)


def _mean_and_distances(
    groups: Groups, values: NDArray[Any], valid: NDArray[np.bool_]
) -> tuple[NDArray[Any], ...]:
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


class PythonAggregate(FieldAggregate):
    """A Python aggregate function, called for every row: with a value, or a tuple of several columns.

    Accumulators are copied with `copy.deepcopy` before they are merged, so a function that modifies them or
    fails leaves the operator's state unchanged.
    """

    def __init__(self, function: AggregateFunction, *columns: str) -> None:
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(function, method, None)):
                raise ArgumentTypeError(f"function must have a method {method}, got {function!r}")
        if not columns:
            raise ArgumentTypeError("columns must name at least one input column for the function, got none")
        self.function = function
        merge = object_ufunc(lambda a, b: function.merge(deepcopy(a), deepcopy(b)))
        accumulator = Field("accumulator", np.dtype(object), merge, None)
        name = f"{type(function).__name__}({', '.join(columns)})"
        super().__init__(columns, object, name, [accumulator])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, *self.columns), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        columns = [_with_nones(values)[groups.order].tolist() for values in inputs]
        rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        function: Any = self.function
        made = np.empty(len(groups.starts), object)
        ranges = zip(groups.starts.tolist(), (groups.starts + groups.sizes).tolist(), strict=True)
        for group, (start, end) in enumerate(ranges):
            accumulator = function.create_accumulator()
            for row in range(start, end):
                accumulator = function.add(rows[row], accumulator)
            made[group] = accumulator
        return (made,)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Call the function's `get_result` for each accumulator; None is null."""
        kept = np.asarray(accumulators[0]).tolist()
        found = (self.function.get_result(deepcopy(accumulator)) for accumulator in kept)
        results = np.fromiter(found, object, len(kept))
        return np.ma.masked_array(results, [value is None for value in results.tolist()])


def _with_nones(values: Nullable) -> NDArray[Any]:
    filled = values.values.astype(object)
    filled[~values.valid] = None
    return filled


BUILT_IN: dict[str, Callable[[str, DTypeLike], Aggregate]] = {
    "count": lambda column, dtype: Count(column),
    "sum": Sum,
    "avg": Avg,
    "min": Min,
    "max": Max,
    "var_samp": lambda column, dtype: Variance("var_samp", column),
    "var_pop": lambda column, dtype: Variance("var_pop", column),
    "stddev_samp": lambda column, dtype: Variance("stddev_samp", column),
    "stddev_pop": lambda column, dtype: Variance("stddev_pop", column),
    "count_distinct": CountDistinct,
    "approx_count_distinct": ApproxCountDistinct,
}
"""The functions of SQL by name, each made of the input column and its dtype."""


def aggregate(function: str | AggregateFunction, *columns: str, dtype: DTypeLike = np.float64) -> Aggregate:
    """Return an aggregate to compute for each window: a function of SQL, or your own in Python.

    Parameters
    ----------
    function : str or AggregateFunction
        "count", "sum", "avg", "min", "max", "var_samp", "var_pop", "stddev_samp", "stddev_pop",
        "count_distinct" or "approx_count_distinct" (a sketch of bounded size, which needs the package
        ``datasketches``); or an object with the methods of `timerheap.AggregateFunction`, which is called for
        every row.
    *columns : str
        The input column, or none for "count" of all rows. Nulls are ignored. A Python function gets the value
        of one column, or a tuple of several, with None for null.
    dtype : dtype, default float64
        What the input of a function of SQL is converted to: int64, for exact integers; float64; or object,
        for decimals, strings and other values. Python functions take any input.

    Returns
    -------
    Aggregate
        An argument for `GlobalWindowAggregate` and `SessionWindowAggregate`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the function, its columns or the dtype are not as above.
    ImportError
        If ``datasketches`` is missing.

    Examples
    --------
    >>> aggregate("count"), aggregate("sum", "delay", dtype=np.int64)
    (count(*), sum(delay))
    """
    if not isinstance(function, str):
        return PythonAggregate(function, *columns)
    if function not in BUILT_IN:
        raise ArgumentValueError(
            f"function must be one of {', '.join(BUILT_IN)}, or an AggregateFunction, got {function!r}"
        )
    if function == "count" and not columns:
        return Count()
    if len(columns) != 1:
        raise ArgumentTypeError(f"columns must be one input column for {function}, got {columns!r}")
    return BUILT_IN[function](columns[0], dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Accumulators by key and slice, as columns; they are never modified in place."""

    key_ids: NDArray[np.int64]
    slice_ends: NDArray[np.int64]  # local ms, which identify slices
    accumulators: tuple[Accumulators, ...]  # of each aggregate of an `Aggregation`, COUNT(*) first
    starts: NDArray[np.int64] | None = None  # of sessions, whose ends are the `slice_ends`

    def __len__(self) -> int:
        return len(self.key_ids)

    def __getitem__(self, rows: NDArray[Any] | slice) -> Partials:
        accumulators = tuple(tuple(field[rows] for field in fields) for fields in self.accumulators)
        starts = None if self.starts is None else self.starts[rows]
        return Partials(self.key_ids[rows], self.slice_ends[rows], accumulators, starts)

    def without(self, rows: NDArray[np.intp]) -> Partials:
        """Return the partials that are not at these positions."""
        return self[np.setdiff1d(np.arange(len(self)), rows)] if len(rows) else self

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of rows in each accumulator."""
        return np.asarray(self.accumulators[0][0])

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes; the size of Python objects is estimated."""
        return nbytes([self.key_ids, self.slice_ends, *self.fields])

    @property
    def fields(self) -> list[Accumulator]:
        """The columns of all accumulators, in the order of `Aggregation.names`."""
        return [field for fields in self.accumulators for field in fields]


class Aggregation:
    """The aggregates of a query, computed together."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        rows = [isinstance(aggregate, Count) and not aggregate.columns for aggregate in aggregates]
        others = [aggregate for aggregate, is_rows in zip(aggregates, rows, strict=True) if not is_rows]
        # Every aggregation needs COUNT(*); one in the query is that at position 0.
        self.aggregates: tuple[Aggregate, ...] = (Count(), *others)
        numbers = iter(range(1, len(self.aggregates)))
        self.outputs = tuple(0 if is_rows else next(numbers) for is_rows in rows)
        self.names = [  # of the accumulators' columns
            f"{at}.{field}" for at, aggregate in enumerate(self.aggregates) for field in aggregate.fields
        ]

    def accumulate(
        self, key_ids: Int64s, slice_ends: NDArray[np.int64], inputs: Mapping[str, object] | None = None
    ) -> Partials:
        """Compute one accumulator for the rows of each key and slice.

        Costs one pass per field, and a sort of the accumulators, or of the rows if they are nearly as many.
        """
        length = len(slice_ends)
        ids = column("key_ids", key_ids, length)
        groups = group_rows(slice_ends, ids)
        firsts = groups.firsts
        return Partials(ids[firsts], slice_ends[firsts], self.accumulate_groups(groups, inputs))

    def accumulate_groups(
        self, groups: Groups, inputs: Mapping[str, object] | None = None
    ) -> tuple[Accumulators, ...]:
        """Compute one accumulator for each group of rows, for every aggregate: one pass per field."""
        length, inputs = len(groups.order), {} if inputs is None else inputs
        accumulators = []
        for aggregate in self.aggregates:
            columns = [
                nullable_column(name, inputs[name], aggregate.dtype, length) for name in aggregate.columns
            ]
            accumulators.append(aggregate.accumulate(groups, columns))
        return tuple(accumulators)

    def merge(self, parts: Iterable[Partials]) -> Partials:
        """Merge partials into one row per key and slice, by slice and then key, without modifying them."""
        joined = self.concatenate(parts)
        groups = group_by(joined.slice_ends, joined.key_ids)
        if len(groups.starts) == len(joined):
            return joined[groups.order]
        firsts = groups.firsts
        return Partials(
            joined.key_ids[firsts],
            joined.slice_ends[firsts],
            self.merge_accumulators(groups, joined.accumulators),
        )

    def merge_accumulators(
        self, groups: Groups, accumulators: tuple[Accumulators, ...]
    ) -> tuple[Accumulators, ...]:
        """Merge the accumulators of each group, for every aggregate."""
        pairs = zip(self.aggregates, accumulators, strict=True)
        return tuple(aggregate.merge(groups, fields) for aggregate, fields in pairs)

    def results(self, partials: Partials) -> tuple[np.ma.MaskedArray[Any, Any], ...]:
        """Return the results of accumulators, one column for each aggregate of the query."""
        return tuple(self.aggregates[at].result(partials.accumulators[at]) for at in self.outputs)

    def concatenate(self, parts: Iterable[Partials]) -> Partials:
        """Concatenate partials without merging them."""
        kept = [part for part in parts if len(part)]
        if len(kept) == 1:
            return kept[0]
        if not kept:
            return self.empty()
        fields = (
            tuple(concatenate(columns) for columns in zip(*accumulators, strict=True))
            for accumulators in zip(*(part.accumulators for part in kept), strict=True)
        )
        starts = [part.starts for part in kept if part.starts is not None]
        return Partials(
            np.concatenate([part.key_ids for part in kept]),
            np.concatenate([part.slice_ends for part in kept]),
            tuple(fields),
            np.concatenate(starts) if starts else None,
        )

    def empty(self) -> Partials:
        none = np.empty(0, np.int64)
        return Partials(none, none, tuple(aggregate.empty() for aggregate in self.aggregates))

    def nested(self, fields: Iterable[Accumulator]) -> tuple[Accumulators, ...]:
        """Return the columns of accumulators by aggregate, of all columns in the order of `names`."""
        following = iter(fields)
        return tuple(tuple(islice(following, len(aggregate.fields))) for aggregate in self.aggregates)
