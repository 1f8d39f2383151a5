"""A table of Arrow values by int64 id, in which a key group keeps everything that belongs to a key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._native._heap import KeyTimerHeap
from timerheap.spark._group.offsets import wide

__all__ = ["IdTable", "members"]


def members(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return which of `ids` are in `among`, shape (n,), bool: like ``np.isin``, but without sorting."""
    known = KeyTimerHeap()
    known.push_many(0, among)
    return known.timestamps_of(ids)[1]


class IdTable:
    """A map from int64 ids to values of one Arrow type, read and written in columns.

    The values are in one array, in the order of insertion. A `KeyTimerHeap` maps each id to its row (stored
    as the "timestamp"), since it is an exact index that looks up many ids at once. Each call costs O(1) per
    row; `put` also copies the array. Rows without an id are removed once they are half of the array.

    Parameters
    ----------
    type_ : pyarrow.DataType
        Type of the values, which are never null.

    Attributes
    ----------
    type : pyarrow.DataType
        `type_` with 64-bit offsets, so that a table may hold more than 2 GiB; the type of returned values.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = wide(type_)
        self._rows = KeyTimerHeap()
        self._values = pa.array([], self.type)

    def __len__(self) -> int:
        return len(self._rows)

    def ids(self) -> np.ndarray:
        """Return all ids in arbitrary order, shape (n,), int64: a view, valid until the next change."""
        return self._rows.key_hashes

    def items(self) -> tuple[np.ndarray, pa.Array]:
        """Return all ids and their values, each of shape (n,)."""
        self._sweep(0)
        return self._rows.key_hashes.copy(), self._values.take(pa.array(self._rows.timestamps))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids are in the table: shape (n,), bool."""
        return self._rows.timestamps_of(ids)[1]

    def get(self, ids: np.ndarray) -> pa.Array:
        """Return the values of `ids`, null for a missing id: shape (n,)."""
        rows, found = self._rows.timestamps_of(ids)
        return self._values.take(pa.array(rows) if found.all() else pa.array(rows, mask=~found))

    def put(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of `ids`; the last value of a repeated id counts, and a null removes the id.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
        values : pyarrow.Array of `type_` or `type`, shape (n,)
        """
        rows = np.arange(len(self._values), len(self._values) + len(ids))
        self._values = pa.concat_arrays([self._values, values.cast(self.type)])
        self._rows.push_many(rows, ids)
        if values.null_count:
            removed = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
            last, _ = self._rows.timestamps_of(ids[removed])
            self._rows.remove_many(ids[removed][last == rows[removed]])
        self._sweep(1 + len(self._rows))

    def remove(self, ids: np.ndarray) -> None:
        """Remove `ids`; missing ones are ignored."""
        self._rows.remove_many(ids)
        self._sweep(1 + len(self._rows))

    def unreferenced(self, holders: list[np.ndarray]) -> np.ndarray:
        """Return the ids that are in none of the arrays `holders`, shape (m,); O(1) per element."""
        held = np.zeros(len(self._values), bool)
        for ids in holders:
            rows, found = self._rows.timestamps_of(ids)
            held[rows[found]] = True
        return self._rows.key_hashes[~held[self._rows.timestamps]]

    def nbytes(self) -> int:
        """Return the size of ids and values in bytes."""
        return int(self._values.nbytes) + 8 * len(self._rows)

    def _sweep(self, limit: int) -> None:
        """Drop the rows without an id if there are more than `limit`."""
        if len(self._values) - len(self._rows) > limit:
            ids, rows = self._rows.key_hashes.copy(), self._rows.timestamps.copy()
            self._values = self._values.take(pa.array(rows))
            self._rows.push_many(np.arange(len(ids)), ids)
