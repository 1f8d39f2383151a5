"""Where watermarks go: what every maker of watermarks writes to, and the way to all channels downstream."""

from __future__ import annotations

import enum
from typing import Any, Protocol

__all__ = ["Output", "WatermarkOutput", "WatermarkStatus"]


class WatermarkStatus(enum.Enum):
    """Whether a channel's watermarks count: Flink's class of that name."""

    IDLE = enum.auto()
    ACTIVE = enum.auto()


class WatermarkOutput(Protocol):
    """Takes watermarks and the stream's status; Flink's class of that name.

    Generators write to one, and so do a valve and an operator: they can be put in a row.
    """

    def emit_watermark(self, watermark: int, /) -> None:
        """Take a watermark, epoch milliseconds."""

    def mark_idle(self) -> None:
        """Take that the stream is idle: whoever is downstream should not wait for it."""

    def mark_active(self) -> None:
        """Take that the stream is active again."""


class Output(WatermarkOutput, Protocol):
    """Takes rows, too: where an operator writes; Flink's class of that name."""

    def collect(self, value: Any, timestamp: int | None, /) -> None:
        """Take a row and its event time, epoch milliseconds; None where it has none."""
