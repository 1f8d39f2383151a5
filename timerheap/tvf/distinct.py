"""COUNT(DISTINCT): exact, which keeps every value, or estimated by a sketch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.tvf.accumulators import Accumulators, Aggregate, Field, FieldAggregate, Grid, object_ufunc
from timerheap.tvf.columns import Groups, Multisets, Nullable, group_by

_LG_K = 12  # a sketch has 2 ** 12 buckets


class CountDistinct(Aggregate):
    """COUNT(DISTINCT column), exact; nulls are ignored, NaN is one value, and -0.0 equals 0.0.

    State is each distinct value with its count, for each key and slice. Windows that share slices are
    computed together, in O(e log e) for e such entries: a value counts from the first window that contains
    its slice to the last.
    """

    fields = ("values",)

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        super().__init__([column], dtype, f"count(distinct {column})")

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        (values, valid) = inputs[0]
        chosen = valid[groups.order]
        rows = groups.order[chosen]
        counts = np.ones(len(rows), np.int64)
        return (_collect(groups.of_sorted[chosen], values[rows], counts, len(groups.starts)),)

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        column = _multisets(accumulators)
        return (_collect(groups.of_rows[column.rows], column.values, column.counts, len(groups.starts)),)

    def empty(self) -> Accumulators:
        return (Multisets(np.zeros(1, np.int64), np.empty(0, self.dtype), np.empty(0, np.int64)),)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        column = _multisets(accumulators)
        return np.ma.masked_array(column.sizes)

    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Track when each value enters and leaves the windows of its line."""
        column = _multisets(accumulators)
        cells = grid.cells[column.rows]
        lines, positions = np.divmod(cells, grid.width)
        values, counts = _value_numbers(column.values), column.counts
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


def _multisets(accumulators: Accumulators) -> Multisets:
    (column,) = accumulators
    assert isinstance(column, Multisets)
    return column


def _collect(
    groups: NDArray[np.intp], values: NDArray[Any], counts: NDArray[np.int64], length: int
) -> Multisets:
    found = group_by(groups, _value_numbers(values))
    kept, totals = found.firsts, np.add.reduceat(counts[found.order], found.starts)
    if values.dtype == object:  # in the order of their arrival, since their numbers depend on other rows
        order = np.lexsort((kept, groups[kept]))
        kept, totals = kept[order], totals[order]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(groups[kept], minlength=length))])
    return Multisets(offsets.astype(np.int64), values[kept], totals)


def _value_numbers(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for each value; values that are equal in SQL have the same number."""
    if values.dtype == object:
        numbers: dict[Any, int] = {}
        found = (numbers.setdefault(value, len(numbers)) for value in values.tolist())
        return np.fromiter(found, np.int64, len(values))
    if values.dtype.kind == "f":
        plain = np.where(np.isnan(values), np.nan, values + 0.0)
        return np.ascontiguousarray(plain, np.float64).view(np.int64)
    return values


class ApproxCountDistinct(FieldAggregate):
    """The estimated number of distinct values, with state of bounded size; nulls are ignored.

    A HyperLogLog sketch of 4096 one-byte buckets has a relative error of about 1.6 %. It is stored in the
    byte format that every implementation of DataSketches reads. Each distinct value of a slice costs one
    Python call. Small numbers of values are counted exactly.
    """

    def __init__(self, column: str, dtype: DTypeLike) -> None:
        try:
            import datasketches
        except ImportError:
            raise ImportError(
                "approx_count_distinct requires the package datasketches: pip install datasketches"
            ) from None
        self._library: Any = datasketches
        self._distinct = CountDistinct(column, dtype)
        field = Field("sketch", np.dtype(object), object_ufunc(self._unite), None)
        super().__init__([column], dtype, f"approx_count_distinct({column})", [field])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.columns, self.dtype), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        (column,) = self._distinct.accumulate(groups, inputs)
        ends = column.offsets.tolist()  # type: ignore[union-attr]
        values = column.values.tolist()  # type: ignore[union-attr]
        if self.dtype.kind == "O":
            values = list(map(_distinct_text, values))
        sketches = np.empty(len(column), object)
        for group, (start, end) in enumerate(pairwise(ends)):
            sketch = self._library.hll_sketch(_LG_K, self._library.tgt_hll_type.HLL_8)
            for value in values[start:end]:
                sketch.update(value)
            sketches[group] = sketch.serialize_compact()
        return (sketches,)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        estimates = (self._read(sketch).get_estimate() for sketch in np.asarray(accumulators[0]).tolist())
        return np.ma.masked_array(np.rint(np.fromiter(estimates, np.float64)).astype(np.int64))

    def _read(self, sketch: bytes) -> Any:
        return self._library.hll_sketch.deserialize(sketch)

    def _unite(self, left: bytes, right: bytes) -> bytes:
        union = self._library.hll_union(_LG_K)
        union.update(self._read(left))
        union.update(self._read(right))
        united: bytes = union.get_result(self._library.tgt_hll_type.HLL_8).serialize_compact()
        return united


def _distinct_text(value: object) -> str:
    """Return a text that differs for different values; a sketch truncates decimals and ignores ""."""
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    return f"s{value}" if isinstance(value, str) else f"o{value}"
