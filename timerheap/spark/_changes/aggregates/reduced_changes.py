"""Changes added up by key before they are sent: what the operator gets in place of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap._native._core import SliceGroups
from timerheap.spark._arrow import view_of
from timerheap.spark._changes.aggregates.bags import Bag
from timerheap.spark._changes.aggregates.kept_sums import Kept
from timerheap.spark._changes.aggregates.row_groups import RowGroups
from timerheap.spark._columns import ACCUMULATOR, HASH, WEIGHT

ROWS = f"{ACCUMULATOR}rows"  # how many changes there were


@dataclass(frozen=True)
class SentColumns:
    """What is sent of rows: what they add to what keys have kept, and to their bags.

    lists: values that are sent like those of bags, and are not kept
    """

    kept: tuple[Kept, ...]
    bags: tuple[Bag, ...]
    lists: tuple[Bag, ...] = ()

    def kept_fields(self) -> Iterator[pa.Field]:
        for number, one in enumerate(self.kept):
            for name, type_ in one.fields().items():
                yield pa.field(f"{ACCUMULATOR}{number}_{name}", type_)

    def bag_fields(self) -> Iterator[pa.Field]:
        for number, bag in enumerate((*self.bags, *self.lists)):
            yield pa.field(f"{ACCUMULATOR}bag{number}", bag.sent_type())

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        columns = [column for one in self.kept for column in one.of_rows(rows, weights, groups)]
        return columns + [bag.of_rows(rows, weights, groups) for bag in (*self.bags, *self.lists)]


@dataclass(frozen=True)
class ChangesReducer:
    """Makes a `ReducedChanges` in each task.

    key: the columns of the key
    inputs: the columns that are read, with `WEIGHT` unless rows only come
    """

    key: list[str]
    inputs: list[str]
    columns: SentColumns

    def __call__(self) -> ReducedChanges:
        return ReducedChanges(self)

    def schema(self) -> pa.Schema:
        return pa.schema(
            [pa.field(ROWS, pa.int64()), *self.columns.kept_fields(), *self.columns.bag_fields()]
        )


class ReducedChanges:
    """Rows that are grouped by key as they come, and added up when they are drained."""

    def __init__(self, reducer: ChangesReducer) -> None:
        self._reducer = reducer
        self._begin()

    def _begin(self) -> None:
        self._groups: SliceGroups | None = None
        self._first: list[pa.RecordBatch] = []  # of each key the first row, and its hash
        self._rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        keys = rows.select(self._reducer.key)
        views = [view_of(column) for column in keys.columns if not pa.types.is_null(column.type)]
        if self._groups is None:
            self._groups = SliceGroups(len(views))
        new = self._groups.add(hashes, np.zeros(len(rows), np.int64), views)
        if len(new):
            self._first.append(keys.take(pa.array(new)).append_column(HASH, pa.array(hashes[new])))
        if self._reducer.inputs:
            self._rows.append(rows.select(self._reducer.inputs))

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, one or more; return one for each key, as they came."""
        assert self._groups is not None
        groups = RowGroups.of(self._groups)
        rows = pa.concat_batches(self._rows) if self._rows else pa.RecordBatch.from_arrays([], names=[])
        weights = None
        if WEIGHT in self._reducer.inputs:
            weights = rows.column(WEIGHT).to_numpy().astype(np.int64)
        columns = [pa.array(groups.sizes), *self._reducer.columns.of_rows(rows, weights, groups)]
        first = pa.concat_batches(self._first)
        names = [*self._reducer.key, *self._reducer.schema().names, HASH]
        self._begin()
        return pa.RecordBatch.from_arrays([*first.columns[:-1], *columns, first.column(HASH)], names=names)
