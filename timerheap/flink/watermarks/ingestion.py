"""Ingestion time: the event time of a row is its time of arrival, and watermarks follow the clock."""

from __future__ import annotations

from typing import Any

from timerheap.flink.processing_time import ProcessingTimeService
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.generators import WatermarkGenerator
from timerheap.watermarks.output import WatermarkOutput
from timerheap.watermarks.strategy import TimestampAssigner

__all__ = ["IngestionTime"]


class IngestionTime(TimestampAssigner, WatermarkGenerator):
    """Assigns timestamps and generates watermarks from a clock; ingestion time never goes back.

    The watermark is the last multiple of the interval that the clock has passed, with or without rows. It is
    emitted by the next row or the next periodic emit. Since the clock has passed it, no row with the same
    timestamp can be late.

    Parameters
    ----------
    clock : ProcessingTimeService
    interval : int
        Milliseconds; 0 for no watermarks.

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
