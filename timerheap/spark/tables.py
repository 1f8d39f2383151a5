"""Rows by int64 id: the shape of everything a key group keeps by key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["IdTable"]


class IdTable:
    """A map from int64 ids to values of one Arrow type, read and written in columns.

    Two sorted runs: a large one, and in front of it a recent one that is merged when it has grown to a
    quarter of the large one. So a lookup costs O(log n) a row, and a batch of k changes O(k log n),
    amortised.

    Parameters
    ----------
    type_ : pyarrow.DataType
        Type of the values; no value is null.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self._ids = np.empty(0, np.int64)
        self._values = pa.array([], type_)
        self._recent_ids = np.empty(0, np.int64)
        self._recent_values = pa.array([], type_)  # null: removed

    def __len__(self) -> int:
        """Give the number of ids; O(recent log n)."""
        if not len(self._recent_ids):
            return len(self._ids)
        there = _positions(self._ids, self._recent_ids) >= 0
        removed = _nulls(self._recent_values)
        return len(self._ids) + int((~there & ~removed).sum()) - int((there & removed).sum())

    def ids(self) -> np.ndarray:
        """Give all ids, ascending: shape (n,), int64; merges, so O(n)."""
        self._merge()
        return self._ids

    def values(self) -> pa.Array:
        """Give all values in the order of `ids`; merges, so O(n)."""
        self._merge()
        return self._values

    def get(self, ids: np.ndarray) -> pa.Array:
        """Give the values of `ids`, null where there is none: shape (n,)."""
        base = self._values.take(_indices(_positions(self._ids, ids)))
        if not len(self._recent_ids):
            return base
        position = _positions(self._recent_ids, ids)
        recent = self._recent_values.take(_indices(position))
        rows = np.arange(len(ids)) + np.where(position >= 0, len(ids), 0)
        return pa.concat_arrays([base, recent]).take(pa.array(rows))

    def put(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of `ids`, which are distinct; a null removes the id.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
        values : pyarrow.Array of `type`, shape (n,)
        """
        if not len(ids):
            return
        stay = np.flatnonzero(~np.isin(self._recent_ids, ids))
        all_ids = np.concatenate([self._recent_ids[stay], ids])
        order = np.argsort(all_ids)
        self._recent_ids = all_ids[order]
        kept = self._recent_values.take(pa.array(stay))
        self._recent_values = pa.concat_arrays([kept, values]).take(pa.array(order))
        if 4 * len(self._recent_ids) > len(self._ids):
            self._merge()

    def nbytes(self) -> int:
        """Give the bytes of ids and values, those in the recent run twice where they replace others."""
        held = self._values.nbytes + self._recent_values.nbytes
        return int(held) + 8 * (len(self._ids) + len(self._recent_ids))

    def remove(self, ids: np.ndarray) -> None:
        """Remove `ids`, which are distinct; those that are not there do no harm."""
        self.put(ids, pa.nulls(len(ids), self.type))

    def _merge(self) -> None:
        if not len(self._recent_ids):
            return
        base = np.flatnonzero(_positions(self._recent_ids, self._ids) < 0)
        live = np.flatnonzero(~_nulls(self._recent_values))
        ids = np.concatenate([self._ids[base], self._recent_ids[live]])
        order = np.argsort(ids)
        rows = np.concatenate([base, live + len(self._ids)])[order]
        self._values = pa.concat_arrays([self._values, self._recent_values]).take(pa.array(rows))
        self._ids = ids[order]
        self._recent_ids = self._recent_ids[:0]
        self._recent_values = self._recent_values[:0]


def _nulls(values: pa.Array) -> np.ndarray:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _positions(sorted_ids: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Give each id's position in `sorted_ids`, -1 where it is not there."""
    if not len(sorted_ids):
        return np.full(len(ids), -1, np.intp)
    at = np.searchsorted(sorted_ids, ids)
    at[at == len(sorted_ids)] = 0
    return np.where(sorted_ids[at] == ids, at, -1)


def _indices(positions: np.ndarray) -> pa.Array:
    return pa.array(positions, mask=positions < 0)
