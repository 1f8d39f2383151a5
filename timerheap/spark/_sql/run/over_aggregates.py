"""Aggregates OVER rows, computed in columns: of the frame of each row, or of all rows of a key so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._aggregates.accumulator_columns import (
    AccumulatorColumns,
    AggregateCalls,
    input_column,
    result_column,
)
from timerheap.spark._sql.run.over_columns import KeyRows
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.accumulators import Aggregate, Cells, FieldAggregate
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.columns import Groups
from timerheap.tvf.slices import TumblingSliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate

_AT_ONCE = 1 << 22  # rows of frames


def over_frames(calls: AggregateCalls, rows: KeyRows, first: np.ndarray, last: np.ndarray) -> list[pa.Array]:
    """Return aggregates of frames; a row costs as much as its frame has rows."""
    columns = {name: rows.column(name) for name in calls.inputs}
    parts: list[list[pa.Array]] = [[] for _ in calls.results]
    for part in _in_parts(last - first + 1):
        begin, counts = first[part], (last - first)[part] + 1
        numbers = np.repeat(np.arange(len(part)), counts)
        inside = np.arange(len(numbers)) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        taken = pa.array(rows.source[inside])
        inputs = {
            name: input_column(columns[name].take(taken), type_) for name, type_ in calls.inputs.items()
        }
        windows = GlobalWindowAggregate(TumblingSliceAssigner(1), calls.aggregates)
        windows.add(numbers, np.zeros(len(numbers), np.int64), inputs)
        found = windows.advance_watermark(MAX_WATERMARK)
        order = np.argsort(found.key_ids)
        for one, result, field in zip(parts, found.results, calls.results, strict=True):
            one.append(result_column(result[order], field))
    return [pa.concat_arrays(one) for one in parts]


def _in_parts(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of rows in parts whose frames have about `_AT_ONCE` rows."""
    numbers = np.cumsum(sizes) // _AT_ONCE
    yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(numbers)) + 1)


class Totals:
    """Aggregates of all rows of a key so far; of each key the state has their accumulators."""

    def __init__(self, calls: AggregateCalls) -> None:
        self._calls = calls
        self._columns = AccumulatorColumns(calls.aggregates, calls.object_types)
        self._aggregation = self._columns.aggregation
        self.type = pa.struct(self._columns.fields)

    def add(
        self, stored: pa.StructArray, counts: np.ndarray, new: pa.RecordBatch, last: np.ndarray
    ) -> tuple[list[pa.Array], pa.StructArray]:
        """Return the results of new rows, each of those up to its `last` one, and what to store of each key.

        stored: what has been stored of each key, of which `counts` new rows follow, one or more
        """
        one_each = np.ones(len(new), np.int64)
        groups = Groups(np.arange(len(new)), np.arange(len(new)), one_each)
        inputs = {name: input_column(new.column(name), type_) for name, type_ in self._calls.inputs.items()}
        before = self._from_arrow(stored.drop_null())
        found = self._aggregation.accumulate_groups(groups, inputs)
        totals = [
            _running(aggregate, counts, one, np.asarray(stored.is_valid()), first)
            for aggregate, one, first in zip(self._aggregation.aggregates, found, before, strict=True)
        ]
        at = last if (np.diff(last) != 1).any() else slice(None)  # no rows of one time
        of_rows = Partials(last, last, tuple(tuple(field[at] for field in one) for one in totals))
        results = [
            result_column(result, field)
            for result, field in zip(self._aggregation.results(of_rows), self._calls.results, strict=True)
        ]
        ends = np.cumsum(counts) - 1
        groups = Groups(ends, np.arange(len(ends)), np.ones(len(ends), np.int64))  # which shortens sums
        columns = self._columns.to_arrow(self._aggregation.merge_accumulators(groups, tuple(totals)))
        return results, pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _from_arrow(self, stored: pa.StructArray) -> tuple[tuple[Any, ...], ...]:
        fields = [column.cast(field.type) for column, field in zip(stored.flatten(), self.type, strict=True)]
        return self._columns.from_arrow(fields)


def _running(
    aggregate: Aggregate, counts: np.ndarray, accumulators: Any, known: np.ndarray, before: Any
) -> Cells:
    """Merge the accumulator of each row with those before it of its key, and with that from the state.

    Keys with about the same number of rows are the lines of one grid, so the number of steps is that of the
    bits of the longest.
    """
    assert isinstance(aggregate, FieldAggregate)
    first = aggregate.identities(len(counts))
    for column, values in zip(first, before, strict=True):
        column[known] = values
    found = tuple(np.empty_like(column) for column in accumulators)
    starts, bits = np.cumsum(counts) - counts, np.frexp(counts)[1]
    for size in np.unique(bits):
        lines = np.flatnonzero(bits == size)
        offsets = np.arange(counts[lines].max())
        inside = offsets < counts[lines][:, np.newaxis]
        at = (starts[lines][:, np.newaxis] + offsets)[inside]
        cells = aggregate.identities(len(lines) * (len(offsets) + 1))
        cells = tuple(column.reshape(len(lines), -1) for column in cells)
        for cell, column, one in zip(cells, accumulators, first, strict=True):
            cell[:, 0], cell[:, 1:][inside] = one[lines], column[at]
        for column, cell in zip(found, aggregate.scan(cells), strict=True):
            column[at] = cell[:, 1:][inside]
    return found
