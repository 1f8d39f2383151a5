"""Columns of values: built from checked Python values, or cast to the declared type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from timerheap._values import checker
from timerheap.spark._group.offsets import wide

__all__ = ["cast", "column_of"]

_EXACT: dict[pa.DataType, set[type]] = {
    pa.string(): {str, type(None)},
    pa.binary(): {bytes, type(None)},
    pa.bool_(): {bool, type(None)},
    pa.float64(): {float, type(None)},
} | {type_: {int, type(None)} for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


def column_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Build a column of shape (n,) from values; raise ValueError if one does not pass `checker`.

    The column has 64-bit offsets (`timerheap.spark._group.offsets`).
    """
    # Where all values have the class that Arrow expects, its own checks are enough; `checker` words errors.
    if set(map(type, values)) <= _EXACT.get(type_, set()):
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, wide(type_))
    return pa.array(list(map(checker(type_), values)), wide(type_))


def cast(column: Any, type_: pa.DataType) -> Any:
    """Cast an Array or ChunkedArray; integers are epoch ms where `type_` has timestamps.

    The fields of structs are matched by name, and a missing one is null, as in a dict.

    Raises
    ------
    TypeError, pyarrow.ArrowException
        If a value does not fit, or the cast would change what values say, as from text to numbers.
    """
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    for way in (_numbers, _moments):
        column = column.cast(_replaced(column.type, type_, way))
    return column.cast(type_)


def _numbers(_: pa.TimestampType) -> pa.DataType:
    return pa.int64()


def _moments(wanted: pa.TimestampType) -> pa.DataType:
    return pa.timestamp("ms", wanted.tz)


def _replaced(
    type_: pa.DataType, wanted: pa.DataType, by: Callable[[pa.TimestampType], pa.DataType]
) -> pa.DataType:
    """Return `type_` with other integers where `wanted` has timestamps, at every depth."""
    if pa.types.is_integer(type_) and pa.types.is_timestamp(wanted):
        return by(wanted)
    if pa.types.is_struct(type_) and pa.types.is_struct(wanted):
        return pa.struct([_replaced_field(field, wanted, by) for field in type_])
    if pa.types.is_map(type_) and pa.types.is_map(wanted):
        key = _replaced(type_.key_type, wanted.key_type, by)
        return pa.map_(key, _replaced(type_.item_type, wanted.item_type, by))
    if _is_list(type_) and _is_list(wanted):
        element = type_.value_field.with_type(_replaced(type_.value_type, wanted.value_type, by))
        return pa.list_(element) if pa.types.is_list(type_) else pa.large_list(element)
    _expect_same_sense(type_, wanted)
    return type_


def _replaced_field(
    field: pa.Field, wanted: pa.StructType, by: Callable[[pa.TimestampType], pa.DataType]
) -> pa.Field:
    at = wanted.get_field_index(field.name)
    if at < 0:
        raise TypeError(f"its fields must be of {[other.name for other in wanted]}, got {field.name!r}")
    return field.with_type(_replaced(field.type, wanted.field(at).type, by))


def _expect_same_sense(type_: pa.DataType, wanted: pa.DataType) -> None:
    """Raise TypeError for casts that Arrow knows and that change what a value says."""
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
