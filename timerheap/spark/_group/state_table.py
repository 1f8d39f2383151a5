"""The contents of a user's state in one key group: one table for each descriptor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row

from timerheap._values import reader
from timerheap.spark._group.id_table import IdTable
from timerheap.spark._group.offsets import wide_rows

__all__ = ["StateTable"]


class StateTable:
    """The contents of one state, by key id: a table, behind a cache of what the current batch has touched.

    Implements `timerheap._state_handles.StateContents`.

    Parameters
    ----------
    kind : int
        The kind of its chunks in the checkpoint.
    name : str
        The state's name.
    shape : {"value", "list", "map"}
    type_ : pyarrow.DataType
        The type of a value, of the whole list, or of the whole map.
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
        """Return the contents of one key: an encoded value, a list or a dict of them; None for no state."""
        if key_id not in self._cache:
            self.prefetch(np.array([key_id], np.int64))
        return self._cache[key_id]

    def store(self, key_id: int, contents: Any) -> None:
        """Set the contents of one key; None removes them."""
        self.losses += contents is None
        self._cache[key_id] = contents
        self._dirty.add(key_id)

    def prefetch(self, ids: np.ndarray) -> None:
        """Load the contents of many keys into the cache, in one lookup; O(n)."""
        contents = self._table.get(ids).to_pylist()
        if self.shape == "map":
            key = reader(self.type.key_type, Row) or (lambda k: k)
            contents = [c and {key(k): v for k, v in c} for c in contents]
        for key_id, value in zip(ids.tolist(), contents, strict=True):
            self._cache.setdefault(key_id, value)

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the values of many keys, null for a key without one: shape (n,), with 64-bit offsets."""
        self._settle()
        return self._table.get(ids)

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; a null removes the key's value."""
        self._settle()
        self._cache.clear()
        self.losses += values.null_count
        self._table.put(ids, values)
        self._unsaved.append(ids)

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have contents."""
        self._settle()
        return self._table.ids()

    def _settle(self) -> None:
        """Write the stored contents to the table."""
        if self._dirty:
            ids = np.fromiter(self._dirty, np.int64, len(self._dirty))
            contents: Iterable[Any] = (self._cache[key_id] for key_id in self._dirty)
            if self.shape == "map":
                contents = (c and list(c.items()) for c in contents)
            self._table.put(ids, pa.array(list(contents), self._table.type))
            self._unsaved.append(ids)
            self._dirty.clear()

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        """Return the contents of all keys changed since the last call; null for a key that was cleared."""
        self._settle()
        self._cache.clear()
        if not self._unsaved:
            return None
        ids = pd.unique(np.concatenate(self._unsaved))
        self._unsaved = []
        return self._batch(ids, self._table.get(ids))

    def snapshot(self) -> pa.RecordBatch:
        """Return all contents."""
        return self._batch(*self._table.items())

    def replay(self, batch: pa.RecordBatch) -> None:
        """Restore a batch that `changes` or `snapshot` returned."""
        if wide_rows(batch.schema) != wide_rows(self.schema) or batch.column(0).null_count:
            raise ValueError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._table.put(batch.column(0).to_numpy(), batch.column(1))

    def nbytes(self) -> int:
        """Return the approximate size of a snapshot."""
        return self._table.nbytes()

    def _batch(self, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), values], schema=wide_rows(self.schema))
