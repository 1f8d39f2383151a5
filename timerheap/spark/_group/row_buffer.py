"""Rows that wait for the watermark, so that they reach the function in event-time order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import TimerHeap, row_order
from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._arrow import KeyedRows, event_times, wide_rows, widen
from timerheap.spark._columns import HIDDEN, ROW_ID, ROW_TIMESTAMP
from timerheap.spark._group.evolution import evolved_columns, misfit
from timerheap.spark._group.stored.kinds import ROWS
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.slab import Slab
from timerheap.spark._python_rows import python_values
from timerheap.timer import MIN_WATERMARK

RowOrder = Literal["event_time", "arrival"]
"""When rows reach the function: in event-time order behind the watermark, or on arrival."""

_OWN = pa.schema([(ROW_ID, pa.int64()), (ROW_TIMESTAMP, pa.int64())])
_NONE = (np.empty(0, np.int64),) * 3


def content_order(
    rows: pa.RecordBatch,
    timestamps: np.ndarray,
    ids: np.ndarray,
    positions: np.ndarray,
    ties: Sequence[str] = (),
) -> np.ndarray:
    """Return the positions of rows by timestamp, key id and columns: int64, shape (n,).

    Columns are compared from left to right, those of `ties` first, and null comes last. Lists and maps are
    compared as text. Equal rows stay in their order. O(n), and O(t log t) for t rows that share their
    timestamp and key with others.
    `timestamps` and `ids` are those of all rows, `positions`, of shape (n,), those of the rows to order.
    """
    if len(positions) < 2:
        return positions
    ids_here = ids[positions]
    order = positions[row_order(timestamps[positions], ids_here, ids_here)]
    at, keys = timestamps[order], ids[order]
    follows = np.zeros(len(order) + 1, bool)  # row i equals row i - 1 in timestamp and key
    follows[1:-1] = (at[1:] == at[:-1]) & (keys[1:] == keys[:-1])
    if not follows.any():
        return order
    tied = np.flatnonzero(follows[:-1] | follows[1:])
    runs = np.cumsum(~follows[:-1])[tied]
    found = rows.take(pa.array(order[tied]))
    columns = [pa.array(runs), *_sortable([*map(found.column, ties), *found.columns])]
    names = [str(number) for number in range(len(columns))]
    tied_rows = pa.RecordBatch.from_arrays(columns, names)
    by_content = pc.sort_indices(tied_rows, sort_keys=[(name, "ascending") for name in names])
    order[tied] = order[tied][by_content.to_numpy()]
    return order


def _sortable(columns: list[pa.Array]) -> Iterator[pa.Array]:
    """Yield the columns that Arrow can sort by: those of structs in their place, text for others."""
    for column in columns:
        type_ = column.type
        if pa.types.is_struct(type_):
            yield column.is_null()
            yield from _sortable(column.flatten())
        elif pa.types.is_nested(type_):
            yield pa.array([None if value is None else repr(value) for value in python_values(column)])
        else:
            yield column


class RowBuffer:
    """The row buffer of one key group; its journal consists of the rows that remain in it.

    The rows are in a slab, and a heap orders them by timestamp, so that appending costs O(new rows), and
    releasing O(due rows x log n). Rows that are released before anything else happens to the buffer are not
    even copied into it. By event time, rows wait for the watermark; with the order "arrival" there must be
    none in the checkpoint. The heap has the time in ms; rows of one ms are released together, in the order of
    their column `time`, which may have microseconds.
    """

    kind = ROWS
    name = ""
    id_column = -2
    _losses: int
    _released: int  # the largest watermark so far

    def __init__(
        self,
        schema: pa.Schema,
        order: RowOrder,
        memory: Memory = PROCESS,
        head: Sequence[Any] = (),
        ties: Sequence[str] = (),
        time: str | None = None,
    ) -> None:
        slab, heap, self._released, self._losses = head or ((), None, MIN_WATERMARK, 0)
        self._schema = schema
        self._order = order
        self._ties, self._time = ties, time
        self._wide = wide_rows(schema)
        none = np.empty(0, np.int64)
        self._nothing = KeyedRows(pa.RecordBatch.from_pylist([], self._wide), none, none)
        self._memory = memory
        self.schema = pa.schema([*schema, *_OWN])
        self._stored = wide_rows(self.schema)
        self._slab = Slab(pa.struct(list(schema)), memory, slab)
        # The namespace of a row is its place in the slab.
        self._heap = self._new_heap() if heap is None else TimerHeap._attach(memory, heap)
        self._new: list[KeyedRows] = []  # not yet in the slab
        # The places of rows in the slab, the ids of their keys, and their event times.
        self._unsaved: tuple[np.ndarray, ...] = _NONE
        self._replayed: list[pa.RecordBatch] = []

    @staticmethod
    def rows_of(schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows in chunks of this schema."""
        return pa.schema(list(schema)[: -len(_OWN)])

    def head(self) -> list[Any]:
        self._settle()
        return [self._slab.head(), self._heap._head(), self._released, self._losses]

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._new))

    def ids(self) -> np.ndarray:
        """Return the ids of the keys of the buffered rows: shape (n,), a view until the next change."""
        self._settle()
        return self._heap.key_hashes

    def count_losses(self) -> int:
        """Return how many rows were released that had waited."""
        # The key of another row is new, which counts, or was held by something else.
        return self._losses

    def waiting(self) -> KeyedRows:
        """Return a copy of the rows that wait, in arbitrary order."""
        self._settle()
        return self._rows(self._heap.namespaces, self._heap.key_hashes, self._heap.timestamps)

    def next_time(self) -> int | None:
        """Return the smallest event time of a row that waits, None without one; O(1) after a release."""
        self._settle()
        return int(self._heap.timestamps[0]) if len(self._heap) else None

    def append(self, rows: KeyedRows) -> None:
        if len(rows):
            self._new.append(rows)

    def release(self, watermark: int, in_order: bool = True) -> tuple[KeyedRows, np.ndarray]:
        """Remove the rows up to `watermark`; a MemoryError leaves the buffer as it was.

        Returns these rows, and perhaps others, and the positions of these rows, in `content_order` if wanted.
        """
        arrived = KeyedRows.concatenated([self._nothing, *self._new])
        # Only what stays goes through the slab: most rows are released by the micro-batch that brings them.
        waits = arrived.timestamps > watermark
        self._new = [arrived.where(waits)]
        try:
            self._settle()
        except MemoryError:
            self._new = [arrived]
            raise
        self._released = max(self._released, watermark)
        popped = self._popped(watermark)
        self._losses += len(popped)
        rows = popped if np.count_nonzero(waits) == len(waits) else KeyedRows.concatenated([arrived, popped])
        (due,) = (rows.timestamps <= watermark).nonzero()
        if not in_order:
            return rows, due
        times = rows.timestamps if self._time is None else event_times(rows.rows.column(self._time))
        return rows, content_order(rows.rows, times, rows.ids, due, self._ties)

    def _settle(self) -> None:
        """Put the new rows, of which most never get here, into the slab; all of them or none."""
        new = [rows for rows in self._new if len(rows)]
        if new:
            rows = KeyedRows.concatenated(new)
            values = self._slab.fitting(rows.rows.to_struct_array())
            held = np.zeros(len(rows), bool)
            places = self._slab.plan(values, np.zeros(len(rows), np.int64), held)
            unsaved: tuple[np.ndarray, ...] = (places, rows.ids, rows.timestamps)
            if len(self._unsaved[0]):
                unsaved = tuple(map(np.concatenate, zip(self._unsaved, unsaved, strict=True)))
            self._heap.push_many(rows.timestamps, rows.ids, places)
            self._slab.write(values, places, held)
            self._unsaved = unsaved
        self._new = []

    def _popped(self, watermark: int) -> KeyedRows:
        due = self._heap.pop_due(watermark)
        rows = self._rows(due.namespaces, due.key_hashes, due.timestamps)
        if len(rows):
            self._slab.drop(due.namespaces)
            left = self._unsaved[2] > watermark
            self._unsaved = tuple(column[left] for column in self._unsaved)
            self._sweep()
        return rows

    def _rows(self, places: np.ndarray, ids: np.ndarray, timestamps: np.ndarray) -> KeyedRows:
        if not len(places):
            return self._nothing
        values = self._slab.take(places)
        columns = [values.field(i) for i in range(len(self._wide))]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._wide)
        return KeyedRows(rows, ids, timestamps)

    def _sweep(self) -> None:
        """Compact the slab if it is sparse."""
        heap = self._heap
        if not len(heap):
            self._slab.clear()
        elif self._slab.sparse(len(heap)):
            with suppress(MemoryError):  # there is no room to make room: the next release tries again
                compacted = self._new_heap()
                try:
                    moved = np.empty(len(self._slab), np.int64)
                    moved[heap.namespaces] = self._slab.new_places(heap.namespaces)
                    compacted.push_many(heap.timestamps, heap.key_hashes, moved[heap.namespaces])
                    unsaved = moved[self._unsaved[0]], *self._unsaved[1:]
                    self._slab.compact(heap.namespaces)
                except MemoryError:
                    compacted.clear()
                    raise
                self._heap, self._unsaved = compacted, unsaved
                heap.clear()

    def _new_heap(self) -> TimerHeap:
        heap = TimerHeap()
        heap._lend(self._memory)
        return heap

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        """Return the rows that were appended since the last call and still wait."""
        self._settle()
        unsaved, self._unsaved = self._unsaved, _NONE
        return self._pack(self._rows(*unsaved)) if len(unsaved[0]) else None

    def snapshot(self) -> pa.RecordBatch:
        self._settle()
        heap = self._heap
        order = np.argsort(heap.namespaces)
        rows = self._rows(heap.namespaces[order], heap.key_hashes[order], heap.timestamps[order])
        if len(rows) and self._slab.fixed_width:  # it uses places again; else their order is that of arrival
            rows = rows.take(content_order(rows.rows, rows.timestamps, rows.ids, np.arange(len(rows))))
        return self._pack(rows)

    def replay(self, batch: pa.RecordBatch) -> None:
        """See `CheckpointedPart`; `loaded` then buffers the rows that still wait."""
        if pa.schema(list(batch.schema)[-2:]) != _OWN:
            raise DamagedCheckpointError(
                f"a chunk of kind {ROWS} has the columns {batch.schema}; its last must be {_OWN}"
            )
        self._replayed.append(batch)

    def loaded(self, watermark: int) -> bool:
        """Buffer the rows, once all chunks have been replayed; return whether their types have changed."""
        # Rows up to `watermark` were released before the save. Only the others must fit the query.
        self._released = watermark
        replayed, self._replayed = self._replayed, []
        count = sum(
            int(np.count_nonzero(batch.column(_OWN.names[1]).to_numpy() > watermark)) for batch in replayed
        )
        self._heap.reserve(count)  # growing step by step takes four times as long
        changed = False
        for batch in map(self._waiting, replayed):
            if batch.num_rows:
                changed |= self._check_schema(pa.schema(list(batch.schema)[:-2]))
                rows = evolved_columns(widen(batch), self._schema)
                self.append(KeyedRows(rows, *(batch.column(name).to_numpy() for name in _OWN.names)))
                self._settle()
                self._unsaved = _NONE
        self._heap.reserve(0)  # from now on the memory may shrink
        return changed

    def reserve(self, times: float) -> None:
        """Do nothing: chunks are kept until `loaded`."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the rows of these batches that still wait."""
        return pa.concat_batches([self._waiting(batch) for batch in batches])

    def _waiting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a chunk that have not been released."""
        return batch.filter(pc.greater(batch.column(_OWN.names[1]), self._released))

    def _check_schema(self, stored: pa.Schema) -> bool:
        rest = "until these rows have come, or start a new checkpoint"
        if self._order != "event_time":
            raise CheckpointMismatchError(
                "order must be 'event_time' while rows wait in the checkpoint for the watermark, got "
                f"'arrival'; go back to order='event_time' {rest}"
            )
        was, now = pa.struct(list(stored)), pa.struct(list(self._schema))
        why = misfit(was, now)
        if why is not None:
            raise CheckpointMismatchError(
                "df must have columns that the rows which wait in the checkpoint for the watermark can take, "
                f"got others: {why.replace(HIDDEN, '')}; go back to the old columns {rest}"
            )
        return bool(was != now)

    def _pack(self, rows: KeyedRows) -> pa.RecordBatch:
        columns = [*rows.rows.columns, pa.array(rows.ids), pa.array(rows.timestamps)]
        return pa.RecordBatch.from_arrays(columns, schema=self._stored)
