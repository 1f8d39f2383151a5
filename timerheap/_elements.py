"""The elements of a stream outside Spark, which operators receive and emit."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


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
