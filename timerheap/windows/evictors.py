"""Flink's evictors, which remove elements from a window when it fires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from timerheap._arguments import Length, not_negative, positive_int
from timerheap.types import _Subscripted
from timerheap.windows.window_functions import Delta, checked_delta, distance


class TimestampedValue(NamedTuple):
    """An element of a window, with its event time (Flink's ``TimestampedValue``).

    Attributes
    ----------
    value : object
    timestamp : int or None
        Epoch milliseconds; None for an element without event time.
    """

    value: Any
    timestamp: int | None = None


class Evictor(_Subscripted, ABC):
    """Removes elements from a window when it fires, before or after the window function.

    Flink: ``Evictor``.

    With an evictor, a window keeps all its elements, even for an AggregateFunction or a ReduceFunction, which
    then aggregates the elements that remain. A subclass implements the two methods and keeps no state in
    ``self``.

    Examples
    --------
    Pass only the elements above 0 to the window function:

    >>> class Positive(Evictor):
    ...     def evict_before(self, elements, size, window, evictor_context):
    ...         elements[:] = [element for element in elements if element.value > 0]
    ...     def evict_after(self, elements, size, window, evictor_context):
    ...         pass
    """

    class EvictorContext(_Subscripted, ABC):
        """Context of `evict_before` and `evict_after`."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def get_current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

    @abstractmethod
    def evict_before(
        self,
        elements: list[TimestampedValue],
        size: int,
        window: Any,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove from the list `elements` those that the window function must not process.

        Parameters
        ----------
        elements : list of TimestampedValue
            In order of arrival.
        size : int
            The number of elements.
        window : TimeWindow, CountWindow or GlobalWindow
        evictor_context : EvictorContext
        """

    @abstractmethod
    def evict_after(
        self,
        elements: list[TimestampedValue],
        size: int,
        window: Any,
        evictor_context: Evictor.EvictorContext,
    ) -> None:
        """Remove from the list `elements` those that the window must not keep after this firing."""


EvictorContext = Evictor.EvictorContext


class OneSidedEvictor(Evictor):
    """Evicts elements either before the window function or after it."""

    def __init__(self, do_evict_after: bool) -> None:
        self.do_evict_after = do_evict_after

    @abstractmethod
    def evict(self, elements: list[TimestampedValue]) -> None:
        """Remove elements from the list."""

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Any, evictor_context: EvictorContext
    ) -> None:
        if not self.do_evict_after:
            self.evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Any, evictor_context: EvictorContext
    ) -> None:
        if self.do_evict_after:
            self.evict(elements)


class CountEvictor(OneSidedEvictor):
    """Keeps the last `max_count` elements.

    Parameters
    ----------
    max_count : int
        Number of elements, 1 or more.
    do_evict_after : bool, default False
        Evict after the window function instead of before it.

    Examples
    --------
    Fire every two elements with the last four, as Flink's ``countWindow(4, 2)`` does; these are arguments of
    ``WindowOperator`` and ``timerheap.spark.window_operator``:

    >>> from timerheap.windows import CountTrigger, GlobalWindows
    >>> sliding = dict(
    ...     assigner=GlobalWindows.create(), trigger=CountTrigger.of(2), evictor=CountEvictor.of(4)
    ... )
    """

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.max_count = positive_int("max_count", max_count)

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Return a new evictor."""
        return CountEvictor(max_count, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        del elements[: max(len(elements) - self.max_count, 0)]

    def __repr__(self) -> str:
        return f"CountEvictor({self.max_count})"


class TimeEvictor(OneSidedEvictor):
    """Keeps the elements that are less than `window_size` older than the latest element, in event time.

    Elements without event time are kept.

    Parameters
    ----------
    window_size : int, timedelta or str
        In ms. An element that is older than the latest one by this much or more is removed.
    do_evict_after : bool, default False
        Evict after the window function instead of before it.
    """

    def __init__(self, window_size: Length, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.window_size = not_negative("window_size", window_size)

    @staticmethod
    def of(window_size: Length, do_evict_after: bool = False) -> TimeEvictor:
        """Return a new evictor."""
        return TimeEvictor(window_size, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        timestamps = [element.timestamp for element in elements if element.timestamp is not None]
        if timestamps:
            cutoff = max(timestamps) - self.window_size
            elements[:] = [e for e in elements if e.timestamp is None or e.timestamp > cutoff]

    def __repr__(self) -> str:
        return f"TimeEvictor({self.window_size})"


class DeltaEvictor(OneSidedEvictor):
    """Evicts elements whose distance to the last one is at least a threshold.

    Parameters
    ----------
    threshold : float
    delta_function : DeltaFunction or callable
        ``(old_data_point, new_data_point) -> delta``; the new one is the last element.
    do_evict_after : bool, default False
        Evict after the window function instead of before it.
    """

    def __init__(self, threshold: float, delta_function: Delta, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.threshold, self.delta_function = checked_delta(threshold, delta_function)

    @staticmethod
    def of(threshold: float, delta_function: Delta, do_evict_after: bool = False) -> DeltaEvictor:
        """Return a new evictor."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [
                e for e in elements if not distance(self.delta_function, e.value, last) >= self.threshold
            ]

    def __repr__(self) -> str:
        return f"DeltaEvictor({self.threshold}, {self.delta_function!r})"
