"""Functions with broadcast state: a few rows, such as rules, that the rows of all keys are processed with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from timerheap.functions import Function, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.state import MapState, MapStateDescriptor, StateDescriptor
from timerheap.types import _Subscripted


class ReadOnlyBroadcastState(_Subscripted):
    """A dict that is the same for all keys (``pyflink.datastream.state.ReadOnlyBroadcastState``).

    Parameters
    ----------
    state : MapState
        What it reads.
    """

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None if it has no entry."""
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        """Return whether `key` has an entry."""
        return self._state.contains(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over a copy of the entries."""
        return self._state.items()

    def keys(self) -> Iterator[Any]:
        """Iterate over a copy of the keys."""
        return self._state.keys()

    def values(self) -> Iterator[Any]:
        """Iterate over a copy of the values."""
        return self._state.values()

    def is_empty(self) -> bool:
        """Return whether there are no entries."""
        return self._state.is_empty()

    __getitem__ = get
    __contains__ = contains
    __iter__ = keys


class BroadcastState(ReadOnlyBroadcastState):
    """A broadcast state that can be changed (``pyflink.datastream.state.BroadcastState``)."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self._state.put(key, value)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set all entries; if one does not fit the type, set none."""
        self._state.put_all(dict_value)

    def remove(self, key: Any) -> None:
        """Remove `key` if it has an entry."""
        self._state.remove(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._state.clear()

    __setitem__ = put
    __delitem__ = remove


class KeyedBroadcastProcessFunction(Function, ABC):
    """Processes rows by key, with a state that the rows of another input set for all keys.

    PyFlink: ``pyflink.datastream.KeyedBroadcastProcessFunction``. Each key group has its own copy of the
    broadcast state, so `process_broadcast_element` is called for each row once in every key group, and must
    do the same in all of them.

    Examples
    --------
    >>> from timerheap import MapStateDescriptor, Types
    >>> LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.DOUBLE())
    >>> class TooWarm(KeyedBroadcastProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         limit = ctx.get_broadcast_state(LIMITS).get(value.room)
    ...         if limit is not None and value.degrees > limit:
    ...             yield ctx.get_current_key(), value.degrees
    ...     def process_broadcast_element(self, value, ctx):
    ...         ctx.get_broadcast_state(LIMITS).put(value.room, value.limit)
    """

    class Context(_Subscripted, ABC):
        """Context of `process_broadcast_element`, which has no key; valid only during the call."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
            """Return a broadcast state of this key group."""

        @abstractmethod
        def apply_to_keyed_state(
            self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], object]
        ) -> None:
            """Call ``function(key, state)`` for each key of this key group that has the state.

            The function may be an object with a method ``process``, as in Flink's Java API.
            """

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return None: the rows have no event time."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

        @abstractmethod
        def output(self, tag: OutputTag, value: Any) -> None:
            """Send a value to a side output, like ``yield tag, value``."""

    class ReadOnlyContext(KeyedProcessFunction.Context, ABC):
        """Context of `process_element`; valid only during the call."""

        __slots__ = ()

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
            """Return a broadcast state, which cannot be changed here."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark, epoch ms."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time, epoch ms."""

    class OnTimerContext(ReadOnlyContext, KeyedProcessFunction.OnTimerContext, ABC):
        """Context of `on_timer`; valid only during the call."""

        __slots__ = ()

    @abstractmethod
    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any] | None:
        """Process one row of the keyed input and yield output rows."""

    @abstractmethod
    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any] | None:
        """Process one row of the broadcast input; what it yields comes out once for each key group."""

    def on_timer(
        self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext
    ) -> Iterable[Any] | None:
        """Handle a timer that fires; `timestamp` is the time it was registered for, in epoch ms."""
        return None
