"""Durations and time domains with PyFlink's names."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from timerheap.errors import ArgumentRangeError


class Duration:
    """PyFlink's ``Duration`` factories, which return ``datetime.timedelta``.

    Examples
    --------
    >>> Duration.of_minutes(2)
    datetime.timedelta(seconds=120)
    """

    @staticmethod
    def of_days(days: int) -> timedelta:
        """Return a duration of days."""
        return _duration("days", days)

    @staticmethod
    def of_hours(hours: int) -> timedelta:
        """Return a duration of hours."""
        return _duration("hours", hours)

    @staticmethod
    def of_minutes(minutes: int) -> timedelta:
        """Return a duration of minutes."""
        return _duration("minutes", minutes)

    @staticmethod
    def of_seconds(seconds: int) -> timedelta:
        """Return a duration of seconds."""
        return _duration("seconds", seconds)

    @staticmethod
    def of_millis(millis: int) -> timedelta:
        """Return a duration of milliseconds."""
        return _duration("milliseconds", millis)


def _duration(unit: str, count: int) -> timedelta:
    try:
        return timedelta(**{unit: count})
    except OverflowError:
        raise ArgumentRangeError(
            f"{unit} must be at most {timedelta.max.days:,} days, the longest timedelta, got {count}; pass "
            "an int of milliseconds instead of a duration"
        ) from None


class Time:
    """PyFlink's ``Time`` factories, used for its windows, which return ``datetime.timedelta``.

    Examples
    --------
    >>> Time.minutes(2)
    datetime.timedelta(seconds=120)
    """

    days = staticmethod(Duration.of_days)
    hours = staticmethod(Duration.of_hours)
    minutes = staticmethod(Duration.of_minutes)
    seconds = staticmethod(Duration.of_seconds)
    milliseconds = staticmethod(Duration.of_millis)


class TimeDomain(Enum):
    """The time of a timer: event time or processing time (``pyflink.datastream.TimeDomain``)."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1
