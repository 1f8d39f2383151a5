"""Aggregates that keep every value: COUNT(DISTINCT), and MIN and MAX with retraction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.tvf.aggregate import Accumulators, Aggregate, Grid, Signs
from timerheap.tvf.aggregates import extreme
from timerheap.tvf.columns import Groups, Multisets, Nullable, concatenate, group_by


class _MultisetAggregate(Aggregate):
    """An aggregate whose accumulator is the multiset of the non-null values."""

    fields = ("values",)

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable], signs: Signs) -> Accumulators:
        """Collect the values of each group."""
        (values, valid) = inputs[0]
        chosen = valid[groups.order]
        rows = groups.order[chosen]
        counts = np.ones(len(rows), np.int64) if signs is None else signs[rows]
        return (_collect(groups.of_sorted[chosen], values[rows], counts, len(groups.starts)),)

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Add up the multisets of each group."""
        column = _multisets(accumulators)
        return (_collect(groups.of_rows[column.rows], column.values, column.counts, len(groups.starts)),)

    def empty(self) -> Accumulators:
        """Return a column of accumulators without rows."""
        return (Multisets(np.zeros(1, np.int64), np.empty(0, self.dtype), np.empty(0, np.int64)),)


class CountDistinct(_MultisetAggregate):
    """COUNT(DISTINCT column), exact; nulls are ignored, NaN is one value, and -0.0 equals 0.0.

    Parameters
    ----------
    column : str
        The column whose distinct values are counted.
    dtype : dtype
        int64, float64, or object for any hashable values.

    Notes
    -----
    State is each distinct value with its count, for each key and slice. Windows that share slices are
    computed together, in O(e log e) for e such entries: a value counts from the first window that contains
    its slice to the last.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> users = Aggregation([CountDistinct("user", object)])
    >>> seen = users.accumulate([7, 7, 7], np.array([60] * 3), {"user": ["a", "b", "a"]})
    >>> users.results(seen)[0].item(), users.columns(seen)["1.values"].counts
    (2, array([2, 1]))
    """

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        super().__init__([column], dtype, f"count(distinct {column})")

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Count the distinct values."""
        column = _multisets(accumulators)
        present = column.rows[column.counts > 0]
        return np.ma.masked_array(np.bincount(present, minlength=len(column)).astype(np.int64))

    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Track when each value enters and leaves the windows of its line."""
        column = _multisets(accumulators)
        cells = grid.cells[column.rows]
        lines, positions = np.divmod(cells, grid.width)
        values, counts = _comparable(column.values), column.counts
        if grid.span is not None:
            leaving = positions + grid.span < grid.width
            lines = np.concatenate([lines, lines[leaving]])
            positions = np.concatenate([positions, positions[leaving] + grid.span])
            values = np.concatenate([values, values[leaving]])
            counts = np.concatenate([counts, -counts[leaving]])
        order = np.lexsort((positions, values, lines))
        lines, positions, values, counts = lines[order], positions[order], values[order], counts[order]
        same_value = (lines[1:] == lines[:-1]) & (values[1:] == values[:-1])
        last = np.append(~same_value | (positions[1:] != positions[:-1]), True)[: len(lines)]
        first = np.append(True, ~same_value)[: len(lines)]
        running = np.cumsum(counts)
        running -= np.repeat((running - counts)[first], np.diff(np.flatnonzero(first), append=len(lines)))
        there = (running > 0)[last]
        # The first event of a value in a line finds it absent; each later event finds what the previous left.
        begins = np.append(True, ~same_value[np.flatnonzero(last)[:-1]])[: len(there)]
        was_there = np.append(False, there[:-1])[: len(there)] & ~begins
        change = there.astype(np.int64) - was_there
        changes = np.bincount(
            (lines * grid.width + positions)[last], weights=change, minlength=grid.lines * grid.width
        )
        distinct = np.cumsum(changes.reshape(grid.lines, grid.width), axis=1).astype(np.int64)
        return np.ma.masked_array(distinct.reshape(-1)[grid.last_cells])


