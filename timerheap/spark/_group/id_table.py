"""Rows by int64 id: the shape of everything a key group keeps by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._native._heap import KeyTimerHeap
from timerheap.spark._group.offsets import wide

__all__ = ["IdTable", "members"]


def members(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Tell which of `ids` are in `among`: shape (n,), bool; ``np.isin`` without its sort."""
    known = KeyTimerHeap()
    known.push_many(0, among)
    return known.timestamps_of(ids)[1]


class IdTable:
    """A map from int64 ids to values of one Arrow type, read and written in columns.

    Values stand in one array, in the order in which they came; a `KeyTimerHeap` knows the row of each id (as
    its "timestamp"), being an exact index that looks many up at once. Each call costs O(1) a row, and `put`
    the copying of the array; rows that lost their id are swept out when they are half of it.

    Parameters
    ----------
    type_ : pyarrow.DataType
        Type of the values; no value is null.

    Attributes
    ----------
    type : pyarrow.DataType
        The same with 64-bit offsets: what comes out, so that a table may hold more than 2 GiB.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = wide(type_)
        self._rows = KeyTimerHeap()
        self._values = pa.array([], self.type)

    def __len__(self) -> int:
        return len(self._rows)

    def ids(self) -> np.ndarray:
        """Give all ids, in no order: shape (n,), int64; a view that is good until the next change."""
        return self._rows.key_hashes

    def items(self) -> tuple[np.ndarray, pa.Array]:
        """Give all ids, and their values: shape (n,) both."""
        self._sweep(0)
        return self._rows.key_hashes.copy(), self._values.take(pa.array(self._rows.timestamps))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Tell which ids are there: shape (n,), bool."""
        return self._rows.timestamps_of(ids)[1]

    def get(self, ids: np.ndarray) -> pa.Array:
        """Give the values of `ids`, null where there is none: shape (n,)."""
        rows, found = self._rows.timestamps_of(ids)
        return self._values.take(pa.array(rows) if found.all() else pa.array(rows, mask=~found))

    def put(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of `ids`; of an id that comes twice the last one counts, a null removes it.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
        values : pyarrow.Array of either type, shape (n,)
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
        """Remove `ids`; those that are not there do no harm."""
        self._rows.remove_many(ids)
        self._sweep(1 + len(self._rows))

    def unreferenced(self, holders: list[np.ndarray]) -> np.ndarray:
        """Give the ids that stand in none of the arrays `holders`: shape (m,); O(1) an element."""
        held = np.zeros(len(self._values), bool)
        for ids in holders:
            rows, found = self._rows.timestamps_of(ids)
            held[rows[found]] = True
        return self._rows.key_hashes[~held[self._rows.timestamps]]

    def nbytes(self) -> int:
        """Give the bytes of ids and values."""
        return int(self._values.nbytes) + 8 * len(self._rows)

    def _sweep(self, most: int) -> None:
        """Drop the rows without an id if they are more than `most`."""
        if len(self._values) - len(self._rows) > most:
            ids, rows = self._rows.key_hashes.copy(), self._rows.timestamps.copy()
            self._values = self._values.take(pa.array(rows))
            self._rows.push_many(np.arange(len(ids)), ids)
