"""Tables of values by id, in slabs of columns, and the table of a value state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap._native._core import IdIndex, KeyNumbers, RowCells
from timerheap.spark._arrow import clear_unequal, wide_rows
from timerheap.spark._group.columns import Column, python_values
from timerheap.spark._group.memory import PROCESS, Buffer, Memory

_FEW = 64  # dead values that are never worth a compaction
_SMALL = 64 << 10  # bytes that are never worth one
_PIECE = 1 << 16  # values that a compaction copies at a time

_CELL_CLASSES: dict[pa.DataType, type] = {
    pa.int8(): int,
    pa.int16(): int,
    pa.int32(): int,
    pa.int64(): int,
    pa.float64(): float,
    pa.bool_(): bool,
}


def last_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the last row for each value of the first column, which is int64; O(rows), without sorting."""
    rows = pa.concat_batches(batches)
    ids, numbers = rows.column(0).to_numpy(), np.arange(rows.num_rows)
    last = IdIndex()
    if last.put_many(ids, numbers).all():
        return rows
    return rows.filter(pa.array(last.find_many(ids)[0] == numbers))


def latest_versions(batches: list[pa.RecordBatch], group: str, version: str) -> pa.RecordBatch:
    """Return the rows that later batches have not deleted, after the deletions.

    In each batch, the rows without a `version` delete the rows of earlier batches with the same `group`,
    which is int64. Both are names of columns.
    """
    kept: list[pa.RecordBatch] = []
    deleted = IdIndex()
    for batch in reversed(batches):
        deletions = batch.column(version).is_null()
        rows = with_version(batch, version)
        if len(deleted):
            rows = rows.filter(pa.array(~deleted.find_many(rows.column(group).to_numpy())[1]))
        kept.append(rows)
        deleted.put_many(batch.column(group).filter(deletions).to_numpy(), 0)
    gone, schema = np.sort(deleted.ids()), batches[0].schema
    columns = [pa.array(gone) if f.name == group else pa.nulls(len(gone), f.type) for f in schema]
    return pa.concat_batches([pa.RecordBatch.from_arrays(columns, schema=schema), *reversed(kept)])


def with_version(batch: pa.RecordBatch, version: str) -> pa.RecordBatch:
    """Return the rows that have a version; without a copy if the others come first, as they usually do."""
    column = batch.column(version)
    nulls = column.null_count
    if column.slice(0, nulls).null_count == nulls:
        return batch.slice(nulls)
    return batch.filter(column.is_valid())


