"""Python values of an Arrow type: checked strictly when they come in, fresh objects when they go out."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from timerheap.spark._group.offsets import wide

__all__ = ["Misfit", "cast", "checker", "column_of", "reader"]

Convert = Callable[[Any], Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Misfit(ValueError):
    """A value that does not fit its type."""


def checker(type_: pa.DataType) -> Convert:
    """Give the function that checks a value of `type_` and copies it into plain Python objects.

    It does not bend: no float becomes an int, no int a string. What does not fit is a `Misfit`; None fits. An
    int stands for a timestamp as epoch milliseconds.
    """
    check = _checker(type_)

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return check(value)
        except Misfit:
            plain = value.item() if isinstance(value, np.generic) else value
            if plain is value or (isinstance(plain, int) and isinstance(value, _NUMPY_TIMES)):
                raise  # a count of nanoseconds, or beyond Python's years
            return None if plain is None else check(plain)

    return checked


def _checker(type_: pa.DataType) -> Convert:
    if pa.types.is_signed_integer(type_):
        bound = 1 << (type_.bit_width - 1)

        def integer(value: Any) -> int:
            if type(value) is not int or not -bound <= value < bound:
                raise Misfit(f"{_show(value)} does not fit {type_}")
            return value

        return integer
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return _floating(type_)
    for test, classes, convert in _SCALARS:
        if test(type_):
            return _scalar(type_, classes, convert)
    if pa.types.is_timestamp(type_):
        return _timestamp(type_)
    if pa.types.is_list(type_):
        return _list(type_, checker(type_.value_type))
    if pa.types.is_map(type_):
        return _map(type_, checker(type_.key_type), checker(type_.item_type))
    if pa.types.is_struct(type_):
        return _row(type_)
    return _by_arrow(type_)


_NUMPY_TIMES = (np.datetime64, np.timedelta64)

# Of the types that take just these classes; a bool is no int here, though Python says so.
_SCALARS: list[tuple[Convert, tuple[type, ...], Convert]] = [
    (pa.types.is_string, (str,), str),
    (pa.types.is_binary, (bytes, bytearray), bytes),
    (pa.types.is_boolean, (bool,), bool),
    (pa.types.is_date32, (datetime.date,), lambda v: v),
]


def _scalar(type_: pa.DataType, classes: tuple[type, ...], convert: Convert) -> Convert:
    first = classes[0]

    def scalar(value: Any) -> Any:
        if type(value) is first:
            return value
        if not isinstance(value, classes) or isinstance(value, (bool, datetime.datetime)):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        return convert(value)

    return scalar


def _floating(type_: pa.DataType) -> Convert:
    single = pa.types.is_float32(type_)

    def floating(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (float, int)):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        try:
            kept = float(value)
            if single:
                kept = struct.unpack("<f", struct.pack("<f", kept))[0]  # as a checkpoint gives it back
        except OverflowError:
            raise Misfit(f"{_show(value)} does not fit {type_}: it is too large") from None
        if isinstance(value, int) and kept != value:
            raise Misfit(f"{_show(value)} does not fit {type_}: it would become {kept!r}")
        return kept

    return floating


def _timestamp(type_: pa.DataType) -> Convert:
    exact = _same if type_.unit == "us" else _by_arrow(type_)

    def timestamp(value: Any) -> Any:
        try:
            if type(value) is int:
                moment = _EPOCH + datetime.timedelta(milliseconds=value)
                return moment if type_.tz is not None else moment.replace(tzinfo=None)
            if not isinstance(value, datetime.datetime):
                raise Misfit(f"{_show(value)} does not fit {type_}: give a datetime, or epoch ms as an int")
            if type_.tz is not None:  # as PySpark: a datetime without a zone is local time
                value = value.astimezone(datetime.UTC)
            elif value.tzinfo is not None:
                raise Misfit(f"{_show(value)} has a time zone, and {type_} has none")
        except OverflowError:
            raise Misfit(
                f"{_show(value)} does not fit {type_}: it is outside the years 1 to 9999 that Python's "
                "datetime can show (an int is epoch ms)"
            ) from None
        return exact(value)

    return timestamp


def _list(type_: pa.DataType, element: Convert) -> Convert:
    def list_(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        return [element(e) for e in value]

    return list_


def _map(type_: pa.DataType, key: Convert, item: Convert) -> Convert:
    def map_(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise Misfit(f"{_show(value)} does not fit {type_}: give a dict")
        if None in value:
            raise Misfit(f"{_show(value)} does not fit {type_}: a key is None")
        return [(key(k), item(v)) for k, v in value.items()]

    return map_


def _row(type_: pa.DataType) -> Convert:
    names = [field.name for field in type_]
    checks = [checker(field.type) for field in type_]

    def row(value: Any) -> dict[str, Any]:
        if isinstance(value, Mapping):
            unknown = set(value) - set(names)
            if unknown:
                raise Misfit(
                    f"{_show(value)} does not fit {type_}: no field {sorted(map(str, unknown))[0]!r}"
                )
            return {n: check(value.get(n)) for n, check in zip(names, checks, strict=True)}
        if not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise Misfit(
                f"{_show(value)} does not fit {type_}: give a Row, a tuple of {len(names)} or a dict"
            )
        return {n: check(v) for n, check, v in zip(names, checks, value, strict=True)}

    return row


def _by_arrow(type_: pa.DataType) -> Convert:
    def by_arrow(value: Any) -> Any:
        try:
            kept = pa.scalar(value, type_).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise Misfit(f"{_show(value)} does not fit {type_}: {e}") from None
        if kept != value and not isinstance(value, decimal.Decimal):
            raise Misfit(f"{_show(value)} does not fit {type_}: it would become {kept!r}")
        return kept

    return by_arrow


_EXACT: dict[pa.DataType, set[type]] = {
    pa.string(): {str, type(None)},
    pa.binary(): {bytes, type(None)},
    pa.bool_(): {bool, type(None)},
    pa.float64(): {float, type(None)},
} | {type_: {int, type(None)} for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


def column_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Give values as a column, shape (n,), each checked as by `checker`; ValueError where one does not fit.

    The column has 64-bit offsets (`timerheap.spark._group.offsets`).

    Where all have the one class that Arrow takes as it is, Arrow's own look at them is enough; what it finds
    is named by `checker`.
    """
    if set(map(type, values)) <= _EXACT.get(type_, set()):
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, wide(type_))
    return pa.array(list(map(checker(type_), values)), wide(type_))


def cast(column: Any, type_: pa.DataType) -> Any:
    """Cast an Array or ChunkedArray, with whole numbers as epoch ms where `type_` has timestamps."""
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


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def reader(type_: pa.DataType) -> Convert | None:
    """Give the function that makes PySpark's value of a checked one; None where they are the same object.

    A struct becomes a Row, a map a dict; every list, dict and Row is the caller's own.
    """
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        row = Row(*names)
        readers = [reader(field.type) or _same for field in type_]
        return lambda v: None if v is None else row(*(r(v[n]) for r, n in zip(readers, names, strict=True)))
    if pa.types.is_map(type_):
        key, item = reader(type_.key_type) or _same, reader(type_.item_type) or _same
        return lambda v: None if v is None else {key(k): item(i) for k, i in v}
    if pa.types.is_list(type_):
        element = reader(type_.value_type) or _same
        return lambda v: None if v is None else [element(e) for e in v]
    return None


def _same(value: Any) -> Any:
    return value
