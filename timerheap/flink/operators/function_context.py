"""The context that a process function is handed, without Spark and on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timerheap._arguments import int64
from timerheap.functions import KeyedCoProcessFunction, TimerService
from timerheap.output_tag import OutputTag
from timerheap.time import TimeDomain

__all__ = ["FunctionContext"]


class FunctionContext(KeyedCoProcessFunction.OnTimerContext):
    """One object for all calls, as in PyFlink; whoever calls the function sets its attributes first.

    Attributes
    ----------
    key : object
    at : int or None
        The timestamp of the element or timer.
    output_timestamp : int or None
        The timestamp of the records that are emitted next.
    domain : TimeDomain
    timers : TimerService
    send : callable
        Receives the values of side outputs.
    """

    timers: TimerService
    send: Callable[[OutputTag, Any], None]

    def __init__(self) -> None:
        self.key: Any = None
        self.at: int | None = None
        self.output_timestamp: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def get_current_key(self) -> Any:
        """See `timerheap.KeyedProcessFunction.Context`."""
        return self.key

    def timestamp(self) -> int:
        """See `timerheap.KeyedProcessFunction.Context`."""
        return self.at  # type: ignore[return-value]  # None without a timestamp, as in PyFlink

    def timer_service(self) -> TimerService:
        """See `timerheap.KeyedProcessFunction.Context`."""
        return self.timers

    def time_domain(self) -> TimeDomain:
        """See `timerheap.KeyedProcessFunction.OnTimerContext`."""
        return self.domain

    def set_output_timestamp(self, timestamp: int | None) -> None:
        """See `timerheap.KeyedProcessFunction.Context`."""
        self.output_timestamp = None if timestamp is None else int64("timestamp", timestamp)

    def output(self, tag: OutputTag, value: Any) -> None:
        """See `timerheap.KeyedProcessFunction.Context`."""
        self.send(tag, value)
