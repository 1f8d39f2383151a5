"""Values of any type as bytes, from which exactly these values come back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import Codes
from timerheap.spark._arrow import map_type, wide
from timerheap.spark._memory.value_codes import ValueCodes, has_codes

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NOTHING = pa.scalar(b"", pa.large_binary())


class BitCodes:
    """The bytes of values of one type, which may be nested; each NaN stays what it is.

    These are the lengths of the lists and maps in the value, in bytes, then these, and then the code of all
    else. A list or map is the number of its entries, the length of each in bytes, and the entries; a null one
    has no bytes. Each number has two bytes, so only values of at most 65,535 bytes come back.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = wide(type_)
        flat = map_type(self.type, _flat_type)
        # As codes of floats, each NaN would become the same.
        self._codes = ValueCodes(flat)
        self._lists = _count_lists(self.type)

    def encoded(self, values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Return where the bytes of each value end, int64, and all bytes; O(bytes)."""
        n, lists = len(values), list[pa.Array]()
        ends, data = self._codes.encoded(_flat(values, self.type, lists)).columns()
        if not lists:
            return ends, data
        lengths = np.stack([np.diff(_bounds_of(each)) for each in lists], axis=1).astype("<u2")
        heads = _binaries(2 * len(lists) * np.arange(n + 1), lengths)
        codes = _binaries(np.concatenate([[0], ends]), data)
        both = pc.binary_join_element_wise(heads, *lists, codes, _NOTHING)
        return _bounds_of(both)[1:], _data_of(both)

    def decoded(self, ends: np.ndarray, data: np.ndarray) -> pa.Array:
        """Return the values of bytes; O(bytes)."""
        bounds = np.concatenate([[0], ends])
        parts = list[pa.Array]()
        if count := self._lists:
            starts = bounds[:-1]
            lengths = [_numbers_at(data, starts + 2 * number) for number in range(count)]
            sizes = np.stack([np.full(len(ends), 2 * count), *lengths], axis=1)
            *parts, codes = _cut_columns(bounds, sizes, data)[1:]
            bounds, data = _bounds_of(codes), _data_of(codes)
        return _nested(self._codes.decoded(Codes(data, bounds)), self.type, iter(parts))


def has_bit_codes(type_: pa.DataType) -> bool:
    """Return whether values of a type have such bytes."""
    return has_codes(map_type(wide(type_), _flat_type))


_codes_of = lru_cache(maxsize=256)(BitCodes)


def _has_entries(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(type_) or pa.types.is_map(type_))


def _flat_type(type_: pa.DataType) -> pa.DataType:
    return pa.null() if _has_entries(type_) and has_codes(type_.field(0).type) else _BITS.get(type_, type_)


def _count_lists(type_: pa.DataType) -> int:
    """Return the number of lists in a type, those in lists left out."""
    if _has_entries(type_):
        return 1
    return sum(_count_lists(each.type) for each in type_) if pa.types.is_struct(type_) else 0


def _flat(array: pa.Array, type_: pa.DataType, lists: list[pa.Array]) -> pa.Array:
    """Return an array without its lists, whose bytes go to `lists`, and with integers for floats."""
    if not pa.types.is_nested(type_):
        return array.view(_flat_type(type_))
    if _has_entries(type_):
        lists.append(_bytes_of_lists(array, type_))
        return pa.nulls(len(array))
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))
    children = [_flat(array.field(i), each.type, lists) for i, each in enumerate(type_)]
    return _struct(array, map_type(type_, _flat_type), children)


def _nested(array: pa.Array, type_: pa.DataType, lists: Iterator[pa.Array]) -> pa.Array:
    """Return what `_flat` was given, from an array that begins at 0."""
    if not pa.types.is_nested(type_):
        return array.view(type_)
    if _has_entries(type_):
        return _lists_of_bytes(next(lists), type_)
    children = [_nested(array.field(i), each.type, lists) for i, each in enumerate(type_)]
    return _struct(array, type_, children)


def _struct(array: pa.StructArray, type_: pa.DataType, children: list[pa.Array]) -> pa.StructArray:
    # `pa.StructArray.from_arrays` refuses null structs that have fields without nulls.
    return pa.Array.from_buffers(type_, len(array), array.buffers()[:1], array.null_count, children=children)


def _bytes_of_lists(lists: pa.Array, type_: pa.DataType) -> pa.LargeBinaryArray:
    """Return lists as bytes."""
    if lists.offset or lists.null_count:
        lists = lists.take(pa.array(np.arange(len(lists))))  # of which those that are null are empty
    bounds = lists.offsets.to_numpy().astype(np.int64)
    entries = lists.values.slice(bounds[0], bounds[-1] - bounds[0])
    bounds = bounds - bounds[0]
    ends, data = _codes_of(type_.field(0).type).encoded(entries)
    held = lists.is_valid().to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(held)])  # of which each has its own number before the lengths
    numbers, are_lengths = np.empty(before[-1] + len(ends), "<u2"), np.ones(before[-1] + len(ends), bool)
    own = (before + bounds)[:-1][held]
    are_lengths[own] = False
    numbers[own], numbers[are_lengths] = np.diff(bounds)[held], np.diff(ends, prepend=0)
    heads = _binaries(2 * (before + bounds), numbers)
    bodies = _binaries(np.concatenate([[0], ends])[bounds], data)
    return pc.binary_join_element_wise(heads, bodies, _NOTHING)


def _lists_of_bytes(array: pa.LargeBinaryArray, type_: pa.DataType) -> pa.Array:
    """Return the lists of bytes."""
    bounds, data = _bounds_of(array), _data_of(array)
    held, counts = np.diff(bounds) > 0, np.zeros(len(array), np.int64)
    counts[held] = _numbers_at(data, bounds[:-1][held])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    starts = np.repeat(bounds[:-1] + 2 - 2 * offsets[:-1], counts)
    lengths = _numbers_at(data, starts + 2 * np.arange(offsets[-1]))
    _, bodies = _cut_columns(bounds, (2 * held + 2 * counts)[:, None], data)
    entries = _codes_of(type_.field(0).type).decoded(np.cumsum(lengths), _data_of(bodies))
    offsets = offsets.astype(np.int32 if pa.types.is_map(type_) else np.int64)
    validity = None if held.all() else pa.array(held).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(type_, len(array), buffers, children=[entries])


def _numbers_at(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    numbers: np.ndarray = data[at].astype(np.int64) | data[at + 1].astype(np.int64) << 8
    return numbers


def _cut_columns(bounds: np.ndarray, sizes: np.ndarray, data: np.ndarray) -> list[pa.LargeBinaryArray]:
    """Cut each of n values into k parts of such sizes, shape (n, k), and the rest; return k + 1 columns."""
    n, k = sizes.shape
    parts = np.column_stack([bounds[:-1], bounds[:-1, None] + np.cumsum(sizes, axis=1)])
    cut = _binaries(np.append(parts, bounds[-1]), data)
    return [cut.take(pa.array(np.arange(each, n * (k + 1), k + 1))) for each in range(k + 1)]


def _bounds_of(array: pa.LargeBinaryArray) -> np.ndarray:
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1)


def _data_of(array: pa.LargeBinaryArray) -> np.ndarray:
    data = array.buffers()[2]
    return np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _binaries(bounds: np.ndarray, data: np.ndarray) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
