"""How watermarks are made: Flink's generators, and the user's own."""

from __future__ import annotations

from typing import Any, Self

from timerheap._arguments import int64
from timerheap.time import Clock
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkOutput

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "IdlenessTimer",
    "NoWatermarks",
    "WatermarkGenerator",
    "WatermarksWithIdleness",
    "WatermarksWithMaxAhead",
]


class WatermarkGenerator:
    """Makes the watermarks of one channel; Flink's class of that name.

    A generator of your own overrides one side, and serves both: `on_event` and `on_periodic_emit`, or one of
    these, as in Flink; or `on_batch`, which is told of whole micro-batches, as on Spark.

    Raises
    ------
    TypeError
        A subclass overrides none of the three.

    Examples
    --------
    >>> class EveryFlush(WatermarkGenerator):  # a punctuated generator: its watermarks are in the stream
    ...     def on_event(self, event, timestamp, output):
    ...         if event == "flush":
    ...             output.emit_watermark(timestamp)
    >>> class HalfAMinute(WatermarkGenerator):  # for micro-batches
    ...     def on_batch(self, max_timestamp, count, now):
    ...         return max_timestamp - 30_000
    """

    __watermark = MIN_WATERMARK  # as far as it has come, for the side that is not overridden

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make a generator, if it overrides a side."""
        own = [cls.on_event, cls.on_periodic_emit, cls.on_batch]
        base = WatermarkGenerator
        if own == [base.on_event, base.on_periodic_emit, base.on_batch]:
            raise TypeError(f"{cls.__name__} must override on_event and on_periodic_emit, or on_batch")
        return super().__new__(cls)

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Take a row; a watermark may go out at once.

        Parameters
        ----------
        event : object
            The row; None where only the micro-batch's largest timestamp is known (`on_batch`).
        timestamp : int
            Its event time, epoch milliseconds.
        output : WatermarkOutput
        """
        if self._takes_batches():
            watermark = int64("watermark of on_batch", self.on_batch(timestamp, 1, None))
            self.__watermark = max(self.__watermark, watermark)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Put out the watermark as it is now: called at every interval, 200 ms by default.

        A watermark no higher than the last need not be held back: an output lets only rising ones through.
        """
        if self._takes_batches():
            output.emit_watermark(self.__watermark)

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        """Take a micro-batch's largest timestamp and its number of rows; give the watermark, in epoch ms.

        By default the largest timestamp goes through `on_event` and then `on_periodic_emit`, and the highest
        watermark that ever came out is the answer; MIN_WATERMARK before there is one.

        Parameters
        ----------
        max_timestamp : int
            Largest event time of the batch on this channel, epoch ms.
        count : int
            Rows of the batch on this channel, 1 or more.
        now : int or None
            The micro-batch's own processing time in epoch ms, where the query has one.
        """
        output = _Highest(self.__watermark)
        self.on_event(None, max_timestamp, output)
        self.on_periodic_emit(output)
        self.__watermark = output.watermark
        return self.__watermark

    def _takes_batches(self) -> bool:
        return type(self).on_batch is not WatermarkGenerator.on_batch


class _Highest:
    """Keeps the highest watermark that it was told."""

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark

    def emit_watermark(self, watermark: int, /) -> None:
        self.watermark = max(self.watermark, watermark)

    def mark_idle(self) -> None:
        """Whoever has micro-batches knows which channels had rows."""

    def mark_active(self) -> None:
        """As `mark_idle`."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Largest timestamp - delay - 1, on every periodic emit; Flink's class of that name.

    Parameters
    ----------
    max_out_of_orderness : int
        The delay, milliseconds.

    Examples
    --------
    >>> BoundedOutOfOrdernessWatermarks(5_000).on_batch(max_timestamp=60_000, count=10, now=None)
    54999
    """

    def __init__(self, max_out_of_orderness: int) -> None:
        self.max_out_of_orderness = max_out_of_orderness
        self.max_timestamp = MIN_WATERMARK + max_out_of_orderness + 1  # so that the watermark is in range

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""
        self.max_timestamp = max(self.max_timestamp, timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""
        output.emit_watermark(self.max_timestamp - self.max_out_of_orderness - 1)


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Largest timestamp - 1: no row is late in a stream whose timestamps never fall; Flink's class."""

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Never any; Flink's ``NoWatermarksGenerator``."""

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""


