"""The queues of an asynchronous operator: elements with pending results, in order or as they complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from timerheap._elements import StreamRecord, Watermark

OUT = TypeVar("OUT")
QueueElement = StreamRecord[Any] | Watermark


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; raise a TypeError if they are not a collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(f"results must be a list, got {results!r}; return [] where there are no results")
    return list(results)


class PendingElement(Generic[OUT]):
    """An element in a queue, and what is emitted in its place: its results (Flink's ``ResultFuture``)."""

    __slots__ = ("_element", "_on_complete", "released")

    def __init__(self, element: QueueElement, on_complete: Callable[[PendingElement[OUT]], None]) -> None:
        self._element = element
        self._on_complete = on_complete
        # A watermark needs no results; None until there are some.
        self.released: list[QueueElement] | None = [element] if isinstance(element, Watermark) else None

    def complete(self, results: Iterable[OUT]) -> None:
        """Set the element's results, which are emitted with its timestamp."""
        timestamp = self._element.timestamp
        self.released = [StreamRecord(result, timestamp) for result in listed(results)]
        self._on_complete(self)


class _Segment(Generic[OUT]):
    """Records that may overtake each other; or one element alone, which ends what is before it."""

    __slots__ = ("completed", "is_closed", "size")

    def __init__(self, is_closed: bool) -> None:
        self.is_closed = is_closed
        self.size = 0  # with those that have been completed
        self.completed: deque[PendingElement[OUT]] = deque()


class ElementQueue(Generic[OUT]):
    """At most `capacity` records with pending results and watermarks (Flink's ``StreamElementQueue``)."""

    _is_ordered: ClassVar[bool]

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._segments: deque[_Segment[OUT]] = deque()  # none of them is empty

    def try_put(self, element: QueueElement) -> PendingElement[OUT] | None:
        """Add an element, and return the entry that receives its results; None if the queue is full. O(1)."""
        if self._size >= self._capacity:
            return None
        alone = self._is_ordered or isinstance(element, Watermark)
        if alone or not self._segments or self._segments[-1].is_closed:
            self._segments.append(_Segment(alone))
        segment = self._segments[-1]
        segment.size += 1
        self._size += 1
        entry = PendingElement(element, segment.completed.append)
        if entry.released is not None:
            segment.completed.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        """Return whether an element can be emitted. O(1)."""
        return bool(self._segments) and bool(self._segments[0].completed)

    def emit_completed_element(self) -> list[QueueElement]:
        """Remove the next completed element and return its results; [] if there is none. O(results)."""
        if not self.has_completed_elements():
            return []
        segment = self._segments[0]
        segment.size -= 1
        self._size -= 1
        if not segment.size:
            self._segments.popleft()
        return segment.completed.popleft().released or []

    def __len__(self) -> int:
        return self._size


class OrderedQueue(ElementQueue[OUT]):
    """Emits elements in arrival order."""

    _is_ordered = True


class UnorderedQueue(ElementQueue[OUT]):
    """Emits records as they complete, between watermarks."""

    _is_ordered = False
