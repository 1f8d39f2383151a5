"""The table of the keys and key ids of one key group, exact even if hashes collide."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._group.chunks import KEYS
from timerheap.spark._group.id_table import IdTable, members
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.merging import last_rows
from timerheap.spark._group.offsets import narrow, wide_rows

__all__ = ["KeyTable"]

_ID_SPAN = 1 << 64
_NO_IDS = np.empty(0, np.int64)


class KeyTable:
    """Maps keys to key ids and back.

    The id of a key is its hash, or the next free value if another live key has that id. The table holds one
    row per id: the key columns, and the hash if it differs from the id (else null).

    Parameters
    ----------
    fields : list of pyarrow.Field
        The key columns. Null is an ordinary value, which equals only null.
    memory : Memory
    """

    kind = KEYS
    name = ""

    def __init__(self, fields: list[pa.Field], memory: Memory = PROCESS) -> None:
        self._fields = fields
        columns = [field.with_name(f"k{i}") for i, field in enumerate(fields)]
        stored = pa.struct([pa.field("hash", pa.int64()), *columns])
        self.schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("key", stored)])
        self.table = IdTable(stored, memory)
        self.type = self.table.type
        self._displaced: dict[int, dict[tuple[Any, ...], int]] = {}  # hash -> key -> id
        self._added: list[tuple[np.ndarray, pa.Array]] = []
        self._dropped: list[np.ndarray] = []
        self.losses = 0  # counts new keys, since a key may never get a timer, state or row
        self.at_hand = _NO_IDS  # the known ids of the current rows or timers, read-only

    @classmethod
    def attach(cls, fields: list[pa.Field], memory: Memory, head: list[Any]) -> KeyTable:
        """Return the table that `head` describes; O(1) and O(number of keys with equal hashes)."""
        keys = cls(fields)
        keys.losses, displaced, table = head
        keys.table = IdTable.attach(keys.schema.field(1).type, memory, table)
        ids = np.array(displaced, np.int64)
        keys._displace(ids, keys.table.get(ids))
        return keys

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs; all changes must have been saved."""
        displaced = [id_ for keys in self._displaced.values() for id_ in keys.values()]
        return [self.losses, displaced, self.table.head()]

    def resolve(self, hashes: np.ndarray, columns: list[pa.Array]) -> np.ndarray:
        """Return the id of the key of each row, shape (n,), and add the new keys.

        Costs O(n) without a Python step per row, except for keys that collide.

        Parameters
        ----------
        hashes : ndarray of int64, shape (n,)
        columns : list of pyarrow.Array, each of shape (n,)
            The key columns.
        """
        absent = np.flatnonzero(~self.table.find(hashes))
        if self._displaced:  # a key stays displaced even if its hash is free by now
            absent = absent[~members(hashes[absent], np.fromiter(self._displaced, np.int64))]
        if len(absent):
            codes, distinct = pd.factorize(hashes[absent])
            first = np.empty(len(distinct), np.intp)
            first[codes[::-1]] = absent[::-1]
            self._add(distinct, self._rows(pa.nulls(len(distinct), pa.int64()), columns, first))
        holders = self.table.get(hashes)
        same = _equal(columns, _columns(holders))
        if holders.null_count:  # a missing key differs from a key of nulls
            same &= holders.is_valid().to_numpy(zero_copy_only=False)
        clash = np.flatnonzero(~same)
        if not len(clash):
            return hashes
        ids = hashes.copy()
        self._resolve_singly(ids, clash, hashes, columns)
        return ids

    def _resolve_singly(
        self, ids: np.ndarray, rows: np.ndarray, hashes: np.ndarray, columns: list[pa.Array]
    ) -> None:
        added_ids: list[int] = []
        added_hashes: list[int | None] = []
        added_rows: list[int] = []
        taken: dict[int, tuple[Any, ...] | None] = {}  # the holders of the ids looked up so far
        subset = (column.take(pa.array(rows)).to_pylist() for column in columns)
        for row, values in zip(rows.tolist(), zip(*subset, strict=True), strict=True):
            key = _comparable(values)
            hash_ = int(hashes[row])
            displaced = self._displaced.get(hash_, {})
            if key in displaced:
                ids[row] = displaced[key]
                continue
            id_ = hash_
            while (holder := self._holder(id_, taken)) is not None and not (
                id_ == hash_ and holder == (hash_, key)
            ):
                id_ = (id_ + 1 + (_ID_SPAN >> 1)) % _ID_SPAN - (_ID_SPAN >> 1)
            ids[row] = id_
            if holder is None:
                taken[id_] = (hash_, key)
                added_ids.append(id_)
                added_hashes.append(None if id_ == hash_ else hash_)
                added_rows.append(row)
                if id_ != hash_:
                    self._displaced.setdefault(hash_, {})[key] = id_
        added = self._rows(pa.array(added_hashes, pa.int64()), columns, np.array(added_rows, np.intp))
        self._add(np.array(added_ids, np.int64), added)

    def _add(self, ids: np.ndarray, rows: pa.Array) -> None:
        self.table.put(ids, rows)
        self._added.append((ids, rows))
        self.losses += len(ids)

    def _holder(self, id_: int, taken: dict[int, tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
        if id_ not in taken:
            row = self.table.get(np.array([id_], np.int64))[0].as_py()
            taken[id_] = None
            if row is not None:
                hash_ = row.pop("hash")
                taken[id_] = (id_ if hash_ is None else hash_, _comparable(row.values()))
        return taken[id_]

    def expect(self, key_hashes: npt.ArrayLike) -> None:
        """Raise KeyError if an id belongs to no key; the ids `at_hand` are not looked up."""
        if key_hashes is not self.at_hand:
            ids = np.atleast_1d(np.asarray(key_hashes))
            if ids.size:
                _expect_all(ids, self.table.find(ids))

    def keys(self, ids: np.ndarray) -> pa.RecordBatch:
        """Return the keys of `ids`, shape (n, columns); raise KeyError if an id belongs to no key."""
        rows = self.table.get(ids)
        if rows.null_count:
            _expect_all(ids, rows.is_valid().to_numpy(zero_copy_only=False))
        keys = pa.RecordBatch.from_arrays(_columns(rows), schema=wide_rows(pa.schema(self._fields)))
        return narrow(keys, pa.schema(self._fields))

    def hashes(self, ids: np.ndarray) -> np.ndarray:
        """Return the hashes of the keys of known `ids`: shape (n,), int64."""
        rows = self.table.get(ids)
        hashes: np.ndarray = pc.coalesce(rows.flatten()[0], pa.array(ids)).to_numpy()
        return hashes

    def retain(self, holders: list[np.ndarray]) -> None:
        """Drop all keys whose ids are in none of the arrays `holders`; O(1) per element."""
        dead = self.table.unreferenced(holders)
        self._forget(dead)
        self.table.remove(dead)
        if len(dead):
            self._dropped.append(dead)

    def _forget(self, ids: np.ndarray) -> None:
        if self._displaced:
            gone = set(ids.tolist())
            left = {
                h: {k: i for k, i in keys.items() if i not in gone} for h, keys in self._displaced.items()
            }
            self._displaced = {hash_: keys for hash_, keys in left.items() if keys}

    def _displace(self, ids: np.ndarray, rows: pa.Array) -> None:
        """Record the keys among `rows` whose id is not their hash."""
        hashes = rows.flatten()[0]
        for at in np.flatnonzero(hashes.is_valid().to_numpy(zero_copy_only=False)).tolist():
            row = rows[at].as_py()
            self._displaced.setdefault(row.pop("hash"), {})[_comparable(row.values())] = int(ids[at])

    def __len__(self) -> int:
        return len(self.table)

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        """Return the keys added and dropped since the last call; a dropped key has a null row."""
        if not self._added and not self._dropped:
            return None
        ids = np.concatenate([_NO_IDS, *(ids for ids, _ in self._added)])
        rows = pa.concat_arrays([pa.array([], self.type), *(rows for _, rows in self._added)])
        if self._dropped:
            gone = np.concatenate(self._dropped)
            gone = gone[~members(gone, ids)]  # keys both added and dropped were never saved
            stayed = self.table.find(ids)
            ids = np.concatenate([ids[stayed], gone])
            rows = pa.concat_arrays([rows.filter(pa.array(stayed)), pa.nulls(len(gone), self.type)])
        self._added, self._dropped = [], []
        return self._batch(ids, rows) if len(ids) else None

    def snapshot(self) -> pa.RecordBatch:
        """Return all keys."""
        return self._batch(*self.table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `changes` or `snapshot`."""
        if wide_rows(batch.schema) != wide_rows(self.schema):
            was, now = batch.schema.field(1).type, self.schema.field(1).type
            raise ValueError(
                f"key must have the types of the checkpoint's keys, {was}, got {now}; "
                "keep the types, or start a new checkpoint"
            )
        ids, rows = batch.columns
        ids = ids.to_numpy()
        self._forget(ids)
        self.table.put(ids, rows)
        self._displace(ids, rows)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        return last_rows(batches)

    def nbytes(self) -> int:
        """Return the approximate size of a snapshot in bytes."""
        return self.table.nbytes()

    def _batch(self, ids: np.ndarray, rows: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), rows], schema=wide_rows(self.schema))

    def _rows(self, hashes: pa.Array, columns: list[pa.Array], rows: np.ndarray) -> pa.Array:
        _, *fields = self.type
        picked = [c.take(pa.array(rows)).cast(f.type) for c, f in zip(columns, fields, strict=True)]
        return pa.StructArray.from_arrays([hashes, *picked], fields=list(self.type))


def _expect_all(ids: np.ndarray, held: np.ndarray) -> None:
    missing = ids[~held]
    if len(missing):
        raise KeyError(
            f"key_hashes must be ids of live keys, got {int(missing[0])} ({len(missing)} unknown of "
            f"{len(ids)}); pass ids from ctx.key_hashes"
        )


def _comparable(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key as a tuple that equals itself, with the same object for every NaN."""
    return tuple(math.nan if value != value else value for value in values)


def _columns(rows: pa.Array) -> list[pa.Array]:
    return list(rows.flatten()[1:])


def _equal(left: list[pa.Array], right: list[pa.Array]) -> np.ndarray:
    """Return which rows are equal in all columns; NaN equals NaN and null equals null, as in Spark."""
    equal = np.ones(len(left[0]), bool)
    for one, other in zip(left, right, strict=True):
        same = pc.equal(one, other)
        if pa.types.is_floating(one.type):
            same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
        if same.null_count:
            same = pc.coalesce(same, pc.and_(one.is_null(), other.is_null()))
        equal &= same.to_numpy(zero_copy_only=False)
    return equal
