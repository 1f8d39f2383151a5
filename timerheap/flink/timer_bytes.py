"""Timers in Flink's byte formats."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from timerheap._arguments import instance, int64, sized_integer
from timerheap.errors import (
    ArgumentRangeError,
    ArgumentTypeError,
    ArgumentValueError,
    DamagedCheckpointError,
)
from timerheap.flink.timer_queue import InternalTimer
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_DOUBLE = struct.Struct(">d")
_WINDOW = struct.Struct(">qq")

_SIGN = 1 << 63
_TIMESTAMP = struct.Struct(">Q")
_WITH_HASH_CODE = struct.Struct(">QI")
_SERIALIZER_ERRORS = (TypeError, OverflowError, ValueError, RecursionError)

_byte = partial(sized_integer, "value", bits=8)
_short = partial(sized_integer, "value", bits=16)
_int = partial(sized_integer, "value", bits=32)
_long = partial(sized_integer, "value", bits=64)


class TypeSerializer(ABC):
    """Converts values of one type to bytes and back; subclass it for your own keys or namespaces.

    The bytes must mark their own end, and equal values must have equal bytes. Flink: ``TypeSerializer``.

    Attributes
    ----------
    name : str
        The name that a stored queue records; a queue cannot be opened with a serializer of another name.
    """

    name: str

    @abstractmethod
    def serialize(self, value: Any, /) -> bytes:
        """Serialize a value; raise an error if it has another type."""

    @abstractmethod
    def deserialize(self, data: bytes, start: int, /) -> tuple[Any, int]:
        """Deserialize the value that starts at `start`; return the value and its end.

        Raise an error if the data is invalid: whoever calls it says which data.
        """


class _Fixed(TypeSerializer):
    """Serializes values with a `struct.Struct`, always in the same number of bytes."""

    def __init__(self, name: str, form: struct.Struct, check: Callable[[Any], Any]) -> None:
        self.name = name
        self._form = form
        self._check = check

    def serialize(self, value: Any) -> bytes:
        return self._form.pack(self._check(value))

    def deserialize(self, data: bytes, start: int) -> tuple[Any, int]:
        return self._form.unpack_from(data, start)[0], start + self._form.size


class _Long(_Fixed):
    def __init__(self) -> None:
        super().__init__("long", _LONG, _long)

    def serialize(self, value: Any) -> bytes:
        try:
            return _LONG.pack(value) if type(value) is int else super().serialize(value)
        except struct.error:
            return super().serialize(value)  # raises the appropriate error


class _OneOf(TypeSerializer):
    """Serializes one of a few values as a byte, its number; None is Flink's ``VoidNamespace``."""

    def __init__(self, name: str, kind: str, *values: object) -> None:
        self.name = name
        self._kind = kind
        self._values = values

    def serialize(self, value: Any) -> bytes:
        for number, one in enumerate(self._values):
            if value is one:
                return b"%c" % number
        raise TypeError(f"value must be {self._kind}, got {value!r}")

    def deserialize(self, data: bytes, start: int) -> tuple[Any, int]:
        number = data[start]
        if number >= len(self._values):
            known = " or ".join(map(str, range(len(self._values))))
            raise ValueError(f"a {self.name} must be {known}, got {number}")
        return self._values[number], start + 1


_BOOLEAN = _OneOf("boolean", "a bool", False, True)
_VOID = _OneOf("void", "None", None)


class _TimeWindow(TypeSerializer):
    """Serializes a window ``(start, end)`` like Flink's ``TimeWindow.Serializer``."""

    name = "time_window"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(f"value must be a window (start, end), got {value!r}")
        return _WINDOW.pack(*map(_long, value))

    def deserialize(self, data: bytes, start: int) -> tuple[Any, int]:
        return _WINDOW.unpack_from(data, start), start + 16


class _Bytes(TypeSerializer):
    """Serializes bytes with their length, like Flink's ``BytePrimitiveArraySerializer``."""

    name = "bytes"

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError(f"value must be bytes, got {value!r}")
        return _INT.pack(len(value)) + value

    def deserialize(self, data: bytes, start: int) -> tuple[bytes, int]:
        (length,) = _INT.unpack_from(data, start)
        begin, left = start + 4, len(data) - start - 4
        if not 0 <= length <= left:
            raise ValueError(f"the length of bytes must be from 0 to {left}, the bytes left, got {length}")
        return data[begin : begin + length], begin + length


