"""Durations and time domains, as PyFlink names them."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Protocol

__all__ = ["Clock", "Duration", "Time", "TimeDomain"]


class Duration:
    """PyFlink's ``Duration`` factories, giving ``datetime.timedelta``.

    Examples
    --------
    >>> Duration.of_minutes(2)
    datetime.timedelta(seconds=120)
    """

    @staticmethod
    def of_days(days: int) -> timedelta:
        """Give a duration of days."""
        return timedelta(days=days)

    @staticmethod
    def of_hours(hours: int) -> timedelta:
        """Give a duration of hours."""
        return timedelta(hours=hours)

    @staticmethod
    def of_minutes(minutes: int) -> timedelta:
        """Give a duration of minutes."""
        return timedelta(minutes=minutes)

    @staticmethod
    def of_seconds(seconds: int) -> timedelta:
        """Give a duration of seconds."""
        return timedelta(seconds=seconds)

    @staticmethod
    def of_millis(millis: int) -> timedelta:
        """Give a duration of milliseconds."""
        return timedelta(milliseconds=millis)


class Time:
    """PyFlink's ``Time`` factories, which its windows take, giving ``datetime.timedelta``.

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
    """Which time a timer waits for (``pyflink.datastream.TimeDomain``)."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class Clock(Protocol):
    """Tells the processing time."""

    def get_current_processing_time(self) -> int:
        """Return the processing time, epoch milliseconds."""
