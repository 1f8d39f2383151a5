"""What an operator sends downstream."""

from __future__ import annotations

from typing import Any, NamedTuple

from timerheap.watermarks.output import WatermarkStatus

__all__ = ["StreamElement", "StreamRecord", "Watermark"]


class StreamRecord(NamedTuple):
    """What a function has yielded (Flink's ``StreamRecord``).

    Attributes
    ----------
    value : object
    timestamp : int or None
        Epoch milliseconds: the element's own or the event-time timer's; None where there was none, and of
        processing-time timers.
    """

    value: Any
    timestamp: int | None = None


class Watermark(NamedTuple):
    """No more records with this timestamp or a lower one will come (Flink's ``Watermark``).

    Attributes
    ----------
    timestamp : int
        Epoch milliseconds.
    """

    timestamp: int


StreamElement = StreamRecord | Watermark | WatermarkStatus