class _String(TypeSerializer):
    """Serializes a str like Flink's ``StringValue``: length plus 1 and UTF-16 units, in 7-bit groups."""

    name = "string"

    def serialize(self, value: Any) -> bytes:
        instance("value", value, str)
        if len(value) < 127 and value.isascii():
            return b"%c%b" % (len(value) + 1, value.encode())
        units = memoryview(value.encode("utf-16-le", "surrogatepass"))
        return _in_sevens(len(units) // 2 + 1) + b"".join(
            _in_sevens(low | high << 8) for low, high in zip(units[::2], units[1::2], strict=True)
        )

    def deserialize(self, data: bytes, start: int) -> tuple[str, int]:
        size = data[start]
        text = data[start + 1 : start + size]
        if len(text) == size - 1 and size < 128 and text.isascii():
            return text.decode(), start + size
        size, at = _read_sevens(data, start)
        if size == 0:
            raise ValueError("a string must not be null, got length 0")
        units = bytearray()
        for _ in range(size - 1):
            unit, at = _read_sevens(data, at)
            units += unit.to_bytes(2, "little")
        return units.decode("utf-16-le", "surrogatepass"), at


def _in_sevens(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _read_sevens(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] > 0x7F:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 28:
            raise ValueError("a variable-length number must fit into 32 bits, got more than 5 groups")
    if shift and not data[at]:
        raise ValueError("a variable-length number must end with a nonzero group, got 0")
    return number | data[at] << shift, at + 1


class _Any(TypeSerializer):
    """Serializes values of several types, and tuples of them, each after a byte that names its type."""

    name = "any"

    def __init__(self) -> None:
        self._parts: dict[type, tuple[bytes, TypeSerializer]] = {
            type(None): (b"n", _VOID),
            bool: (b"b", _BOOLEAN),  # before int, which it derives from
            int: (b"i", _Long()),
            str: (b"s", _String()),
            float: (b"d", _Fixed("double", _DOUBLE, float)),
            bytes: (b"y", _Bytes()),
            tuple: (b"t", _Tuple(self)),
        }
        self._by_tag = {tag[0]: part for tag, part in self._parts.values()}

    def serialize(self, value: Any) -> bytes:
        if value is None:
            return b"n\0"  # the general case below returns the same
        tag, part = self._parts.get(type(value)) or self._part_of(value)
        return tag + part.serialize(value)

    def deserialize(self, data: bytes, start: int) -> tuple[Any, int]:
        part = self._by_tag.get(data[start])
        if part is None:
            raise ValueError(
                f"a type tag must be one of {bytes(self._by_tag)!r}, got {data[start : start + 1]!r}"
            )
        return part.deserialize(data, start + 1)

    def _part_of(self, value: Any) -> tuple[bytes, TypeSerializer]:
        """Return the part for subclasses such as named tuples and enums, and for NumPy integers."""
        for kind, part in self._parts.items():
            if isinstance(value, kind):
                return part
        if hasattr(value, "__index__"):
            return self._parts[int]
        raise TypeError(
            "value must be None, a bool, int, float, str, bytes or a tuple of these, or have a "
            f"serializer of its own; got {value!r} of type {type(value).__name__}"
        )


class _Tuple(TypeSerializer):
    """Serializes a tuple as its number of fields and the fields."""

    name = "tuple"

    def __init__(self, field: TypeSerializer) -> None:
        self._field = field

    def serialize(self, value: Any) -> bytes:
        return _INT.pack(len(value)) + b"".join(map(self._field.serialize, value))

    def deserialize(self, data: bytes, start: int) -> tuple[tuple[Any, ...], int]:
        (size,) = _INT.unpack_from(data, start)
        if size < 0:
            raise ValueError(f"a tuple must have 0 or more fields, got {size}")
        at, fields = start + 4, []
        for _ in range(size):
            field, at = self._field.deserialize(data, at)
            fields.append(field)
        return tuple(fields), at


def _double(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"value must be a float, got {value!r}")
    return float(value)


SERIALIZERS: dict[str, TypeSerializer] = {
    serializer.name: serializer
    for serializer in [
        _Any(),
        _BOOLEAN,
        _Fixed("byte", struct.Struct(">b"), _byte),
        _Fixed("short", struct.Struct(">h"), _short),
        _Fixed("int", _INT, _int),
        _Long(),
        _Fixed("double", _DOUBLE, _double),
        _String(),
        _Bytes(),
        _VOID,
        _TimeWindow(),
    ]
}


class TimerSerializer:
    """Serializes timers: the timestamp in 8 sortable bytes, then the key, then the namespace.

    Flink: ``TimerSerializer``. The bytes equal Flink's if both serializers, named or given, are Flink's.
    """

    def __init__(
        self, key_serializer: str | TypeSerializer = "any", namespace_serializer: str | TypeSerializer = "any"
    ) -> None:
        self.key_serializer = _serializer("key_serializer", key_serializer)
        self.namespace_serializer = _serializer("namespace_serializer", namespace_serializer)

    def __repr__(self) -> str:
        return f"TimerSerializer({self.key_serializer.name!r}, {self.namespace_serializer.name!r})"

    def serialize(
        self, timer: tuple[int, Any, Any], hash_code_of: Callable[[Any], int] | None = None
    ) -> bytes:
        """Serialize a timer, with the hash code of its key, a uint32, before the key if there is one."""
        try:
            timestamp, key, namespace = timer
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(f"timer must be (timestamp, key, namespace), got {timer!r}") from error
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = int64("timestamp", timestamp)
        hash_code = None if hash_code_of is None else hash_code_of(key)
        part, serializer = "key", self.key_serializer
        try:
            key_bytes = serializer.serialize(key)
            part, serializer = "namespace", self.namespace_serializer
            namespace_bytes = serializer.serialize(namespace)
        except _SERIALIZER_ERRORS as error:
            raise _error_naming(part, serializer, error) from error
        if hash_code is None:
            return _TIMESTAMP.pack(timestamp + _SIGN) + key_bytes + namespace_bytes
        return _WITH_HASH_CODE.pack(timestamp + _SIGN, hash_code) + key_bytes + namespace_bytes

    def serialize_key(self, key: Any) -> bytes:
        """Serialize a key as `serialize` does."""
        try:
            return self.key_serializer.serialize(key)
        except _SERIALIZER_ERRORS as error:
            raise _error_naming("key", self.key_serializer, error) from error

    def deserialize(self, data: bytes, start: int = 8) -> InternalTimer[Any, Any]:
        """Deserialize a timer whose key starts at `start`; raise a DamagedCheckpointError for other bytes."""
        try:
            (timestamp,) = _TIMESTAMP.unpack_from(data)
            key, at = self.key_serializer.deserialize(data, start)
            namespace, end = self.namespace_serializer.deserialize(data, at)
        except (ValueError, IndexError, OverflowError, RecursionError, struct.error) as error:
            raise self._invalid_data(data, str(error)) from error
        if end != len(data):
            raise self._invalid_data(data, f"it ends at {end}")
        return InternalTimer(timestamp - _SIGN, key, namespace)

    def _invalid_data(self, data: bytes, why: str) -> DamagedCheckpointError:
        shown = data[:40].hex() + "..." * (len(data) > 40)
        return DamagedCheckpointError(f"data must be a timer of {self}, got {len(data)} bytes {shown}: {why}")


def _serializer(argument: str, serializer: str | TypeSerializer) -> TypeSerializer:
    if isinstance(serializer, str):
        if serializer not in SERIALIZERS:
            known = ", ".join(SERIALIZERS)
            raise ArgumentValueError(
                f"{argument} must be one of {known}, or a TypeSerializer, got {serializer!r}"
            )
        return SERIALIZERS[serializer]
    if not isinstance(serializer, TypeSerializer):
        raise ArgumentTypeError(
            f"{argument} must be a serializer's name or a TypeSerializer, got {serializer!r}"
        )
    return serializer


def _error_naming(part: str, serializer: TypeSerializer, error: Exception) -> Exception:
    kinds = {TypeError: ArgumentTypeError, OverflowError: ArgumentRangeError}
    kind = next((named for kind, named in kinds.items() if isinstance(error, kind)), ArgumentValueError)
    return kind(f"{part} must be what the serializer {serializer.name!r} takes: {error}")
