"""Tables of values by id."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import IdIndex
from timerheap.spark._arrow import view_of
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.slab import Slab

ID_BYTES = 40
"""What an id takes in memory."""


def distinct_ids(ids: np.ndarray) -> np.ndarray:
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
        """Return all ids in ascending order, and their values, each of shape (n,)."""
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

    def used_bytes(self) -> float:
        """Return about how many bytes the values take that are there, with their ids; O(1)."""
        return (ID_BYTES + self._slab.nbytes() / max(1, len(self._slab))) * len(self)

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
