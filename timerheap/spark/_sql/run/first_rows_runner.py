"""The first rows of windows in tasks: those of each task before the shuffle, and of all behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from timerheap._native._core import SliceGroups
from timerheap.functions import BatchProcessFunction
from timerheap.spark._arrow import view_of
from timerheap.spark._columns import ARRIVAL, ENDS, HASH, WINDOW
from timerheap.spark._order_by import Ranking, run_starts


def groups_of(rows: pa.RecordBatch, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of rows in which those of a key and window are together, and where these begin."""
    columns = [ids, *(rows.column(name).cast(pa.int64()).to_numpy() for name in WINDOW)]
    order = np.lexsort(columns)
    begins = np.zeros(len(order), bool)
    for column in columns:
        begins |= run_starts(column[order])
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
        chosen = self._ranking.first_by_key(rows, groups)
        return rows.take(pa.array(chosen)).append_column(HASH, pa.array(hashes[chosen]))
