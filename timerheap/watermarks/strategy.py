"""A stream's rule: whence its timestamps, how its watermarks are made, when it is idle."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from timerheap._arguments import not_negative
from timerheap.watermarks.generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
)

__all__ = [
    "RecordTimestampAssigner",
    "TimestampAssigner",
    "WatermarkStrategy",
]


class TimestampAssigner(ABC):
    """Gives rows their event time; PyFlink's class of that name."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the row's event time.

        Parameters
        ----------
        value : object
            The row.
        record_timestamp : int
            The timestamp that the row has already; MIN_WATERMARK if it has none.

        Returns
        -------
        int
            Epoch milliseconds, int64.
        """


class RecordTimestampAssigner(TimestampAssigner):
    """Leaves rows the timestamp that they have; Flink's class of that name."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """See `TimestampAssigner.extract_timestamp`."""
        return record_timestamp


class WatermarkStrategy:
    """How a stream's timestamps and watermarks are made (``pyflink.common.WatermarkStrategy``).

    A strategy does not change: every ``with_`` method gives a new one, which keeps all that was said before.
    Durations are an int of milliseconds or a ``datetime.timedelta``, such as PyFlink's ``Duration`` gives.

    Attributes
    ----------
    timestamp_assigner : TimestampAssigner or None
        None: rows keep the timestamp that they have.
    idle_timeout : int or None
        Milliseconds without a row after which a channel is idle; None: never.
    max_ahead : int or None
        Milliseconds that a timestamp may be ahead of processing time; None: any.

    Examples
    --------
    >>> strategy = (
    ...     WatermarkStrategy.for_bounded_out_of_orderness(5_000)
    ...     .with_timestamp_assigner(lambda row, timestamp: row["at"])
    ...     .with_idleness(Duration.of_minutes(1))
    ...     .with_max_ahead(Duration.of_days(1))
    ... )
    >>> strategy.create_watermark_generator().on_batch(max_timestamp=60_000, count=10, now=None)
    54999
    >>> strategy.idle_timeout, strategy.max_ahead
    (60000, 86400000)
    """

    def __init__(self, create_watermark_generator: Callable[[], WatermarkGenerator]) -> None:
        self._create_watermark_generator = create_watermark_generator
        self.timestamp_assigner: TimestampAssigner | None = None
        self.idle_timeout: int | None = None
        self.max_ahead: int | None = None

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: int | timedelta) -> WatermarkStrategy:
        """Rows come at most that late behind the largest timestamp seen."""
        ms = not_negative("max_out_of_orderness", max_out_of_orderness)
        return WatermarkStrategy(lambda: BoundedOutOfOrdernessWatermarks(ms))

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps never go down."""
        return WatermarkStrategy(AscendingTimestampsWatermarks)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Event time never advances before the end of a bounded input."""
        return WatermarkStrategy(NoWatermarks)

    @staticmethod
    def for_generator(create_watermark_generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of the user's own: a subclass of `WatermarkGenerator`, or a function that makes one.

        Raises
        ------
        TypeError
            It cannot be called.
        """
        if not callable(create_watermark_generator):
            raise TypeError(
                "create_watermark_generator must be a class or function that gives a WatermarkGenerator, got "
                f"{create_watermark_generator!r}"
            )
        return WatermarkStrategy(create_watermark_generator)

    def create_watermark_generator(self) -> WatermarkGenerator:
        """Make the generator of one channel.

        It knows of no idleness and no guard: whoever runs it sees to these, as
        `TimestampsAndWatermarksOperator` and `timerheap.spark` do.

        Raises
        ------
        TypeError
            What was given to `for_generator` makes something else.
        """
        generator = self._create_watermark_generator()
        if not isinstance(generator, WatermarkGenerator):
            raise TypeError(f"create_watermark_generator must give a WatermarkGenerator, got {generator!r}")
        return generator

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        """Take rows' event time from an assigner.

        Parameters
        ----------
        timestamp_assigner : TimestampAssigner or callable
            A callable takes what `TimestampAssigner.extract_timestamp` does.

        Raises
        ------
        TypeError
            It is neither.
        """
        if isinstance(timestamp_assigner, TimestampAssigner):
            return self._with("timestamp_assigner", timestamp_assigner)
        if not callable(timestamp_assigner) or isinstance(timestamp_assigner, type):
            raise TypeError(
                "timestamp_assigner must be a TimestampAssigner or a callable (value, record_timestamp) -> "
                f"epoch milliseconds, got {timestamp_assigner!r}"
            )
        return self._with("timestamp_assigner", _CallableAssigner(timestamp_assigner))

    def with_idleness(self, idle_timeout: int | timedelta) -> WatermarkStrategy:
        """Let a channel that has no row for longer than this hold nothing back until its next row.

        Raises
        ------
        TypeError, ValueError
            It is no duration, or not above 0.
        """
        ms = not_negative("idle_timeout", idle_timeout)
        if ms == 0:
            raise ValueError("idle_timeout must be above 0 ms, got 0")
        return self._with("idle_timeout", ms)

    def with_max_ahead(self, max_ahead: int | timedelta) -> WatermarkStrategy:
        """Let timestamps that are further ahead of processing time than this leave the watermark alone.

        Such rows are kept and counted. One row with a wrong clock would otherwise make all others late.

        Raises
        ------
        TypeError, ValueError
            It is no duration.
        """
        return self._with("max_ahead", not_negative("max_ahead", max_ahead))

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: object, update_interval: object = None
    ) -> NoReturn:
        """Refused by name: it slows a source's splits down, and timerheap has no sources."""
        raise NotImplementedError(
            "watermark alignment pauses a source's splits, and timerheap has no sources: let each split be a "
            "channel, which loses no row of those that lag, and with_idleness() leaves out those without rows"
        )

    def _with(self, name: str, value: object) -> WatermarkStrategy:
        strategy = copy.copy(self)
        setattr(strategy, name, value)
        return strategy


class _CallableAssigner(TimestampAssigner):
    def __init__(self, function: Callable[[Any, int], int]) -> None:
        self._function = function

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self._function(value, record_timestamp)
