"""The output that sends watermarks, status and rows to all downstream channels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timerheap._arguments import int64
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkStatus

__all__ = ["BroadcastingOutput"]


class BroadcastingOutput:
    """Sends watermarks, status and rows to all downstream channels.

    While the stream is idle, watermarks are recorded but not sent, because no channel waits for them. The
    status is sent when it changes.

    Parameters
    ----------
    outputs : iterable of Output
        One for each channel; a `WatermarkOutput` is enough for a stream without rows.

    Attributes
    ----------
    current_watermark : int
        The last watermark, even of an idle stream, epoch milliseconds; MIN_WATERMARK before the first.
    status : WatermarkStatus
        The last status that was sent; initially ACTIVE.

    Notes
    -----
    O(channels) for each call. Flink: ``BroadcastingOutputCollector`` with its ``WatermarkGauge``, and
    ``RecordWriterOutput``.

    Examples
    --------
    >>> class Printer:
    ...     def __init__(self, name): self.name = name
    ...     def emit_watermark(self, watermark): print(self.name, watermark)
    ...     def mark_idle(self): print(self.name, "idle")
    ...     def mark_active(self): print(self.name, "active")
    >>> output = BroadcastingOutput([Printer("left"), Printer("right")])
    >>> output.emit_watermark(30)
    left 30
    right 30
    >>> output.mark_idle()
    left idle
    right idle
    >>> output.emit_watermark(50)
    >>> output.current_watermark
    50
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        self.current_watermark = MIN_WATERMARK
        self.status = WatermarkStatus.ACTIVE
        self._outputs = list(outputs)

    def emit_watermark(self, watermark: int, /) -> None:
        """Send a watermark to every channel, unless the stream is idle.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is not an int64. Nothing changes then.
        """
        self.current_watermark = watermark = int64("watermark", watermark)
        if self.status is WatermarkStatus.ACTIVE:
            for output in self._outputs:
                output.emit_watermark(watermark)

    def mark_idle(self) -> None:
        """Mark every channel idle, unless the stream already is."""
        if self.status is WatermarkStatus.ACTIVE:
            self.status = WatermarkStatus.IDLE
            for output in self._outputs:
                output.mark_idle()

    def mark_active(self) -> None:
        """Mark every channel active, unless the stream already is."""
        if self.status is WatermarkStatus.IDLE:
            self.status = WatermarkStatus.ACTIVE
            for output in self._outputs:
                output.mark_active()

    def collect(self, value: Any, timestamp: int | None, /) -> None:
        """Send a row to every channel."""
        for output in self._outputs:
            output.collect(value, timestamp)
