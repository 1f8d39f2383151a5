"""Values of one Arrow type at numbered places, whose room is used again."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._group.buffers import Buffer
from timerheap.spark._group.column import Column
from timerheap.spark._group.memory import PROCESS, Memory

__all__ = ["Slab"]

_FEW = 64  # dead values that are never worth a compaction
_SMALL = 64 << 10  # bytes that are never worth one
_PIECE = 1 << 16


class Slab:
    """Values of one Arrow type, each at a place: a number that its owner keeps.

    Values of fixed width are overwritten, and places of dropped ones are used again. Others are appended, and
    what they replace is dead until a compaction, which moves the live values to new places.

    Parameters
    ----------
    type_ : pyarrow.DataType
    memory : Memory

    Attributes
    ----------
    type : pyarrow.DataType
        `type_` with 64-bit offsets: the type of what is returned.
    """

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        self._memory = memory
        self._column = Column(type_, memory)
        self._free = Buffer(memory)  # int64: dropped places of a column of fixed width
        # Key groups fill up alike: with one threshold, all would be compacted in the same micro-batch.
        self._patience = random.uniform(0.75, 1.25)
        self._kept = 0  # bytes after the last compaction
        self._most = 0  # live values since then
        self.type = self._column.type
        self.fixed_width = self._column.fixed_width

    @classmethod
    def attach(cls, type_: pa.DataType, memory: Memory, head: list[Any]) -> Slab:
        """Return the slab that `head` describes; O(1)."""
        slab = cls.__new__(cls)
        column, free, slab._patience, slab._kept, slab._most = head
        slab._memory = memory
        slab._column = Column.attach(type_, memory, column)
        slab._free = Buffer.attach(memory, free)
        slab.type, slab.fixed_width = slab._column.type, slab._column.fixed_width
        return slab

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs."""
        return [self._column.head(), self._free.head(), self._patience, self._kept, self._most]

    def __len__(self) -> int:
        """Return the number of places, dead ones included."""
        return len(self._column)

    def reserve(self, times: float) -> None:
        """Make room for `times` the present values."""
        self._column.reserve(times)

    def plan(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return where `write` will put values, and make room; a MemoryError leaves the slab as it was.

        Parameters
        ----------
        values : pyarrow.Array, shape (n,)
            As `fitting` returns them.
        places : ndarray of int64, shape (n,)
            The present places of values that are to be replaced, distinct.
        held : ndarray of bool, shape (n,)
            Which values have a present place.
        """
        n, end = len(values), len(self._column)
        if not self.fixed_width:
            self._column.grow(values)
            return np.arange(end, end + n)
        new = np.flatnonzero(~held)
        free = self._free.view(np.int64)
        used_again = free[len(free) - min(len(new), len(free)) :]
        appended = new[len(used_again) :]
        self._column.allow_nulls(values, len(appended))
        if len(appended):
            self._column.grow(values if len(appended) == n else values.take(pa.array(appended)))
        places = places.copy()
        places[new[: len(used_again)]] = used_again
        places[appended] = np.arange(end, end + len(appended))
        return places

    def write(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> None:
        """Write values to the places that `plan` has chosen for them; cannot fail."""
        inside = places < len(self._column)
        if not inside.any():
            self._column.append(values)
            return
        self._free.used -= 8 * int(np.count_nonzero(inside & ~held))
        if inside.all():
            self._column.overwrite(places, values)
        else:
            self._column.overwrite(places[inside], values.filter(pa.array(inside)))
            self._column.append(values.filter(pa.array(~inside)))

    def fitting(self, values: pa.Array) -> pa.Array:
        """Return `values` as `plan` needs them."""
        return self._column.fitting(values)

    def take(self, places: np.ndarray | pa.Array) -> pa.Array:
        """Return a copy of the values at `places`, null where that is null: shape (n,); O(n)."""
        return self._column.take(places)

    def values(self) -> pa.Array:
        """Return the values at all places, dead ones included; valid until the next change."""
        return self._column.slice(0, len(self._column))

    def drop(self, places: np.ndarray) -> None:
        """Forget the values at distinct `places`; O(len(places))."""
        if self.fixed_width:
            with suppress(MemoryError):  # they are then used again after a compaction
                self._free.reserve(places.nbytes)
                self._free.append(places)

    def sparse(self, live: int) -> bool:
        """Return whether so much is dead that a compaction pays, if `live` values are not.

        Values may differ in size, and a compaction copies what is live. So it has to wait until as many bytes
        have been appended as the last one kept, or as many values have been dropped as are left.
        """
        dead, nbytes = len(self._column) - live, self._column.nbytes()
        if nbytes <= _SMALL:
            return False
        if self.fixed_width:
            return dead > _FEW + self._patience * live
        self._most = max(self._most, live)
        grown = nbytes > self._patience * (_SMALL + self._kept) + self._kept
        return dead > 0 and (grown or self._most - live > _FEW + self._patience * live)

    def compact(self, places: np.ndarray) -> None:
        """Keep only the values at `places`, and move them to their `new_places`.

        Costs O(places, dead ones included), which amortises if it is done when the slab is `sparse`. A
        MemoryError leaves the slab as it was.
        """
        kept = np.flatnonzero(_mask(places, len(self)))
        column = Column(self.type, self._memory)
        try:
            for start in range(0, len(kept), _PIECE):
                column.append(self._column.take(kept[start : start + _PIECE]))
        except MemoryError:
            column.clear()
            raise
        self.clear()
        self._column = column
        self._kept, self._most = column.nbytes(), len(kept)

    def new_places(self, places: np.ndarray) -> np.ndarray:
        """Return where a compaction moves the values at `places`, in their order: shape (n,), int64."""
        moved: np.ndarray = (np.cumsum(_mask(places, len(self))) - 1)[places]
        return moved

    def nbytes(self) -> int:
        """Return the number of bytes in use, those of dead values included."""
        return self._column.nbytes() + self._free.used

    def clear(self) -> None:
        """Drop all values and release the memory."""
        self._column.clear()
        self._free.clear()
        self._kept = self._most = 0


def _mask(places: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[places] = True
    return mask
