"""Values of one type, each at a place: which places are used again, and when what is dead goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.errors import ArgumentRangeError
from timerheap.spark._arrow import FITS, map_type, wide
from timerheap.spark._memory.array_layouts import layout_of
from timerheap.spark._memory.blocks import PROCESS, Buffer, Memory

_FEW = 64  # dead values that are never worth a compaction
_SMALL = 64 << 10  # bytes that are never worth one
_PIECE = 1 << 16  # values that a compaction copies at a time


@lru_cache(maxsize=256)
def _without_maps(type_: pa.DataType) -> pa.DataType:
    """Return a type with lists of entries, with 64-bit offsets, for maps at every depth."""
    return map_type(type_, lambda each: pa.large_list(each.field(0)) if pa.types.is_map(each) else each)


def _with_maps(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array of `_without_maps(type_)` that starts at offset 0 as an array of `type_`."""
    if array.type == type_:
        return array
    if pa.types.is_struct(type_):
        own = array.buffers()[:1]
        children = [_with_maps(array.field(i), field.type) for i, field in enumerate(type_)]
    elif pa.types.is_map(type_):
        offsets = array.offsets.to_numpy()
        if offsets[-1] > FITS:
            raise ArgumentRangeError(
                f"maps must have at most {FITS} entries at a time, got {offsets[-1]}; process fewer rows"
            )
        own = [array.buffers()[0], pa.py_buffer(offsets.astype(np.int32))]
        children = [_with_maps(array.values, type_.field(0).type)]
    else:
        own = array.buffers()[:2]
        children = [_with_maps(array.values, type_.value_type)]
    return pa.Array.from_buffers(type_, len(array), own, array.null_count, children=children)


class Slab:
    """A growable Arrow array of one type in a `Memory`, of values each at a place: a number its owner keeps.

    Values of `fixed_width`, without offsets in any part, are overwritten, and places of dropped ones are used
    again. Others are appended, and what they replace is dead until a compaction, which moves the live values
    to new places.

    Arrow's maps have 32-bit offsets, which count entries. A slab may hold more entries than that: it keeps
    maps as lists of entries with 64-bit offsets, and converts what is taken. What it returns is of `type`,
    the type with 64-bit offsets.
    """

    _patience: float
    _kept: int  # bytes after the last compaction
    _most: int  # live values since then

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        # Key groups fill up alike: with one threshold, all would be compacted in the same micro-batch.
        new = None, (), random.uniform(0.75, 1.25), 0, 0
        values, free, self._patience, self._kept, self._most = head or new
        self.type = wide(type_)
        self._memory = memory
        self._layout = layout_of(_without_maps(self.type), memory)
        if values is not None:
            self._layout.attach(values)
        self.fixed_width = self._layout.fixed_width
        self._free = Buffer(memory, free)  # int64: dropped places of values of fixed width

    def head(self) -> list[Any]:
        return [self._layout.head(), self._free.head(), self._patience, self._kept, self._most]

    def __len__(self) -> int:
        return self._layout.n

    def fitting(self, values: pa.Array) -> pa.Array:
        """Return `values` as `plan` needs them: cast, unless they differ only in the size of offsets."""
        same = values.type == self.type or wide(values.type) == self.type
        return values if same else values.cast(self.type)

    def reserve(self, times: float) -> None:
        self._layout.reserve(times)

    def take(self, places: np.ndarray, held: np.ndarray | None = None) -> pa.Array:
        """Return a copy of the values at `places`, null where `held` (bool) is False: shape (n,); O(n)."""
        if not len(self):
            return pa.nulls(len(places), self.type)
        return _with_maps(self._layout.take(places, held), self.type)

    def plan(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return where `write` will put values, and make room; a MemoryError leaves the slab as it was.

        The values are as `fitting` returns them. Those that are `held` (bool) have a present place, and
        `places` are distinct there. All have the shape (n,).
        """
        n, end = len(values), len(self)
        if not self.fixed_width:
            if n:
                self._layout.grow(values)
            return np.arange(end, end + n)
        (new,) = (~held).nonzero()
        free = self._free.view(np.int64)
        used_again = free[len(free) - min(len(new), len(free)) :]
        appended = new[len(used_again) :]
        self._layout.allow_nulls(values, len(self) + len(appended))
        if len(appended):
            self._layout.grow(values if len(appended) == n else values.take(pa.array(appended)))
        places = places.copy()
        places[new[: len(used_again)]] = used_again
        places[appended] = np.arange(end, end + len(appended))
        return places

    def write(self, values: pa.Array, places: np.ndarray, held: np.ndarray) -> None:
        """Write values to the places that `plan` has chosen for them; cannot fail."""
        inside = places < len(self)
        if old := int(np.count_nonzero(inside)):
            self._free.used -= 8 * int(np.count_nonzero(inside & ~held))
            mixed = old < len(values)
            self._layout.overwrite(places[inside], values.filter(pa.array(inside)) if mixed else values)
            values = values.filter(pa.array(~inside)) if mixed else values[:0]
        if len(values):
            self._layout.append(values)

    def values(self) -> pa.Array:
        """Return the values at all places, dead ones included; valid until the next change."""
        array = self._layout.array()
        return array if array.type == self.type else self.take(np.arange(len(self)))

    def drop(self, places: np.ndarray) -> None:
        """Forget the values at distinct `places`; O(len(places))."""
        if self.fixed_width:
            with suppress(MemoryError):  # they are then used again after a compaction
                self._free.reserve(places.nbytes)
                self._free.append(places)

    def sparse(self, live: int) -> bool:
        """Return whether so much is dead that a compaction pays, if `live` values are not."""
        # Values may differ in size, and a compaction copies what is live. So it has to wait until as many
        # bytes have been appended as the last one kept, or as many values have been dropped as are left.
        dead, nbytes = len(self) - live, self._layout.nbytes()
        if nbytes <= _SMALL:
            return False
        if self.fixed_width:
            return dead > _FEW + self._patience * live
        self._most = max(self._most, live)
        grown = nbytes > self._patience * (_SMALL + self._kept) + self._kept
        return dead > 0 and (grown or self._most - live > _FEW + self._patience * live)

    def compact(self, places: np.ndarray) -> None:
        """Keep only the values at `places`, and move them to their `new_places`."""
        # Costs O(places, dead ones included), which amortises if it is done when the slab is `sparse`. A
        # MemoryError leaves the slab as it was.
        kept = np.flatnonzero(_marked(places, len(self)))
        values, layout = self._layout.array(), layout_of(self._layout.type, self._memory)
        try:
            for start in range(0, len(kept), _PIECE):  # a copy of all at once would need the room twice
                piece = values.take(pa.array(kept[start : start + _PIECE]))
                layout.grow(piece)
                layout.append(piece)
        except MemoryError:
            layout.clear()
            raise
        self.clear()
        self._layout = layout
        self._kept, self._most = layout.nbytes(), len(kept)

    def new_places(self, places: np.ndarray) -> np.ndarray:
        """Return where a compaction moves the values at `places`, in their order: shape (n,), int64."""
        numbers = np.cumsum(_marked(places, len(self))) - 1
        moved: np.ndarray = numbers[places]
        return moved

    def nbytes(self) -> int:
        """Return the number of bytes in use, those of dead values included."""
        return self._layout.nbytes() + self._free.used

    def clear(self) -> None:
        self._layout.clear()
        self._free.clear()
        self._kept = self._most = 0


def _marked(places: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[places] = True
    return mask
