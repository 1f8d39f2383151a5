"""The keys of a key group by id, exact even if hashes collide."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import IdIndex, secret_hashes
from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._arrow import narrow, view_of, wide_rows
from timerheap.spark._group.stored.kinds import KEYS
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.id_table import IdTable, last_rows
from timerheap.spark._memory.streamed import Streamed
from timerheap.spark._settling.settled_parts import SettledPart

NAME = b"name"
"""The metadata of a key column that has its name in the user's rows."""

_MANY_ROUNDS = 8  # which not even 2**32 displaced keys need
_NO_IDS = np.empty(0, np.int64)


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
        self.settled: SettledPart | None = None  # the keys that are not in `table`

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
        if self.settled is not None:
            self.settled.bring(hashes)
        places, found, same = self.table.match(hashes, columns)
        if np.count_nonzero(found) < len(found):
            absent = (~found).nonzero()[0]
            if len(self._hashes):  # a key stays displaced even if its hash is free by now
                absent = absent[~self._find_displaced(_at_rows(columns, absent))[1]]
            if len(absent):
                new, keys = hashes[absent], _at_rows(columns, absent)
                first = IdIndex().put_many(new, 0).nonzero()[0]
                if self._add(new[first], self._structs(_at_rows(keys, first))):
                    places, _, same = self.table.match(hashes, columns)
                else:
                    places[absent], _, same[absent] = self.table.match(new, keys)
        clash = (~same).nonzero()[0]
        if not len(clash):
            return hashes, places
        ids = hashes.copy()
        ids[clash] = self._displaced_ids(hashes[clash], _at_rows(columns, clash))
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
            keys = _at_rows(columns, left)
            second = self._second_hashes(keys, len(left), round_)
            first = np.flatnonzero(~self._displaced.find_many(second)[1])
            first = first[IdIndex().put_many(second[first], 0)]
            self._displace(hashes[left[first]], _at_rows(keys, first), second[first], round_)
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
            if self.settled is not None:
                self.settled.bring(ids)
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
                if self.settled is not None:
                    self.settled.bring(ids)
                _expect_all(ids, self.table.find(ids))

    def keys(self, ids: np.ndarray) -> pa.RecordBatch:
        """Return the keys of `ids`, shape (n, columns); raise KeyError if an id belongs to no key."""
        if self.settled is not None:
            self.settled.bring(ids)
        rows = self.table.get(ids)
        if rows.null_count:
            _expect_all(ids, rows.is_valid().to_numpy(zero_copy_only=False))
        return narrow(pa.RecordBatch.from_arrays(rows.flatten(), schema=self._wide), self._columns)

    def hashes(self, ids: np.ndarray) -> np.ndarray:
        """Return the hashes of the keys of known `ids`: shape (n,), int64."""
        if not len(self._hashes):
            return ids
        hashes: np.ndarray = pc.coalesce(self._hashes.get(ids), pa.array(ids)).to_numpy()
        return hashes

    def are_displaced(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids are those of displaced keys: shape (n,), bool."""
        return self._hashes.find(ids)

    def forget_at_hand(self) -> None:
        """Have all ids looked up again."""
        self.at_hand = _NO_IDS

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
            raise DamagedCheckpointError(
                f"a displaced id must be that of a key, got {int(gone[0])}, which has none"
            )
        columns, left, round_ = keys.flatten(), np.arange(len(ids)), 0
        while len(left):
            if round_ > _MANY_ROUNDS:
                raise DamagedCheckpointError(f"a key must have one id, got {int(ids[left[0]])} and others")
            second = self._second_hashes(_at_rows(columns, left), len(left), round_)
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
        return len(self.table) + (0 if self.settled is None else len(self.settled))

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`:

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

    def snapshot(self) -> pa.RecordBatch | Streamed:
        if self.settled is not None:
            return self.settled.stream(self.table, self._batch)
        return self._batch(*self.table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema):
            was, now = batch.schema.field(1).type, self.schema.field(1).type
            raise CheckpointMismatchError(
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


def _at_rows(columns: list[pa.Array], rows: np.ndarray) -> list[pa.Array]:
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
