"""Rows that wait for the watermark, so that they reach the function in event-time order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._group.chunks import ROWS
from timerheap.spark._group.offsets import wide_rows

__all__ = ["ORDER", "KeyedRows", "RowBuffer", "RowOrder"]

RowOrder = Literal["event_time", "arrival"]
"""When rows reach the function: in event-time order behind the watermark, or on arrival."""

ORDER = "__timerheap_order"
"""The column that breaks ties: a hash of the whole row, so that the order depends only on the data."""

_OWN = pa.schema([("__id", pa.int64()), ("__timestamp", pa.int64())])
_INTERNAL = "__timerheap_"


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Rows with the ids of their keys and their event times.

    Parameters
    ----------
    rows : pyarrow.RecordBatch, n rows
        With 64-bit offsets.
    ids : ndarray of int64, shape (n,)
    timestamps : ndarray of int64, shape (n,)
        Epoch ms; zeros in a query without event time.
    """

    rows: pa.RecordBatch
    ids: np.ndarray
    timestamps: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: np.ndarray) -> KeyedRows:
        """Return the rows at these positions."""
        return KeyedRows(self.rows.take(pa.array(rows)), self.ids[rows], self.timestamps[rows])

    def slice(self, start: int, stop: int) -> KeyedRows:
        """Return the rows from `start` up to but not including `stop`, without copying."""
        return KeyedRows(
            self.rows.slice(start, stop - start), self.ids[start:stop], self.timestamps[start:stop]
        )


class RowBuffer:
    """The row buffer of one key group; its journal consists of the rows that remain in it.

    Rows are released when the watermark reaches them, which costs O(buffered rows) per batch.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the rows, with the column `ORDER` if rows wait for the watermark.
    """

    kind = ROWS
    name = ""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.schema = pa.schema([*schema, *_OWN])
        self._replayed: list[pa.RecordBatch] = []
        empty = np.empty(0, np.int64)
        self._waiting = KeyedRows(_empty(wide_rows(schema)), empty, empty)
        self.losses = 0  # rows released
        self._saved = 0  # number of rows at the front that are in the checkpoint

    def ids(self) -> np.ndarray:
        """Return the ids of the keys of the buffered rows."""
        return self._waiting.ids

    def append(self, *rows: KeyedRows) -> None:
        """Buffer rows until the watermark reaches them."""
        every = [self._waiting, *(part for part in rows if len(part))]
        if len(every) > 1:
            self._waiting = KeyedRows(
                pa.concat_batches([part.rows for part in every]),
                np.concatenate([part.ids for part in every]),
                np.concatenate([part.timestamps for part in every]),
            )

    def release(self, watermark: int) -> KeyedRows:
        """Remove and return the rows up to `watermark`, ordered by timestamp, key id and row hash."""
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
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        fresh = self._waiting.slice(self._saved, len(self._waiting))
        self._saved = len(self._waiting)
        return self._pack(fresh) if len(fresh) else None

    def snapshot(self) -> pa.RecordBatch:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        return self._pack(self._waiting)

    def replay(self, batch: pa.RecordBatch) -> None:
        """See `CheckpointedPart`; `loaded` then buffers the rows that still wait."""
        if pa.schema(list(batch.schema)[-2:]) != _OWN:
            raise ValueError(
                f"a chunk of kind {ROWS} has the columns {batch.schema}; its last must be {_OWN}"
            )
        self._replayed.append(batch)

    def loaded(self, watermark: int) -> None:
        """Buffer the replayed rows, once all chunks have been replayed.

        Rows up to `watermark` were released before the save. Only the others must fit the query.
        """
        replayed, self._replayed = self._replayed, []
        waiting = [batch.filter(pc.greater(batch.column(_OWN.names[1]), watermark)) for batch in replayed]
        waiting = [batch for batch in waiting if batch.num_rows]
        for batch in waiting:
            self._check_schema(pa.schema(list(batch.schema)[:-2]))
        self.append(*map(self._unpack, waiting))
        self._saved = len(self._waiting)

    def _check_schema(self, stored: pa.Schema) -> None:
        rest = "until these rows have come, or start a new checkpoint"
        if ORDER not in self._schema.names:
            raise ValueError(
                "order must be 'event_time' while rows wait in the checkpoint for the watermark, got "
                f"'arrival'; go back to order='event_time' {rest}"
            )
        differences = ", ".join(_differences(stored, self._schema))
        if differences:
            raise ValueError(
                "df must have the columns of the rows that wait in the checkpoint for the watermark, got "
                f"others: {differences}; go back to the old columns {rest}"
            )

    def _unpack(self, batch: pa.RecordBatch) -> KeyedRows:
        *columns, ids, timestamps = (
            batch.column(field.name).cast(field.type)  # the order of the columns may differ
            for field in wide_rows(self.schema)
        )
        rows = pa.RecordBatch.from_arrays(columns, schema=wide_rows(self._schema))
        return KeyedRows(rows, ids.to_numpy(), timestamps.to_numpy())

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        return pa.concat_batches(batches)

    def nbytes(self) -> int:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        return int(self._waiting.rows.nbytes) + 16 * len(self._waiting)

    def _pack(self, waiting: KeyedRows) -> pa.RecordBatch:
        columns = [*waiting.rows.columns, pa.array(waiting.ids), pa.array(waiting.timestamps)]
        return pa.RecordBatch.from_arrays(columns, schema=wide_rows(self.schema))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _differences(was: Iterable[pa.Field], now: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield a description of each changed column or field of a column; their order is ignored."""
    old, new = ({field.name: field.type for field in fields} for fields in (was, now))
    for name in [*old, *(name for name in new if name not in old)]:
        shown = prefix + name.removeprefix(_INTERNAL)
        if name not in new:
            yield f"{shown!r} is missing"
        elif name not in old:
            yield f"{shown!r} is new"
        elif pa.types.is_struct(old[name]) and pa.types.is_struct(new[name]):
            yield from _differences(old[name], new[name], f"{shown}.")
        elif old[name] != new[name]:
            yield f"{shown!r} was {old[name]} and is {new[name]}"
