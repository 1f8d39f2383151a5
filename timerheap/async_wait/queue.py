"""What waits for its asynchronous results: in the order of arrival, or as results come between watermarks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from timerheap.elements import StreamRecord, Watermark

__all__ = [
    "OrderedStreamElementQueue",
    "ResultFuture",
    "StreamElement",
    "StreamElementQueue",
    "StreamRecord",
    "UnorderedStreamElementQueue",
    "Watermark",
    "checked_capacity",
    "listed",
]

OUT = TypeVar("OUT")

StreamElement = StreamRecord[Any] | Watermark
"""What goes into a queue, and comes out of it."""


def checked_capacity(capacity: int) -> int:
    """Return `capacity` if it is 1 or more; a TypeError or ValueError names it."""
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        raise TypeError(f"capacity: {capacity!r} is no int; give how many elements may wait at once")
    if capacity < 1:
        raise ValueError(f"capacity: {capacity} leaves no room for an element; give 1 or more")
    return capacity


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; a TypeError says where they are no collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(f"results: {results!r} is no list of results; give [] where there are none")
    return list(results)


class ResultFuture(Generic[OUT]):
    """An element in a queue, and where its results go; made by `StreamElementQueue.try_put`.

    Attributes
    ----------
    element : StreamRecord or Watermark
        What was put.
    """

    __slots__ = ("_on_complete", "_released", "element")

    def __init__(self, element: StreamElement, on_complete: Callable[[ResultFuture[OUT]], None]) -> None:
        self.element = element
        self._on_complete = on_complete
        # What leaves the queue; a watermark needs no results.
        self._released: list[StreamElement] | None = [element] if isinstance(element, Watermark) else None

    def is_done(self) -> bool:
        """Tell whether the element may leave the queue. O(1)."""
        return self._released is not None

    def complete(self, results: Iterable[OUT]) -> None:
        """Take the element's results, once.

        Parameters
        ----------
        results : iterable
            0 or more results; each leaves the queue with the element's timestamp.

        Raises
        ------
        TypeError
            If `results` is no collection: None or a single text, say. A result is then still awaited.
        RuntimeError
            If the element has its results, or is a watermark.
        """
        if self._released is not None:
            raise RuntimeError(f"{self.element!r} is complete already: results are taken once")
        timestamp = self.element.timestamp
        self._released = [StreamRecord(result, timestamp) for result in listed(results)]
        self._on_complete(self)

    def release(self) -> list[StreamElement]:
        """Give what leaves the queue for this element; only where `is_done`."""
        assert self._released is not None
        return self._released


class StreamElementQueue(ABC, Generic[OUT]):
    """Records that wait for results, and the watermarks among them; Flink's interface of that name.

    Parameters
    ----------
    capacity : int
        How many elements, watermarks too, it holds at most; 1 or more.

    Raises
    ------
    TypeError, ValueError
        If `capacity` is no such number.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = checked_capacity(capacity)
        self._size = 0

    def try_put(self, element: StreamElement) -> ResultFuture[OUT] | None:
        """Put an element, if there is room. O(1).

        Parameters
        ----------
        element : StreamRecord or Watermark
            A record waits for its results; a watermark is complete at once.

        Returns
        -------
        ResultFuture or None
            Where the results go; None if the queue is full.

        Raises
        ------
        TypeError
            If `element` is neither; the queue stays as it was.
        """
        if not isinstance(element, (StreamRecord, Watermark)):
            raise TypeError(f"element: {element!r} is neither a StreamRecord nor a Watermark")
        if self._size >= self._capacity:
            return None
        entry = self._add(element)
        self._size += 1
        return entry

    def emit_completed_element(self) -> list[StreamElement]:
        """Release the next element that may leave: one of them, with all its results. O(results).

        Returns
        -------
        list of StreamRecord, or of one Watermark
            Empty where the element has no results, or where none may leave (`has_completed_elements`).
        """
        if not self.has_completed_elements():
            return []
        self._size -= 1
        return self._take().release()

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Tell whether an element may leave. O(1)."""

    @abstractmethod
    def values(self) -> list[StreamElement]:
        """Give the elements that are in the queue, with or without results: what a snapshot keeps. O(n)."""

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def _add(self, element: StreamElement) -> ResultFuture[OUT]: ...

    @abstractmethod
    def _take(self) -> ResultFuture[OUT]: ...


class OrderedStreamElementQueue(StreamElementQueue[OUT]):
    """Elements leave in the order in which they came; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        How many elements, watermarks too, it holds at most; 1 or more.

    Examples
    --------
    >>> queue = OrderedStreamElementQueue(capacity=2)
    >>> first, second = queue.try_put(StreamRecord("N1", 10)), queue.try_put(StreamRecord("N2", 20))
    >>> queue.try_put(Watermark(20)) is None  # full
    True
    >>> second.complete(["Boeing"])
    >>> queue.has_completed_elements()
    False
    >>> first.complete(["Airbus", "A320"])
    >>> queue.emit_completed_element()
    [StreamRecord(value='Airbus', timestamp=10), StreamRecord(value='A320', timestamp=10)]
    >>> queue.emit_completed_element()
    [StreamRecord(value='Boeing', timestamp=20)]
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[ResultFuture[OUT]] = deque()

    def has_completed_elements(self) -> bool:
        """Tell whether the first element is complete. O(1)."""
        return bool(self._entries) and self._entries[0].is_done()

    def values(self) -> list[StreamElement]:
        """Give the elements in the queue, in order: what a snapshot keeps. O(n)."""
        return [entry.element for entry in self._entries]

    def _add(self, element: StreamElement) -> ResultFuture[OUT]:
        entry: ResultFuture[OUT] = ResultFuture(element, _stay)
        self._entries.append(entry)
        return entry

    def _take(self) -> ResultFuture[OUT]:
        return self._entries.popleft()


