"""Watermark strategies, which define the timestamps, the watermarks and the idleness of a stream."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

from timerheap._arguments import Length, not_negative, positive
from timerheap.errors import ArgumentTypeError, UnsupportedError
from timerheap.watermarks.generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
)

MAX_AHEAD = 86_400_000
"""How many ms a timestamp may be ahead of the clock on a stream of Spark, if a strategy does not say."""

NO_LIMIT = 1 << 62
"""The `max_ahead` of a strategy without a limit."""


class TimestampAssigner(ABC):
    """Assigns event time to rows (PyFlink's ``TimestampAssigner``)."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the event time of a row.

        Parameters
        ----------
        value : object
            The row.
        record_timestamp : int
            The previous timestamp of the row; MIN_WATERMARK if it has none.

        Returns
        -------
        int
            Epoch milliseconds, int64.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class WatermarkStrategy:
    """Defines the timestamps and watermarks of a stream (``pyflink.common.WatermarkStrategy``).

    A strategy is immutable: every ``with_`` method returns a new one and keeps the other settings. A duration
    is an int of milliseconds, a ``datetime.timedelta``, which `timerheap.Duration` returns, or a str in
    Spark's interval syntax, such as "10 minutes".

    Attributes
    ----------
    timestamp_assigner : TimestampAssigner or None
        None if rows keep their previous timestamp.
    idle_timeout : int or None
        Milliseconds without a row after which a channel is idle; None if channels never become idle.
    wall_clock : tuple of (int, int) or None
        Milliseconds without a row after which a channel follows the clock, and how far behind it; None if
        only rows advance the watermark.
    max_ahead : int or None
        Milliseconds that a timestamp may be ahead of processing time. None is a day on a stream of Spark, for
        a channel of a micro-batch, and no limit elsewhere.

    Examples
    --------
    >>> from timerheap import Duration
    >>> strategy = (
    ...     WatermarkStrategy.for_bounded_out_of_orderness(5_000)
    ...     .with_timestamp_assigner(lambda row, timestamp: row["at"])
    ...     .with_idleness(Duration.of_minutes(1))
    ...     .with_max_ahead("1 day")
    ... )
    >>> strategy.create_watermark_generator().on_batch(max_timestamp=60_000, count=10, now=None)
    54999
    >>> strategy.idle_timeout, strategy.max_ahead
    (60000, 86400000)
    >>> WatermarkStrategy.for_monotonous_timestamps().with_idleness(60_000)
    WatermarkStrategy.for_monotonous_timestamps().with_idleness(60000)
    """

    def __init__(self, create_watermark_generator: Callable[[], WatermarkGenerator]) -> None:
        self._create_watermark_generator = create_watermark_generator
        self._factory = f"for_generator({_name_of(create_watermark_generator)})"
        self._delay: int | None = None  # of BoundedOutOfOrdernessWatermarks, which need no object a channel
        self._follows: int | None = None  # ms behind the watermark of the operators whose results it is for
        self._is_own = True  # whether rows advance the watermark, too
        self.timestamp_assigner: TimestampAssigner | None = None
        self.idle_timeout: int | None = None
        self.wall_clock: tuple[int, int] | None = None
        self.max_ahead: int | None = None

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Length) -> WatermarkStrategy:
        """Return a strategy for rows at most `max_out_of_orderness` behind the largest timestamp so far."""
        ms = not_negative("max_out_of_orderness", max_out_of_orderness)
        strategy = WatermarkStrategy(lambda: BoundedOutOfOrdernessWatermarks(ms))
        return strategy._with("_factory", f"for_bounded_out_of_orderness({ms})")._with("_delay", ms)

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for rows whose timestamps never decrease."""
        strategy = WatermarkStrategy(AscendingTimestampsWatermarks)
        return strategy._with("_factory", "for_monotonous_timestamps()")._with("_delay", 0)

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy without watermarks before the end of a bounded input."""
        return WatermarkStrategy(NoWatermarks)._with("_factory", "no_watermarks()")

    @staticmethod
    def for_generator(create_watermark_generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy with a custom generator, one for each channel.

        On Spark a generator receives micro-batches (`WatermarkGenerator.on_batch`), and the checkpoint keeps
        its attributes between them: numbers, str, bool and None, lists, tuples, sets, dicts and deques of
        them, and other generators. An attribute that is still that of a new generator is not kept, so that
        settings are those of the code that runs. An attribute of another type must not change; what a
        generator keeps elsewhere, as in a global variable, is lost. A class of a different name begins anew.

        Parameters
        ----------
        create_watermark_generator : callable
            A subclass of `WatermarkGenerator`, or a function that returns a new generator.

        Raises
        ------
        ArgumentTypeError
            If the argument is not callable.
        """
        if not callable(create_watermark_generator):
            raise ArgumentTypeError(
                "create_watermark_generator must be a class or function that returns a WatermarkGenerator, "
                f"got {create_watermark_generator!r}"
            )
        return WatermarkStrategy(create_watermark_generator)

    def create_watermark_generator(self) -> WatermarkGenerator:
        """Return a new generator for one channel.

        The generator does not apply `idle_timeout`, `wall_clock` or `max_ahead`.
        `TimestampsAndWatermarksOperator` and `timerheap.spark`, which run the generator, apply them.

        Raises
        ------
        ArgumentTypeError
            If the function passed to `for_generator` does not return a WatermarkGenerator.
        """
        generator = self._create_watermark_generator()
        if not isinstance(generator, WatermarkGenerator):
            raise ArgumentTypeError(
                f"create_watermark_generator must return a WatermarkGenerator, got {generator!r}"
            )
        return generator

    def with_timestamp_assigner(
        self, timestamp_assigner: TimestampAssigner | Callable[[Any, int], int]
    ) -> WatermarkStrategy:
        """Return a strategy that assigns event time to rows.

        Parameters
        ----------
        timestamp_assigner : TimestampAssigner or callable
            A callable has the same arguments as `TimestampAssigner.extract_timestamp`.

        Raises
        ------
        ArgumentTypeError
            If it is neither.
        """
        if isinstance(timestamp_assigner, TimestampAssigner):
            return self._with("timestamp_assigner", timestamp_assigner)
        if not callable(timestamp_assigner) or isinstance(timestamp_assigner, type):
            raise ArgumentTypeError(
                "timestamp_assigner must be a TimestampAssigner or a callable (value, record_timestamp) -> "
                f"epoch milliseconds, got {timestamp_assigner!r}"
            )
        return self._with("timestamp_assigner", _CallableAssigner(timestamp_assigner))

    def with_idleness(self, idle_timeout: Length) -> WatermarkStrategy:
        """Return a strategy whose channels become idle after `idle_timeout` without a row.

        An idle channel does not hold the watermark back until its next row.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If `idle_timeout` is not a duration of more than 0 ms.
        """
        return self._with("idle_timeout", positive("idle_timeout", idle_timeout))

    def with_wall_clock(self, after: Length, lag: Length) -> WatermarkStrategy:
        """Return a strategy whose watermark follows the clock while there are no rows.

        A channel, or a stream without channels, that has been quiet for `after` gets the watermark
        ``max(watermark, now - lag)`` until its next row, so the last timers of a source that stops fire
        `after` later. A row that then comes with a timestamp more than `lag` behind the clock is late.

        Parameters
        ----------
        after : int, datetime.timedelta or str
            Time without a row, more than 0 ms.
        lag : int, datetime.timedelta or str
            How far behind the clock rows may come, 0 ms or more.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If `after` or `lag` is not such a duration.
        """
        return self._with("wall_clock", (positive("after", after), not_negative("lag", lag)))

    def with_max_ahead(self, max_ahead: Length | None) -> WatermarkStrategy:
        """Return a strategy whose watermark ignores timestamps too far ahead of processing time.

        The rows are kept and counted. Without the limit, one row with a wrong clock could make all other rows
        late. None is no limit.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If `max_ahead` is not a duration of 0 ms or more, nor None.

        Notes
        -----
        On a stream of Spark the default is a day, checked once for each micro-batch and not for each row,
        which costs nothing. If the largest timestamp of a channel in a micro-batch is more than a day ahead
        of the clock, the largest one of a day or more before it counts instead, or none if that is ahead,
        too; and the driver logs the channel and the time. So if a source of bad clocks sends all the time,
        pass a limit, with which each row is checked.
        """
        return self._with(
            "max_ahead", NO_LIMIT if max_ahead is None else not_negative("max_ahead", max_ahead)
        )

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: object, update_interval: object = None
    ) -> NoReturn:
        """Raise UnsupportedError: timerheap has no sources whose splits could be paused."""
        raise UnsupportedError(
            "watermark alignment pauses the splits of a source, and timerheap has no sources; make each "
            "split a channel, so that no row of a slow split is late, and use with_idleness() or "
            "with_wall_clock() for splits without rows"
        )

    def __repr__(self) -> str:
        calls = [self._factory]
        if self.timestamp_assigner is not None:
            calls.append(f"with_timestamp_assigner({self.timestamp_assigner!r})")
        if self.idle_timeout is not None:
            calls.append(f"with_idleness({self.idle_timeout})")
        if self.wall_clock is not None:
            calls.append("with_wall_clock({}, {})".format(*self.wall_clock))
        if self.max_ahead is not None:
            calls.append(f"with_max_ahead({None if self.max_ahead == NO_LIMIT else self.max_ahead})")
        return ".".join([type(self).__name__, *calls])

    def _with(self, name: str, value: object) -> WatermarkStrategy:
        strategy = copy.copy(self)
        setattr(strategy, name, value)
        return strategy


def following(delay: int) -> WatermarkStrategy:
    """Return the strategy of a stream whose watermark is that of other operators, less a delay in ms."""
    strategy = WatermarkStrategy.no_watermarks().with_max_ahead(None)
    return strategy._with("_is_own", False)._with("_follows", delay)


class _CallableAssigner(TimestampAssigner):
    def __init__(self, function: Callable[[Any, int], int]) -> None:
        self._function = function

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self._function(value, record_timestamp)

    def __repr__(self) -> str:
        return _name_of(self._function)


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", repr(function)))
