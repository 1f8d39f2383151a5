"""Durations as arguments: a timedelta, or an int of milliseconds."""

from __future__ import annotations

from datetime import timedelta

from timerheap.timer import MAX_WATERMARK, int64

__all__ = ["Duration", "milliseconds", "multiple", "positive"]

Duration = int | timedelta


def milliseconds(name: str, value: Duration) -> int:
    """Take a duration as an int of ms; an error names it.

    Examples
    --------
    >>> milliseconds("offset", timedelta(minutes=-1))
    -60000
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{name} must be whole milliseconds, got {value!r}")
        value = whole
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a timedelta, or an int of milliseconds, got {value!r}")
    return int64(name, value)


def positive(name: str, value: Duration) -> int:
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


def multiple(name: str, value: Duration, part_name: str, part_value: Duration) -> tuple[int, int]:
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
