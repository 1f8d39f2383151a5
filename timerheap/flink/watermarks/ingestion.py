"""Ingestion time: a row's event time is when it came, and watermarks follow the clock."""

from __future__ import annotations

from typing import Any

from timerheap.flink.processing_time import ProcessingTimeService
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.generators import WatermarkGenerator
from timerheap.watermarks.output import WatermarkOutput
from timerheap.watermarks.strategy import TimestampAssigner

__all__ = ["IngestionTime"]


class IngestionTime(TimestampAssigner, WatermarkGenerator):
    """Timestamps and watermarks of a clock, which is taken to stand while it is set back.

    The watermark is the last multiple of the interval that is over on the clock, with rows or without. A row
    may bring it before the periodic emit does. It goes out once the clock has passed it, so that rows of that
    very millisecond are not late.

    Parameters
    ----------
    clock : ProcessingTimeService
    interval : int
        Milliseconds; 0: no watermarks.

    Notes
    -----
    Flink: ``IngestionTimeAssigner``, and ``StreamSourceContexts.AutomaticWatermarkContext``, which puts a
    multiple out a millisecond earlier when a row comes just then, and makes rows late where a clock that was
    set back meets a watermark.
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
        """See `TimestampAssigner.extract_timestamp`."""
        return self._time()

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_event`."""
        self.on_periodic_emit(output)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """See `WatermarkGenerator.on_periodic_emit`."""
        if not self._interval:
            return
        over = self._time() - 1
        watermark = over - over % self._interval
        if watermark > self._last:
            self._last = watermark
            output.emit_watermark(watermark)
