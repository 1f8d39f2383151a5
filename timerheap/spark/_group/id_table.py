"""A table of Arrow values by int64 id, in which a key group keeps everything that belongs to a key."""

from __future__ import annotations

from contextlib import suppress
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._heap import IdIndex
from timerheap.spark._group.array_views import clear_unequal
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.slab import Slab

__all__ = ["IdTable", "members"]


def members(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return which of `ids` are in `among`, shape (n,), bool: like ``np.isin``, but without sorting."""
    known = IdIndex()
    known.put_many(among, 0)
    return known.find_many(ids)[1]


class IdTable:
    """A map from int64 ids to values of one Arrow type, read and written in columns.

    An index maps each id to the place of its value in a slab. Each call costs amortised O(1) per row.

    Parameters
    ----------
    type_ : pyarrow.DataType
        Type of the values, which are never null.
    memory : Memory

    Attributes
    ----------
    type : pyarrow.DataType
        `type_` with 64-bit offsets, so that a table may hold more than 2 GiB; the type of returned values.
    """

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        self._slab = Slab(type_, memory)
        self._index = IdIndex(memory)
        self.type = self._slab.type

    @classmethod
    def attach(cls, type_: pa.DataType, memory: Memory, head: list[Any]) -> IdTable:
        """Return the table that `head` describes; O(1)."""
        table = cls.__new__(cls)
        table._slab = Slab.attach(type_, memory, head[0])
        table._index = IdIndex._attach(memory, head[1])
        table.type = table._slab.type
        return table

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs."""
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

        The values must be structs of flat types. NaN equals NaN, and null equals null.

        Returns
        -------
        places : ndarray of int64, shape (n,)
        found, same : ndarray of bool, shape (n,)
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
        """Make room for `times` the present ids and values."""
        self._index.reserve(ceil(times * len(self._index)))
        self._slab.reserve(times)

    def put(self, ids: np.ndarray, values: pa.Array) -> bool:
        """Set the values of distinct `ids`; a null removes the id.

        Returns whether other ids have got new places. A MemoryError leaves the table as it was.

        Parameters
        ----------
        ids : ndarray of int64, shape (n,)
        values : pyarrow.Array of `type_` or `type`, shape (n,)
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
        """Remove all ids and release the memory."""
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
