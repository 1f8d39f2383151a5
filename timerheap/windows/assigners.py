"""Flink's window assigners, which assign elements to windows of time, count or session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Self

from timerheap._arguments import Length, milliseconds, positive, positive_int
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import RuntimeContext
from timerheap.state import ValueStateDescriptor
from timerheap.timer import MIN_WATERMARK
from timerheap.types import Types, _Subscripted
from timerheap.windows.triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from timerheap.windows.window import CountWindow, GlobalWindow, TimeWindow, Window, merge_time_windows


class WindowAssigner(_Subscripted, ABC):
    """Assigns an element to windows (``pyflink.datastream.window.WindowAssigner``).

    A subclass implements these three methods and keeps no state in ``self``.

    Examples
    --------
    Windows of one minute for odd elements, and of one hour for even ones:

    >>> class ByParity(WindowAssigner):
    ...     def assign_windows(self, element, timestamp, context):
    ...         size = 60_000 if element % 2 else 3_600_000
    ...         start = TimeWindow.get_window_start_with_offset(timestamp, 0, size)
    ...         return [TimeWindow(start, start + size)]
    ...     def get_default_trigger(self, env=None):
    ...         return EventTimeTrigger()
    ...     def is_event_time(self):
    ...         return True
    >>> ByParity().assign_windows(7, 61_000, None)
    [TimeWindow(start=60000, end=120000)]
    """

    class WindowAssignerContext(_Subscripted, ABC):
        """Context of `assign_windows`."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Return the runtime context of the function."""

    @abstractmethod
    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[Window]:
        """Return the windows of an element: `TimeWindow` or `CountWindow` objects, or the `GlobalWindow`.

        Parameters
        ----------
        element : object
        timestamp : int
            The event time of the element, epoch ms; None for an element without event time.
        context : WindowAssignerContext
        """

    @abstractmethod
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return the default trigger; `env` is a parameter of PyFlink's method and is always None."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return True if windows end in event time, and False if they end in processing time."""


class MergingWindowAssigner(WindowAssigner, ABC):
    """An assigner whose windows can merge (``pyflink.datastream.window.MergingWindowAssigner``)."""

    class MergeCallback(_Subscripted, ABC):
        """Receives the merges of `merge_windows`."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
            """Merge the windows `to_be_merged` into `merge_result`; the state of the first one stays."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: MergingWindowAssigner.MergeCallback) -> None:
        """Call ``callback.merge(to_be_merged, merge_result)`` for each set of windows to merge."""


class SessionWindowTimeGapExtractor(_Subscripted, ABC):
    """Extracts session gaps from elements (``pyflink.datastream.window.SessionWindowTimeGapExtractor``)."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap after `element`, in ms, more than 0."""


class _OfTime(WindowAssigner):
    """Assigns an element to windows of its time."""

    @abstractmethod
    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int:
        """Return the time of an element."""


class _EventTime(_OfTime):
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return an `EventTimeTrigger`."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True

    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int:
        if timestamp is None or timestamp == MIN_WATERMARK:
            raise ArgumentValueError(
                f"{self!r}: the element must have a timestamp, got {timestamp!r}; name the column of the "
                "event time, or pass the timestamp with the element"
            )
        return timestamp


