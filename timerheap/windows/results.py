"""What a call of the window operator gives: results of windows, and their timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timerheap.functions import KeyedProcessFunction

__all__ = ["Results"]


class Results(list[Any]):
    """Results in the order in which they came out; while one is handed over, its timestamp is the output's.

    Parameters
    ----------
    ctx : KeyedProcessFunction.Context
        Of the call.
    timestamp : int or None
        Of what the function yields by itself, behind the results.

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
        """Add results that have this timestamp."""
        self.extend(results)
        self._timestamps += [timestamp] * (len(self) - len(self._timestamps))

    def __iter__(self) -> Iterator[Any]:
        for result, timestamp in zip(super().__iter__(), self._timestamps, strict=True):
            self._ctx.set_output_timestamp(timestamp)
            yield result
        self._ctx.set_output_timestamp(self._timestamp)
