"""Which windows an element belongs to: Flink's window assigners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

from timerheap.duration import not_negative
from timerheap.functions import RuntimeContext
from timerheap.timer import MIN_WATERMARK
from timerheap.windows.merging import merge_time_windows
from timerheap.windows.triggers import (
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)
from timerheap.windows.window import GlobalWindow, TimeWindow, Window

__all__ = [
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]


class WindowAssigner(ABC):
    """Assigns an element to windows (``pyflink.datastream.window.WindowAssigner``).

    One of your own has these three methods; it keeps no state in ``self``.

    Examples
    --------
    Windows of a minute for the odd, of an hour for the even:

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

    class WindowAssignerContext(ABC):
        """What `assign_windows` is handed."""

        @abstractmethod
        def get_current_processing_time(self) -> int:
            """Give the processing time, epoch ms."""

        @abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """Give the function's runtime context."""

    @abstractmethod
    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[Window]:
        """Give the windows of an element: any number of `TimeWindow` or `CountWindow`, or the `GlobalWindow`.

        Parameters
        ----------
        element : object
        timestamp : int
            Its event time, epoch ms; None where elements have none.
        context : WindowAssignerContext
        """

    @abstractmethod
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Give the trigger where none is asked for; `env` is PyFlink's parameter, always None."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Tell whether windows end in event time; else in processing time."""


class MergingWindowAssigner(WindowAssigner, ABC):
    """An assigner whose windows may become one (``pyflink.datastream.window.MergingWindowAssigner``)."""

    class MergeCallback(ABC):
        """Is told by `merge_windows` what becomes one."""

        @abstractmethod
        def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
            """Say that the windows `to_be_merged` become `merge_result`; the first one's state is kept."""

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: MergingWindowAssigner.MergeCallback) -> None:
        """Call ``callback.merge(to_be_merged, merge_result)`` for each set of windows that become one."""


class SessionWindowTimeGapExtractor(ABC):
    """Gives each element's session gap (``pyflink.datastream.window.SessionWindowTimeGapExtractor``)."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Give the gap after `element`, in ms, more than 0."""


