"""Rows that only come, before they are sent: those that may be among the first of their key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap._native._core import SliceGroups
from timerheap.spark._arrow import view_of
from timerheap.spark._columns import HASH
from timerheap.spark._order_by import Order, Ranking

_FEW = 2
"""Rows of a key, on average, below which too few would be left out to look for them."""


@dataclass(frozen=True)
class TopReducer:
    """Makes a `ReducedRows` in each task.

    key: the columns of the key
    order: by which rows have different ranks
    """

    key: list[str]
    order: tuple[Order, ...]
    rank: str
    limit: int

    def __call__(self) -> ReducedRows:
        # Of rows that are equal in the order, other columns decide which have the row numbers.
        function = "dense_rank" if self.rank == "dense_rank" else "rank"
        return ReducedRows(self.key, Ranking(function, "", self.order, (), self.limit))


class ReducedRows:
    """The rows of a task, of which the first of each key are sent."""

    def __init__(self, key: list[str], ranking: Ranking) -> None:
        self._key, self._ranking = key, ranking
        self._rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        has = HASH in rows.schema.names
        self._rows.append(rows if has else rows.append_column(HASH, pa.array(hashes)))

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, of which there must be some, and return the first, with `HASH`."""
        rows, self._rows = pa.concat_batches(self._rows), []
        columns = [column for column in rows.select(self._key).columns if not pa.types.is_null(column.type)]
        groups, hashes = SliceGroups(len(columns)), rows.column(HASH).to_numpy()
        groups.add(hashes, np.zeros(len(rows), np.int64), [view_of(column) for column in columns])
        if len(rows) < _FEW * len(groups):
            return rows
        return rows.take(pa.array(np.sort(self._ranking.first_by_key(rows, groups))))
