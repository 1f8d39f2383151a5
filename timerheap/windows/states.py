"""State of one key and one window, stored in map states whose keys are windows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from timerheap._contents import WHOLE, WholeValues
from timerheap._states import AggregatingHandle, H, ListHandle, MapHandle, ReducingHandle, ValueHandle
from timerheap.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from timerheap.functions import RuntimeContext
from timerheap.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.types import Types, composite, list_of
from timerheap.windows.window import WINDOW_TYPE, Window


class _OfWindow(NamedTuple):
    """The contents of one window."""

    table: WholeValues
    window: Window

    def key(self) -> Window:
        return self.window


class _NestedCodec:
    """Leaves values as they are, because the map state around them checks and copies them."""

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, kept: Any) -> Any:
        return kept


class WindowStates:
    """The states of a trigger or a window function: map states, from windows to values, lists or maps."""

    def __init__(self, runtime_context: RuntimeContext, prefix: str, element_type: object = None) -> None:
        self._runtime_context = runtime_context
        self._prefix = prefix
        self._element_type = element_type  # of a state whose descriptor has no type

    def of(self, descriptor: object, window: Window) -> Any:
        """Return the state of one window. Each call reads or writes the whole of a list or map."""
        if isinstance(descriptor, ReducingStateDescriptor):
            reducing = self._handle(ReducingHandle, descriptor, descriptor.type_info, window)
            reducing.function = descriptor.reduce_function
            return reducing
        if isinstance(descriptor, AggregatingStateDescriptor):
            aggregating = self._handle(AggregatingHandle, descriptor, descriptor.type_info, window)
            aggregating.function = descriptor.agg_function
            return aggregating
        if isinstance(descriptor, ValueStateDescriptor):
            return self._handle(ValueHandle, descriptor, descriptor.type_info, window)
        if isinstance(descriptor, ListStateDescriptor):
            return self._handle(ListHandle, descriptor, list_of(descriptor.type_info), window)
        if isinstance(descriptor, MapStateDescriptor):
            map_type = composite(
                descriptor.key_and_value, Types.MAP, lambda pa, key, value: pa.map_(key, value)
            )
            return self._handle(MapHandle, descriptor, map_type, window)
        raise ArgumentTypeError(
            "state_descriptor must be the descriptor of a value, list, map, reducing or aggregating state, "
            f"got {descriptor!r}"
        )

    def merge(self, descriptor: object, window: Window, merged: Iterable[Window]) -> None:
        """Move the state of the `merged` windows to `window`."""
        if not isinstance(
            descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor, ListStateDescriptor)
        ):
            raise ArgumentTypeError(
                "state_descriptor must be the descriptor of a reducing, an aggregating or a list state, "
                f"which can be merged, got {descriptor!r}"
            )
        target = self.of(descriptor, window)
        for old in merged:
            target.absorb(self.of(descriptor, old))

    def _handle(self, class_: type[H], descriptor: StateDescriptor, type_info: object, window: Window) -> H:
        name = f"{self._prefix}.{descriptor.name}"
        if descriptor.ttl_config is not None:
            raise UnsupportedError(
                f"the state {descriptor.name!r} of a window must have no time to live, since it ends with "
                "the window; use global_state()"
            )
        type_info = self._element_type if type_info is None else type_info
        if type_info is None:
            raise ArgumentTypeError(
                f"type_info of the state {descriptor.name!r} must be the type of an element if the window "
                "does not keep its elements, got None"
            )
        entries = self._runtime_context.get_map_state(MapStateDescriptor(name, WINDOW_TYPE, type_info))
        contents = _OfWindow(WHOLE[class_.shape](entries), window)
        return class_(contents, name, [_NestedCodec() for _ in class_.parts])


class WindowStateStore:
    """Gives a `ProcessWindowFunction` access to the states of the current key and window."""

    def __init__(self, states: WindowStates | None, window: Window) -> None:
        self._states = states  # None for merging windows, which have no state of their own
        self._window = window

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return a value state."""
        return cast(ValueState, self._state(state_descriptor, ValueStateDescriptor))

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return a list state; each call reads or writes the whole list."""
        return cast(ListState, self._state(state_descriptor, ListStateDescriptor))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """Return a map state; each call reads or writes the whole map."""
        return cast(MapState, self._state(state_descriptor, MapStateDescriptor))

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return a reducing state."""
        return cast(ReducingState, self._state(state_descriptor, ReducingStateDescriptor))

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Return an aggregating state."""
        return cast(AggregatingState, self._state(state_descriptor, AggregatingStateDescriptor))

    def _state(self, descriptor: object, class_: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, class_):
            raise ArgumentTypeError(
                f"state_descriptor must be of the class {class_.__name__}, got {descriptor!r}"
            )
        if self._states is None:
            raise ArgumentValueError(
                "per-window state is not supported with merging windows; use global_state()"
            )
        return self._states.of(descriptor, self._window)
