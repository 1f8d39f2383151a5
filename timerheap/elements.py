"""What streams are made of outside Spark: what an operator takes in and sends downstream."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

__all__ = ["StreamRecord", "Watermark"]

T = TypeVar("T")


class StreamRecord(NamedTuple, Generic[T]):
    """A value of a stream, and its time (Flink's ``StreamRecord``).

    Attributes
    ----------
    value : object
    timestamp : int or None
        Epoch milliseconds; None where it has no event time.
    """

    value: T
    timestamp: int | None = None


class Watermark(NamedTuple):
    """No record with this timestamp or a lower one will come after it (Flink's ``Watermark``).

    Attributes
    ----------
    timestamp : int
        Epoch milliseconds.
    """

    timestamp: int
