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
    """Cast an Array or ChunkedArray; integers are epoch ms where `type_` has timestamps."""
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
    if pa.types.is_struct(type_) and pa.types.is_struct(wanted) and len(type_) == len(wanted):
        pairs = zip(type_, wanted, strict=True)
        return pa.struct([one.with_type(_replaced(one.type, other.type, by)) for one, other in pairs])
    if pa.types.is_map(type_) and pa.types.is_map(wanted):
        key = _replaced(type_.key_type, wanted.key_type, by)
        return pa.map_(key, _replaced(type_.item_type, wanted.item_type, by))
    if _is_list(type_) and _is_list(wanted):
        element = type_.value_field.with_type(_replaced(type_.value_type, wanted.value_type, by))
        return pa.list_(element) if pa.types.is_list(type_) else pa.large_list(element)
    return type_


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))
