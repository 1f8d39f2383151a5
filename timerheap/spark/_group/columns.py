"""Columns of values that grow in a memory: layouts of Arrow arrays, slabs, and Python values of them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache, lru_cache
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from timerheap._moments import local_time, moment_of
from timerheap._native._core import ColumnReader, RowField, row_getter, set_item
from timerheap.spark._arrow import FITS, map_type, view_of, wide
from timerheap.spark._group.memory import (
    PROCESS,
    Buffer,
    Memory,
    append_bits,
    bits_of,
    nbytes_of_bits,
    set_bits,
)
from timerheap.types import LOCAL

_FORMATS: dict[pa.DataType, str] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "integer"),
    **dict.fromkeys((pa.float32(), pa.float64()), "float"),
    pa.bool_(): "bool",
    **dict.fromkeys((pa.string(), pa.large_string()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "binary"),
}

_FIRST, _LAST = np.datetime64("0001-01-02", "us"), np.datetime64("9999-12-31", "us")  # in each time zone
_FEW = 64  # dead values that are never worth a compaction
_SMALL = 64 << 10  # bytes that are never worth one
_PIECE = 1 << 16  # values that a compaction copies at a time


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
    if pa.types.is_null(type_):
        return _Null(type_, memory)
    if pa.types.is_boolean(type_):
        return _Bits(type_, memory)
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return _Variable(type_, memory)
    if pa.types.is_large_list(type_):
        return _List(type_, memory)
    if pa.types.is_struct(type_):
        return _Struct(type_, memory)
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return _Fixed(type_, memory)
    raise TypeError(f"type_ must be a type that Spark has, got {type_}")


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


def column_reader(column: pa.Array) -> ColumnReader | None:
    """Return the reader of a column, or None for a type that it does not read; copies no values."""
    format_ = _FORMATS.get(column.type)
    return None if format_ is None else ColumnReader(format_, view_of(column))


def python_values(column: pa.Array) -> list[Any]:
    """Return the values like ``column.to_pylist()``, in a fraction of the time for flat types."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return _moments(column)
    reader = column_reader(column)
    return _objects(column) if reader is None else reader.tolist()


def _objects(column: pa.Array) -> list[Any]:
    with suppress(OverflowError, ValueError):
        return column.to_pylist()
    # Arrow's are in UTC, where Python may not have the year that it has in local time.
    numbers = column.cast(map_type(column.type, lambda each: pa.int64() if _is_moment(each) else each))
    return [_kept(value, column.type) for value in numbers.to_pylist()]


def _is_moment(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def _kept(value: Any, type_: pa.DataType) -> Any:
    """Return a value of `column.to_pylist()` that has numbers for moments."""
    if value is None:
        return None
    if _is_moment(type_):
        return moment_of(local_time(value))
    if pa.types.is_struct(type_):
        return {field.name: _kept(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(_kept(k, type_.key_type), _kept(v, type_.item_type)) for k, v in value]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_kept(each, type_.value_type) for each in value]
    return value


def _moments(column: pa.Array) -> list[Any]:
    moments, zone = column.to_numpy(zero_copy_only=False), column.type.tz
    if zone == LOCAL:
        zone = "UTC"
    known = moments[~np.isnat(moments)]
    if zone is None or not len(known) or not _FIRST <= known.min() <= known.max() <= _LAST:
        return _objects(column)
    zone = pa.lib.string_to_tzinfo(zone)
    utc = zone if zone == pa.lib.string_to_tzinfo("UTC") else datetime.UTC
    # Some 20 times as fast as Arrow's to_pylist(), and combine() as replace().
    combine = datetime.datetime.combine
    values = [None if at is None else combine(at, at.time(), utc) for at in moments.tolist()]
    return values if utc is zone else [None if at is None else at.astimezone(zone) for at in values]


def local_times(column: pa.Array) -> list[datetime.datetime | None]:
    """Return the values of moments in microseconds as PySpark does, in local time; see `local_time`."""
    micros = ColumnReader("integer", view_of(column.cast(pa.int64()))).tolist()
    return [None if at is None else local_time(at) for at in micros]


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
            raise OverflowError(
                f"maps must have at most {FITS} entries at a time, got {offsets[-1]}; process fewer rows"
            )
        own = [array.buffers()[0], pa.py_buffer(offsets.astype(np.int32))]
        children = [_with_maps(array.values, type_.field(0).type)]
    else:
        own = array.buffers()[:2]
        children = [_with_maps(array.values, type_.value_type)]
    return pa.Array.from_buffers(type_, len(array), own, array.null_count, children=children)


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields, a ``Row`` like any other but for the time of an access."""
    # Row is Python code that searches the names at each access, which takes longer than everything else
    # that is done for a row. A row that is pickled becomes a plain Row.
    places = {name: names.index(name) for name in names}
    attributes = {name for name in names if not hasattr(Row, name) and not name.startswith("__")}
    members: dict[str, Any] = {name: RowField(places[name]) for name in attributes}
    members |= {"__getitem__": row_getter(places, Row.__getitem__)}
    members |= {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (Row,), members)


@cache
def changeable_class(names: tuple[str, ...]) -> type[Row]:
    """Return a `row_class` of rows whose items can be set, as those of PyFlink's ``Row``."""
    places = {name: names.index(name) for name in names}

    def put(row: Any, item: Any, value: Any) -> None:
        if isinstance(item, str) and item not in places:
            raise KeyError(f"field must be one of {list(names)}, got {item!r}")
        set_item(row, places[item] if isinstance(item, str) else item, value)

    def put_attribute(row: Any, name: str, value: Any) -> None:
        if name != "__fields__":
            raise AttributeError(f"a field must be set as row[{name!r}] = value, got row.{name} = {value!r}")
        object.__setattr__(row, name, value)

    def copied(row: Any, memo: dict[int, Any] | None = None) -> Any:
        return changeable_row(*names)(*(row if memo is None else deepcopy(tuple(row), memo)))

    methods = {"__setitem__": put, "__setattr__": put_attribute, "__copy__": copied, "__deepcopy__": copied}
    class_ = row_class(names)
    members = {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (class_,), members | methods)


def changeable_row(*names: str) -> Callable[..., Row]:
    """Return a function that makes a row of `changeable_class` of its values."""
    class_, fields = changeable_class(names), list(names)

    def make(*values: Any) -> Row:
        row: Row = tuple.__new__(class_, values)
        row.__fields__ = fields
        return row

    return make


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
        kept = np.flatnonzero(_mask(places, len(self)))
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
        return (np.cumsum(_mask(places, len(self))) - 1)[places]

    def nbytes(self) -> int:
        """Return the number of bytes in use, those of dead values included."""
        return self._layout.nbytes() + self._free.used

    def clear(self) -> None:
        self._layout.clear()
        self._free.clear()
        self._kept = self._most = 0


def _mask(places: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, bool)
    mask[places] = True
    return mask
