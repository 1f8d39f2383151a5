"""Growable Arrow columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._group.array_layouts import layout_of
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.offsets import FITS, wide

__all__ = ["Column"]


class Column:
    """A growable Arrow array of one type, which keeps its bytes in a `Memory`.

    Arrow's maps have 32-bit offsets, which count entries. A column may hold more entries than that: it keeps
    maps as lists of entries with 64-bit offsets, and converts what is taken.

    Parameters
    ----------
    type_ : pyarrow.DataType
    memory : Memory

    Attributes
    ----------
    type : pyarrow.DataType
        `type_` with 64-bit offsets: the type of what is returned.
    fixed_width : bool
        Whether values can be overwritten: no part of the type has offsets.
    """

    def __init__(self, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        self.type = wide(type_)
        self._layout = layout_of(_without_maps(self.type), memory)
        self.fixed_width = self._layout.fixed_width

    @classmethod
    def attach(cls, type_: pa.DataType, memory: Memory, head: list[Any]) -> Column:
        """Return the column that `head` describes; O(1) for a type."""
        column = cls(type_, memory)
        column._layout.attach(head)
        return column

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs."""
        return self._layout.head()

    def __len__(self) -> int:
        return self._layout.n

    def fitting(self, values: pa.Array) -> pa.Array:
        """Return `values` as `append` needs them: cast, unless they differ only in the size of offsets."""
        same = values.type == self.type or wide(values.type) == self.type
        return values if same else values.cast(self.type)

    def grow(self, values: pa.Array) -> None:
        """Make room for `values`, so that `append` cannot fail; a MemoryError leaves the column as it was."""
        if len(values):
            self._layout.grow(values)

    def reserve(self, times: float) -> None:
        """Make room for `times` the present values."""
        self._layout.reserve(times)

    def append(self, values: pa.Array) -> None:
        """Append values; amortised O(len(values)). A MemoryError leaves the column as it was."""
        values = self.fitting(values)
        if len(values):
            self._layout.grow(values)
            self._layout.append(values)

    def allow_nulls(self, values: pa.Array, more: int = 0) -> None:
        """Make room for the nulls of `values`, so that `overwrite` cannot fail.

        `more` is the number of values that may be appended before. A MemoryError leaves the column as it was.
        """
        self._layout.allow_nulls(values, len(self) + more)

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        """Replace the values at distinct `places` of a column of `fixed_width`; O(len(values)).

        A MemoryError leaves the column as it was.
        """
        if len(values := self.fitting(values)):
            self._layout.allow_nulls(values, len(self))
            self._layout.overwrite(places, values)

    def take(self, places: np.ndarray | pa.Array) -> pa.Array:
        """Return a copy of the values at `places`, null where that is null: shape (n,); O(n)."""
        places = pa.array(places)
        if not len(self):
            return pa.nulls(len(places), self.type)
        return _with_maps(self._layout.array().take(places), self.type)

    def slice(self, start: int, stop: int) -> pa.Array:
        """Return the values from `start` up to but not including `stop`; valid until the next change.

        Copies nothing, except in a column that has maps.
        """
        if start >= stop:
            return pa.array([], self.type)
        array = self._layout.array().slice(start, stop - start)
        if array.type == self.type:
            return array
        return self.take(np.arange(start, stop))

    def nbytes(self) -> int:
        """Return the number of bytes in use."""
        return self._layout.nbytes()

    def clear(self) -> None:
        """Remove all values and release the memory."""
        self._layout.clear()


@lru_cache(maxsize=256)
def _without_maps(type_: pa.DataType) -> pa.DataType:
    """Return a wide type with lists of entries for maps, at every depth."""
    if pa.types.is_map(type_):
        return pa.large_list(pa.field("entries", _without_maps(_entries(type_)), nullable=False))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_without_maps(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_without_maps(field.type)) for field in type_])
    return type_


def _entries(type_: pa.MapType) -> pa.DataType:
    return pa.struct([type_.key_field, type_.item_field])


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
            raise OverflowError(
                f"maps must have at most {FITS} entries at a time, got {offsets[-1]}; process fewer rows"
            )
        own = [array.buffers()[0], pa.py_buffer(offsets.astype(np.int32))]
        children = [_with_maps(array.values, _entries(type_))]
    else:
        own = array.buffers()[:2]
        children = [_with_maps(array.values, type_.value_type)]
    return pa.Array.from_buffers(type_, len(array), own, array.null_count, children=children)
