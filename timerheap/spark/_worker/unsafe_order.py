"""The order of Spark's state store: that of the bytes of its rows."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any

from pyspark.sql import types as T

__all__ = ["UnsafeOrder", "timer_order"]

_LONG = struct.Struct("<q")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIXED: dict[type[T.DataType], str] = {
    T.ByteType: "<b7x",
    T.ShortType: "<h6x",
    T.IntegerType: "<i4x",
    T.LongType: "<q",
    T.FloatType: "<f4x",
    T.DoubleType: "<d",
}


def timer_order(timestamp: int) -> bytes:
    """Return a sort key of the timers of one key, as Spark lists them."""
    return _LONG.pack(timestamp)


class UnsafeOrder:
    """Sorts the keys of a map as Spark's ``UnsafeRow`` does, whose bytes are compared.

    The row is nested in another one, so its size comes first. Then there is a word for the nulls, and one for
    each field, all little-endian, then text and bytes, padded to words. The word of a text begins with its
    length.

    Parameters
    ----------
    schema : pyspark.sql.types.StructType
    """

    def __init__(self, schema: T.StructType) -> None:
        self._types = [field.dataType for field in schema]

    def bytes_of(self, values: tuple[Any, ...]) -> bytes:
        """Return the bytes of a key, in the form that states keep."""
        words = -(-len(self._types) // 64)
        nulls, at = 0, 8 * (words + len(self._types))
        fixed, variable = [], []
        for number, (type_, value) in enumerate(zip(self._types, values, strict=True)):
            if value is None:
                nulls |= 1 << number
                fixed.append(bytes(8))
                continue
            data = _fixed(type_, value)
            if data is None:
                text = _variable(value)
                data = _LONG.pack(at << 32 | len(text))
                variable.append(text + bytes(-len(text) % 8))
                at += len(variable[-1])
            fixed.append(data)
        row = nulls.to_bytes(8 * words, "little") + b"".join(fixed + variable)
        return len(row).to_bytes(4, "little") + row


def _fixed(type_: T.DataType, value: Any) -> bytes | None:
    """Return the word of a value, or None for one of variable length."""
    if type(type_) in _FIXED:
        return struct.pack(_FIXED[type(type_)], value)
    if isinstance(type_, T.BooleanType):
        return _LONG.pack(value)
    if isinstance(type_, T.DateType):
        return struct.pack("<i4x", value.toordinal() - _EPOCH.toordinal())
    if isinstance(value, datetime.datetime):
        since = value.replace(tzinfo=datetime.UTC) - _EPOCH
        return _LONG.pack(since // datetime.timedelta(microseconds=1))
    if isinstance(type_, T.DecimalType) and type_.precision <= 18:
        return _LONG.pack(int(value.scaleb(type_.scale)))
    return None


def _variable(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(-int(value.as_tuple().exponent)))
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return repr(value).encode()  # of types such as intervals
