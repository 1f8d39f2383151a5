"""The operator that assigns timestamps and emits watermarks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from timerheap._arguments import instance, int64, not_negative
from timerheap.flink.processing_time import Cancellable, ProcessingTimeService
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks.generators import WatermarkGenerator
from timerheap.watermarks.output import Output, WatermarkOutput
from timerheap.watermarks.strategy import WatermarkStrategy


class WatermarksWithIdleness(WatermarkGenerator):
    """Marks its output idle after a timeout without rows, in ms (Flink's class of that name).

    The timeout starts at the first periodic call without a row since the last one.
    """

    def __init__(
        self, watermarks: WatermarkGenerator, idle_timeout: int, clock: ProcessingTimeService
    ) -> None:
        self._watermarks = watermarks
        self._timeout = idle_timeout
        self._clock = clock
        self._has_rows = self._is_idle = False
        self._inactive_since = 0  # 0 means unset, as in Flink, so a clock at 0 does not start the timeout

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self._watermarks.on_event(event, timestamp, output)
        self._has_rows, self._is_idle = True, False

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if not self._has_timed_out():
            self._watermarks.on_periodic_emit(output)
        elif not self._is_idle:
            output.mark_idle()
            self._is_idle = True

    def _has_timed_out(self) -> bool:
        if self._has_rows:
            self._has_rows, self._inactive_since = False, 0
            return False
        now = self._clock.get_current_processing_time()
        if self._inactive_since == 0:
            self._inactive_since = now
            return False
        return now - self._inactive_since > self._timeout


class WatermarksWithWallClock(WatermarkGenerator):
    """Follows the clock at a distance of `lag` ms after `after` ms without rows."""

    def __init__(
        self, watermarks: WatermarkGenerator, after: int, lag: int, clock: ProcessingTimeService
    ) -> None:
        self._watermarks = watermarks
        self._after, self._lag = after, lag
        self._clock = clock
        self._active_at = clock.get_current_processing_time()

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self._watermarks.on_event(event, timestamp, output)
        self._active_at = self._clock.get_current_processing_time()

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self._watermarks.on_periodic_emit(output)
        now = self._clock.get_current_processing_time()
        if now - self._active_at >= self._after:
            output.emit_watermark(now - self._lag)


class WatermarksWithMaxAhead(WatermarkGenerator):
    """Hides timestamps more than `max_ahead` ms in the future from a generator, and counts them."""

    def __init__(self, watermarks: WatermarkGenerator, max_ahead: int, clock: ProcessingTimeService) -> None:
        self.ahead_rows = 0
        self._watermarks = watermarks
        self._max_ahead = max_ahead
        self._clock = clock

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        if timestamp > self._clock.get_current_processing_time() + self._max_ahead:
            self.ahead_rows += 1
        else:
            self._watermarks.on_event(event, timestamp, output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self._watermarks.on_periodic_emit(output)


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
    strategy : WatermarkStrategy
        Provides timestamps, watermarks, the idle timeout and `WatermarkStrategy.max_ahead`.
    auto_watermark_interval : int, datetime.timedelta or str, default 200
        Interval between periodic watermarks, an int in milliseconds; 0 for none. Flink's
        ``pipeline.auto-watermark-interval``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid.

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
        strategy: WatermarkStrategy,
        *,
        auto_watermark_interval: int | timedelta | str = 200,
    ) -> None:
        instance("strategy", strategy, WatermarkStrategy)
        self._output = output
        self._clock = clock
        self._interval = not_negative("auto_watermark_interval", auto_watermark_interval)
        self._emitter = _WatermarkEmitter(output)
        self._timer: Cancellable | None = None
        self._assigner = strategy.timestamp_assigner
        self._guard: WatermarksWithMaxAhead | None = None
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
            The previous timestamp of the row, epoch milliseconds. A row without a timestamp has
            MIN_WATERMARK unless an assigner provides one, as in Flink.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If the timestamp is not an int64. The row is not emitted then.
        """
        at = MIN_WATERMARK if timestamp is None else int64("timestamp", timestamp)
        if self._assigner is not None:
            at = int64("timestamp", self._assigner.extract_timestamp(value, at))
        self._output.collect(value, at)
        self._generator.on_event(value, at, self._emitter)

    def process_watermark(self, watermark: int) -> None:
        """Process a watermark from upstream; ignore all but MAX_WATERMARK, the end of the input.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
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