class _Grid(WindowAssigner):
    """Windows of one size whose starts lie on a grid."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self._size = size
        self._slide = slide
        self._offset = offset

    def _windows(self, timestamp: int) -> list[TimeWindow]:
        last = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._slide)
        return [TimeWindow(s, s + self._size) for s in range(last, timestamp - self._size, -self._slide)]


class _EventTime(WindowAssigner):
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Give an `EventTimeTrigger`."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """Say yes."""
        return True


class _ProcessingTime(WindowAssigner):
    def get_default_trigger(self, env: object = None) -> Trigger:
        """Give a `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """Say no."""
        return False


class _Tumbling(_Grid):
    def __init__(self, size: int | timedelta, offset: int | timedelta = 0) -> None:
        size = _positive("size", size)
        super().__init__(size, size, _offset(offset, "size", size))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._offset})"


class _Sliding(_Grid):
    def __init__(self, size: int | timedelta, slide: int | timedelta, offset: int | timedelta = 0) -> None:
        slide = _positive("slide", slide)
        super().__init__(_positive("size", size), slide, _offset(offset, "slide", slide))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, {self._slide}, {self._offset})"


class TumblingEventTimeWindows(_EventTime, _Tumbling):
    """Windows of event time, one behind the other.

    Parameters
    ----------
    size, offset : int or timedelta
        In ms. Windows start at `offset` modulo `size`, counted from 1970 UTC; days that start at midnight in
        Shanghai have the offset -8 h.

    Raises
    ------
    TypeError, ValueError
        `size` must be more than 0, and ``abs(offset)`` less than `size`.

    Examples
    --------
    >>> TumblingEventTimeWindows.of(60_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=60000, end=120000)]
    """

    @staticmethod
    def of(size: int | timedelta, offset: int | timedelta = 0) -> TumblingEventTimeWindows:
        """Make one."""
        return TumblingEventTimeWindows(size, offset)

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the one window; O(1)."""
        return self._windows(_timestamp(self, timestamp))


class TumblingProcessingTimeWindows(_ProcessingTime, _Tumbling):
    """Windows of processing time, one behind the other; parameters as `TumblingEventTimeWindows`."""

    @staticmethod
    def of(size: int | timedelta, offset: int | timedelta = 0) -> TumblingProcessingTimeWindows:
        """Make one."""
        return TumblingProcessingTimeWindows(size, offset)

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the window of the current time; O(1)."""
        return self._windows(context.get_current_processing_time())


class SlidingEventTimeWindows(_EventTime, _Sliding):
    """Windows of event time that start every `slide`, and so overlap where `size` is more than that.

    Parameters
    ----------
    size, slide, offset : int or timedelta
        In ms. Windows start at `offset` modulo `slide`.

    Raises
    ------
    TypeError, ValueError
        `size` and `slide` must be more than 0, and ``abs(offset)`` less than `slide`.

    Examples
    --------
    >>> SlidingEventTimeWindows.of(60_000, 30_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=60000, end=120000), TimeWindow(start=30000, end=90000)]
    """

    @staticmethod
    def of(
        size: int | timedelta, slide: int | timedelta, offset: int | timedelta = 0
    ) -> SlidingEventTimeWindows:
        """Make one."""
        return SlidingEventTimeWindows(size, slide, offset)

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the windows, the latest first; O(size / slide)."""
        return self._windows(_timestamp(self, timestamp))


class SlidingProcessingTimeWindows(_ProcessingTime, _Sliding):
    """Windows of processing time that start every `slide`; parameters as `SlidingEventTimeWindows`."""

    @staticmethod
    def of(
        size: int | timedelta, slide: int | timedelta, offset: int | timedelta = 0
    ) -> SlidingProcessingTimeWindows:
        """Make one."""
        return SlidingProcessingTimeWindows(size, slide, offset)

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the windows of the current time, the latest first; O(size / slide)."""
        return self._windows(context.get_current_processing_time())


class _Sessions(MergingWindowAssigner):
    """Sessions with a gap that is fixed, or each element's own."""

    def __init__(self, gap: int | timedelta | SessionWindowTimeGapExtractor) -> None:
        self._gap: int | SessionWindowTimeGapExtractor
        if isinstance(gap, SessionWindowTimeGapExtractor):
            self._gap = gap
        else:
            self._gap = _positive("gap", gap)

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback
    ) -> None:
        """Make one of all that overlap or touch; O(n log n)."""
        merge_time_windows(windows, callback)

    def _session(self, element: Any, timestamp: int) -> list[TimeWindow]:
        gap = self._gap if isinstance(self._gap, int) else _positive("gap", self._gap.extract(element))
        return [TimeWindow(timestamp, timestamp + gap)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._gap})"


class EventTimeSessionWindows(_EventTime, _Sessions):
    """Sessions in event time: elements of a key with less than the gap between them, or just that.

    Raises
    ------
    TypeError, ValueError
        The gap must be more than 0 ms.

    Examples
    --------
    >>> EventTimeSessionWindows.with_gap(30_000).assign_windows("a row", 61_000, None)
    [TimeWindow(start=61000, end=91000)]
    """

    @staticmethod
    def with_gap(size: int | timedelta) -> EventTimeSessionWindows:
        """Make one with a gap in ms."""
        return EventTimeSessionWindows(_positive("size", size))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows:
        """Make one whose gap is each element's own."""
        return DynamicEventTimeSessionWindows(_extractor(extractor))

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the session of the element alone; O(1)."""
        return self._session(element, _timestamp(self, timestamp))


class DynamicEventTimeSessionWindows(EventTimeSessionWindows):
    """What `EventTimeSessionWindows.with_dynamic_gap` gives."""


class ProcessingTimeSessionWindows(_ProcessingTime, _Sessions):
    """Sessions in processing time; otherwise as `EventTimeSessionWindows`."""

    @staticmethod
    def with_gap(size: int | timedelta) -> ProcessingTimeSessionWindows:
        """Make one with a gap in ms."""
        return ProcessingTimeSessionWindows(_positive("size", size))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows:
        """Make one whose gap is each element's own."""
        return DynamicProcessingTimeSessionWindows(_extractor(extractor))

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[TimeWindow]:
        """Give the session of the element alone, from the current time on; O(1)."""
        return self._session(element, context.get_current_processing_time())


class DynamicProcessingTimeSessionWindows(ProcessingTimeSessionWindows):
    """What `ProcessingTimeSessionWindows.with_dynamic_gap` gives."""


class GlobalWindows(WindowAssigner):
    """All elements of a key in one window.

    Parameters
    ----------
    default_trigger : Trigger, optional
        By default one that never fires; `CountTrigger` does, and `EndOfStreamTrigger` at the end of the
        input.
    """

    def __init__(self, default_trigger: Trigger | None = None) -> None:
        self._default_trigger = NeverTrigger() if default_trigger is None else default_trigger

    @staticmethod
    def create() -> GlobalWindows:
        """Make one whose default trigger never fires."""
        return GlobalWindows()

    @staticmethod
    def create_with_end_of_stream_trigger() -> GlobalWindows:
        """Make one whose default trigger fires at the end of the input, the watermark ``MAX_WATERMARK``."""
        return GlobalWindows(EndOfStreamTrigger())

    def assign_windows(
        self, element: Any, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> list[GlobalWindow]:
        """Give the one window."""
        return [GlobalWindow()]

    def get_default_trigger(self, env: object = None) -> Trigger:
        """Return the default trigger."""
        return self._default_trigger

    def is_event_time(self) -> bool:
        """Say no, as Flink does."""
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"


def _positive(argument: str, duration: int | timedelta) -> int:
    if _is_negative(duration) or not duration:
        raise ValueError(f"{argument}: {duration!r} must be more than 0 ms")
    return not_negative(argument, duration)


def _offset(offset: int | timedelta, bound: str, ms: int) -> int:
    size = not_negative("offset", -offset) if _is_negative(offset) else not_negative("offset", offset)
    if size >= ms:
        raise ValueError(f"offset: {offset!r} must satisfy abs(offset) < {bound}, which is {ms} ms")
    return -size if _is_negative(offset) else size


def _is_negative(duration: int | timedelta) -> bool:
    return (isinstance(duration, timedelta) or hasattr(duration, "__index__")) and duration != abs(duration)


def _extractor(extractor: object) -> SessionWindowTimeGapExtractor:
    if not isinstance(extractor, SessionWindowTimeGapExtractor):
        raise TypeError(
            f"extractor: {extractor!r} is no SessionWindowTimeGapExtractor; "
            "give an object of a class with extract(element) -> ms that derives from it"
        )
    return extractor


def _timestamp(assigner: object, timestamp: int | None) -> int:
    if timestamp is None or timestamp == MIN_WATERMARK:
        raise ValueError(
            f"{assigner!r}: the element has no timestamp; name the column or give its event time"
        )
    return timestamp
