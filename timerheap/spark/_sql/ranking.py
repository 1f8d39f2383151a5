"""Ranks of rows in SQL: ROW_NUMBER, RANK and DENSE_RANK, computed in tasks before and after the shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from timerheap._native._core import SliceGroups
from timerheap.functions import BatchProcessFunction
from timerheap.spark._arrow import view_of
from timerheap.spark._columns import ARRIVAL, ENDS, HASH, WINDOW


@dataclass(frozen=True)
class Order:
    """One ORDER BY expression, in Spark's SQL; of a `Ranking`, a column."""

    by: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Ranking:
    """Which rows of a group are the first, and by what number."""

    function: str  # "row_number", "rank" or "dense_rank"
    name: str  # of the column with the number
    order: tuple[Order, ...]
    arrival: tuple[Order, ...]  # by which rows that are equal in `order` follow each other
    limit: int

    def first(self, rows: pa.RecordBatch, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the first rows of each of the numbered groups, and their ranks."""
        columns, keys = sort_columns(rows, self.order + self.arrival, {"group": groups})
        compared, _ = sort_columns(rows, self.order, {"group": groups})
        table = pa.table(columns)
        order = pc.sort_indices(table, keys).to_numpy()
        numbers = np.arange(len(order))
        begins = changes(groups[order])
        within = numbers - np.maximum.accumulate(np.where(begins, numbers, 0)) + 1
        if self.function != "row_number":
            differs = differing(table.select(list(compared)).take(order))
            if self.function == "rank":
                within = within[np.maximum.accumulate(np.where(differs, numbers, 0))]
            else:
                dense = np.cumsum(differs)
                within = dense - dense[np.maximum.accumulate(np.where(begins, numbers, 0))] + 1
        kept = within <= self.limit
        return order[kept], within[kept]


def sort_columns(
    rows: pa.RecordBatch, orders: Sequence[Order], first: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return columns, the `first` among them, and keys to sort them by as Spark does; NaN is the largest."""
    columns, keys = dict(first), [(name, "ascending") for name in first]
    for at, one in enumerate(orders):
        values = rows.column(one.by)
        direction = "descending" if one.descending else "ascending"
        if values.null_count:
            columns[f"null{at}"] = values.is_null()
            keys.append((f"null{at}", "descending" if one.nulls_first else "ascending"))
        if pa.types.is_floating(values.type):
            columns[f"nan{at}"] = pc.is_nan(values)
            keys.append((f"nan{at}", direction))
        columns[f"value{at}"] = values
        keys.append((f"value{at}", direction))
    return columns, keys


def differing(rows: pa.Table) -> np.ndarray:
    """Return where a row differs from the one before it: bool, shape (n,); the first does."""
    differs = np.zeros(len(rows), bool)
    differs[:1] = True
    for column in rows.columns:
        differs[1:] |= ~_equal(column.slice(1), column.slice(0, len(rows) - 1))
    return differs


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


def groups_of(rows: pa.RecordBatch, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of rows in which those of a key and window are together, and where these begin."""
    columns = [ids, *(rows.column(name).cast(pa.int64()).to_numpy() for name in WINDOW)]
    order = np.lexsort(columns)
    begins = np.zeros(len(order), bool)
    for column in columns:
        begins |= changes(column[order])
    return order, begins


class FirstRows(BatchProcessFunction):
    """Emits the first rows of each window and key, with their numbers."""

    _takes_all = _any_order = True

    def __init__(self, ranking: Ranking, columns: list[str]) -> None:
        self._ranking, self._columns = ranking, columns

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        order, begins = groups_of(batch, ctx.ids)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(begins)
        chosen, numbers = self._ranking.first(batch, groups)
        rows = batch.select(self._columns).take(pa.array(chosen))
        yield rows.append_column(self._ranking.name, pa.array(numbers))


class LocalFirstRows:
    """Reduces the rows of a task to those that may be among the first of their window and key."""

    def __init__(self, ranking: Ranking, key: list[str]) -> None:
        task = TaskContext.get()
        self._ranking, self._key = ranking, key
        self._count = (0 if task is None else task.partitionId()) << 40  # so that rows of tasks are apart
        self._batch = int((task and task.getLocalProperty("streaming.sql.batchId")) or 0)
        self._rows: list[pa.RecordBatch] = []
        self._hashes: list[np.ndarray] = []

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
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
        groups = SliceGroups(len(self._key) + len(WINDOW))
        views = [view_of(rows.column(name)) for name in (*self._key, *WINDOW)]
        groups.add(hashes, rows.column(ENDS).to_numpy(), views)
        numbers = np.empty(len(rows), np.int64)
        numbers[groups.order()] = np.repeat(np.arange(len(groups)), groups.groups()[2])
        chosen, _ = self._ranking.first(rows, numbers)
        return rows.take(pa.array(chosen)).append_column(HASH, pa.array(hashes[chosen]))