class Slab:
    """Values of one Arrow type, each at a place: a number that its owner keeps.

    Values of fixed width are overwritten, and places of dropped ones are used again. Others are appended, and
    what they replace is dead until a compaction, which moves the live values to new places. What is returned
    is of `type`, the type with 64-bit offsets.
    """

    _patience: float
    _kept: int  # bytes after the last compaction
    _most: int  # live values since then

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        # Key groups fill up alike: with one threshold, all would be compacted in the same micro-batch.
        new = None, (), random.uniform(0.75, 1.25), 0, 0
        column, free, self._patience, self._kept, self._most = head or new
        self._memory = memory
        self._column = Column(type_, memory, column)
        self._free = Buffer(memory, free)  # int64: dropped places of a column of fixed width
        self.type = self._column.type
        self.fixed_width = self._column.fixed_width

    def head(self) -> list[Any]:
        return [self._column.head(), self._free.head(), self._patience, self._kept, self._most]

    def __len__(self) -> int:
        """Return the number of places, dead ones included."""
        return len(self._column)

    def reserve(self, times: float) -> None:
        self._column.reserve(times)

    def plan(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return where `write` will put values, and make room; a MemoryError leaves the slab as it was.

        The values are as `fitting` returns them. Those that are `held` (bool) have a present place, and
        `places` are distinct there. All have the shape (n,).
        """
        n, end = len(values), len(self._column)
        if not self.fixed_width:
            self._column.grow(values)
            return np.arange(end, end + n)
        new = np.flatnonzero(~held)
        free = self._free.view(np.int64)
        used_again = free[len(free) - min(len(new), len(free)) :]
        appended = new[len(used_again) :]
        self._column.allow_nulls(values, len(appended))
        if len(appended):
            self._column.grow(values if len(appended) == n else values.take(pa.array(appended)))
        places = places.copy()
        places[new[: len(used_again)]] = used_again
        places[appended] = np.arange(end, end + len(appended))
        return places

    def write(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> None:
        """Write values to the places that `plan` has chosen for them; cannot fail."""
        inside = places < len(self._column)
        if not inside.any():
            self._column.append(values)
            return
        self._free.used -= 8 * int(np.count_nonzero(inside & ~held))
        if inside.all():
            self._column.overwrite(places, values)
        else:
            self._column.overwrite(places[inside], values.filter(pa.array(inside)))
            self._column.append(values.filter(pa.array(~inside)))

    def fitting(self, values: pa.Array) -> pa.Array:
        """Return `values` as `plan` needs them."""
        return self._column.fitting(values)

    def take(self, places: np.ndarray | pa.Array) -> pa.Array:
        """Return a copy of the values at `places`, null where that is null: shape (n,); O(n)."""
        return self._column.take(places)

    def values(self) -> pa.Array:
        """Return the values at all places, dead ones included; valid until the next change."""
        return self._column.slice(0, len(self._column))

    def drop(self, places: np.ndarray) -> None:
        """Forget the values at distinct `places`; O(len(places))."""
        if self.fixed_width:
            with suppress(MemoryError):  # they are then used again after a compaction
                self._free.reserve(places.nbytes)
                self._free.append(places)

    def sparse(self, live: int) -> bool:
        """Return whether so much is dead that a compaction pays, if `live` values are not.

        Values may differ in size, and a compaction copies what is live. So it has to wait until as many bytes
        have been appended as the last one kept, or as many values have been dropped as are left.
        """
        dead, nbytes = len(self._column) - live, self._column.nbytes()
        if nbytes <= _SMALL:
            return False
        if self.fixed_width:
            return dead > _FEW + self._patience * live
        self._most = max(self._most, live)
        grown = nbytes > self._patience * (_SMALL + self._kept) + self._kept
        return dead > 0 and (grown or self._most - live > _FEW + self._patience * live)

    def compact(self, places: np.ndarray) -> None:
        """Keep only the values at `places`, and move them to their `new_places`.

        Costs O(places, dead ones included), which amortises if it is done when the slab is `sparse`. A
        MemoryError leaves the slab as it was.
        """
        kept = np.flatnonzero(_mask(places, len(self)))
        column = Column(self.type, self._memory)
        try:
            for start in range(0, len(kept), _PIECE):  # a copy of all at once would need the room twice
                column.append(self._column.take(kept[start : start + _PIECE]))
        except MemoryError:
            column.clear()
            raise
        self.clear()
        self._column = column
        self._kept, self._most = column.nbytes(), len(kept)

    def new_places(self, places: np.ndarray) -> np.ndarray:
        """Return where a compaction moves the values at `places`, in their order: shape (n,), int64."""
        moved: np.ndarray = (np.cumsum(_mask(places, len(self))) - 1)[places]
        return moved

    def nbytes(self) -> int:
        """Return the number of bytes in use, those of dead values included."""
        return self._column.nbytes() + self._free.used

    def clear(self) -> None:
        self._column.clear()
        self._free.clear()
        self._kept = self._most = 0


def _mask(places: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[places] = True
    return mask


def members(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return which of `ids` are in `among`, shape (n,), bool: like ``np.isin``, but without sorting."""
    known = IdIndex()
    known.put_many(among, 0)
    return known.find_many(ids)[1]


class IdTable:
    """A map from int64 ids to values of one Arrow type, which are never null, read and written in columns.

    An index maps each id to the place of its value in a slab. Each call costs amortised O(1) per row. What is
    returned is of `type`, the type with 64-bit offsets, so that a table may hold more than 2 GiB.
    """

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        slab, index = head or ((), None)
        self._slab = Slab(type_, memory, slab)
        self._index = IdIndex(memory) if index is None else IdIndex._attach(memory, index)
        self.type = self._slab.type

    def head(self) -> list[Any]:
        return [self._slab.head(), self._index._head()]

    def __len__(self) -> int:
        return len(self._index)

    def ids(self) -> np.ndarray:
        """Return all ids in arbitrary order, shape (n,), int64."""
        return self._index.ids()

    def items(self) -> tuple[np.ndarray, pa.Array]:
        """Return all ids in ascending order and their values, each of shape (n,)."""
        ids, places = self._index.items()
        order = np.argsort(ids)
        return ids[order], self._slab.take(places[order])

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids are in the table: shape (n,), bool."""
        return self._index.find_many(ids)[1]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Return the places of `ids`, which are in the table, below `end`: int64, shape (n,).

        They are valid until the next change.
        """
        return self._index.find_many(ids)[0]

    @property
    def end(self) -> int:
        """All places are below it."""
        return len(self._slab)

    def match(self, ids: np.ndarray, fields: list[pa.Array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the places of ids, which are in the table, and which have a value with these fields.

        The values must be structs of flat types. NaN equals NaN, and null equals null. The three arrays have
        the shape (n,).
        """
        places, found = self._index.find_many(ids)
        same = found.copy()
        stored = self._slab.values()
        for i, field in enumerate(fields):
            clear_unequal(stored.field(i), places, field, same)
        return places, found, same

    def get(self, ids: np.ndarray) -> pa.Array:
        """Return the values of `ids`, null for a missing id: shape (n,)."""
        places, found = self._index.find_many(ids)
        return self._slab.take(places if found.all() else pa.array(places, mask=~found))

    def reserve(self, times: float) -> None:
        self._index.reserve(ceil(times * len(self._index)))
        self._slab.reserve(times)

    def put(self, ids: np.ndarray, values: pa.Array) -> bool:
        """Set the values of distinct `ids`; a null removes the id.

        Returns whether other ids have got new places. A MemoryError leaves the table as it was.
        """
        values, gone = self._slab.fitting(values), None
        if values.null_count:
            kept = values.is_valid()
            mask = kept.to_numpy(zero_copy_only=False)
            ids, gone, values = ids[mask], ids[~mask], values.filter(kept)
        if self._slab.fixed_width:
            places, held = self._index.find_many(ids)
        else:  # each value gets a new place
            places, held = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        # In this order: the first two may raise a MemoryError and change nothing yet; writing cannot fail.
        places = self._slab.plan(values, places, held)
        self._index.put_many(ids[~held], places[~held])
        self._slab.write(values, places, held)
        if gone is not None:
            self._slab.drop(self._taken_out(gone))
        return self._sweep()

    def remove(self, ids: np.ndarray) -> None:
        """Remove `ids`; missing ones are ignored."""
        if len(ids):  # else room that is reserved stays
            self._slab.drop(self._taken_out(ids))
            self._sweep()

    def clear(self) -> None:
        self._index.clear()
        self._slab.clear()

    def unreferenced(self, holders: list[np.ndarray]) -> np.ndarray:
        """Return the ids that are in none of the arrays `holders`, shape (m,); O(1) per element."""
        held = np.zeros(len(self._slab), bool)
        for ids in holders:
            places, found = self._index.find_many(ids)
            held[places[found]] = True
        ids, places = self._index.items()
        return ids[~held[places]]

    def _taken_out(self, ids: np.ndarray) -> np.ndarray:
        places, found = self._index.remove_many(ids)
        return places[found]

    def _sweep(self) -> bool:
        """Compact the slab if it is sparse; return whether ids have got new places."""
        if not len(self._index):
            self.clear()
        elif self._slab.sparse(len(self._index)):
            with suppress(MemoryError):  # there is no room to make room: the next change tries again
                ids, places = self._index.items()
                moved = self._slab.new_places(places)
                self._slab.compact(places)
                self._index.put_many(ids, moved)
                return True
        return False


class StateTable:
    """The values of one state, by key id: a table, behind a cache of what the current batch has touched.

    Implements `timerheap._states.ValueContents`.
    """

    shape = "value"
    id_column = 0
    _losses: int

    def __init__(
        self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        self.kind = kind
        self.name = name
        self.type = type_
        self.schema = pa.schema([pa.field("key_hash", pa.int64()), pa.field(self.shape, type_)])
        self._losses, table = head or (0, ())
        self._table = IdTable(type_, memory, table)
        self._at_hand: list[np.ndarray] = []
        self._loaded: dict[int, Any] = {}
        self._stored: dict[int, Any] = {}  # since then, not yet in the table
        self._cells: RowCells | None = None  # or in these, for a native loop
        self._unsaved: list[tuple[np.ndarray, pa.Array]] = []  # what has been written

    @classmethod
    def restored(cls, kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> Self:
        """Return an empty state for chunks of this schema."""
        return cls(kind, name, schema.field(cls.shape).type, memory)

    def head(self) -> list[Any]:
        return [self.count_losses(), self._table.head()]

    def count_losses(self) -> int:
        """Return how many times a key's value has been cleared."""
        return self._losses + (0 if self._cells is None else self._cells.cleared)

    def announce(self, ids: np.ndarray) -> None:
        """Record that the values of these keys may be read; the first read then loads them in one lookup."""
        self._at_hand.append(ids)

    def load(self, key_id: int) -> Any:
        """Return the encoded value of one key, or None."""
        if key_id in self._stored:
            return self._stored[key_id]
        if key_id not in self._loaded:
            ids = np.concatenate([*self._at_hand, [key_id]])
            self._at_hand = []
            self._loaded.update(zip(ids.tolist(), python_values(self._table.get(ids)), strict=True))
        return self._loaded[key_id]

    def store(self, key_id: int, value: Any) -> None:
        """Set the value of one key; None removes it."""
        self._losses += value is None
        self._stored[key_id] = value

    def at_hand(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the values that have been loaded, and those stored since, which count first, by key id.

        Both dicts stay the same objects. A value that is not None may be stored in the second one directly.
        """
        return self._loaded, self._stored

    def cells(self, numbers: KeyNumbers) -> RowCells | None:
        """Return where a native loop reads and writes the values of keys with these numbers.

        Cells for other numbers must not be used any more. None means that values of this type are `at_hand`.
        """
        class_ = _CELL_CLASSES.get(self.type)
        if class_ is not None and (self._cells is None or self._cells.numbers is not numbers):
            self._settle()
            self._losses = self.count_losses()
            self._cells = RowCells(numbers, class_, partial(_loaded, self._table))
        return self._cells

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the values of many keys, null for a key without one: shape (n,), with 64-bit offsets."""
        self._settle()
        return self._table.get(ids)

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; a null removes the key's value."""
        self._write()
        self._loaded.clear()
        if self._cells is not None:
            self._cells.forget()
        self._losses += values.null_count
        self._put(ids, values)

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have values."""
        self._settle()
        return self._table.ids()

    def _settle(self) -> None:
        """Write the stored values to the table, and keep them at hand."""
        self._loaded.update(self._stored)
        self._write()

    def _write(self) -> None:
        if self._stored:
            ids = np.fromiter(self._stored, np.int64, len(self._stored))
            self._put(ids, pa.array(list(self._stored.values()), self._table.type))
            self._stored.clear()
        if self._cells is not None:
            ids, bits, held = self._cells.take()
            if len(ids):
                self._put(ids, _stored(bits, held, self.type))

    def _put(self, ids: np.ndarray, values: pa.Array) -> None:
        self._table.put(ids, values)
        self._unsaved.append((ids, values))

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        """Return the values of all keys changed since the last call; null for a key that was cleared."""
        self._write()
        self._loaded.clear()
        self._at_hand = []
        if self._cells is not None:
            self._cells.forget()
        unsaved, self._unsaved = self._unsaved, []
        if not unsaved:
            return None
        ids, values = unsaved[0]
        if len(unsaved) > 1:
            ids = pd.unique(np.concatenate([ids for ids, _ in unsaved]))
            values = self._table.get(ids)
        return self._batch(ids, values.cast(self._table.type))

    def snapshot(self) -> pa.RecordBatch:
        self._settle()
        return self._batch(*self._table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema) or batch.column(0).null_count:
            raise ValueError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._table.put(batch.column(0).to_numpy(), batch.column(1))

    def reserve(self, times: float) -> None:
        self._table.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return last_rows(batches)

    def __len__(self) -> int:
        """Return the number of values."""
        self._settle()
        return len(self._table)

    def _batch(self, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), values], schema=wide_rows(self.schema))


def _loaded(table: IdTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of keys as `RowCells` have them, and which keys have one."""
    values = table.get(ids)
    held = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(values.type):
        return values.fill_null(0.0).to_numpy().view(np.int64), held
    return values.cast(pa.int64()).fill_null(0).to_numpy(), held


def _stored(bits: np.ndarray, held: np.ndarray, type_: pa.DataType) -> pa.Array:
    values = bits.view(np.float64) if pa.types.is_floating(type_) else bits
    mask = None if held.all() else ~held
    return pa.array(values, mask=mask, from_pandas=False).cast(type_)
