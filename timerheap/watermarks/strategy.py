"""How a watermark is made from what has been seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta

from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

__all__ = [
    "BoundedOutOfOrdernessWatermarks",
    "Duration",
    "NoWatermarks",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "milliseconds",
]


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


def milliseconds(argument: str, duration: int | timedelta) -> int:
    """Give a duration in whole ms; a TypeError or ValueError names `argument`."""
    if isinstance(duration, timedelta):
        ms, rest = divmod(duration, timedelta(milliseconds=1))
        if rest:
            raise ValueError(f"{argument}: {duration!r} is no whole number of milliseconds")
    elif isinstance(duration, int) and not isinstance(duration, bool):
        ms = duration
    else:
        raise TypeError(
            f"{argument}: {duration!r} is no duration; give an int of milliseconds or a timedelta"
        )
    if not 0 <= ms <= MAX_WATERMARK:
        raise ValueError(f"{argument}: {duration!r} must be 0 or more, and below 2**63 ms")
    return ms


class WatermarkGenerator(ABC):
    """Makes the watermarks of one channel; it is fed what a micro-batch has seen, not single rows."""

    @abstractmethod
    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        """Take a micro-batch's largest timestamp and its number of rows; give the watermark, in epoch ms.

        Parameters
        ----------
        max_timestamp : int
            Largest event time of the batch on this channel, epoch ms.
        count : int
            Rows of the batch on this channel, 1 or more.
        now : int or None
            The micro-batch's own processing time in epoch ms, where the query has one.
        """


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Largest timestamp - delay - 1 (Flink's class of that name), never below MIN_WATERMARK."""

    def __init__(self, max_out_of_orderness: int) -> None:
        self.max_out_of_orderness = max_out_of_orderness
        self.max_timestamp = MIN_WATERMARK + max_out_of_orderness + 1

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        """See `WatermarkGenerator.on_batch`."""
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        return self.max_timestamp - self.max_out_of_orderness - 1


class NoWatermarks(WatermarkGenerator):
    """Never any (Flink's NoWatermarksGenerator)."""

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        """See `WatermarkGenerator.on_batch`."""
        return MIN_WATERMARK


class WatermarkStrategy:
    """How a stream's watermarks are made (``pyflink.common.WatermarkStrategy``).

    Examples
    --------
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(5_000)
    >>> strategy.create_watermark_generator().on_batch(max_timestamp=60_000, count=10, now=None)
    54999
    """

    def __init__(self, create_watermark_generator: Callable[[], WatermarkGenerator]) -> None:
        self.create_watermark_generator = create_watermark_generator

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: int | timedelta) -> WatermarkStrategy:
        """Rows come at most that late behind the largest timestamp seen: int ms, or a timedelta."""
        ms = milliseconds("max_out_of_orderness", max_out_of_orderness)
        return WatermarkStrategy(lambda: BoundedOutOfOrdernessWatermarks(ms))

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps never go down."""
        return WatermarkStrategy.for_bounded_out_of_orderness(0)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Event time never advances before the end of a bounded input."""
        return WatermarkStrategy(NoWatermarks)