def _stay(entry: ResultFuture[Any]) -> None:
    """Nothing moves in an ordered queue when an element completes."""


class _Segment(Generic[OUT]):
    """The records between two watermarks, or one watermark."""

    __slots__ = ("completed", "incomplete")

    def __init__(self) -> None:
        self.incomplete: dict[ResultFuture[OUT], None] = {}  # a set that keeps the order
        self.completed: deque[ResultFuture[OUT]] = deque()

    def complete(self, entry: ResultFuture[OUT]) -> None:
        del self.incomplete[entry]
        self.completed.append(entry)

    def is_empty(self) -> bool:
        return not (self.incomplete or self.completed)


class UnorderedStreamElementQueue(StreamElementQueue[OUT]):
    """Records leave as they complete, but none passes a watermark; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        How many elements, watermarks too, it holds at most; 1 or more.

    Examples
    --------
    >>> queue = UnorderedStreamElementQueue(capacity=10)
    >>> first, second = queue.try_put(StreamRecord("N1", 10)), queue.try_put(StreamRecord("N2", 20))
    >>> barrier, third = queue.try_put(Watermark(20)), queue.try_put(StreamRecord("N3", 30))
    >>> third.complete(["Cessna"])
    >>> second.complete(["Boeing"])
    >>> queue.emit_completed_element()  # overtakes N1; N3 has to wait for the watermark, which waits for N1
    [StreamRecord(value='Boeing', timestamp=20)]
    >>> queue.has_completed_elements()
    False
    >>> first.complete([])
    >>> while queue.has_completed_elements():
    ...     print(queue.emit_completed_element())
    []
    [Watermark(timestamp=20)]
    [StreamRecord(value='Cessna', timestamp=30)]
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Only the last may be empty: it is where the next record goes.
        self._segments: deque[_Segment[OUT]] = deque([_Segment()])

    def has_completed_elements(self) -> bool:
        """Tell whether an element before the first watermark, or else that watermark, is complete. O(1)."""
        return bool(self._segments[0].completed)

    def values(self) -> list[StreamElement]:
        """Give the elements in the queue, those between two watermarks in any order. O(n)."""
        entries = (entry for segment in self._segments for entry in (*segment.completed, *segment.incomplete))
        return [entry.element for entry in entries]

    def _add(self, element: StreamElement) -> ResultFuture[OUT]:
        if isinstance(element, Watermark):
            return self._add_watermark(element)
        segment = self._segments[-1]
        entry: ResultFuture[OUT] = ResultFuture(element, segment.complete)
        segment.incomplete[entry] = None
        return entry

    def _add_watermark(self, watermark: Watermark) -> ResultFuture[OUT]:
        if not self._segments[-1].is_empty():
            self._segments.append(_Segment())
        segment = self._segments[-1]
        entry: ResultFuture[OUT] = ResultFuture(watermark, segment.complete)
        segment.completed.append(entry)
        self._segments.append(_Segment())
        return entry

    def _take(self) -> ResultFuture[OUT]:
        segment = self._segments[0]
        entry = segment.completed.popleft()
        if len(self._segments) > 1 and segment.is_empty():
            self._segments.popleft()
        return entry
