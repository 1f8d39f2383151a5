"""Ingestion time: a row's event time is when it came, and watermarks follow the clock."""

from __future__ import annotations

from typing import Any

from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.generators import Clock, WatermarkGenerator
from timerheap.watermarks.output import WatermarkOutput
from timerheap.watermarks.strategy import TimestampAssigner

__all__ = ["IngestionTimeAssigner", "IngestionTimeWatermarks"]


class IngestionTimeAssigner(TimestampAssigner):
    """Gives a row the time at which it comes, which never falls, whatever the clock does; Flink's class.

    Parameters
    ----------
    clock : ProcessingTimeService
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._max_timestamp = MIN_WATERMARK

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """See `TimestampAssigner.extract_timestamp`."""
        self._max_timestamp = max(self._max_timestamp, self._clock.get_current_processing_time())
        return self._max_timestamp


class IngestionTimeWatermarks(WatermarkGenerator):
    """The last full interval that is over on the clock, with rows or without.

    A row may bring it before the periodic emit does. A multiple of the interval goes out once the clock has
    passed it: rows that come in that same millisecond are not late.

    Parameters
    ----------
    clock : ProcessingTimeService
    interval : int
        Milliseconds, 1 or more.

    Notes
    -----
    Flink: ``StreamSourceContexts.AutomaticWatermarkContext``, which puts a multiple out a millisecond earlier
    when a row comes just then.
    """

    def __init__(self, clock: Clock, interval: int) -> None:
        self._clock = clock
        self._interval = interval
        self._watermark = MIN_WATERMARK

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""
        self.on_periodic_emit(output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""
        over = self._clock.get_current_processing_time() - 1
        watermark = over - over % self._interval
        if watermark > self._watermark:
            self._watermark = watermark
            output.emit_watermark(watermark)
