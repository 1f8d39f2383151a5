"""Queues of elements with pending results, emitted in arrival order or as they complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from timerheap._arguments import positive_int
from timerheap.flink.elements import StreamRecord, Watermark

__all__ = [
    "OrderedStreamElementQueue",
    "QueueElement",
    "ResultFuture",
    "StreamElementQueue",
    "StreamRecord",
    "UnorderedStreamElementQueue",
    "Watermark",
    "listed",
]

OUT = TypeVar("OUT")

QueueElement = StreamRecord[Any] | Watermark
"""An element of a queue."""


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; raise a TypeError if they are not a collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(f"results must be a list, got {results!r}; return [] where there are no results")
    return list(results)


class ResultFuture(Generic[OUT]):
    """An element in a queue and its pending results; `StreamElementQueue.try_put` creates it.

    Attributes
    ----------
    element : StreamRecord or Watermark
        The element.
    """

    __slots__ = ("_on_complete", "_released", "element")

    def __init__(self, element: QueueElement, on_complete: Callable[[ResultFuture[OUT]], None]) -> None:
        self.element = element
        self._on_complete = on_complete
        # The elements to emit; a watermark needs no results.
        self._released: list[QueueElement] | None = [element] if isinstance(element, Watermark) else None

    def is_done(self) -> bool:
        """Return whether the element can be emitted. O(1)."""
        return self._released is not None

    def complete(self, results: Iterable[OUT]) -> None:
        """Set the element's results, once.

        Parameters
        ----------
        results : iterable
            0 or more results; each is emitted with the element's timestamp.

        Raises
        ------
        TypeError
            If `results` is not a collection, such as None or a single string. The element remains pending.
        RuntimeError
            If the element already has results, or is a watermark.
        """
        if self._released is not None:
            raise RuntimeError(f"results of {self.element!r} must be set once; it is already complete")
        timestamp = self.element.timestamp
        self._released = [StreamRecord(result, timestamp) for result in listed(results)]
        self._on_complete(self)

    def release(self) -> list[QueueElement]:
        """Return the elements to emit; `is_done` must be true."""
        assert self._released is not None
        return self._released


class StreamElementQueue(ABC, Generic[OUT]):
    """A queue of records with pending results and of watermarks; Flink's interface of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

    Raises
    ------
    TypeError, ValueError
        If `capacity` is not an int, or is less than 1.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = positive_int("capacity", capacity)
        self._size = 0

    def try_put(self, element: QueueElement) -> ResultFuture[OUT] | None:
        """Add an element if there is capacity. O(1).

        Parameters
        ----------
        element : StreamRecord or Watermark
            A record, whose results are pending, or a watermark, which is complete.

        Returns
        -------
        ResultFuture or None
            The entry that receives the results; None if the queue is full.

        Raises
        ------
        TypeError
            If `element` is neither; the queue is then unchanged.
        """
        if not isinstance(element, (StreamRecord, Watermark)):
            raise TypeError(f"element must be a StreamRecord or a Watermark, got {element!r}")
        if self._size >= self._capacity:
            return None
        entry = self._add(element)
        self._size += 1
        return entry

    def emit_completed_element(self) -> list[QueueElement]:
        """Remove the next completed element and return its results. O(results).

        Returns
        -------
        list of StreamRecord, or of one Watermark
            Empty if the element has no results, or if no element can be emitted (`has_completed_elements`).
        """
        if not self.has_completed_elements():
            return []
        self._size -= 1
        return self._take().release()

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Return whether an element can be emitted. O(1)."""

    @abstractmethod
    def values(self) -> list[QueueElement]:
        """Return the elements in the queue, complete or not, for a snapshot. O(n)."""

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def _add(self, element: QueueElement) -> ResultFuture[OUT]: ...

    @abstractmethod
    def _take(self) -> ResultFuture[OUT]: ...


class OrderedStreamElementQueue(StreamElementQueue[OUT]):
    """A queue that emits elements in arrival order; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

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
        """Return whether the first element is complete. O(1)."""
        return bool(self._entries) and self._entries[0].is_done()

    def values(self) -> list[QueueElement]:
        """Return the elements in the queue, in order, for a snapshot. O(n)."""
        return [entry.element for entry in self._entries]

    def _add(self, element: QueueElement) -> ResultFuture[OUT]:
        entry: ResultFuture[OUT] = ResultFuture(element, _ignore)
        self._entries.append(entry)
        return entry

    def _take(self) -> ResultFuture[OUT]:
        return self._entries.popleft()


def _ignore(entry: ResultFuture[Any]) -> None:
    """Do nothing: an ordered queue does not move elements when they complete."""


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
    """A queue that emits records as they complete, between watermarks; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

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
        # Only the last segment may be empty; the next record is added to it.
        self._segments: deque[_Segment[OUT]] = deque([_Segment()])

    def has_completed_elements(self) -> bool:
        """Return whether an element before the first watermark, or that watermark, is complete. O(1)."""
        return bool(self._segments[0].completed)

    def values(self) -> list[QueueElement]:
        """Return the elements in the queue; those between two watermarks are in any order. O(n)."""
        entries = (entry for segment in self._segments for entry in (*segment.completed, *segment.incomplete))
        return [entry.element for entry in entries]

    def _add(self, element: QueueElement) -> ResultFuture[OUT]:
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
