"""The results of a call of the window operator, with their timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timerheap.functions import KeyedProcessFunction

__all__ = ["Results"]


class Results(list[Any]):
    """A list of results whose iterator sets the output timestamp to the timestamp of each result.

    Parameters
    ----------
    ctx : KeyedProcessFunction.Context
        The context of the call.
    timestamp : int or None
        The output timestamp after the last result, for the records that the function itself yields.

    Notes
    -----
    Flink: the ``TimestampedCollector`` of ``WindowOperator``.
    """

    def __init__(self, ctx: KeyedProcessFunction.Context, timestamp: int | None) -> None:
        super().__init__()
        self._ctx = ctx
        self._timestamp = timestamp
        self._timestamps: list[int | None] = []

    def collect(self, results: Iterable[Any], timestamp: int | None) -> None:
        """Add results with the same timestamp."""
        self.extend(results)
        self._timestamps += [timestamp] * (len(self) - len(self._timestamps))

    def __iter__(self) -> Iterator[Any]:
        for result, timestamp in zip(super().__iter__(), self._timestamps, strict=True):
            self._ctx.set_output_timestamp(timestamp)
            yield result
        self._ctx.set_output_timestamp(self._timestamp)
