"""Hashes of keys: Java's hash code and Flink's murmur, and Spark's xxhash64.

Flink derives the key group of a key from its Java ``hashCode``; Spark identifies a key by its ``xxhash64``.
Both must be equal to the bit; otherwise the timers of a key would not be found.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap._native._core import xxh64

_U32 = 0xFFFFFFFF

_JavaHasher = Callable[[Any], int]
_SparkEncoder = Callable[[Any], bytes]
_SparkHasher = Callable[[Any, int], int]  # value, seed -> the next seed

_U64 = 0xFFFFFFFFFFFFFFFF

_EPOCH = datetime.datetime(1970, 1, 1)
_SPARK_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def murmur_hash(code: int) -> int:
    """Compute Flink's ``MathUtils.murmurHash``: the absolute value of murmur3 with seed 0.

    code: the hash code of a key; only its low 32 bits are used
    return: ``0 <= hash < 2**31``; 0 for the one hash whose absolute value does not fit

    Examples
    --------
    >>> murmur_hash(7), murmur_hashes(np.array([7], np.uint32))[0]
    (1343918321, np.uint32(1343918321))
    """
    code = code * 0xCC9E2D51 & _U32
    code = (code << 15 | code >> 17) * 0x1B873593 & _U32
    code = (code << 13 | code >> 19) * 5 + 0xE6546B64 & _U32
    code ^= 4  # the number of bytes hashed
    code = (code ^ code >> 16) * 0x85EBCA6B & _U32
    code = (code ^ code >> 13) * 0xC2B2AE35 & _U32
    code ^= code >> 16
    if code < 0x80000000:
        return code
    return 0 if code == 0x80000000 else 0x100000000 - code


def murmur_hashes(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Compute `murmur_hash` of each hash code: shape (n,)."""
    signed = _murmur3(codes, seed=0)
    return np.where(signed == np.int32(-(1 << 31)), np.int32(0), np.abs(signed)).view(np.uint32)


def spark_hashes(values: NDArray[Any]) -> NDArray[np.int32]:
    """Compute Spark SQL's ``hash(value)`` of the values of an int column, murmur3 with seed 42: shape (n,).

    Examples
    --------
    >>> spark_hashes(np.array([0, 7]))
    array([ 933211791, 1079293707], dtype=int32)
    """
    return _murmur3(values.astype(np.uint32), seed=42)


def spark_preimages(hashes: NDArray[Any]) -> NDArray[np.int32]:
    """Compute the int values whose `spark_hashes` these are: shape (n,). Each int is the hash of one int.

    Examples
    --------
    >>> spark_hashes(spark_preimages(np.array([0, 7, -1])))
    array([ 0,  7, -1], dtype=int32)
    """
    codes = hashes.astype(np.uint32)  # the steps of _murmur3, backwards
    codes = (codes ^ codes >> np.uint32(16)) * _inverse(0xC2B2AE35)
    codes ^= codes >> np.uint32(13) ^ codes >> np.uint32(26)
    codes *= _inverse(0x85EBCA6B)
    codes ^= codes >> np.uint32(16) ^ np.uint32(4)
    codes = (codes - np.uint32(0xE6546B64)) * _inverse(5)
    codes = (codes >> np.uint32(13) | codes << np.uint32(19)) ^ np.uint32(42)
    codes *= _inverse(0x1B873593)
    codes = codes >> np.uint32(15) | codes << np.uint32(17)
    return (codes * _inverse(0xCC9E2D51)).view(np.int32)


def _inverse(factor: int) -> np.uint32:
    return np.uint32(pow(factor, -1, 1 << 32))


