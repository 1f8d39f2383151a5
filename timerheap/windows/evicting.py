"""The contents of windows with an evictor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timerheap.functions import RuntimeContext
from timerheap.types import TypeInformation, Types, arrow_type
from timerheap.windows.contents import ElementContents, as_aggregate
from timerheap.windows.contexts import EvictorContext
from timerheap.windows.evictors import Evictor, TimestampedValue
from timerheap.windows.window import Window
from timerheap.windows.window_functions import AggregateFunction, ReduceFunction

__all__ = ["EvictableElements"]


class EvictableElements(ElementContents):
    """All elements of each window, with their timestamps; they are aggregated when the window fires.

    Parameters
    ----------
    runtime_context : RuntimeContext
    name : str
        The name of the state.
    type_info
        The type of an element.
    evictor : Evictor
    evictor_context : EvictorContext
    function : AggregateFunction, ReduceFunction or other
        Any other function receives the elements.

    Notes
    -----
    Flink: ``EvictingWindowOperator``. A firing is O(elements), because it writes the remaining ones again.
    """

    def __init__(
        self,
        runtime_context: RuntimeContext,
        name: str,
        type_info: object,
        evictor: Evictor,
        evictor_context: EvictorContext,
        function: object,
    ) -> None:
        super().__init__(runtime_context, name, _with_timestamp(type_info))
        self._evictor = evictor
        self._context = evictor_context
        self._aggregate = (
            as_aggregate(function) if isinstance(function, (AggregateFunction, ReduceFunction)) else None
        )

    def add(self, window: Window, value: Any, timestamp: int | None) -> None:
        """See `WindowContents.add`."""
        self._append(window, (value, timestamp))

    @contextmanager
    def firing(self, window: Window, kept: Window) -> Iterator[Any]:
        """See `WindowContents.firing`."""
        held = self._held(kept)
        if not held:
            yield None
            return
        elements = [TimestampedValue(*element) for element in held]
        self._evictor.evict_before(elements, len(elements), window, self._context)
        yield self._contents(elements)
        self._evictor.evict_after(elements, len(elements), window, self._context)
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


def _with_timestamp(type_info: object) -> object:
    if isinstance(type_info, str):
        type_info = TypeInformation(type_info)
    if isinstance(type_info, TypeInformation):
        return Types.ROW_NAMED(["value", "timestamp"], [type_info, Types.LONG()])
    import pyarrow as pa

    return pa.struct([("value", arrow_type(type_info, "element_type")), ("timestamp", pa.int64())])
