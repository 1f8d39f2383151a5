"""A user's states in one key group: one family of values for each descriptor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap.spark._group.id_table import IdTable
from timerheap.spark._group.offsets import wide_rows
from timerheap.spark._group.values import Misfit, checker, reader

__all__ = ["Codec", "StateTable"]


class Codec:
    """Values of one type in a state: what is kept of them, and what the user gets back.

    Parameters
    ----------
    type_ : pyarrow.DataType
    what : str
        Named in errors, e.g. "state 'last'".
    """

    def __init__(self, type_: pa.DataType, what: str) -> None:
        self.type = type_
        self.what = what
        self._check = checker(type_)
        self._read = reader(type_)

    def encode(self, value: Any) -> Any:
        """Give what is kept of `value`; a ValueError says why it does not fit."""
        try:
            return self._check(value)
        except Misfit as e:
            raise ValueError(f"{self.what}: {e}") from None

    def decode(self, kept: Any) -> Any:
        """Give the value back, an object of the caller's own."""
        return kept if self._read is None else self._read(kept)


class StateTable:
    """The values of one state, by key id: a table, and in front of it what this batch has touched.

    `load` gives a key's contents (None: empty) out of a cache; whoever changes them calls `store`.

    Parameters
    ----------
    kind : int
        Kind of its chunks.
    name : str
        The state's name.
    shape : {"value", "list", "map"}
    type_ : pyarrow.DataType
        Of a value, of the list, of the map.
    """

    def __init__(self, kind: int, name: str, shape: str, type_: pa.DataType) -> None:
        self.kind = kind
        self.name = name
        self.shape = shape
        self.type = type_
        self.schema = pa.schema([pa.field("key_hash", pa.int64()), pa.field(shape, type_)])
        self._table = IdTable(type_)
        self._cache: dict[int, Any] = {}
        self._dirty: set[int] = set()
        self._unsaved: list[np.ndarray] = []
        self.losses = 0  # times that a key's contents were cleared

    def load(self, key_id: int) -> Any:
        """Give the contents of one key: a kept value, a list of them, a dict of them; None: nothing."""
        if key_id not in self._cache:
            self.prefetch(np.array([key_id], np.int64))
        return self._cache[key_id]

    def store(self, key_id: int, contents: Any) -> None:
        """Set the contents of one key."""
        self.losses += not contents  # a 0 counts, too: it is an upper bound
        self._cache[key_id] = contents
        self._dirty.add(key_id)

    def prefetch(self, ids: np.ndarray) -> None:
        """Bring the contents of many keys into the cache, as one lookup: O(n)."""
        contents = self._table.get(ids).to_pylist()
        if self.shape == "map":
            key = reader(self.type.key_type) or (lambda k: k)
            contents = [c and {key(k): v for k, v in c} for c in contents]
        for key_id, value in zip(ids.tolist(), contents, strict=True):
            self._cache.setdefault(key_id, value)

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Give the values of many keys, null where there is none: shape (n,), with 64-bit offsets."""
        self._settle()
        return self._table.get(ids)

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; null clears."""
        self._settle()
        self._cache.clear()
        self.losses += values.null_count
        self._table.put(ids, values)
        self._unsaved.append(ids)

    def ids(self) -> np.ndarray:
        """Give the ids of the keys that have something here."""
        self._settle()
        return self._table.ids()

    def _settle(self) -> None:
        """Move what was stored into the table."""
        if self._dirty:
            ids = np.fromiter(self._dirty, np.int64, len(self._dirty))
            contents: Iterable[Any] = (self._cache[key_id] for key_id in self._dirty)
            if self.shape == "map":
                contents = (list(c.items()) if c else None for c in contents)
            elif self.shape == "list":
                contents = (c or None for c in contents)
            self._table.put(ids, pa.array(list(contents), self._table.type))
            self._unsaved.append(ids)
            self._dirty.clear()

    # What the checkpoint sees (see `timerheap.spark._group.checkpoint.CheckpointedPart`).

    def changes(self) -> pa.RecordBatch | None:
        """Give the contents of all keys changed since the last call; null: cleared."""
        self._settle()
        self._cache.clear()
        if not self._unsaved:
            return None
        ids = pd.unique(np.concatenate(self._unsaved))
        self._unsaved = []
        return self._batch(ids, self._table.get(ids))

    def snapshot(self) -> pa.RecordBatch:
        """Give all contents."""
        return self._batch(*self._table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        """Take back what `changes` or `snapshot` gave."""
        if wide_rows(batch.schema) != wide_rows(self.schema) or batch.column(0).null_count:
            raise ValueError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._table.put(batch.column(0).to_numpy(), batch.column(1))

    def nbytes(self) -> int:
        """Give the size of a snapshot, roughly."""
        return self._table.nbytes()

    def _batch(self, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), values], schema=wide_rows(self.schema))
