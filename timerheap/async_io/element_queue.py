"""The queues of an asynchronous operator: elements with pending results, in order or as they complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from timerheap._elements import StreamRecord, Watermark

OUT = TypeVar("OUT")
QueueElement = StreamRecord[Any] | Watermark


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; raise a TypeError if they are not a collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(f"results must be a list, got {results!r}; return [] where there are no results")
    return list(results)


class PendingElement(Generic[OUT]):
    """An element in a queue, and what is emitted in its place once it has results (Flink's ``ResultFuture``).

    on_complete: called when the results come
    """

    __slots__ = ("_element", "_on_complete", "released")

    def __init__(
        self, element: QueueElement, on_complete: Callable[[PendingElement[OUT]], None] | None = None
    ) -> None:
        self._element = element
        self._on_complete = on_complete
        # A watermark needs no results; None until there are some.
        self.released: list[QueueElement] | None = [element] if isinstance(element, Watermark) else None

    def complete(self, results: Iterable[OUT]) -> None:
        """Set the element's results, which are emitted with its timestamp."""
        timestamp = self._element.timestamp
        self.released = [StreamRecord(result, timestamp) for result in listed(results)]
        if self._on_complete is not None:
            self._on_complete(self)


class ElementQueue(ABC, Generic[OUT]):
    """At most `capacity` records with pending results and watermarks (Flink's ``StreamElementQueue``)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0

    def try_put(self, element: QueueElement) -> PendingElement[OUT] | None:
        """Add an element, and return the entry that receives its results; None if the queue is full. O(1)."""
        if self._size >= self._capacity:
            return None
        self._size += 1
        return self._add(element)

    def emit_completed_element(self) -> list[QueueElement]:
        """Remove the next completed element and return its results; [] if there is none. O(results)."""
        if not self.has_completed_elements():
            return []
        self._size -= 1
        return self._take().released or []

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Return whether an element can be emitted. O(1)."""

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def _add(self, element: QueueElement) -> PendingElement[OUT]: ...

    @abstractmethod
    def _take(self) -> PendingElement[OUT]: ...


class OrderedQueue(ElementQueue[OUT]):
    """Emits elements in arrival order."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[PendingElement[OUT]] = deque()

    def has_completed_elements(self) -> bool:
        return bool(self._entries) and self._entries[0].released is not None

    def _add(self, element: QueueElement) -> PendingElement[OUT]:
        entry: PendingElement[OUT] = PendingElement(element)
        self._entries.append(entry)
        return entry

    def _take(self) -> PendingElement[OUT]:
        return self._entries.popleft()


class _Segment(Generic[OUT]):
    """The records between two watermarks, or one watermark."""

    __slots__ = ("completed", "incomplete")

    def __init__(self) -> None:
        self.incomplete: set[PendingElement[OUT]] = set()
        self.completed: deque[PendingElement[OUT]] = deque()

    def complete(self, entry: PendingElement[OUT]) -> None:
        self.incomplete.remove(entry)
        self.completed.append(entry)

    def is_empty(self) -> bool:
        return not (self.incomplete or self.completed)


class UnorderedQueue(ElementQueue[OUT]):
    """Emits records as they complete, between watermarks."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Only the last segment may be empty; the next record is added to it.
        self._segments: deque[_Segment[OUT]] = deque([_Segment()])

    def has_completed_elements(self) -> bool:
        return bool(self._segments[0].completed)

    def _add(self, element: QueueElement) -> PendingElement[OUT]:
        if isinstance(element, Watermark):
            return self._add_watermark(element)
        segment = self._segments[-1]
        entry = PendingElement(element, segment.complete)
        segment.incomplete.add(entry)
        return entry

    def _add_watermark(self, watermark: Watermark) -> PendingElement[OUT]:
        if not self._segments[-1].is_empty():
            self._segments.append(_Segment())
        entry: PendingElement[OUT] = PendingElement(watermark)
        self._segments[-1].completed.append(entry)
        self._segments.append(_Segment())
        return entry

    def _take(self) -> PendingElement[OUT]:
        segment = self._segments[0]
        entry = segment.completed.popleft()
        if len(self._segments) > 1 and segment.is_empty():
            self._segments.popleft()
        return entry
