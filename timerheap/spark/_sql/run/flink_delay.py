"""The watermark of WATERMARK FOR, which is 1 ms ahead of that of Flink's DataStream."""

from __future__ import annotations

from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator


class FlinkDelay(WatermarkGenerator):
    """Emits the largest time minus a delay, as Flink's SQL does; strategies emit 1 ms less."""

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max(max_timestamp, MIN_WATERMARK + self._delay) - self._delay