class IdlenessTimer:
    """Tells when nothing has happened for longer than a timeout; Flink's class of that name.

    Time is counted from the first check that finds nothing new, so from the end of the last interval in which
    something happened.

    Parameters
    ----------
    clock : Clock
    max_idle_time : int
        Milliseconds.
    """

    def __init__(self, clock: Clock, max_idle_time: int) -> None:
        self._clock = clock
        self._max_idle_time = max_idle_time
        self._active = False
        self._inactive_since = 0  # 0: it is not, yet; so a clock at 0 has not begun (Flink's sentinel)

    def activity(self) -> None:
        """Take that something has happened."""
        self._active = True

    def check_if_idle(self) -> bool:
        """Tell whether more than the timeout has gone by since nothing happens."""
        if self._active:
            self._active = False
            self._inactive_since = 0
            return False
        now = self._clock.get_current_processing_time()
        if self._inactive_since == 0:
            self._inactive_since = now
            return False
        return now - self._inactive_since > self._max_idle_time


class WatermarksWithIdleness(WatermarkGenerator):
    """Marks its output idle when there were no rows for a while; Flink's class of that name.

    While it is idle no watermark goes out periodically. The next row ends that, and the next watermark that
    rises makes the output active.

    Parameters
    ----------
    watermarks : WatermarkGenerator
        Makes the watermarks.
    idle_timeout : int
        Milliseconds.
    clock : Clock

    Examples
    --------
    >>> from timerheap.flink import ManualProcessingTimeService
    >>> class Printer:
    ...     def emit_watermark(self, watermark): print(watermark)
    ...     def mark_idle(self): print("idle")
    >>> clock = ManualProcessingTimeService(now=1_000)
    >>> generator = WatermarksWithIdleness(AscendingTimestampsWatermarks(), idle_timeout=500, clock=clock)
    >>> generator.on_event("row", 900, Printer())
    >>> for _ in range(3):  # the time is counted from the first emit without a new row
    ...     generator.on_periodic_emit(Printer())
    ...     clock.advance(501)
    899
    899
    idle
    """

    def __init__(self, watermarks: WatermarkGenerator, idle_timeout: int, clock: Clock) -> None:
        self._watermarks = watermarks
        self._timer = IdlenessTimer(clock, idle_timeout)
        self._is_idle = False

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""
        self._watermarks.on_event(event, timestamp, output)
        self._timer.activity()
        self._is_idle = False

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""
        if not self._timer.check_if_idle():
            self._watermarks.on_periodic_emit(output)
        elif not self._is_idle:
            output.mark_idle()
            self._is_idle = True


class WatermarksWithMaxAhead(WatermarkGenerator):
    """Keeps timestamps too far in the future away from a generator, and counts them.

    One row with a wrong clock can take the watermark years ahead, and every other row would be late. The row
    goes its way; only the watermark does not follow it.

    Parameters
    ----------
    watermarks : WatermarkGenerator
        Makes the watermarks.
    max_ahead : int
        Milliseconds that a timestamp may be ahead of the clock.
    clock : Clock

    Attributes
    ----------
    ahead_rows : int
        How many were too far ahead.

    Examples
    --------
    >>> from timerheap.flink import ManualProcessingTimeService
    >>> class Printer:
    ...     def emit_watermark(self, watermark): print(watermark)
    >>> clock = ManualProcessingTimeService(now=1_000)
    >>> generator = WatermarksWithMaxAhead(AscendingTimestampsWatermarks(), max_ahead=500, clock=clock)
    >>> for timestamp in (900, 1_501, 950):
    ...     generator.on_event("row", timestamp, Printer())
    >>> generator.on_periodic_emit(Printer())
    949
    >>> generator.ahead_rows
    1
    """

    def __init__(self, watermarks: WatermarkGenerator, max_ahead: int, clock: Clock) -> None:
        self.ahead_rows = 0
        self._watermarks = watermarks
        self._max_ahead = max_ahead
        self._clock = clock

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""
        if timestamp > self._clock.get_current_processing_time() + self._max_ahead:
            self.ahead_rows += 1
        else:
            self._watermarks.on_event(event, timestamp, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""
        self._watermarks.on_periodic_emit(output)
