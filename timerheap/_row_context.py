"""The context that a function on rows is handed; shared by Spark and Flink's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from timerheap._arguments import int64
from timerheap._native._core import RowContext
from timerheap.errors import FunctionError
from timerheap.functions import KeyedCoProcessFunction, RuntimeContext
from timerheap.output_tag import OutputTag


def endless(function: object, key: object, timestamp: int, name: str | None, ended: bool) -> NoReturn:
    """Raise the error for timers that register the next without end; `ended`: after the end of the input."""
    while hasattr(function, "function"):  # of two inputs, or with broadcast state
        function = function.function
    named = "" if name is None else f" with the name {name!r}"
    raise FunctionError(
        f"{type(function).__name__} must not register timers without end, got the timer{named} at "
        f"{timestamp} of key {key!r}, which has registered the next "
        + (
            "long after the last row; a timer that repeats must ask ctx.input_has_ended() first"
            if ended
            else "again and again at the same time; register timers after the one that fires"
        )
    )


def _of_open(name: str) -> property:
    """Return an attribute that says where the method of this name has to be called."""

    def get(self: object) -> NoReturn:
        raise AttributeError(
            f"{name} must be called in open(self, runtime_context), got a call of the context that other "
            "methods receive; keep the handle, as in self.seen = runtime_context.get_state(...)"
        )

    return property(get)


class WithoutStates:
    """The context of a call, which says where states are if it is asked for one."""

    # Not by ``__getattr__``: a class that has it looks up its methods several times slower.
    __slots__ = ()


for _name in ("get_runtime_context", *RuntimeContext.__abstractmethods__):
    setattr(WithoutStates, _name, _of_open(_name))


class RowFunctionContext(WithoutStates, RowContext, KeyedCoProcessFunction.OnTimerContext):
    """One object for all calls, as in PyFlink; the loop sets it for each row and timer.

    send: receives the values of side outputs
    function: the one that is called
    """

    __slots__ = ("function", "send")

    send: Callable[[OutputTag, Any], None]
    function: object

    def endless(self, ended: bool) -> NoReturn:
        """Raise the error for the timer that has fired last."""
        endless(self.function, self.get_current_key(), self.timestamp(), self.timer_name(), ended)

    def output(self, tag: OutputTag, value: Any) -> None:
        self.send(tag, value)

    def set_output_timestamp(self, timestamp: int | None) -> None:
        if timestamp is not None:
            int64("timestamp", timestamp)
