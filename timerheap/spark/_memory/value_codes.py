"""Values as codes, which are bytes that order them, and values read from codes again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from timerheap._native._core import (
    FIXED,
    OF_BIT,
    OF_BYTES,
    OF_FIELDS,
    OF_FLOAT,
    OF_NOTHING,
    OF_SIGNED,
    OF_TEXT,
    OF_UNSIGNED,
    ArrayView,
    CodeFormat,
    Codes,
    decode,
    encode,
)
from timerheap.errors import ArgumentTypeError
from timerheap.spark._arrow import is_flat, kind_of, view_of, wide


class Direction(NamedTuple):
    """How a value is ordered; by default as in an ORDER BY that says nothing of it."""

    descending: bool = False
    nulls_first: bool = True


class ValueCodes:
    """The codes of values of one type: flat, null, or a struct of such.

    The order of the codes is that of Spark: NaN is the largest number, text and bytes are compared by their
    bytes. A flat value has one direction. Of a struct, `order` says it of the first fields, by which values
    are ordered: the lead, in which -0.0 equals 0.0. The other fields, ascending, tell apart values whose lead
    is equal.
    """

    def __init__(self, type_: pa.DataType, order: Sequence[Direction] = ()) -> None:
        self.type = wide(type_)
        struct = pa.types.is_struct(type_)
        most = type_.num_fields if struct else 1
        if len(order) > most:
            raise ArgumentTypeError(f"order must be of at most {most} fields for {type_}, got {len(order)}")
        ways = [*order, *[Direction()] * (most - len(order))]
        if struct:
            fields = [list(_format_fields(each.type, way)) for each, way in zip(type_, ways, strict=True)]
            lead = 1 + sum(map(len, fields[: len(order)]))
            flat = [each for one in fields for each in one]
            self.format = CodeFormat([(OF_FIELDS, 0, False, False, 1 + len(flat)), *flat], lead)
        else:
            self.format = CodeFormat(list(_format_fields(type_, ways[0])), 1)

    def encoded(self, values: pa.Array) -> Codes:
        """Return the codes of values, of this type with offsets of any size; O(bytes)."""
        return encode(self.format, list(_views(values)))

    def decoded(self, codes: Codes) -> pa.Array:
        """Return the values of codes, with 64-bit offsets; O(bytes)."""
        return _array_of(self.type, len(codes), iter(decode(self.format, codes)))


def has_codes(type_: pa.DataType) -> bool:
    """Return whether values of a type have codes."""
    if pa.types.is_struct(type_):
        return all(has_codes(field.type) for field in type_)
    return pa.types.is_null(type_) or is_flat(type_)


def _format_fields(type_: pa.DataType, way: Direction) -> Iterator[tuple[int, int, bool, bool, int]]:
    """Yield the fields of the format of a type, itself first."""
    down, nulls_last = way.descending, not way.nulls_first
    if pa.types.is_struct(type_):
        inner = Direction(down, not down)  # as Spark compares structs, from whichever end
        fields = [each for field in type_ for each in _format_fields(field.type, inner)]
        yield OF_FIELDS, 0, down, nulls_last, 1 + len(fields)
        yield from fields
    else:
        kind, width = _kind_of(type_)
        yield kind, width, down, nulls_last, 1


def _kind_of(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_null(type_):
        return OF_NOTHING, 0
    if pa.types.is_boolean(type_):
        return OF_BIT, 0
    _, width = kind_of(type_)
    if wide(type_) in (pa.large_string(), pa.large_binary()):
        return OF_TEXT, 0
    if type_ in (pa.float32(), pa.float64()):
        return OF_FLOAT, width
    if pa.types.is_unsigned_integer(type_):
        return OF_UNSIGNED, width
    numbers = pa.types.is_integer(type_) or pa.types.is_temporal(type_) or pa.types.is_decimal(type_)
    return OF_SIGNED if numbers and not pa.types.is_interval(type_) else OF_BYTES, width


def _views(values: pa.Array) -> Iterator[ArrayView]:
    """Yield a view of each field, as the format has them."""
    if is_flat(values.type):
        yield view_of(values)
        return
    nested = pa.types.is_struct(values.type)
    validity = values.buffers()[0] if nested and values.null_count else None
    yield ArrayView(FIXED, 0, values.offset, len(values), validity, None, None)
    for i in range(values.type.num_fields):
        yield from _views(values.field(i))


def _array_of(type_: pa.DataType, n: int, fields: Iterator[tuple[Any, int, Any, Any]]) -> pa.Array:
    valid, nulls, offsets, data = next(fields)
    if pa.types.is_null(type_):
        return pa.nulls(n)
    validity = None if valid is None else pa.py_buffer(valid)
    if pa.types.is_struct(type_):
        children = [_array_of(field.type, n, fields) for field in type_]
        return pa.Array.from_buffers(type_, n, [validity], nulls, children=children)
    buffers = (
        [validity, pa.py_buffer(data)]
        if offsets is None
        else [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return pa.Array.from_buffers(type_, n, buffers, nulls)
