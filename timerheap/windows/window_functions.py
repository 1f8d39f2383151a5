"""Window functions and their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from types import FunctionType
from typing import Any

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import Function, KeyedProcessFunction, RuntimeContext
from timerheap.output_tag import OutputTag
from timerheap.types import _Subscripted
from timerheap.windows.states import WindowStateStore


class ReduceFunction(_Subscripted, ABC):
    """Combines two elements into one; only the result is kept (``pyflink.datastream.ReduceFunction``)."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Return one value, of the type of the elements, for both."""


class _Reducing(ReduceFunction):
    """Calls a plain function."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def reduce(self, value1: Any, value2: Any) -> Any:
        return self._function(value1, value2)


def as_window_function(function: Any) -> Any:
    """Return a `ReduceFunction` for a plain function, as PyFlink does; anything else unchanged."""
    return _Reducing(function) if isinstance(function, FunctionType) else function


class WindowFunction(Function, ABC):
    """Processes all elements of a window (``pyflink.datastream.WindowFunction``)."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Process all elements, in order of arrival, and yield results."""


class ProcessWindowFunction(Function, ABC):
    """Processes all elements of a window, with a context (``pyflink.datastream.ProcessWindowFunction``).

    Examples
    --------
    >>> class Longest(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, context.window().start, max(elements, key=lambda row: row["seconds"])
    """

    class Context(_Subscripted, ABC):
        """Context of `process`; valid only during the call."""

        @abstractmethod
        def window(self) -> Any:
            """Return the window: a `TimeWindow`, a `CountWindow` or the `GlobalWindow`."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

        @abstractmethod
        def window_state(self) -> WindowStateStore:
            """Return the store of the states of this key and window; `clear` must clear them.

            Merging windows have no state of their own: getting one raises ArgumentValueError.
            """

        @abstractmethod
        def global_state(self) -> RuntimeContext:
            """Return the store of the states of this key, which all its windows share."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Send a value to a side output, like ``yield tag, value``."""

    @abstractmethod
    def process(
        self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]
    ) -> Iterable[Any] | None:
        """Process all elements, in order of arrival, and yield results."""

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear the states in ``context.window_state()``; called when the window ends."""


class Results(list[Any]):
    """A list of results whose iterator sets the output timestamp to the timestamp of each result.

    After the last result it sets `timestamp`, for the records that the function itself yields. Flink: the
    ``TimestampedCollector`` of ``WindowOperator``.
    """

    def __init__(self, ctx: KeyedProcessFunction.Context, timestamp: int | None) -> None:
        super().__init__()
        self._ctx = ctx
        self._timestamp = timestamp
        self._timestamps: list[int | None] = []

    def collect(self, results: Iterable[Any], timestamp: int | None) -> None:
        self.extend(results)
        self._timestamps += [timestamp] * (len(self) - len(self._timestamps))

    def __iter__(self) -> Iterator[Any]:
        for result, timestamp in zip(super().__iter__(), self._timestamps, strict=True):
            self._ctx.set_output_timestamp(timestamp)
            yield result
        self._ctx.set_output_timestamp(self._timestamp)


class DeltaFunction(ABC):
    """Measures the distance between two elements (Flink's ``DeltaFunction``)."""

    @abstractmethod
    def get_delta(self, old_data_point: Any, new_data_point: Any) -> float:
        """Return the distance from the older element to the newer one."""


Delta = DeltaFunction | Callable[[Any, Any], float]


def checked_delta(threshold: float, delta_function: Delta) -> tuple[float, Delta]:
    """Check the arguments of a trigger or an evictor that compares distances with a threshold."""
    if not isinstance(threshold, Real) or isinstance(threshold, bool):
        raise ArgumentTypeError(f"threshold must be a number, got {threshold!r}")
    if threshold != threshold:
        raise ArgumentValueError("threshold must be a number other than nan, got nan")
    is_class = isinstance(delta_function, type)
    if is_class or not (isinstance(delta_function, DeltaFunction) or callable(delta_function)):
        raise ArgumentTypeError(
            "delta_function must be a DeltaFunction or a callable (old_data_point, new_data_point) -> delta, "
            f"got {delta_function!r}{'; pass an instance of it' if is_class else ''}"
        )
    return threshold, delta_function


def distance(function: Delta, old: Any, new: Any) -> float:
    """Return the distance between two elements."""
    return function.get_delta(old, new) if isinstance(function, DeltaFunction) else function(old, new)
