"""The contents of the current key's windows: an accumulator for each window, or its elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from timerheap.functions import AggregateFunction, RuntimeContext
from timerheap.state import MapStateDescriptor
from timerheap.types import Types, composite
from timerheap.windows.evictors import Evictor, TimestampedValue
from timerheap.windows.window import WINDOW_TYPE, Window
from timerheap.windows.window_functions import ReduceFunction

_ELEMENT = Types.ROW_NAMED(["start", "end", "index"], [Types.LONG(), Types.LONG(), Types.LONG()])


class WindowContents(ABC):
    """The contents of the windows of the current key (Flink's ``windowState``)."""

    @abstractmethod
    def add(self, window: Window, value: Any, timestamp: int | None) -> None:
        """Add an element."""

    @abstractmethod
    def firing(
        self, window: Window, kept: Window, context: Evictor.EvictorContext
    ) -> AbstractContextManager[Any]:
        """Return a context manager for a call of the window function, whose value is the input, or None.

        kept: the window under which the contents of `window` are kept
        """

    @abstractmethod
    def clear(self, window: Window) -> None:
        """Delete the contents of a window."""

    @abstractmethod
    def merge(self, window: Window, sources: Iterable[Window]) -> None:
        """Move the contents of `sources` to `window`, after its own contents."""


class AccumulatorContents(WindowContents):
    """One accumulator for each window; that of a ReduceFunction has the type of an element."""

    def __init__(
        self, runtime_context: RuntimeContext, type_info: object, function: AggregateFunction | ReduceFunction
    ) -> None:
        descriptor = MapStateDescriptor("window.accumulators", WINDOW_TYPE, type_info)
        self._state = runtime_context.get_map_state(descriptor)
        self._function = as_aggregate(function)

    def add(self, window: Window, value: Any, timestamp: int | None) -> None:
        kept = self._state.get(window)
        if kept is None:
            kept = self._function.create_accumulator()
        self._state.put(window, self._function.add(value, kept))

    @contextmanager
    def firing(self, window: Window, kept: Window, context: Evictor.EvictorContext) -> Iterator[Any]:
        accumulator = self._state.get(kept)
        yield None if accumulator is None else self._function.get_result(accumulator)

    def clear(self, window: Window) -> None:
        self._state.remove(window)

    def merge(self, window: Window, sources: Iterable[Window]) -> None:
        merged = None
        for source in sources:
            kept = self._state.get(source)
            if kept is not None:
                merged = kept if merged is None else self._function.merge(merged, kept)
                self._state.remove(source)
        if merged is not None:
            kept = self._state.get(window)
            self._state.put(window, merged if kept is None else self._function.merge(kept, merged))


def as_aggregate(function: AggregateFunction | ReduceFunction) -> AggregateFunction:
    """Return an AggregateFunction that is equivalent to the function."""
    return _Reduced(function) if isinstance(function, ReduceFunction) else function


class _Reduced(AggregateFunction):
    def __init__(self, function: ReduceFunction) -> None:
        self._reduce = function.reduce

    def create_accumulator(self) -> None:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value if accumulator is None else self._reduce(accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return self._reduce(acc_a, acc_b)


class ElementContents(WindowContents):
    """All elements of each window, in order of arrival.

    Each element has its own entry in the state, so adding one is O(1). Reading a window is O(its elements).
    """

    def __init__(self, runtime_context: RuntimeContext, type_info: object) -> None:
        elements = MapStateDescriptor("window.elements", _ELEMENT, type_info)
        sizes = MapStateDescriptor("window.elements.sizes", WINDOW_TYPE, Types.LONG())
        self._elements = runtime_context.get_map_state(elements)
        self._sizes = runtime_context.get_map_state(sizes)

    def add(self, window: Window, value: Any, timestamp: int | None) -> None:
        self._append(window, value)

    @contextmanager
    def firing(self, window: Window, kept: Window, context: Evictor.EvictorContext) -> Iterator[Any]:
        yield self._held(kept) or None

    def clear(self, window: Window) -> None:
        for index in range(self._sizes.get(window) or 0):
            self._elements.remove((*window, index))
        self._sizes.remove(window)

    def merge(self, window: Window, sources: Iterable[Window]) -> None:
        for source in sources:
            elements = self._held(source)
            self.clear(source)
            for element in elements:
                self._append(window, element)

    def _append(self, window: Window, element: Any) -> None:
        size = self._sizes.get(window) or 0
        self._elements.put((*window, size), element)
        self._sizes.put(window, size + 1)

    def _held(self, window: Window) -> list[Any]:
        size = self._sizes.get(window) or 0
        return [self._elements.get((*window, index)) for index in range(size)]


class EvictableElements(ElementContents):
    """All elements of each window, with their timestamps; they are aggregated when the window fires.

    Flink: ``EvictingWindowOperator``. A firing is O(elements), because it writes the remaining ones again.
    """

    def __init__(
        self, runtime_context: RuntimeContext, type_info: object, evictor: Evictor, function: object
    ) -> None:
        timestamped = composite(
            [type_info, Types.LONG()],
            lambda *types: Types.ROW_NAMED(["value", "timestamp"], types),
            lambda pa, value, timestamp: pa.struct([("value", value), ("timestamp", timestamp)]),
            "element_type",
        )
        super().__init__(runtime_context, timestamped)
        self._evictor = evictor
        self._aggregate = (
            as_aggregate(function) if isinstance(function, (AggregateFunction, ReduceFunction)) else None
        )

    def add(self, window: Window, value: Any, timestamp: int | None) -> None:
        self._append(window, (value, timestamp))

    @contextmanager
    def firing(self, window: Window, kept: Window, context: Evictor.EvictorContext) -> Iterator[Any]:
        held = self._held(kept)
        if not held:
            yield None
            return
        elements = [TimestampedValue(*element) for element in held]
        self._evictor.evict_before(elements, len(elements), window, context)
        yield self._contents(elements)
        self._evictor.evict_after(elements, len(elements), window, context)
        self.clear(kept)
        for element in elements:
            self._append(kept, tuple(element))

    def _contents(self, elements: list[TimestampedValue]) -> Any:
        if self._aggregate is None:
            return [element.value for element in elements]
        accumulator = self._aggregate.create_accumulator()
        for element in elements:
            accumulator = self._aggregate.add(element.value, accumulator)
        return self._aggregate.get_result(accumulator)
