"""The operator that assigns timestamps and emits watermarks."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import Any

from timerheap._arguments import int64, not_negative
from timerheap.flink.processing_time import Cancellable, ProcessingTimeService
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks.generators import (
    NoWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
    WatermarksWithMaxAhead,
    WatermarksWithWallClock,
)
from timerheap.watermarks.output import Output, WatermarkOutput
from timerheap.watermarks.strategy import (
    RecordTimestampAssigner,
    TimestampAssigner,
    WatermarkStrategy,
)


class IngestionTime(TimestampAssigner, WatermarkGenerator):
    """Assigns timestamps and generates watermarks from a clock; ingestion time never goes back.

    The watermark is the last multiple of the interval that the clock has passed, with or without rows. It is
    emitted by the next row or the next periodic emit. Since the clock has passed it, no row with the same
    timestamp can be late.

    interval: milliseconds; 0 for no watermarks

    Notes
    -----
    Flink: ``IngestionTimeAssigner`` and ``StreamSourceContexts.AutomaticWatermarkContext``. The latter emits
    a multiple one millisecond earlier if a row arrives at exactly that time, and rows are late if the clock
    is set back behind a watermark.
    """

    def __init__(self, clock: ProcessingTimeService, interval: int) -> None:
        self._clock = clock
        self._interval = interval
        self._now = MIN_WATERMARK
        self._last = MIN_WATERMARK

    def _time(self) -> int:
        self._now = max(self._now, self._clock.get_current_processing_time())
        return self._now

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self._time()

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.on_periodic_emit(output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if not self._interval:
            return
        over = self._time() - 1
        watermark = over - over % self._interval
        if watermark > self._last:
            self._last = watermark
            output.emit_watermark(watermark)


DEFAULT_AUTO_WATERMARK_INTERVAL = 200
"""Milliseconds between periodic watermarks; Flink's ``pipeline.auto-watermark-interval``."""


class TimeCharacteristic(enum.Enum):
    """The meaning of time in a stream (Flink's ``TimeCharacteristic``)."""

    PROCESSING_TIME = enum.auto()
    """The time of the clock: rows keep their timestamps, and there are no watermarks."""
    INGESTION_TIME = enum.auto()
    """The time at which a row arrives: the clock provides timestamps and watermarks."""
    EVENT_TIME = enum.auto()
    """The time of the event: the strategy provides timestamps and watermarks."""


