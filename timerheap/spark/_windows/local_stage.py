"""The local stages of windows: what a task makes of its rows, by window and key, before they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from timerheap._native._core import SliceGroups
from timerheap.spark._arrow import event_millis, view_of
from timerheap.spark._columns import ARRIVAL, ENDS, HASH, WINDOW
from timerheap.spark._windows.partial_columns import PartialColumns, WindowSpec, input_column
from timerheap.tvf.columns import Groups
from timerheap.tvf.partials import Partials
from timerheap.tvf.slices import SliceAssigner


@dataclass(frozen=True)
class LocalStage:
    """Aggregates rows into one row per key and slice; `inputs` are the columns of the aggregates."""

    spec: WindowSpec
    key: list[str]
    event_time: str
    inputs: dict[str, np.dtype[Any]]

    def __call__(self) -> SlicedRows:
        """Return a buffer without rows."""
        return SlicedRows(self)


class SlicedRows:
    """Rows that are grouped by key and slice as they come, and aggregated when they are drained.

    Rows arrive while the JVM prepares those after them, so grouping them immediately takes no extra time.
    """

    def __init__(self, stage: LocalStage) -> None:
        assert isinstance(stage.spec.assigner, SliceAssigner)
        self._stage, self._assigner = stage, stage.spec.assigner
        self._columns = PartialColumns(stage.spec)
        self._begin()

    def _begin(self) -> None:
        self._groups: SliceGroups | None = None
        self._hashes: list[np.ndarray] = []  # of the keys, in the order of their numbers
        self._keys: list[list[pa.Array]] = [[] for _ in self._stage.key]
        self._inputs: list[list[pa.Array]] = [[] for _ in self._stage.inputs]

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""
        columns = [rows.column(name) for name in self._stage.key]
        views = [view_of(column) for column in columns if not pa.types.is_null(column.type)]
        if self._groups is None:
            self._groups = SliceGroups(len(views))
        ends = self._assigner.assign_slice_ends(event_millis(rows.column(self._stage.event_time)))
        new = self._groups.add(hashes, ends, views)
        if len(new):
            self._hashes.append(hashes[new])
            for held, column in zip(self._keys, columns, strict=True):
                held.append(column.take(pa.array(new)))
        for held, name in zip(self._inputs, self._stage.inputs, strict=True):
            held.append(rows.column(name))

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, of which there must be some, and return a row for each key and slice.

        The rows are in the order in which the groups first occurred. `HASH` is the last column.
        """
        assert self._groups is not None
        keys, ends, sizes = self._groups.groups()
        groups = Groups(self._groups.order(), np.cumsum(sizes) - sizes, sizes)
        inputs = {
            name: input_column(pa.concat_arrays(held), dtype)
            for (name, dtype), held in zip(self._stage.inputs.items(), self._inputs, strict=True)
        }
        accumulators = self._columns.aggregation.accumulate_groups(groups, inputs)
        _, *columns = self._columns.to_arrow(Partials(keys, ends, accumulators))
        numbers = pa.array(keys)
        names = [*self._stage.key, *self._columns.schema.names[1:], HASH]
        arrays = [pa.concat_arrays(held).take(numbers) for held in self._keys]
        hashes = pa.array(np.concatenate(self._hashes)[keys])
        self._begin()
        return pa.RecordBatch.from_arrays([*arrays, *columns, hashes], names=names)


