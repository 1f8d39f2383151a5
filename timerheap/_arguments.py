"""Checks of arguments that are integers or durations; an error names the argument and its value."""

from __future__ import annotations

from datetime import timedelta
from operator import index
from typing import SupportsIndex

from timerheap._intervals import interval_micros

__all__ = [
    "Length",
    "int64",
    "integer",
    "integer_within",
    "milliseconds",
    "multiple",
    "not_negative",
    "positive",
    "positive_int",
    "sized_integer",
    "window_length",
]

Length = int | timedelta | str
"""A duration: an int is a number of milliseconds, a str is an interval of Spark's, such as "10 minutes"."""

_LONGEST_WINDOW = (2**63 - 1) // 4  # so that the sum of a few lengths fits into int64


def milliseconds(name: str, value: Length) -> int:
    """Convert a duration to an int of milliseconds.

    Raises
    ------
    TypeError
        If `value` is not an int, a timedelta or a str.
    ValueError, OverflowError
        If it is not a whole number of milliseconds, does not fit into int64, or is a str that
        `timerheap._intervals.interval_micros` cannot parse.

    Examples
    --------
    >>> milliseconds("offset", timedelta(minutes=-1)), milliseconds("size", "1 hour 30 minutes")
    (-60000, 5400000)
    """
    if isinstance(value, (timedelta, str)):
        micros = (
            interval_micros(name, value) if isinstance(value, str) else value // timedelta(microseconds=1)
        )
        whole, rest = divmod(micros, 1000)
        if rest:
            raise ValueError(f"{name} must be a whole number of milliseconds, got {value!r}")
        value = whole
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"{name} must be an int of milliseconds or a timedelta, got {value!r}; or pass a str such as "
            "'10 minutes'"
        )
    return int64(name, value)


def not_negative(name: str, value: Length) -> int:
    """Convert a duration that must not be negative."""
    duration = milliseconds(name, value)
    if duration < 0:
        raise ValueError(f"{name} must be 0 or more, got {value!r}")
    return duration


def positive(name: str, value: Length) -> int:
    """Convert a duration that must be positive.

    Examples
    --------
    >>> positive("size", 0)
    Traceback (most recent call last):
    ValueError: size must be more than 0 ms, got 0
    """
    duration = milliseconds(name, value)
    if duration <= 0:
        raise ValueError(f"{name} must be more than 0 ms, got {value!r}")
    return duration


def window_length(name: str, value: Length) -> int:
    """Convert the length of a window; it must be positive and at most a quarter of the int64 range."""
    length = positive(name, value)
    if length > _LONGEST_WINDOW:
        raise ValueError(f"{name} must be at most {_LONGEST_WINDOW} ms, got {value!r}")
    return length


def multiple(name: str, value: Length, part_name: str, part_value: Length) -> tuple[int, int]:
    """Convert two window lengths, the first of which must be a multiple of the second.

    Examples
    --------
    >>> multiple("size", 10, "slide", 3)
    Traceback (most recent call last):
    ValueError: size must be a multiple of slide (3 ms), such as 9 or 12 ms, got 10 ms
    """
    size, part = window_length(name, value), window_length(part_name, part_value)
    if size % part:
        near = f"{size // part * part} or {(size // part + 1) * part}" if size > part else f"{part}"
        raise ValueError(
            f"{name} must be a multiple of {part_name} ({part} ms), such as {near} ms, got {size} ms"
        )
    return size, part


def integer(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int of any size; raise a TypeError for other types, bool among them."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    return index(value)


def sized_integer(name: str, value: SupportsIndex, bits: int) -> int:
    """Return `value` as an int; raise an OverflowError if it does not fit into signed `bits` bits."""
    number = integer(name, value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError(f"{name} must fit into {bits} bits, got {value!r}")
    return number


def int64(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise an OverflowError if it does not fit into int64."""
    return sized_integer(name, value, 64)


def integer_within(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """Return `value` as an int; raise a ValueError if it is not from `low` to `high`, both included.

    Examples
    --------
    >>> integer_within("max_parallelism", 0, 1, 32768)
    Traceback (most recent call last):
    ValueError: max_parallelism must be from 1 to 32768, got 0
    """
    number = integer(name, value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def positive_int(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise a ValueError if it is less than 1."""
    number = int64(name, value)
    if number < 1:
        raise ValueError(f"{name} must be 1 or more, got {value!r}")
    return number