class TimestampsAndWatermarksOperator:
    """Assigns event time to rows and emits watermarks (Flink's ``TimestampsAndWatermarksOperator``).

    Watermarks are emitted by the generator, when it processes a row and periodically. Each periodic
    processing-time timer registers the next one. Only rising watermarks are emitted, and they make an idle
    stream active.

    Parameters
    ----------
    output : Output
        Receives each row, then its watermark and status.
    clock : ProcessingTimeService
    strategy : WatermarkStrategy, optional
        Provides timestamps, watermarks, the idle timeout and `WatermarkStrategy.max_ahead`. Required in event
        time, and not allowed otherwise.
    time_characteristic : TimeCharacteristic, default EVENT_TIME
    auto_watermark_interval : int, datetime.timedelta or str, optional
        Interval between periodic watermarks, an int in milliseconds; 0 for none. The default is 200, or 0 in
        processing time.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, `strategy` is missing in event time or present otherwise, or the interval
        is not 0 in processing time.

    Notes
    -----
    The timers of a `SystemProcessingTimeService` run in its own thread, so hold its ``lock`` while calling
    the operator. If a generator raises an exception in a timer, it is called again after the next interval.

    Examples
    --------
    >>> from timerheap.flink import ManualProcessingTimeService
    >>> from timerheap import WatermarkStrategy
    >>> class Printer:
    ...     def collect(self, value, timestamp): print("row", value, "at", timestamp)
    ...     def emit_watermark(self, watermark): print("watermark", watermark)
    ...     def mark_idle(self): print("idle")
    ...     def mark_active(self): print("active")
    >>> clock = ManualProcessingTimeService(now=1_000)
    >>> strategy = (
    ...     WatermarkStrategy.for_bounded_out_of_orderness(10)
    ...     .with_timestamp_assigner(lambda row, timestamp: row["at"])
    ...     .with_idleness(500)
    ... )
    >>> operator = TimestampsAndWatermarksOperator(Printer(), clock, strategy)
    >>> operator.open()
    >>> operator.process_element({"at": 900})
    row {'at': 900} at 900
    >>> clock.set_current_time(1_200)
    watermark 889
    >>> clock.set_current_time(2_500)
    idle
    >>> operator.process_element({"at": 950})
    row {'at': 950} at 950
    >>> operator.finish()
    active
    watermark 939
    watermark 9223372036854775807
    """

    def __init__(
        self,
        output: Output,
        clock: ProcessingTimeService,
        strategy: WatermarkStrategy | None = None,
        *,
        time_characteristic: TimeCharacteristic = TimeCharacteristic.EVENT_TIME,
        auto_watermark_interval: int | timedelta | str | None = None,
    ) -> None:
        self._output = output
        self._clock = clock
        self._interval = _interval(time_characteristic, auto_watermark_interval)
        self._emitter = _WatermarkEmitter(output)
        self._guard: WatermarksWithMaxAhead | None = None
        self._assigner: TimestampAssigner | None = None
        self._generator: WatermarkGenerator = NoWatermarks()
        self._timer: Cancellable | None = None
        if (strategy is None) is (time_characteristic is TimeCharacteristic.EVENT_TIME):
            raise ValueError(
                "strategy must be a WatermarkStrategy in event time and None otherwise, "
                f"got {strategy!r} in {time_characteristic.name}"
            )
        if strategy is not None:
            if not isinstance(strategy, WatermarkStrategy):
                raise TypeError(f"strategy must be a WatermarkStrategy, got {strategy!r}")
            self._use(strategy)
        elif time_characteristic is TimeCharacteristic.INGESTION_TIME:
            self._assigner = self._generator = IngestionTime(clock, self._interval)

    def _use(self, strategy: WatermarkStrategy) -> None:
        self._assigner = strategy.timestamp_assigner or RecordTimestampAssigner()
        self._generator = strategy.create_watermark_generator()
        if strategy.max_ahead is not None:
            self._generator = self._guard = WatermarksWithMaxAhead(
                self._generator, strategy.max_ahead, self._clock
            )
        if strategy.idle_timeout is not None:  # outermost, so that rows too far ahead count as activity
            self._generator = WatermarksWithIdleness(self._generator, strategy.idle_timeout, self._clock)
        if strategy.wall_clock is not None:  # outside of it, so that an idle output advances, too
            self._generator = WatermarksWithWallClock(self._generator, *strategy.wall_clock, self._clock)

    @property
    def current_watermark(self) -> int:
        """The last emitted watermark, epoch milliseconds; MIN_WATERMARK before the first."""
        return self._emitter.current_watermark

    @property
    def ahead_rows(self) -> int:
        """The number of rows too far ahead of processing time (`WatermarkStrategy.with_max_ahead`)."""
        return self._guard.ahead_rows if self._guard is not None else 0

    def open(self) -> None:
        """Start the periodic watermarks, the first after one interval."""
        self.close()
        self._register_timer()

    def process_element(self, value: Any, timestamp: int | None = None) -> None:
        """Process a row: emit it with its event time, then its watermark, if there is one.

        Parameters
        ----------
        value : object
        timestamp : int, optional
            The previous timestamp of the row, epoch milliseconds. In event time, a row without a timestamp
            has MIN_WATERMARK unless an assigner provides one, as in Flink.

        Raises
        ------
        TypeError, OverflowError
            If the timestamp is not an int64. The row is not emitted then.
        """
        if timestamp is not None:
            timestamp = int64("timestamp", timestamp)
        if self._assigner is None:
            self._output.collect(value, timestamp)
            return
        before = MIN_WATERMARK if timestamp is None else timestamp
        at = int64("timestamp", self._assigner.extract_timestamp(value, before))
        self._output.collect(value, at)
        self._generator.on_event(value, at, self._emitter)

    def process_watermark(self, watermark: int) -> None:
        """Process a watermark from upstream; ignore all but MAX_WATERMARK, the end of the input.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is not an int64.
        """
        if int64("watermark", watermark) == MAX_WATERMARK:
            self._emitter.emit_watermark(watermark)

    def finish(self) -> None:
        """End the input: emit the last watermark of the generator, then MAX_WATERMARK."""
        self.close()
        self._generator.on_periodic_emit(self._emitter)
        self._emitter.emit_watermark(MAX_WATERMARK)

    def close(self) -> None:
        """Stop the periodic watermarks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _register_timer(self) -> None:
        if self._interval and not self._clock.is_terminated():
            next_time = self._clock.get_current_processing_time() + self._interval
            self._timer = self._clock.register_timer(min(next_time, MAX_WATERMARK), self._on_processing_time)

    def _on_processing_time(self, timestamp: int) -> None:
        timer = self._timer
        try:
            self._generator.on_periodic_emit(self._emitter)
        finally:
            if self._timer is timer:  # otherwise close() has been called in the meantime
                self._register_timer()


class _WatermarkEmitter:
    """Emits watermarks that rise and status changes, and ignores others."""

    def __init__(self, output: Output) -> None:
        self.current_watermark = MIN_WATERMARK
        self._output = output
        self._is_idle = False

    def emit_watermark(self, watermark: int, /) -> None:
        watermark = int64("watermark", watermark)
        if watermark > self.current_watermark:
            self.current_watermark = watermark
            self.mark_active()
            self._output.emit_watermark(watermark)

    def mark_idle(self) -> None:
        if not self._is_idle:
            self._is_idle = True
            self._output.mark_idle()

    def mark_active(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._output.mark_active()


def _interval(time_characteristic: TimeCharacteristic, interval: int | timedelta | str | None) -> int:
    if not isinstance(time_characteristic, TimeCharacteristic):
        raise TypeError(f"time_characteristic must be a TimeCharacteristic, got {time_characteristic!r}")
    in_processing_time = time_characteristic is TimeCharacteristic.PROCESSING_TIME
    if interval is None:
        return 0 if in_processing_time else DEFAULT_AUTO_WATERMARK_INTERVAL
    ms = not_negative("auto_watermark_interval", interval)
    if in_processing_time and ms:
        raise ValueError(
            f"auto_watermark_interval must be 0 in processing time, which has no watermarks, got {ms} ms"
        )
    return ms
