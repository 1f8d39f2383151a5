"""Where watermarks go: what every maker of watermarks here writes to."""

from __future__ import annotations

import enum
from typing import Protocol

__all__ = ["WatermarkOutput", "WatermarkStatus"]


class WatermarkStatus(enum.Enum):
    """Whether a channel's watermarks count: Flink's class of that name."""

    IDLE = enum.auto()
    ACTIVE = enum.auto()


class WatermarkOutput(Protocol):
    """Takes watermarks and the stream's status; Flink's class of that name.

    Generators write to one, and so do a valve and an operator: they can be put in a row.
    """

    def emit_watermark(self, watermark: int, /) -> None:
        """Take a watermark, epoch milliseconds; it also says that the stream is active."""

    def mark_idle(self) -> None:
        """Take that the stream is idle: whoever is downstream should not wait for it."""

    def mark_active(self) -> None:
        """Take that the stream is active again."""