def _murmur3(codes: NDArray[np.uint32], seed: int) -> NDArray[np.int32]:
    codes = codes * np.uint32(0xCC9E2D51)
    codes = (codes << np.uint32(15) | codes >> np.uint32(17)) * np.uint32(0x1B873593)
    codes ^= np.uint32(seed)
    codes = (codes << np.uint32(13) | codes >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    codes ^= np.uint32(4)  # the number of bytes hashed
    codes = (codes ^ codes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    codes = (codes ^ codes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (codes ^ codes >> np.uint32(16)).view(np.int32)


# ---- Java's hashCode -----------------------------------------------------------------------------


def java_hash_code(key: object, java_type: str | None = None) -> int:
    """Compute ``key.hashCode()`` as in Java.

    Parameters
    ----------
    key : object
        A bool, int, float, str, or a tuple of these. None within a tuple hashes to 0, like null in Java.
    java_type : str, optional
        ``boolean``, ``byte``, ``short``, ``int``, ``long``, ``float``, ``double``, ``char``, ``string``, or
        a Flink tuple such as ``tuple2<long,string>``. By default a bool is a boolean, a float a double, a
        str a string, a tuple a Flink tuple of these, and an int a **long**, as PyFlink's ``Types.LONG()``.
        A negative Java int has a different hash code; pass ``"int"`` if Flink's key is one.

    Returns
    -------
    int
        The hash code, ``-2**31 <= hash code < 2**31``.

    Raises
    ------
    TypeError
        If the key is not of that type or, without `java_type`, of none of the types above.
    OverflowError
        If an int is out of the type's range.
    ValueError
        If `java_type` is unknown, or a tuple or a char has the wrong length.

    Notes
    -----
    The hash code of a string is computed from its UTF-16 units, not its characters. O(length of the key).

    Examples
    --------
    >>> java_hash_code("key"), java_hash_code(-7), java_hash_code(-7, "int"), java_hash_code((1, "a"))
    (106079, 6, -7, 128)
    """
    if java_type is not None:
        return _java_hasher(java_type)(key)
    hasher = _JAVA_BY_PYTHON_TYPE.get(type(key))
    return hasher(key) if hasher is not None else _hash_by_base_type(key)


def _hash_by_base_type(key: object) -> int:
    """Hash subclasses such as named tuples and enums, and NumPy scalars, which act as ints."""
    for python_type, hasher in _JAVA_BY_PYTHON_TYPE.items():
        if isinstance(key, python_type):
            return hasher(key)
    if hasattr(key, "__index__"):
        return _hash_long(key)
    raise TypeError(
        f"key must be a bool, int, float, str or a tuple of these to have a Java hash code, got {key!r} "
        f"of type {type(key).__name__}"
    )


@lru_cache(maxsize=256)
def _java_hasher(java_type: str) -> _JavaHasher:
    name, arguments = _parse_type(java_type)
    if name in _JAVA_HASHERS and not arguments:
        return _JAVA_HASHERS[name]
    if arguments and name in ("tuple", f"tuple{len(arguments)}"):
        return _tuple_hasher(java_type, [_java_hasher(argument) for argument in arguments])
    known = ", ".join(_JAVA_HASHERS)
    raise ValueError(f"java_type must be one of {known}, or like tuple2<long,string>; got {java_type!r}")


def _tuple_hasher(java_type: str, fields: Sequence[_JavaHasher]) -> _JavaHasher:
    def hash_typed_tuple(key: Any) -> int:
        if len(_expect(tuple, key, f"key must be a Java {java_type}")) != len(fields):
            raise ValueError(f"key must have {len(fields)} fields to be a Java {java_type}, got {key!r}")
        return _fold_hash_codes(
            0 if field is None else hasher(field) for hasher, field in zip(fields, key, strict=True)
        )

    return hash_typed_tuple


def _hash_tuple(key: Any) -> int:
    return _fold_hash_codes(0 if field is None else java_hash_code(field) for field in key)


def _fold_hash_codes(hash_codes: Iterable[int]) -> int:
    result = 0
    for hash_code in hash_codes:
        result = 31 * result + hash_code & _U32
    return _signed(result, 32)


def _int_hasher(java_type: str, bits: int) -> _JavaHasher:
    return lambda key: _sized_int(key, f"key must be a Java {java_type}", bits)


def _hash_long(key: Any) -> int:
    value = _sized_int(key, "key must be a Java long", 64) & _U64
    return _signed(value ^ value >> 32, 32)


def _hash_float(key: Any) -> int:
    return int.from_bytes(struct.pack("<f", _real(key, "key must be a Java float")), "little", signed=True)


def _hash_double(key: Any) -> int:
    bits = int.from_bytes(struct.pack("<d", _real(key, "key must be a Java double")), "little")
    return _signed(bits ^ bits >> 32, 32)


def _hash_string(key: Any) -> int:
    _expect(str, key, "key must be a Java string")
    return _fold_hash_codes(key.encode() if key.isascii() else _utf16_units(key))


def _hash_char(key: Any) -> int:
    units = _utf16_units(_expect(str, key, "key must be a Java char"))
    if len(units) != 1:
        raise ValueError(f"key must be one UTF-16 unit to be a Java char, got {key!r}")
    return units[0]


def _utf16_units(text: str) -> memoryview:
    native = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
    return memoryview(text.encode(native, "surrogatepass")).cast("H")


_JAVA_HASHERS: dict[str, _JavaHasher] = {
    "boolean": lambda key: 1231 if _expect(bool, key, "key must be a Java boolean") else 1237,
    "byte": _int_hasher("byte", 8),
    "short": _int_hasher("short", 16),
    "int": _int_hasher("int", 32),
    "long": _hash_long,
    "float": _hash_float,
    "double": _hash_double,
    "char": _hash_char,
    "string": _hash_string,
}
_JAVA_BY_PYTHON_TYPE: dict[type, _JavaHasher] = {
    bool: _JAVA_HASHERS["boolean"],  # before int, which it derives from
    int: _hash_long,
    float: _hash_double,
    str: _hash_string,
    tuple: _hash_tuple,
}


# ---- Spark's xxhash64 ----------------------------------------------------------------------------


def spark_xxhash64(values: Iterable[object], types: Iterable[str]) -> int:
    """Compute Spark SQL's ``xxhash64(...)`` of the values of a row, without a JVM.

    Parameters
    ----------
    values : iterable
        The values, in order. None is null, which does not change the hash.
    types : iterable of str
        The Spark type of each value, as in DDL or ``DataType.simpleString()``:
        ``boolean``, ``tinyint``, ``smallint``, ``int``, ``bigint`` (also ``byte``, ``short``, ``integer``,
        ``long``), ``float``, ``double``, ``decimal(p,s)``, ``string``, ``binary``, ``date``, ``timestamp``,
        ``timestamp_ntz``, ``array<type>``, ``struct<name:type,...>``. A date may also be an int of days, a
        timestamp an int of microseconds, since the epoch. An array is a list or a tuple, a struct a tuple,
        such as a Row.

    Returns
    -------
    int
        The hash, int64.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If a value does not fit its type, a type is unknown, or the numbers of types and values differ.

    Notes
    -----
    XXH64 with seed 42; the hash of each value is the seed of the next, also within arrays and structs. As in
    Spark, ``(None, "a")`` and ``("a", None)`` therefore have the same hash. O(bytes of the values).

    Examples
    --------
    >>> spark_xxhash64([7, "a"], ["int", "string"])
    -6969754268886164170
    """
    seed = 42
    for value, spark_type in zip(values, types, strict=True):
        seed = _spark_hasher(spark_type)(value, seed)
    return _signed(seed, 64)


@lru_cache(maxsize=256)
def _spark_hasher(spark_type: str) -> _SparkHasher:
    name, arguments = _parse_type(spark_type.lower())
    if name == "array" and len(arguments) == 1:
        return _array_hasher(_spark_hasher(arguments[0]))
    if name == "struct":
        types = [
            re.split(r"[:\s]", field, maxsplit=1)[-1] for field in arguments
        ]  # "name:type" or "name type"
        return _struct_hasher([_spark_hasher(field_type) for field_type in types])
    if name == "decimal" and len(arguments) <= 2 and all(map(str.isdecimal, arguments)):
        precision, scale = [*map(int, arguments), *(10, 0)[len(arguments) :]]
        return _leaf_hasher(_decimal_encoder(precision, scale))
    name = _SPARK_ALIASES.get(name, name)
    if name in _SPARK_ENCODERS and not arguments:
        return _leaf_hasher(_SPARK_ENCODERS[name])
    known = ", ".join([*_SPARK_ENCODERS, *_SPARK_ALIASES])
    raise ValueError(f"types must be {known}, decimal(p,s), array<...> or struct<...>; got {spark_type!r}")


def _leaf_hasher(encode: _SparkEncoder) -> _SparkHasher:
    return lambda value, seed: seed if value is None else xxh64(encode(value), seed)


def _array_hasher(element: _SparkHasher) -> _SparkHasher:
    def hash_array(value: Any, seed: int) -> int:
        if value is not None:
            for item in _expect((list, tuple), value, "value must be a Spark array"):
                seed = element(item, seed)
        return seed

    return hash_array


def _struct_hasher(fields: Sequence[_SparkHasher]) -> _SparkHasher:
    def hash_struct(value: Any, seed: int) -> int:
        if value is not None:
            if len(_expect(tuple, value, "value must be a Spark struct")) != len(fields):
                raise ValueError(f"value must have the struct's {len(fields)} fields, got {value!r}")
            for hasher, item in zip(fields, value, strict=True):
                seed = hasher(item, seed)
        return seed

    return hash_struct


def _int_encoder(spark_type: str, bits: int) -> _SparkEncoder:
    size = max(bits, 32) // 8  # Spark widens smaller types to an int
    wanted = f"value must be a Spark {spark_type}"
    return lambda value: _sized_int(value, wanted, bits).to_bytes(size, "little", signed=True)


def _decimal_encoder(precision: int, scale: int) -> _SparkEncoder:
    wanted = f"value must be a Spark decimal({precision},{scale})"
    wide = decimal.Context(prec=100)

    def encode_decimal(value: Any) -> bytes:
        scaled = _expect(decimal.Decimal, value, wanted).scaleb(scale, wide)
        if not scaled.is_finite() or scaled != (unscaled := int(scaled)) or abs(unscaled) >= 10**precision:
            raise ValueError(f"{wanted}, got {value!r}")
        if precision <= 18:
            return unscaled.to_bytes(8, "little", signed=True)
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1  # as BigInteger.toByteArray
        return unscaled.to_bytes(size, "big", signed=True)

    return encode_decimal


def _encode_date(value: Any) -> bytes:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = value.toordinal() - _EPOCH.toordinal()
    return _encode_days(value)


def _timestamp_encoder(spark_type: str, epoch: datetime.datetime) -> _SparkEncoder:
    encode_micros = _int_encoder(spark_type, 64)

    def encode_timestamp(value: Any) -> bytes:
        if isinstance(value, datetime.datetime):
            if (value.tzinfo is None) != (epoch.tzinfo is None):
                wanted = "no time zone" if epoch.tzinfo is None else "a time zone"
                raise ValueError(f"value must have {wanted} to be a Spark {spark_type}, got {value!r}")
            value = (value - epoch) // datetime.timedelta(microseconds=1)
        return encode_micros(value)

    return encode_timestamp


_encode_days = _int_encoder("date", 32)
_SPARK_ENCODERS: dict[str, _SparkEncoder] = {
    "boolean": lambda value: _expect(bool, value, "value must be a Spark boolean").to_bytes(4, "little"),
    "tinyint": _int_encoder("tinyint", 8),
    "smallint": _int_encoder("smallint", 16),
    "int": _int_encoder("int", 32),
    "bigint": _int_encoder("bigint", 64),
    # -0.0 + 0.0 is 0.0: Spark treats the two zeros as equal
    "float": lambda value: struct.pack("<f", _real(value, "value must be a Spark float") + 0.0),
    "double": lambda value: struct.pack("<d", _real(value, "value must be a Spark double") + 0.0),
    "string": lambda value: _expect(str, value, "value must be a Spark string").encode(),
    "binary": lambda value: bytes(_expect((bytes, bytearray), value, "value must be a Spark binary")),
    "date": _encode_date,
    "timestamp": _timestamp_encoder("timestamp", _EPOCH.replace(tzinfo=datetime.UTC)),
    "timestamp_ntz": _timestamp_encoder("timestamp_ntz", _EPOCH),
}


# ---- Shared helpers ------------------------------------------------------------------------------


def _parse_type(text: str) -> tuple[str, list[str]]:
    """Parse ``name<a,b>`` or ``name(a,b)`` into name and [a, b], splitting at commas outside brackets."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:[<(](.*)[>)])?\s*", text, re.DOTALL)
    if match is None:
        return text, []
    name, inner = match[1], match[2] or ""
    arguments, depth = [""] if inner else [], 0
    for character in inner:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return name, [argument.strip() for argument in arguments]


def _expect(types: type | tuple[type, ...], value: Any, wanted: str) -> Any:
    if not isinstance(value, types):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    return value


def _sized_int(value: Any, wanted: str, bits: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError(f"{wanted}, which has {bits} bits, got {value!r}")
    return number


def _real(value: Any, wanted: str) -> float:
    """Convert a value to a float, and any NaN to the one NaN that Java and Spark use."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = float(value)
    return math.nan if math.isnan(number) else number


def _signed(number: int, bits: int) -> int:
    """Return the low `bits` bits of a number as a two's complement integer."""
    half = 1 << bits - 1
    return (number + half & (half << 1) - 1) - half
