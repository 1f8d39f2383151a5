"""Rows that wait for the watermark, so that they reach the function in event-time order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from timerheap.spark.chunks import ROWS

__all__ = ["ORDER", "RowBuffer", "RowOrder", "WaitingRows"]

RowOrder = Literal["event_time", "arrival"]
"""When rows reach the function: once the watermark has passed them, in event-time order, or as they come."""

ORDER = "__timerheap_order"
"""Name of the column that breaks ties: a hash of the whole row, so that order is the data's own."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRows:
    """Rows with the ids of their keys and their event times.

    Parameters
    ----------
    rows : pyarrow.RecordBatch, n rows
    ids : ndarray of int64, shape (n,)
    timestamps : ndarray of int64, shape (n,)
        Epoch ms; zeros in a query without event time.
    """

    rows: pa.RecordBatch
    ids: np.ndarray
    timestamps: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray) -> WaitingRows:
        """Give the rows at these positions."""
        return WaitingRows(self.rows.take(pa.array(rows)), self.ids[rows], self.timestamps[rows])

    def slice(self, start: int, stop: int) -> WaitingRows:
        """Give the rows from `start` to before `stop`, without copying."""
        return WaitingRows(
            self.rows.slice(start, stop - start), self.ids[start:stop], self.timestamps[start:stop]
        )


class RowBuffer:
    """The buffer of one key group; its journal is the rows that stay.

    A row leaves when the watermark reaches it, which costs O(buffered rows) a batch.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the rows; has the column `ORDER`.
    """

    kind = ROWS
    name = ""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._stored = schema.append(pa.field("__id", pa.int64())).append(pa.field("__timestamp", pa.int64()))
        empty = np.empty(0, np.int64)
        self._waiting = WaitingRows(_empty(schema), empty, empty)
        self.losses = 0  # rows released
        self._saved = 0  # rows at the front that a checkpoint holds

    def ids(self) -> np.ndarray:
        """Give the ids of the keys that have rows here."""
        return self._waiting.ids

    def append(self, rows: WaitingRows) -> None:
        """Keep rows until the watermark reaches them."""
        if not len(rows):
            return
        old = self._waiting
        self._waiting = WaitingRows(
            pa.concat_batches([old.rows, rows.rows]),
            np.concatenate([old.ids, rows.ids]),
            np.concatenate([old.timestamps, rows.timestamps]),
        )

    def release(self, watermark: int) -> WaitingRows:
        """Take out the rows up to `watermark`, in the order (timestamp, key id, the row's own hash)."""
        due = self._waiting.timestamps <= watermark
        if not due.any():
            return self._waiting.slice(0, 0)
        released = self._waiting.take(np.flatnonzero(due))
        self.losses += len(released)
        self._saved -= int(due[: self._saved].sum())
        self._waiting = self._waiting.take(np.flatnonzero(~due))
        order = released.rows.column(released.rows.schema.get_field_index(ORDER)).to_numpy()
        return released.take(np.lexsort((order, released.ids, released.timestamps)))

    def changes(self) -> pa.RecordBatch | None:
        """See `timerheap.spark.state.Part`."""
        fresh = self._waiting.slice(self._saved, len(self._waiting))
        self._saved = len(self._waiting)
        return self._pack(fresh) if len(fresh) else None

    def snapshot(self) -> pa.RecordBatch:
        """See `timerheap.spark.state.Part`."""
        return self._pack(self._waiting)

    def replay(self, batch: pa.RecordBatch) -> None:
        """See `timerheap.spark.state.Part`; the rows that had been released are dropped by the caller."""
        if batch.schema != self._stored:
            was, now = (", ".join(f"{f.name} {f.type}" for f in s) for s in (batch.schema, self._stored))
            raise ValueError(
                f"order: the checkpoint's waiting rows have the columns {was}, the query's have {now}; "
                "go back to the old columns, or start a new checkpoint"
            )
        *columns, ids, timestamps = batch.columns
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self.append(WaitingRows(rows, ids.to_numpy(), timestamps.to_numpy()))
        self._saved = len(self._waiting)

    def nbytes(self) -> int:
        """See `timerheap.spark.state.Part`."""
        return int(self._waiting.rows.nbytes) + 16 * len(self._waiting)

    def _pack(self, waiting: WaitingRows) -> pa.RecordBatch:
        columns = [*waiting.rows.columns, pa.array(waiting.ids), pa.array(waiting.timestamps)]
        return pa.RecordBatch.from_arrays(columns, schema=self._stored)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
