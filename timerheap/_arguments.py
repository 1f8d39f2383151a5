"""Durations as arguments: a timedelta, or an int of milliseconds."""

from __future__ import annotations

from datetime import timedelta
from operator import index
from typing import SupportsIndex

__all__ = ["Length", "int64", "milliseconds", "multiple", "not_negative", "positive", "positive_int"]

Length = int | timedelta

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def milliseconds(name: str, value: Length) -> int:
    """Convert a duration to an int of milliseconds.

    Raises
    ------
    TypeError
        If `value` is neither an int nor a timedelta.
    ValueError, OverflowError
        If it is not a whole number of milliseconds, or does not fit into int64.

    Examples
    --------
    >>> milliseconds("offset", timedelta(minutes=-1))
    -60000
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name} must be a whole number of milliseconds, got {value!r}")
        value = whole
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int of milliseconds or a timedelta, got {value!r}")
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
    ValueError: size must be positive and at most 2305843009213693951 ms, got 0 ms
    """
    duration = milliseconds(name, value)
    if not 0 < duration <= _INT64_MAX // 4:
        raise ValueError(f"{name} must be positive and at most {_INT64_MAX // 4} ms, got {duration} ms")
    return duration


def multiple(name: str, value: Length, part_name: str, part_value: Length) -> tuple[int, int]:
    """Convert two durations, the first of which must be a multiple of the second.

    Examples
    --------
    >>> multiple("size", 10, "slide", 3)
    Traceback (most recent call last):
    ValueError: size must be a multiple of slide (3 ms), such as 9 or 12 ms, got 10 ms
    """
    size, part = positive(name, value), positive(part_name, part_value)
    if size % part:
        near = f"{size // part * part} or {(size // part + 1) * part}" if size > part else f"{part}"
        raise ValueError(
            f"{name} must be a multiple of {part_name} ({part} ms), such as {near} ms, got {size} ms"
        )
    return size, part


def int64(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; raise a TypeError or OverflowError that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    number = index(value)
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise OverflowError(f"{name} must fit into 64 bits, got {value!r}")
    return number


def positive_int(name: str, value: SupportsIndex) -> int:
    """Return `value` as an int of 1 or more; raise an error that names the argument."""
    number = int64(name, value)
    if number < 1:
        raise ValueError(f"{name} must be 1 or more, got {value!r}")
    return number
