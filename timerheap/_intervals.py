"""Parses durations in Spark's interval syntax, such as "1 hour 30 minutes"."""

from __future__ import annotations

import re

__all__ = ["interval_micros"]

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


def interval_micros(name: str, text: str) -> int:
    """Parse a duration as Spark's ``withWatermark`` does, to an int of microseconds.

    Parameters
    ----------
    name : str
        The argument, for errors.
    text : str
        Numbers with units, from weeks to microseconds, in upper or lower case, perhaps after ``interval``. A
        number may have a sign, and a number of seconds up to nine decimal places.

    Raises
    ------
    ValueError
        If `text` is not such a duration, or has months or years.

    Examples
    --------
    >>> interval_micros("size", "1 hour -30 minutes"), interval_micros("size", "INTERVAL '1.5' SECONDS")
    (1800000000, 1500000)
    >>> interval_micros("size", "1 month")
    Traceback (most recent call last):
    ValueError: size must have a fixed length, got '1 month'; write weeks or days instead of months
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
            raise ValueError(f"{name} must be {_SYNTAX}, got {text!r}; write a number and a unit")
        micros += _part_micros(name, text, *part.groups())
        at = part.end()
    return micros


def _part_micros(name: str, text: str, sign: str, whole: str, fraction: str | None, unit: str) -> int:
    if unit in _NO_FIXED_LENGTH:
        raise ValueError(
            f"{name} must have a fixed length, got {text!r}; write weeks or days instead of {unit}s"
        )
    if unit not in _MICROS:
        units = ", ".join(f"{each}s" for each in _MICROS)
        raise ValueError(f"{name} must be {_SYNTAX}, got {text!r}; the units are {units}")
    if fraction is not None and (unit != "second" or len(fraction) > 9):
        raise ValueError(
            f"{name} must have whole numbers, except for seconds with up to 9 decimal places, got {text!r}"
        )
    micros = int(whole or 0) * _MICROS[unit] + int((fraction or "").ljust(6, "0")[:6])
    return -micros if sign == "-" else micros