class MinWithRetract(_MultisetAggregate):
    """MIN of a column whose rows may be retracted; state is every distinct value with its count.

    Parameters
    ----------
    column, dtype
        As in `Min`.

    Examples
    --------
    >>> from timerheap.tvf import Aggregation
    >>> least = Aggregation([MinWithRetract("v", np.int64)])
    >>> values = least.accumulate([7, 7, 7], np.array([60] * 3), {"v": [1, 2, 1]}, signs=[1, 1, -1])
    >>> least.results(values)[0].item()
    2
    """

    function = "min"

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        super().__init__([column], dtype, f"{self.function}({column})")

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the extreme of the values that have not been retracted."""
        column = _multisets(accumulators)
        there = column.counts > 0
        rows, values = column.rows[there], column.values[there]
        best = np.zeros(len(column), self.dtype)
        has, starts = np.unique(rows, return_index=True)
        ufunc, _ = extreme(self.function, self.dtype)
        best[has] = ufunc.reduceat(values, starts)
        return np.ma.masked_array(best, ~np.isin(np.arange(len(column)), has))

    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Add up the multisets of each window, in O(log span) merges of whole columns."""
        cells, level = grid.cells, accumulators
        span = grid.width if grid.span is None else min(grid.span, grid.width)
        done: tuple[NDArray[np.intp], Accumulators] | None = None
        covered, length = 0, 1
        while True:
            if span & length:
                done = (cells, level) if done is None else self._join(*done, cells, level, covered, grid)
                covered += length
            if done is not None and covered == span:
                break
            cells, level = self._join(cells, level, cells, level, length, grid)
            length *= 2
        cells, level = done
        return self.result((_multisets(level)[np.searchsorted(cells, grid.last_cells)],))

    def _join(
        self,
        cells: NDArray[np.intp],
        accumulators: Accumulators,
        earlier: NDArray[np.intp],
        earlier_accumulators: Accumulators,
        by: int,
        grid: Grid,
    ) -> tuple[NDArray[np.intp], Accumulators]:
        """Merge each cell with the cell `by` places before it in its line."""
        inside = earlier % grid.width + by < grid.width
        joined = np.concatenate([cells, earlier[inside] + by])
        shifted = _multisets(earlier_accumulators)[inside]
        groups = group_by(joined)
        both = (concatenate([_multisets(accumulators), shifted]),)
        return joined[groups.firsts], self.merge(groups, both)


class MaxWithRetract(MinWithRetract):
    """MAX of a column whose rows may be retracted; otherwise like `MinWithRetract`.

    Parameters
    ----------
    column, dtype
        As in `Min`.
    """

    function = "max"


def _multisets(accumulators: Accumulators) -> Multisets:
    (column,) = accumulators
    assert isinstance(column, Multisets)
    return column


def _collect(
    groups: NDArray[np.intp], values: NDArray[Any], counts: NDArray[np.int64], length: int
) -> Multisets:
    """Build multisets from entries, without those whose counts add up to 0."""
    found = group_by(groups, _comparable(values))
    totals = np.add.reduceat(counts[found.order], found.starts)
    kept, totals = found.firsts[totals != 0], totals[totals != 0]
    if values.dtype == object:  # in the order of their arrival, since their numbers depend on other rows
        order = np.lexsort((kept, groups[kept]))
        kept, totals = kept[order], totals[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups[kept], minlength=length))])
    return Multisets(offsets.astype(np.int64), values[kept], totals)


def _comparable(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for each value; values that are equal in SQL have the same number."""
    if values.dtype == object:
        numbers: dict[Any, int] = {}
        found = (numbers.setdefault(value, len(numbers)) for value in values.tolist())
        return np.fromiter(found, np.int64, len(values))
    if values.dtype.kind == "f":
        plain = np.where(np.isnan(values), np.nan, values + 0.0)
        return np.ascontiguousarray(plain, np.float64).view(np.int64)
    return values
