"""Tables of values by id: those of a value state, and of the keys, exact even if hashes collide."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import IdIndex, KeyNumbers, RowCells, secret_hashes
from timerheap.spark._arrow import narrow, view_of, wide_rows
from timerheap.spark._group.checkpoint import KEYS
from timerheap.spark._group.columns import Slab, python_values
from timerheap.spark._group.memory import PROCESS, Memory

_CELL_CLASSES: dict[pa.DataType, type] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), int),
    pa.float64(): float,
    pa.bool_(): bool,
}

NAME = b"name"
"""The metadata of a key column that has its name in the user's rows."""

_MANY_ROUNDS = 8  # which not even 2**32 displaced keys need
_NO_IDS = np.empty(0, np.int64)


def distinct(ids: np.ndarray) -> np.ndarray:
    """Return ids, int64, without repetitions, in their order."""
    return ids[IdIndex().put_many(ids, 0)]


def last_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the last row for each value of the first column, which is int64; O(rows), without sorting."""
    rows = pa.concat_batches(batches)
    ids, numbers = rows.column(0).to_numpy(), np.arange(rows.num_rows)
    last = IdIndex()
    if last.put_many(ids, numbers).all():
        return rows
    return rows.filter(pa.array(last.find_many(ids)[0] == numbers))


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
        """Return the places of `ids` in the table, below `end`, until the next change: int64, shape (n,)."""
        return self._index.find_many(ids)[0]

    @property
    def end(self) -> int:
        """All places are below it."""
        return len(self._slab)

    def match(self, ids: np.ndarray, fields: list[pa.Array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the places of ids, which are in the table, and which have a value with these fields."""
        # The values must be structs of flat types. NaN equals NaN, and null equals null. The three arrays
        # have the shape (n,).
        places, found = self._index.find_many(ids)
        same = found.copy()
        if np.count_nonzero(found):
            stored = self._slab.values()
            for i, field in enumerate(fields):
                if not pa.types.is_null(field.type):
                    view_of(field).compare(view_of(stored.field(i)), places, same)
        return places, found, same

    def get(self, ids: np.ndarray) -> pa.Array:
        """Return the values of `ids`, null for a missing id: shape (n,)."""
        places, found = self._index.find_many(ids)
        return self._slab.take(places, None if np.count_nonzero(found) == len(found) else found)

    def reserve(self, times: float) -> None:
        self._index.reserve(ceil(times * len(self._index)))
        self._slab.reserve(times)

    def put(self, ids: np.ndarray, values: pa.Array) -> bool:
        """Set the values of distinct `ids`; null removes an id. Return whether others have got new places."""
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
        return cls(kind, name, schema.field(cls.shape).type, memory)

    def head(self) -> list[Any]:
        return [self.count_losses(), self._table.head()]

    def count_losses(self) -> int:
        return self._losses + (0 if self._cells is None else self._cells.cleared)

    def announce(self, ids: np.ndarray) -> None:
        """Record that the values of these keys may be read; the first read then loads them in one lookup."""
        self._at_hand.append(ids)

    def load(self, key_id: int) -> Any:
        if key_id in self._stored:
            return self._stored[key_id]
        if key_id not in self._loaded:
            ids = np.concatenate([*self._at_hand, [key_id]])
            self._at_hand = []
            self._loaded.update(zip(ids.tolist(), python_values(self._table.get(ids)), strict=True))
        return self._loaded[key_id]

    def store(self, key_id: int, value: Any) -> None:
        self._losses += value is None
        self._stored[key_id] = value

    def at_hand(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the values that have been loaded, and those stored since, which count first, by key id."""
        # Both dicts stay the same objects. A value that is not None may be stored in the second one directly.
        return self._loaded, self._stored

    def cells(self, numbers: KeyNumbers) -> RowCells | None:
        """Return where a native loop reads and writes the values of keys with these numbers."""
        # Cells for other numbers must not be used any more. None means that values of this type are
        # `at_hand`.
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
            ids = distinct(np.concatenate([ids for ids, _ in unsaved]))
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
        self._settle()
        return len(self._table)

    def _batch(self, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), values], schema=wide_rows(self.schema))


def _loaded(table: IdTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of keys as `RowCells` have them, and which keys have one."""
    places, held = table._index.find_many(ids)
    if not np.count_nonzero(held):
        return places, held
    values = table._slab.take(places).to_numpy(zero_copy_only=False)
    return values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64), held