@dataclass(frozen=True)
class RankOrder:
    """A column by which rows are ranked."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Ranking:
    """Which rows of a group are the first, and by what number."""

    function: str  # "row_number", "rank" or "dense_rank"
    name: str  # of the column with the number
    order: tuple[RankOrder, ...]
    arrival: tuple[RankOrder, ...]  # by which rows that are equal in `order` follow each other
    limit: int

    def first(self, rows: pa.RecordBatch, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the first rows of each group, and their numbers; O(n log n).

        Nulls and NaN are sorted as in Spark, where NaN is the largest number.

        groups (int64, shape (n,)): the number of each row's group
        """
        columns: dict[str, Any] = {"group": groups}
        compared: list[str] = []
        keys = [("group", "ascending")]
        for at, one in enumerate(self.order + self.arrival):
            compared = list(columns) if at == len(self.order) else compared
            values = rows.column(one.column)
            direction = "descending" if one.descending else "ascending"
            if values.null_count:
                columns[f"null{at}"] = values.is_null()
                keys.append((f"null{at}", "descending" if one.nulls_first else "ascending"))
            if pa.types.is_floating(values.type):
                columns[f"nan{at}"] = pc.is_nan(values)
                keys.append((f"nan{at}", direction))
            columns[f"value{at}"] = values
            keys.append((f"value{at}", direction))
        compared = compared or list(columns)
        table = pa.table(columns)
        order = pc.sort_indices(table, keys).to_numpy()
        numbers = np.arange(len(order))
        begins = changes(groups[order])
        within = numbers - np.maximum.accumulate(np.where(begins, numbers, 0)) + 1
        if self.function != "row_number":
            differs = begins.copy()
            for name in compared:
                column = table.column(name).take(order)
                differs[1:] |= ~_equal(column.slice(1), column.slice(0, len(order) - 1))
            if self.function == "rank":
                within = within[np.maximum.accumulate(np.where(differs, numbers, 0))]
            else:
                dense = np.cumsum(differs)
                within = dense - dense[np.maximum.accumulate(np.where(begins, numbers, 0))] + 1
        kept = within <= self.limit
        return order[kept], within[kept]


def changes(numbers: np.ndarray) -> np.ndarray:
    """Return where a number differs from the one before it: bool, shape (n,); the first does."""
    changes = np.ones(len(numbers), bool)
    changes[1:] = numbers[1:] != numbers[:-1]
    return changes


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Return where values are equal, as null is to null and NaN to NaN: bool, shape (n,)."""
    equal = pc.equal(one, other).fill_null(False)
    equal = pc.or_(equal, pc.and_(one.is_null(nan_is_null=True), other.is_null(nan_is_null=True)))
    return np.asarray(equal)


@dataclass(frozen=True)
class LocalFirstRows:
    """Reduces the rows of a task to those that may be among the first of their window and key."""

    ranking: Ranking
    key: list[str]

    def __call__(self) -> _Reducer:
        """Return a buffer without rows."""
        return _Reducer(self)


class _Reducer:
    def __init__(self, stage: LocalFirstRows) -> None:
        task = TaskContext.get()
        self._stage = stage
        self._count = (0 if task is None else task.partitionId()) << 40  # so that rows of tasks are apart
        self._batch = int((task and task.getLocalProperty("streaming.sql.batchId")) or 0)
        self._rows: list[pa.RecordBatch] = []
        self._hashes: list[np.ndarray] = []

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""
        rows = rows.drop_columns([HASH]) if HASH in rows.schema.names else rows
        arrival = np.full(len(rows), self._batch), np.arange(self._count, self._count + len(rows))
        self._count += len(rows)
        for name, column in zip(ARRIVAL, arrival, strict=True):
            rows = rows.append_column(name, pa.array(column))
        self._rows.append(rows)
        self._hashes.append(hashes)

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, of which there must be some, and return the first, with `HASH`."""
        rows, hashes = pa.concat_batches(self._rows), np.concatenate(self._hashes)
        self._rows, self._hashes = [], []
        groups = SliceGroups(len(self._stage.key) + len(WINDOW))
        views = [view_of(rows.column(name)) for name in (*self._stage.key, *WINDOW)]
        groups.add(hashes, rows.column(ENDS).to_numpy(), views)
        numbers = np.empty(len(rows), np.int64)
        numbers[groups.order()] = np.repeat(np.arange(len(groups)), groups.groups()[2])
        chosen, _ = self._stage.ranking.first(rows, numbers)
        return rows.take(pa.array(chosen)).append_column(HASH, pa.array(hashes[chosen]))
