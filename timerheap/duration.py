"""Durations as arguments: a timedelta, or an int of milliseconds."""

from __future__ import annotations

from datetime import timedelta

from timerheap.timer import MAX_WATERMARK, int64

__all__ = ["Length", "milliseconds", "multiple", "not_negative", "positive"]

Length = int | timedelta


def milliseconds(name: str, value: Length) -> int:
    """Take a duration as an int of ms; an error names it.

    Examples
    --------
    >>> milliseconds("offset", timedelta(minutes=-1))
    -60000
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name}: {value!r} is no whole number of milliseconds")
        value = whole
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r} is no duration; give an int of milliseconds or a timedelta")
    return int64(name, value)


def not_negative(name: str, value: Length) -> int:
    """Take a duration that may be 0."""
    duration = milliseconds(name, value)
    if duration < 0:
        raise ValueError(f"{name}: {value!r} must be 0 or more")
    return duration


def positive(name: str, value: Length) -> int:
    """Take a duration that must be positive.

    Examples
    --------
    >>> positive("size", 0)
    Traceback (most recent call last):
    ValueError: size must be positive, and shorter than 2305843009213693951 ms, got 0 ms
    """
    duration = milliseconds(name, value)
    if not 0 < duration <= MAX_WATERMARK // 4:
        raise ValueError(
            f"{name} must be positive, and shorter than {MAX_WATERMARK // 4} ms, got {duration} ms"
        )
    return duration


def multiple(name: str, value: Length, part_name: str, part_value: Length) -> tuple[int, int]:
    """Take two durations of which the first must be a multiple of the second.

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
