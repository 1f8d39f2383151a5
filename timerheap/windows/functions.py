"""What a window's elements become: aggregates, and functions over whole windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from timerheap.functions import AggregateFunction, Function, RuntimeContext
from timerheap.windows.states import WindowStateStore

__all__ = ["AggregateFunction", "ProcessWindowFunction", "ReduceFunction", "WindowFunction"]


class ReduceFunction(ABC):
    """Makes one element of two; only that one is kept (``pyflink.datastream.ReduceFunction``)."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Give one value of the elements' type for both."""


class WindowFunction(Function, ABC):
    """Takes a window's elements at once (``pyflink.datastream.WindowFunction``)."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Take all elements in the order in which they came; yield results."""


class ProcessWindowFunction(Function, ABC):
    """Takes a window's elements at once, and a context (``pyflink.datastream.ProcessWindowFunction``).

    Examples
    --------
    >>> class Longest(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, context.window().start, max(elements, key=lambda row: row["seconds"])
    """

    class Context(ABC):
        """What `process` is handed; valid only during the call."""

        @abstractmethod
        def window(self) -> Any:
            """Give the window: a `TimeWindow`, a `CountWindow` or the `GlobalWindow`."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Give the processing time, epoch ms."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Give the watermark, epoch ms."""

        @abstractmethod
        def window_state(self) -> WindowStateStore:
            """Give where to ask for state of this key and window; `clear` must clear it.

            Windows that merge have none: asking for a state is a ValueError.
            """

        @abstractmethod
        def global_state(self) -> RuntimeContext:
            """Give where to ask for state of this key, over all windows."""

    @abstractmethod
    def process(
        self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[Any] | None:
        """Take all elements in the order in which they came; yield results."""

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear what `process` has in ``context.window_state()``: the window ends here."""
