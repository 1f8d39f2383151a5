"""Arrow arrays that grow in a memory, by type: where the bytes of each are."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import wide
from timerheap.spark._memory.blocks import (
    Buffer,
    Memory,
    append_bits,
    bits_of,
    nbytes_of_bits,
    set_bits,
)


class ArrayLayout:
    """A growable array of `n` values: a validity bitmap, other buffers, and those of fields or elements.

    Appending has two steps, so that a failed allocation in any part of the tree changes none of it: `grow`
    makes room, and `append` then fills it. Both accept 32-bit and 64-bit offsets. The type has 64-bit offsets
    and no maps. Values can be overwritten if it is of `fixed_width`: no part of the tree has offsets.
    """

    _buffers_beside_validity = 0

    def __init__(self, type_: pa.DataType, memory: Memory, *children: ArrayLayout) -> None:
        self.type = type_
        self.n = 0
        self.children = children
        self.fixed_width: bool = all(child.fixed_width for child in children)
        self._nulls = 0
        self._memory = memory
        self._validity = Buffer(memory)  # empty as long as no value is null
        self._buffers = [Buffer(memory) for _ in range(self._buffers_beside_validity)]

    def grow(self, values: pa.Array) -> None:
        """Make room for `values`; a MemoryError leaves the array as it was."""
        if self._validity.used or values.null_count:
            self._validity.reserve(nbytes_of_bits(self.n + len(values)) - self._validity.used)

    def reserve(self, times: float) -> None:
        for buffer in (self._validity, *self._buffers):
            buffer.reserve(ceil((times - 1) * buffer.used))
        for child in self.children:
            child.reserve(times)

    def append(self, values: pa.Array) -> None:
        """Append `values`, for which there is room."""
        n = len(values)
        if self._validity.used or values.null_count:
            if not self._validity.used:
                self._validity.append(np.full(nbytes_of_bits(self.n), 255, np.uint8))
            append_bits(self._validity, self.n, _validity(values))
            self._nulls += values.null_count
        self.n += n

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        """Replace the values, of fixed width, at distinct places, once `allow_nulls` has made room."""
        if self._validity.used or values.null_count:
            if not self._validity.used:
                self._validity.append(np.full(nbytes_of_bits(self.n), 255, np.uint8))
            before = self._validity.view()[places >> 3] >> (places & 7) & 1
            self._nulls += values.null_count - int(np.count_nonzero(before == 0))
            set_bits(self._validity, places, _validity(values))

    def allow_nulls(self, values: pa.Array, n: int) -> None:
        """Make room for the nulls of `values` in an array that is to have the length `n`."""
        if values.null_count:
            self._validity.reserve(nbytes_of_bits(n) - self._validity.used)

    def array(self) -> pa.Array:
        """Return all values, without copying; valid until the next change."""
        return pa.Array.from_buffers(
            self.type,
            self.n,
            [self._validity.as_arrow() if self._nulls else None, *(b.as_arrow() for b in self._buffers)],
            null_count=self._nulls,  # unknown, Arrow would count it in O(n)
            children=[child.array() for child in self.children] or None,
        )

    def take(self, places: np.ndarray, held: np.ndarray | None = None) -> pa.Array:
        """Return a copy of the values at `places`, null where `held` (bool) is False: shape (n,); O(n)."""
        return self.array().take(pa.array(places, mask=None if held is None else ~held))

    def _taken(self, n: int, held: np.ndarray | None, *parts: Any, children: Any = None) -> pa.Array:
        nulls = 0 if held is None else n - int(np.count_nonzero(held))
        valid = None if held is None else pa.py_buffer(np.packbits(held, bitorder="little"))
        return pa.Array.from_buffers(self.type, n, [valid, *parts], nulls, children=children)

    def nbytes(self) -> int:
        own = self._validity.used + sum(buffer.used for buffer in self._buffers)
        return own + sum(child.nbytes() for child in self.children)

    def clear(self) -> None:
        self.n = self._nulls = 0
        for buffer in (self._validity, *self._buffers):
            buffer.clear()
        for child in self.children:
            child.clear()

    def head(self) -> list[Any]:
        buffers = [buffer.head() for buffer in (self._validity, *self._buffers)]
        return [self.n, self._nulls, buffers, [child.head() for child in self.children]]

    def attach(self, head: list[Any]) -> None:
        self.n, self._nulls, buffers, children = head
        self._validity, *self._buffers = (Buffer(self._memory, buffer) for buffer in buffers)
        for child, described in zip(self.children, children, strict=True):
            child.attach(described)


class _Null(ArrayLayout):
    """Nulls, without a buffer."""

    def grow(self, values: pa.Array) -> None:
        pass

    def append(self, values: pa.Array) -> None:
        self.n += len(values)

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        pass

    def allow_nulls(self, values: pa.Array, n: int) -> None:
        pass

    def array(self) -> pa.Array:
        return pa.nulls(self.n)


class _Bits(ArrayLayout):
    """Booleans."""

    _buffers_beside_validity = 1

    def grow(self, values: pa.Array) -> None:
        super().grow(values)
        (data,) = self._buffers
        data.reserve(nbytes_of_bits(self.n + len(values)) - data.used)

    def append(self, values: pa.Array) -> None:
        append_bits(self._buffers[0], self.n, bits_of(values.buffers()[1], values.offset, len(values)))
        super().append(values)

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        super().overwrite(places, values)
        set_bits(self._buffers[0], places, bits_of(values.buffers()[1], values.offset, len(values)))


class _Fixed(ArrayLayout):
    """Values of a fixed number of bytes."""

    _buffers_beside_validity = 1

    def __init__(self, type_: pa.DataType, memory: Memory) -> None:
        super().__init__(type_, memory)
        width = type_.bit_width // 8
        self._dtype = np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))

    def grow(self, values: pa.Array) -> None:
        super().grow(values)
        self._buffers[0].reserve(len(values) * self._dtype.itemsize)

    def append(self, values: pa.Array) -> None:
        self._buffers[0].append(self._data(values))
        super().append(values)

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        super().overwrite(places, values)
        self._buffers[0].view(self._dtype)[places] = self._data(values)

    def take(self, places: np.ndarray, held: np.ndarray | None = None) -> pa.Array:
        if self._nulls:
            return super().take(places, held)
        return self._taken(len(places), held, pa.py_buffer(self._buffers[0].view(self._dtype)[places]))

    def _data(self, values: pa.Array) -> np.ndarray:
        data = np.frombuffer(values.buffers()[1], self._dtype, values.offset + len(values))
        return data[values.offset :]


class _Variable(ArrayLayout):
    """Text or bytes: offsets and data."""

    _buffers_beside_validity = 2

    def __init__(self, type_: pa.DataType, memory: Memory) -> None:
        super().__init__(type_, memory)
        self.fixed_width = False

    def grow(self, values: pa.Array) -> None:
        super().grow(values)
        ends = _offsets(values)
        _grow_offsets(self._buffers[0], len(values))
        self._buffers[1].reserve(int(ends[-1]) - int(ends[0]))

    def append(self, values: pa.Array) -> None:
        offsets, data = self._buffers
        ends = _offsets(values)
        _append_offsets(offsets, ends, data.used)
        if ends[-1] > ends[0]:
            data.append(np.frombuffer(values.buffers()[2], np.uint8)[ends[0] : ends[-1]])
        super().append(values)


class _List(ArrayLayout):
    """Lists: offsets, and the elements as a child."""

    _buffers_beside_validity = 1

    def __init__(self, type_: pa.DataType, memory: Memory) -> None:
        super().__init__(type_, memory, layout_of(type_.value_type, memory))
        self.fixed_width = False

    def grow(self, values: pa.Array) -> None:
        super().grow(values)
        _grow_offsets(self._buffers[0], len(values))
        if len(elements := _elements(values)):
            self.children[0].grow(elements)

    def append(self, values: pa.Array) -> None:
        (offsets,), (child,) = self._buffers, self.children
        _append_offsets(offsets, _offsets(values), child.n)
        if len(elements := _elements(values)):
            child.append(elements)
        super().append(values)


class _Struct(ArrayLayout):
    """Structs: each field is a child."""

    def __init__(self, type_: pa.DataType, memory: Memory) -> None:
        super().__init__(type_, memory, *(layout_of(field.type, memory) for field in type_))

    def grow(self, values: pa.Array) -> None:
        super().grow(values)
        for i, child in enumerate(self.children):
            child.grow(values.field(i))

    def append(self, values: pa.Array) -> None:
        for i, child in enumerate(self.children):
            child.append(values.field(i))
        super().append(values)

    def overwrite(self, places: np.ndarray, values: pa.Array) -> None:
        for i, child in enumerate(self.children):
            child.overwrite(places, values.field(i))
        super().overwrite(places, values)

    def take(self, places: np.ndarray, held: np.ndarray | None = None) -> pa.Array:
        if self._nulls:
            return super().take(places, held)
        return self._taken(len(places), held, children=[child.take(places, held) for child in self.children])

    def allow_nulls(self, values: pa.Array, n: int) -> None:
        super().allow_nulls(values, n)
        for i, child in enumerate(self.children):
            child.allow_nulls(values.field(i), n)


def layout_of(type_: pa.DataType, memory: Memory) -> ArrayLayout:
    """Return an empty array of a type with 64-bit offsets and without maps."""
    class_ = _class_of(type_)
    if class_ is None:
        raise TypeError(f"type_ must be a type that Spark has, got {type_}")
    return class_(type_, memory)


def _class_of(type_: pa.DataType) -> Callable[[pa.DataType, Memory], ArrayLayout] | None:
    if pa.types.is_null(type_):
        return _Null
    if pa.types.is_boolean(type_):
        return _Bits
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return _Variable
    if pa.types.is_large_list(type_):
        return _List
    if pa.types.is_struct(type_):
        return _Struct
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return _Fixed
    return None


@lru_cache(maxsize=256)
def can_hold(type_: pa.DataType) -> bool:
    """Return whether arrays of a type, with any offsets and maps, have a layout."""
    if pa.types.is_map(type_):
        return can_hold(type_.key_type) and can_hold(type_.item_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return can_hold(type_.value_type)
    if pa.types.is_struct(type_):
        return all(can_hold(field.type) for field in type_)
    return _class_of(wide(type_)) is not None


def _validity(values: pa.Array) -> np.ndarray:
    """Return which values are not null: shape (n,), uint8."""
    if not values.null_count:
        return np.ones(len(values), np.uint8)
    return bits_of(values.buffers()[0], values.offset, len(values))


def _offsets(values: pa.Array) -> np.ndarray:
    """Return the offsets of n strings or lists: shape (n + 1,), int32 or int64."""
    long = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    dtype = np.int64 if long or pa.types.is_large_list(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], dtype, values.offset + len(values) + 1)
    return offsets[values.offset :]


def _elements(values: pa.Array) -> pa.Array:
    """Return the elements of lists, or the entries of maps."""
    ends = _offsets(values)
    return values.values.slice(int(ends[0]), int(ends[-1]) - int(ends[0]))


def _grow_offsets(offsets: Buffer, n: int) -> None:
    offsets.reserve(8 * (n + (not offsets.used)))


def _append_offsets(offsets: Buffer, ends: np.ndarray, base: int) -> None:
    if not offsets.used:
        offsets.append(np.zeros(1, np.int64))
    offsets.append(ends[1:].astype(np.int64) + (base - int(ends[0])))
