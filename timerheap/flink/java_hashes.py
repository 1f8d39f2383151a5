"""Java's hash code of a key, and Flink's murmur hash of it, from which Flink derives the key group."""

from __future__ import annotations

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

from timerheap.errors import ArgumentRangeError, ArgumentTypeError, ArgumentValueError
from timerheap.hashing import murmur3

_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF
_JavaHasher = Callable[[Any], int]


def murmur_hash(code: int) -> int:
    """Compute Flink's ``MathUtils.murmurHash``, below 2**31, of the low 32 bits: murmur3 without its sign."""
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
    signed = murmur3(codes, seed=0)
    return np.where(signed == np.int32(-(1 << 31)), np.int32(0), np.abs(signed)).view(np.uint32)


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
    ArgumentTypeError
        If the key is not of that type or, without `java_type`, of none of the types above.
    ArgumentRangeError
        If an int is out of the type's range.
    ArgumentValueError
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
    raise ArgumentTypeError(
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
    raise ArgumentValueError(
        f"java_type must be one of {known}, or like tuple2<long,string>; got {java_type!r}"
    )


def _tuple_hasher(java_type: str, fields: Sequence[_JavaHasher]) -> _JavaHasher:
    def hash_typed_tuple(key: Any) -> int:
        if len(_expect(tuple, key, f"key must be a Java {java_type}")) != len(fields):
            raise ArgumentValueError(
                f"key must have {len(fields)} fields to be a Java {java_type}, got {key!r}"
            )
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
        raise ArgumentValueError(f"key must be one UTF-16 unit to be a Java char, got {key!r}")
    return units[0]


def _utf16_units(text: str) -> memoryview:
    native = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
    return memoryview(text.encode(native, "surrogatepass")).cast("H")


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
    """Return a value of these types, or raise an ArgumentTypeError that begins with `wanted`."""
    if not isinstance(value, types):
        raise ArgumentTypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    return value


def _sized_int(value: Any, wanted: str, bits: int) -> int:
    """Return a value that is an int of so many bits, or raise an error that begins with `wanted`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ArgumentRangeError(f"{wanted}, which has {bits} bits, got {value!r}")
    return number


def _real(value: Any, wanted: str) -> float:
    """Convert a value to a float, and any NaN to the one NaN that Java uses."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{wanted}, got {value!r} of type {type(value).__name__}")
    number = float(value)
    return math.nan if math.isnan(number) else number


def _signed(number: int, bits: int) -> int:
    """Return the low `bits` bits of a number as a two's complement integer."""
    half = 1 << bits - 1
    return (number + half & (half << 1) - 1) - half


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
