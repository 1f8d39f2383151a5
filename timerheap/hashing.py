"""Spark's hashes: xxhash64, by which Spark identifies a key, and murmur3, by which it partitions rows.

They must be equal to the bit; otherwise the timers of a key would not be found.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap._native._core import xxh64

_SparkEncoder = Callable[[Any], bytes]
_SparkHasher = Callable[[Any, int], int]  # value, seed -> the next seed

_EPOCH = datetime.datetime(1970, 1, 1)
_SPARK_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def spark_hashes(values: NDArray[Any]) -> NDArray[np.int32]:
    """Compute Spark SQL's ``hash(value)``, murmur3 with seed 42, of an int column: shape (n,)."""
    return murmur3(values.astype(np.uint32), seed=42)


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


def murmur3(codes: NDArray[np.uint32], seed: int) -> NDArray[np.int32]:
    """Compute the murmur3 hash of each 32-bit int: shape (n,)."""
    codes = codes * np.uint32(0xCC9E2D51)
    codes = (codes << np.uint32(15) | codes >> np.uint32(17)) * np.uint32(0x1B873593)
    codes ^= np.uint32(seed)
    codes = (codes << np.uint32(13) | codes >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    codes ^= np.uint32(4)  # the number of bytes hashed
    codes = (codes ^ codes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    codes = (codes ^ codes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (codes ^ codes >> np.uint32(16)).view(np.int32)


def spark_xxhash64(values: Iterable[object], types: Iterable[str]) -> int:
    """Compute Spark SQL's ``xxhash64(...)`` of the values of a row, without a JVM.

    Types are as in DDL or ``DataType.simpleString()``. A date may also be an int of days, a timestamp an int
    of microseconds, an array a list or a tuple, a struct a tuple. The hash of each value is the seed of the
    next, also within arrays and structs; null does not change it. So ``(None, "a")`` and ``("a", None)`` have
    the same hash, as in Spark.

    Examples
    --------
    >>> spark_xxhash64([7, "a"], ["int", "string"])
    -6969754268886164170
    """
    seed = 42
    for value, spark_type in zip(values, types, strict=True):
        seed = _spark_hasher(spark_type)(value, seed)
    return signed(seed, 64)


@lru_cache(maxsize=256)
def _spark_hasher(spark_type: str) -> _SparkHasher:
    name, arguments = parse_type(spark_type.lower())
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
            for item in expect((list, tuple), value, "value must be a Spark array"):
                seed = element(item, seed)
        return seed

    return hash_array


def _struct_hasher(fields: Sequence[_SparkHasher]) -> _SparkHasher:
    def hash_struct(value: Any, seed: int) -> int:
        if value is not None:
            if len(expect(tuple, value, "value must be a Spark struct")) != len(fields):
                raise ValueError(f"value must have the struct's {len(fields)} fields, got {value!r}")
            for hasher, item in zip(fields, value, strict=True):
                seed = hasher(item, seed)
        return seed

    return hash_struct


def _int_encoder(spark_type: str, bits: int) -> _SparkEncoder:
    size = max(bits, 32) // 8  # Spark widens smaller types to an int
    wanted = f"value must be a Spark {spark_type}"
    return lambda value: sized_int(value, wanted, bits).to_bytes(size, "little", signed=True)


def _decimal_encoder(precision: int, scale: int) -> _SparkEncoder:
    wanted = f"value must be a Spark decimal({precision},{scale})"
    wide = decimal.Context(prec=100)

    def encode_decimal(value: Any) -> bytes:
        scaled = expect(decimal.Decimal, value, wanted).scaleb(scale, wide)
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
    "boolean": lambda value: expect(bool, value, "value must be a Spark boolean").to_bytes(4, "little"),
    "tinyint": _int_encoder("tinyint", 8),
    "smallint": _int_encoder("smallint", 16),
    "int": _int_encoder("int", 32),
    "bigint": _int_encoder("bigint", 64),
    # -0.0 + 0.0 is 0.0: Spark treats the two zeros as equal
    "float": lambda value: struct.pack("<f", real(value, "value must be a Spark float") + 0.0),
    "double": lambda value: struct.pack("<d", real(value, "value must be a Spark double") + 0.0),
    "string": lambda value: expect(str, value, "value must be a Spark string").encode(),
    "binary": lambda value: bytes(expect((bytes, bytearray), value, "value must be a Spark binary")),
    "date": _encode_date,
    "timestamp": _timestamp_encoder("timestamp", _EPOCH.replace(tzinfo=datetime.UTC)),
    "timestamp_ntz": _timestamp_encoder("timestamp_ntz", _EPOCH),
}


def parse_type(text: str) -> tuple[str, list[str]]:
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


def expect(types: type | tuple[type, ...], value: Any, wanted: str) -> Any:
    """Return a value of these types, or raise a TypeError that begins with `wanted`."""
    if not isinstance(value, types):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    return value


def sized_int(value: Any, wanted: str, bits: int) -> int:
    """Return a value that is an int of so many bits, or raise an error that begins with `wanted`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError(f"{wanted}, which has {bits} bits, got {value!r}")
    return number


def real(value: Any, wanted: str) -> float:
    """Convert a value to a float, and any NaN to the one NaN that Java and Spark use."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = float(value)
    return math.nan if math.isnan(number) else number


def signed(number: int, bits: int) -> int:
    """Return the low `bits` bits of a number as a two's complement integer."""
    half = 1 << bits - 1
    return (number + half & (half << 1) - 1) - half
