"""Checks of arguments: their classes, integers and durations; an error names the argument and its value."""

from __future__ import annotations

import re
from datetime import timedelta
from operator import index
from typing import Any, SupportsIndex

from timerheap.errors import ArgumentRangeError, ArgumentTypeError, ArgumentValueError

_MICROS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_NO_FIXED_LENGTH = "month", "year"
_PREFIX = re.compile(r"interval\s+", re.ASCII)
_QUOTED_TEXT = re.compile(r"'([^']*[a-z]\s*)'", re.ASCII)
_QUOTED_NUMBER = re.compile(r"'\s*([+-]?[\d.]+)\s*'", re.ASCII)
_PART = re.compile(r"([+-]?)\s*(\d*)(?:\.(\d*))?\s+([a-z]+?)s?(?:\s+|$)", re.ASCII)
_SYNTAX = "a duration such as '10 minutes' or '1 hour 30 minutes'"

Length = int | timedelta | str
"""A duration: an int is a number of milliseconds, a str is a Spark interval, such as "10 minutes"."""

_LONGEST_WINDOW = (2**63 - 1) // 4  # so that the sum of a few lengths fits into int64


def instance(name: str, value: Any, *classes: type) -> Any:
    """Return `value` if it is an instance of one of these classes; otherwise raise an ArgumentTypeError."""
    if isinstance(value, classes):
        return value
    if isinstance(value, type) and issubclass(value, classes):
        own = value.__name__
        raise ArgumentTypeError(f"{name} must be an instance, got the class {own}; pass {own}() instead")
    *others, last = [class_.__name__ for class_ in classes]
    wanted = f"{', '.join(others)} or {last}" if others else last
    raise ArgumentTypeError(f"{name} must be {'an' if wanted[0] in 'AEIO' else 'a'} {wanted}, got {value!r}")


def interval_micros(name: str, text: str) -> int:
    """Parse a duration as Spark's ``withWatermark`` does, to an int of microseconds.

    text: numbers with units, from weeks to microseconds, in upper or lower case, perhaps after ``interval``.
        A number may have a sign, and a number of seconds up to nine decimal places.
    """
    rest = text.strip().lower()
    if prefix := _PREFIX.match(rest):  # what follows may be quoted, as in SQL
        rest = rest[prefix.end() :]
        quoted = _QUOTED_TEXT.fullmatch(rest)
        rest = quoted[1].strip() if quoted else _QUOTED_NUMBER.sub(r"\1", rest)
    micros, at = 0, 0
    while at < len(rest) or not at:
        part = _PART.match(rest, at)
        if part is None or not (part[2] or part[3]):
            raise ArgumentValueError(f"{name} must be {_SYNTAX}, got {text!r}; write a number and a unit")
        micros += _part_micros(name, text, *part.groups())
        at = part.end()
    return micros


def _part_micros(name: str, text: str, sign: str, whole: str, fraction: str | None, unit: str) -> int:
    if unit in _NO_FIXED_LENGTH:
        raise ArgumentValueError(
            f"{name} must have a fixed length, got {text!r}; write weeks or days instead of {unit}s"
        )
    if unit not in _MICROS:
        units = ", ".join(f"{each}s" for each in _MICROS)
        raise ArgumentValueError(f"{name} must be {_SYNTAX}, got {text!r}; the units are {units}")
    if fraction is not None and (unit != "second" or len(fraction) > 9):
        raise ArgumentValueError(
            f"{name} must have whole numbers, except for seconds with up to 9 decimal places, got {text!r}"
        )
    micros = int(whole or 0) * _MICROS[unit] + int((fraction or "").ljust(6, "0")[:6])
    return -micros if sign == "-" else micros


def milliseconds(name: str, value: Length) -> int:
    """Convert a duration to an int of milliseconds; raise an error unless it is a whole number of them."""
    if isinstance(value, (timedelta, str)):
        micros = (
            interval_micros(name, value) if isinstance(value, str) else value // timedelta(microseconds=1)
        )
        whole, rest = divmod(micros, 1000)
        if rest:
            raise ArgumentValueError(f"{name} must be a whole number of milliseconds, got {value!r}")
        value = whole
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{name} must be an int of milliseconds or a timedelta, got {value!r}; or pass a str such as "
            "'10 minutes'"
        )
    return int64(name, value)


def not_negative(name: str, value: Length) -> int:
    """Convert a duration that must not be negative."""
    duration = milliseconds(name, value)
    if duration < 0:
        raise ArgumentValueError(f"{name} must be 0 or more, got {value!r}")
    return duration


def positive(name: str, value: Length) -> int:
    """Convert a duration that must be positive."""
    duration = milliseconds(name, value)
    if duration <= 0:
        raise ArgumentValueError(f"{name} must be more than 0 ms, got {value!r}")
    return duration


def window_length(name: str, value: Length) -> int:
    """Convert the length of a window; it must be positive and at most a quarter of the int64 range."""
    length = positive(name, value)
    if length > _LONGEST_WINDOW:
        raise ArgumentValueError(f"{name} must be at most {_LONGEST_WINDOW} ms, got {value!r}")
    return length


def multiple(name: str, value: Length, part_name: str, part_value: Length) -> tuple[int, int]:
    """Convert two window lengths, the first of which must be a multiple of the second."""
    size, part = window_length(name, value), window_length(part_name, part_value)
    if size % part:
        near = f"{size // part * part} or {(size // part + 1) * part}" if size > part else f"{part}"
        raise ArgumentValueError(
            f"{name} must be a multiple of {part_name} ({part} ms), such as {near} ms, got {size} ms"
        )
    return size, part


def integer(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int of any size; raise an ArgumentTypeError for other types, bool among them."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    return index(value)


def sized_integer(name: str, value: SupportsIndex, bits: int) -> int:
    """Return `value` as an int; raise an ArgumentRangeError if it does not fit into signed `bits` bits."""
    number = integer(name, value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ArgumentRangeError(f"{name} must fit into {bits} bits, got {value!r}")
    return number


def int64(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise an ArgumentRangeError if it does not fit into int64."""
    return sized_integer(name, value, 64)


def integer_within(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """Return `value` as an int; raise an ArgumentValueError unless it is from `low` to `high`."""
    number = integer(name, value)
    if not low <= number <= high:
        raise ArgumentValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def positive_int(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise an ArgumentValueError if it is less than 1."""
    number = int64(name, value)
    if number < 1:
        raise ArgumentValueError(f"{name} must be 1 or more, got {value!r}")
    return number
