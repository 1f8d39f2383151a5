"""What operators send each other: rows, watermarks and statuses; and the protocols of what receives them."""

from __future__ import annotations

import enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class WatermarkStatus(enum.Enum):
    """The status of a channel: the watermark does not wait for an idle one (Flink's ``WatermarkStatus``)."""

    IDLE = enum.auto()
    ACTIVE = enum.auto()


class WatermarkOutput(Protocol):
    """Receives watermarks and the status of a stream (Flink's ``WatermarkOutput``).

    Generators, valves and operators all write to an output.
    """

    def emit_watermark(self, watermark: int, /) -> None:
        """Emit a watermark, epoch milliseconds."""

    def mark_idle(self) -> None:
        """Mark the stream idle, so that downstream operators do not wait for it."""

    def mark_active(self) -> None:
        """Mark the stream active again."""


class Output(WatermarkOutput, Protocol):
    """Receives the rows of an operator as well as its watermarks and status (Flink's ``Output``)."""

    def collect(self, value: Any, timestamp: int | None, /) -> None:
        """Emit a row and its event time, epoch milliseconds, or None for a row without event time."""


class StreamRecord(NamedTuple, Generic[T]):
    """A value of a stream with its timestamp (Flink's ``StreamRecord``).

    Attributes
    ----------
    value : object
    timestamp : int or None
        Epoch milliseconds; None without event time.
    """

    value: T
    timestamp: int | None = None


class Watermark(NamedTuple):
    """A watermark: no record with this timestamp or a lower one follows it (Flink's ``Watermark``).

    Attributes
    ----------
    timestamp : int
        Epoch milliseconds.
    """

    timestamp: int