def _stored(bits: np.ndarray, held: np.ndarray, type_: pa.DataType) -> pa.Array:
    values = bits.view(np.float64) if pa.types.is_floating(type_) else bits
    mask = None if held.all() else ~held
    return pa.array(values, mask=mask, from_pandas=False).cast(type_)


class KeyTable:
    """Maps keys to key ids and back.

    The id of a key is its hash, or another free value if another live key has that id. The key is then
    displaced. Keys whose hashes collide can be made on purpose, so displaced keys are found by a second hash,
    of their values and a secret seed, at a cost that does not depend on how many there are. A chunk holds one
    row per id: the key columns, and the hash of a displaced key (else null).

    The `fields` are those of the key columns, whose metadata is stored, too. Null is an ordinary value, which
    equals only null. `table` has the key columns by id.
    """

    kind = KEYS
    name = ""
    id_column = 0
    _losses: int
    _seed: int
    _rounds: int  # of second hashes: more than one only if those of displaced keys collide, too
    _next: int | None  # see `_free_ids`

    def __init__(self, fields: list[pa.Field], memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        new = 0, secrets.randbits(64), 0, None, (), (), None
        self._losses, self._seed, self._rounds, self._next, table, hashes, displaced = head or new
        self._columns = pa.schema([field.remove_metadata() for field in fields])
        self._wide = wide_rows(self._columns)
        columns = [field.with_name(f"k{i}") for i, field in enumerate(fields)]
        stored = pa.struct([pa.field("hash", pa.int64()), *columns])
        self.schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("key", stored)])
        self.type = pa.struct(columns)
        self.table = IdTable(self.type, memory, table)
        self._hashes = IdTable(pa.int64(), memory, hashes)  # the hashes of displaced keys by id
        # Their ids by second hash.
        self._displaced = IdIndex(memory) if displaced is None else IdIndex._attach(memory, displaced)
        self._added: list[np.ndarray] = []
        self._dropped: list[np.ndarray] = []
        self.at_hand = _NO_IDS  # the known ids of the current rows or timers, read-only

    @staticmethod
    def fields(schema: pa.Schema) -> list[pa.Field]:
        """Return the key columns of chunks of this schema."""
        return list(schema.field("key").type)[1:]

    def head(self) -> list[Any]:
        """Return what it takes to attach it; all changes must have been saved."""
        parts = [self.table.head(), self._hashes.head(), self._displaced._head()]
        return [self._losses, self._seed, self._rounds, self._next, *parts]

    def resolve(self, hashes: np.ndarray, columns: list[pa.Array]) -> np.ndarray:
        """Return the id of the key of each row, shape (n,), and add the new keys; see `locate`."""
        return self.locate(hashes, columns)[0]

    def locate(self, hashes: np.ndarray, columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
        """Return the id of the key of each row and its place in `table`, and add the new keys.

        Hashes, key columns and results have the shape (n,). Costs O(n) without a Python step per row. The
        places are valid until the next change of the table.
        """
        places, found, same = self.table.match(hashes, columns)
        if np.count_nonzero(found) < len(found):
            absent = (~found).nonzero()[0]
            if len(self._hashes):  # a key stays displaced even if its hash is free by now
                absent = absent[~self._find_displaced(_taken(columns, absent))[1]]
            if len(absent):
                new, keys = hashes[absent], _taken(columns, absent)
                first = IdIndex().put_many(new, 0).nonzero()[0]
                if self._add(new[first], self._structs(_taken(keys, first))):
                    places, _, same = self.table.match(hashes, columns)
                else:
                    places[absent], _, same[absent] = self.table.match(new, keys)
        clash = (~same).nonzero()[0]
        if not len(clash):
            return hashes, places
        ids = hashes.copy()
        ids[clash] = self._displaced_ids(hashes[clash], _taken(columns, clash))
        return ids, self.table.places(ids)

    def _second_hashes(self, columns: list[pa.Array], n: int, round_: int) -> np.ndarray:
        views = [view_of(column) for column in columns if not pa.types.is_null(column.type)]
        return secret_hashes(views, n, (self._seed + round_) % (1 << 128))

    def _find_displaced(self, columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of displaced keys, and which keys are displaced: each of shape (n,)."""
        n = len(columns[0])
        ids, known = np.zeros(n, np.int64), np.zeros(n, bool)
        for round_ in range(self._rounds):
            found, held = self._displaced.find_many(self._second_hashes(columns, n, round_))
            held &= self.table.match(found, columns)[2]
            ids[held], known = found[held], known | held
        return ids, known

    def _displaced_ids(self, hashes: np.ndarray, columns: list[pa.Array]) -> np.ndarray:
        """Return the ids of keys whose hashes are ids of others, and add the new keys."""
        ids, known = self._find_displaced(columns)
        left, round_ = np.flatnonzero(~known), 0
        while len(left):  # more than once only where second hashes collide, too
            keys = _taken(columns, left)
            second = self._second_hashes(keys, len(left), round_)
            first = np.flatnonzero(~self._displaced.find_many(second)[1])
            first = first[IdIndex().put_many(second[first], 0)]
            self._displace(hashes[left[first]], _taken(keys, first), second[first], round_)
            ids[left] = self._displaced.find_many(second)[0]
            left = left[~self.table.match(ids[left], keys)[2]]
            round_ += 1
        return ids

    def _displace(self, hashes: np.ndarray, columns: list[pa.Array], second: np.ndarray, round_: int) -> None:
        """Add distinct keys under distinct second hashes."""
        ids = self._free_ids(len(second), hashes[0]) if len(second) else _NO_IDS
        try:
            self._displaced.put_many(second, ids)
            self._hashes.put(ids, pa.array(hashes))
            self._add(ids, self._structs(columns))
        except MemoryError:  # all of a key or nothing of it: the caller may try again
            self._displaced.remove_many(second)
            self._hashes.remove(ids)
            raise
        self._rounds = max(self._rounds, round_ + 1)
        if len(ids):
            self._next = int(ids[-1]) + 1

    def _free_ids(self, n: int, hash_: np.int64) -> np.ndarray:
        """Return n ids that no key has: the first behind the largest of a displaced key, or behind a hash."""
        # All attempts of a task must give the same ids. Where keys have been made to have the next ids, their
        # run is passed once, unless displaced keys are dropped, which costs as much.
        if self._next is None:
            displaced = self._hashes.ids()
            self._next = int(displaced.max() if len(displaced) else hash_) + 1
        start, found, size = self._next, _NO_IDS, max(n, 64)
        while len(found) < n:
            places = np.arange(size, dtype=np.uint64) + np.uint64(start % (1 << 64))
            ids = places.view(np.int64)
            found = np.concatenate([found, ids[~self.table.find(ids)]])
            start, size = start + size, 2 * size
        return found[:n]

    def _add(self, ids: np.ndarray, rows: pa.Array) -> bool:
        """Add keys; return whether others have got new places."""
        moved = self.table.put(ids, rows)
        self._added.append(ids)
        self._losses += len(ids)
        return moved

    def expect(self, ids: npt.ArrayLike) -> None:
        """Raise KeyError if an id belongs to no key; the ids `at_hand` are not looked up."""
        if ids is not self.at_hand:
            ids = np.atleast_1d(np.asarray(ids))
            if ids.size:
                _expect_all(ids, self.table.find(ids))

    def keys(self, ids: np.ndarray) -> pa.RecordBatch:
        """Return the keys of `ids`, shape (n, columns); raise KeyError if an id belongs to no key."""
        rows = self.table.get(ids)
        if rows.null_count:
            _expect_all(ids, rows.is_valid().to_numpy(zero_copy_only=False))
        return narrow(pa.RecordBatch.from_arrays(rows.flatten(), schema=self._wide), self._columns)

    def hashes(self, ids: np.ndarray) -> np.ndarray:
        """Return the hashes of the keys of known `ids`: shape (n,), int64."""
        if not len(self._hashes):
            return ids
        return pc.coalesce(self._hashes.get(ids), pa.array(ids)).to_numpy()

    def retain(self, holders: list[np.ndarray]) -> None:
        """Drop all keys whose ids are in none of the arrays `holders`; O(1) per element."""
        dead = np.sort(self.table.unreferenced(holders))
        self._forget(dead)
        self.table.remove(dead)
        if len(dead):
            self._dropped.append(dead)

    def _forget(self, ids: np.ndarray) -> None:
        if not len(self._hashes):
            return
        ids = ids[self._hashes.find(ids)]
        columns = self.table.get(ids).flatten()
        for round_ in range(self._rounds):
            second = self._second_hashes(columns, len(ids), round_)
            self._displaced.remove_many(second[self._displaced.find_many(second)[0] == ids])
        self._hashes.remove(ids)
        self._next = None

    def _index_displaced(self, ids: np.ndarray) -> None:
        keys = self.table.get(ids)
        if keys.null_count:
            gone = ids[keys.is_null().to_numpy(zero_copy_only=False)]
            raise ValueError(f"a displaced id must be that of a key, got {int(gone[0])}, which has none")
        columns, left, round_ = keys.flatten(), np.arange(len(ids)), 0
        while len(left):
            if round_ > _MANY_ROUNDS:
                raise ValueError(f"a key must have one id, got {int(ids[left[0]])} and others")
            second = self._second_hashes(_taken(columns, left), len(left), round_)
            free = ~self._displaced.find_many(second)[1]
            free[free] = IdIndex().put_many(second[free], 0)
            self._next = None
            self._displaced.put_many(second[free], ids[left[free]])
            left, round_ = left[~free], round_ + 1
            self._rounds = max(self._rounds, round_)

    def count_losses(self) -> int:
        """Return how many keys have been added: any may never get a timer, state or row."""
        return self._losses

    def __len__(self) -> int:
        return len(self.table)

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        """Return the keys added and dropped since the last call; a dropped key has a null row."""
        if not self._added and not self._dropped:
            return None
        ids, gone = (np.concatenate([_NO_IDS, *some]) for some in (self._added, self._dropped))
        if self._dropped:
            if len(self._dropped) == 1:
                added = IdIndex()  # like np.isin(), but without sorting
                added.put_many(ids, 0)
                gone = gone[~added.find_many(gone)[1]]  # keys both added and dropped were never saved
            else:  # or were saved, dropped, added again, and dropped again
                ids, gone = np.unique(ids), np.unique(gone)
                gone = gone[~self.table.find(gone)]
            ids = np.concatenate([ids[self.table.find(ids)], gone])
        self._added, self._dropped = [], []
        return self._batch(ids, self.table.get(ids)) if len(ids) else None

    def snapshot(self) -> pa.RecordBatch:
        return self._batch(*self.table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema):
            was, now = batch.schema.field(1).type, self.schema.field(1).type
            raise ValueError(
                f"key must have the types of the checkpoint's keys, {was}, got {now}; "
                "keep the types, or start a new checkpoint"
            )
        ids, rows = batch.columns
        ids = ids.to_numpy()
        hashes, *columns = rows.flatten()
        self._forget(ids)
        self.table.put(ids, self._structs(columns, rows.is_null()))
        displaced = hashes.is_valid()
        if displaced.true_count:
            ids = ids[displaced.to_numpy(zero_copy_only=False)]
            self._hashes.put(ids, hashes.filter(displaced))
            self._index_displaced(ids)

    def reserve(self, times: float) -> None:
        self.table.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return last_rows(batches)

    def _batch(self, ids: np.ndarray, keys: pa.Array) -> pa.RecordBatch:
        schema = wide_rows(self.schema)
        columns = [self._hashes.get(ids), *keys.flatten()]
        rows = pa.StructArray.from_arrays(columns, fields=list(schema.field(1).type), mask=keys.is_null())
        return pa.RecordBatch.from_arrays([pa.array(ids), rows], schema=schema)

    def _structs(self, columns: list[pa.Array], nulls: pa.Array | None = None) -> pa.Array:
        fields = [field.with_type(c.type) for field, c in zip(self.type, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)


def _taken(columns: list[pa.Array], rows: np.ndarray) -> list[pa.Array]:
    """Return the values of some rows, in ascending order."""
    return columns if len(rows) == len(columns[0]) else [column.take(pa.array(rows)) for column in columns]


def shown_keys(schema: pa.Schema) -> dict[int, pa.Field]:
    """Return the user's key columns in chunks of a `KeyTable`, by number, under their names in the rows."""
    return {
        number: field.with_name(field.metadata[NAME].decode()).remove_metadata()
        for number, field in enumerate(KeyTable.fields(schema))
        if field.metadata and NAME in field.metadata
    }


def _expect_all(ids: np.ndarray, held: np.ndarray) -> None:
    missing = ids[~held]
    if len(missing):
        raise KeyError(
            f"ids must be ids of live keys, got {int(missing[0])} ({len(missing)} unknown of "
            f"{len(ids)}); pass ids from ctx.ids"
        )