class _ProcessingTime(_OfTime):
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return a `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False

    def _time(self, timestamp: int | None, context: WindowAssigner.WindowAssignerContext) -> int:
        return context.get_current_processing_time()


class _Grid(_OfTime):
    """Windows of one size that start at regular intervals."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self._size = size
        self._slide = slide
        self._offset = offset

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Return the windows that contain the time of the element, the latest first; O(size / slide)."""
        time = self._time(timestamp, context)
        last = TimeWindow.get_window_start_with_offset(time, self._offset, self._slide)
        return [TimeWindow(s, s + self._size) for s in range(last, time - self._size, -self._slide)]


class _Tumbling(_Grid):
    def __init__(self, size: Length, offset: Length = 0) -> None:
        size = positive("size", size)
        super().__init__(size, size, _checked_offset(offset, "size", size))

    @classmethod
    def of(cls, size: Length, offset: Length = 0) -> Self:
        """Return a new assigner."""
        return cls(size, offset)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


class _Sliding(_Grid):
    def __init__(self, size: Length, slide: Length, offset: Length = 0) -> None:
        slide = positive("slide", slide)
        super().__init__(positive("size", size), slide, _checked_offset(offset, "slide", slide))

    @classmethod
    def of(cls, size: Length, slide: Length, offset: Length = 0) -> Self:
        """Return a new assigner."""
        return cls(size, slide, offset)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._slide}, {self._offset})"


class TumblingEventTimeWindows(_EventTime, _Tumbling):
    """Consecutive windows of event time.

    Parameters
    ----------
    size, offset : int, timedelta or str
        In ms. Windows start at `offset` modulo `size`, counted from 1970 UTC. For example, windows of one day
        with an offset of -8 hours start at midnight in Shanghai.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `size` is not more than 0, or ``abs(offset)`` is not less than `size`.

    Examples
    --------
    >>> TumblingEventTimeWindows.of(60_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=60000, end=120000)]
    """


class TumblingProcessingTimeWindows(_ProcessingTime, _Tumbling):
    """Consecutive windows of processing time; see `TumblingEventTimeWindows` for the parameters."""


class SlidingEventTimeWindows(_EventTime, _Sliding):
    """Windows of event time that start every `slide`, and overlap if `size` is more than `slide`.

    Parameters
    ----------
    size, slide, offset : int, timedelta or str
        In ms. Windows start at `offset` modulo `slide`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `size` or `slide` is not more than 0, or ``abs(offset)`` is not less than `slide`.

    Examples
    --------
    >>> SlidingEventTimeWindows.of(60_000, 30_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=60000, end=120000), TimeWindow(start=30000, end=90000)]
    """


class SlidingProcessingTimeWindows(_ProcessingTime, _Sliding):
    """Windows of processing time that start every `slide`; see `SlidingEventTimeWindows`."""


class _Sessions(MergingWindowAssigner, _OfTime):
    """Sessions with a fixed gap, or with a gap for each element."""

    def __init__(self, gap: Length | SessionWindowTimeGapExtractor) -> None:
        self._gap = gap if isinstance(gap, SessionWindowTimeGapExtractor) else positive("gap", gap)

    @classmethod
    def with_gap(cls, size: Length) -> Self:
        """Return a new assigner with a fixed gap, in ms."""
        return cls(positive("size", size))

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Return a session with only this element, which starts at its time; O(1)."""
        start = self._time(timestamp, context)
        gap = self._gap if isinstance(self._gap, int) else positive("gap", self._gap.extract(element))
        return [TimeWindow(start, start + gap)]

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback
    ) -> None:
        """Merge the windows that overlap or touch; O(n log n)."""
        for merged, cover in merge_time_windows(windows):
            callback.merge(merged, cover)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._gap})"


class EventTimeSessionWindows(_EventTime, _Sessions):
    """Sessions in event time: elements of a key with at most `gap` between them.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the gap is not more than 0 ms.

    Examples
    --------
    >>> EventTimeSessionWindows.with_gap(30_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=61000, end=91000)]
    """

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows:
        """Return a new assigner that extracts the gap of each element."""
        return DynamicEventTimeSessionWindows(_extractor(extractor))


class DynamicEventTimeSessionWindows(EventTimeSessionWindows):
    """The type of assigner that `EventTimeSessionWindows.with_dynamic_gap` returns."""


class ProcessingTimeSessionWindows(_ProcessingTime, _Sessions):
    """Sessions in processing time; see `EventTimeSessionWindows`."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Return a new assigner that extracts the gap of each element."""
        return DynamicProcessingTimeSessionWindows(_extractor(extractor))


class DynamicProcessingTimeSessionWindows(ProcessingTimeSessionWindows):
    """The type of assigner that `ProcessingTimeSessionWindows.with_dynamic_gap` returns."""


class GlobalWindows(WindowAssigner):
    """All elements of a key in one window.

    Parameters
    ----------
    default_trigger : Trigger, optional
        The default trigger never fires. For results, use `CountTrigger`, or `EndOfStreamTrigger` for one
        result at the end of the input.
    """

    def __init__(self, default_trigger: Trigger | None = None) -> None:
        self._default_trigger = NeverTrigger() if default_trigger is None else default_trigger

    @staticmethod
    def create() -> GlobalWindows:
        """Return an assigner whose default trigger never fires."""
        return GlobalWindows()

    @staticmethod
    def create_with_end_of_stream_trigger() -> GlobalWindows:
        """Return an assigner whose default trigger fires at the end of the input, ``MAX_WATERMARK``."""
        return GlobalWindows(EndOfStreamTrigger())

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: object = None) -> Trigger:
        return self._default_trigger

    def is_event_time(self) -> bool:
        return False  # as in Flink

    def __repr__(self) -> str:
        return "GlobalWindows()"


def _checked_offset(offset: Length, bound: str, ms: int) -> int:
    shift = milliseconds("offset", offset)
    if abs(shift) >= ms:
        raise ArgumentValueError(
            f"offset must satisfy abs(offset) < {bound}, which is {ms} ms, got {offset!r}"
        )
    return shift


def _extractor(extractor: object) -> SessionWindowTimeGapExtractor:
    if not isinstance(extractor, SessionWindowTimeGapExtractor):
        raise ArgumentTypeError(
            f"extractor must be a SessionWindowTimeGapExtractor, got {extractor!r}; "
            "derive from it a class with extract(element) -> ms and pass an instance"
        )
    return extractor


class CountWindowAssigner(WindowAssigner):
    """Assigns windows by the position of an element among those of its key, which is counted in state."""

    def __init__(self, name: str, window_size: int, window_slide: int) -> None:
        self._size = positive_int("window_size", window_size)
        self._slide = positive_int("window_slide", window_slide)
        self._seen = ValueStateDescriptor(name, Types.LONG())

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[CountWindow]:
        """Return the windows of the key's next element, the latest first; O(size / slide)."""
        state = context.get_runtime_context().get_state(self._seen)
        number = state.value() or 0
        state.update(number + 1)
        latest, earliest = number // self._slide, (number - self._size) // self._slide + 1
        return [CountWindow(id) for id in range(latest, max(earliest, 0) - 1, -1)]

    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return a trigger that fires a full window and purges it."""
        return PurgingTrigger.of(CountTrigger.of(self._size))

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountWindowAssigner):
    """Consecutive windows of `window_size` elements of a key.

    Parameters
    ----------
    window_size : int
        Number of elements, 1 or more.

    Notes
    -----
    PyFlink: ``pyflink.datastream.window.CountTumblingWindowAssigner``. PyFlink's windows keep their elements
    after they have fired, although nothing uses them any more; here they are deleted.
    """

    def __init__(self, window_size: int) -> None:
        super().__init__("tumble-count-assigner", window_size, window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        """Return a new assigner."""
        return CountTumblingWindowAssigner(window_size)

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._size})"


class CountSlidingWindowAssigner(CountWindowAssigner):
    """Windows of `window_size` elements of a key, which start every `window_slide` elements.

    A window fires when it is full. In Flink's Java API, ``countWindow(size, slide)`` fires every `slide`
    elements with the last `size` elements, or fewer at first. For that behaviour, use `GlobalWindows` with
    ``CountTrigger.of(slide)`` and ``CountEvictor.of(size)``.

    Parameters
    ----------
    window_size, window_slide : int
        Numbers of elements, 1 or more.

    Notes
    -----
    PyFlink: ``pyflink.datastream.window.CountSlidingWindowAssigner``; see `CountTumblingWindowAssigner`.
    """

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__("slide-count-assigner", window_size, window_slide)

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        """Return a new assigner."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._size}, {self._slide})"


def count_window(size: int, slide: int = 0) -> CountTumblingWindowAssigner | CountSlidingWindowAssigner:
    """Return an assigner of tumbling count windows or, with a slide, of sliding ones.

    Parameters
    ----------
    size : int
        Number of elements, 1 or more.
    slide : int, default 0
        Number of elements between the starts of two windows; 0 for tumbling windows.

    Notes
    -----
    PyFlink: ``KeyedStream.count_window``.

    Examples
    --------
    >>> count_window(4), count_window(4, 2)
    (CountTumblingWindowAssigner(4), CountSlidingWindowAssigner(4, 2))
    """
    if isinstance(slide, int) and slide == 0:
        return CountTumblingWindowAssigner(size)
    return CountSlidingWindowAssigner(size, slide)
