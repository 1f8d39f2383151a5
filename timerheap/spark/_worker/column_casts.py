"""Which values and columns of a function fit a type, and what they are cast to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from timerheap._values import checker, exact_class
from timerheap.spark._arrow import wide


def column_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Build a column with 64-bit offsets from values; raise an error if one does not pass `checker`."""
    # Where all values have the class that Arrow expects, its own checks are enough; `checker` words errors.
    if set(map(type, values)) <= {exact_class(type_)[0], type(None)}:
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, wide(type_))
    return pa.array(list(map(checker(type_), values)), wide(type_))


def cast(column: Any, type_: pa.DataType) -> Any:
    """Cast an Array or ChunkedArray; integers are epoch ms where `type_` has timestamps.

    The fields of structs are matched by name, and a missing one is null, as in a dict.

    A value that does not fit raises an error, and so does a cast that would change what values say, as from
    text to numbers.
    """
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    for moments in (False, True):  # integers of any width are numbers first
        column = column.cast(_replaced(column.type, type_, moments))
    return column.cast(type_)


def _replaced(type_: pa.DataType, wanted: pa.DataType, moments: bool) -> pa.DataType:
    """Return `type_` with int64, or moments in ms, in place of integers where `wanted` has timestamps."""
    if pa.types.is_integer(type_) and pa.types.is_timestamp(wanted):
        return pa.timestamp("ms", wanted.tz) if moments else pa.int64()
    if pa.types.is_struct(type_) and pa.types.is_struct(wanted):
        if unknown := [name for name in type_.names if name not in wanted.names]:
            raise TypeError(f"its fields must be of {wanted.names}, got {unknown[0]!r}")
        inner = [_replaced(field.type, wanted.field(field.name).type, moments) for field in type_]
        return pa.struct([field.with_type(new) for field, new in zip(type_, inner, strict=True)])
    if pa.types.is_map(type_) and pa.types.is_map(wanted):
        key = _replaced(type_.key_type, wanted.key_type, moments)
        return pa.map_(key, _replaced(type_.item_type, wanted.item_type, moments))
    if _is_list(type_) and _is_list(wanted):
        element = type_.value_field.with_type(_replaced(type_.value_type, wanted.value_type, moments))
        return pa.list_(element) if pa.types.is_list(type_) else pa.large_list(element)
    _expect_same_sense(type_, wanted)
    return type_


def _expect_same_sense(type_: pa.DataType, wanted: pa.DataType) -> None:
    """Raise an error for casts that Arrow knows and that change what a value says."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return
    if any(is_one(type_) != is_one(wanted) for is_one in (_is_text, pa.types.is_boolean)):
        raise TypeError(f"pass values of {wanted}")
    if pa.types.is_floating(type_) and pa.types.is_decimal(wanted):  # which rounds
        raise TypeError("pass decimals")
    if pa.types.is_timestamp(type_) and pa.types.is_date(wanted):  # which drops the time
        raise TypeError("pass dates")
    if pa.types.is_timestamp(type_) and type_.tz and pa.types.is_timestamp(wanted) and not wanted.tz:
        raise TypeError("pass timestamps without a time zone")


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))
