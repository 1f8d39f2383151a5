"""Keyed state: the handles of a function, and the runtime context that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn, TypeVar

from timerheap._arguments import instance
from timerheap._contents import Codec, Contents, CurrentKey, KeyedContents, StateBackend, ValueTypes
from timerheap._expiry import EXPIRING, Expiring, ExpiringMap, ExpiryClock
from timerheap.errors import ArgumentValueError
from timerheap.functions import AggregateFunction, RuntimeContext
from timerheap.metrics import MetricGroup, Metrics
from timerheap.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.state_ttl import StateTtlConfig


class Handle(State):
    """What all handles have: contents, and the codecs of what is in them.

    codecs: one for each of `parts`
    """

    shape: ClassVar[str]
    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        self._contents = contents
        self._name = name
        *_, self._codec = codecs


class ValueHandle(Handle, ValueState):
    """A `ValueState` over `ValueContents`."""

    shape = kind = "value"
    parts = ("",)

    def value(self) -> Any:
        return self._codec.decode(self._contents.table.load(self._contents.key()))

    def update(self, value: Any) -> None:
        self._contents.table.store(self._contents.key(), self._codec.encode(value))

    def clear(self) -> None:
        self._contents.table.store(self._contents.key(), None)


class _AddingHandle(Handle):
    """One value for each key, to which values are added; a subclass sets what combines them."""

    shape = "value"
    parts = ("",)

    def clear(self) -> None:
        self._contents.table.store(self._contents.key(), None)

    def _load(self) -> Any:
        return self._codec.decode(self._contents.table.load(self._contents.key()))

    def _store(self, value: Any) -> None:
        if value is None:
            raise ArgumentValueError(
                f"state {self._name!r}: a value that is added or combined must not be None"
            )
        self._contents.table.store(self._contents.key(), self._codec.encode(value))


class ReducingHandle(_AddingHandle, ReducingState):
    """A `ReducingState` over `ValueContents`."""

    kind = "reducing"
    function: Callable[[Any, Any], Any]

    def get(self) -> Any:
        return self._load()

    def add(self, value: Any) -> None:
        kept = None if value is None else self._load()
        self._store(value if kept is None else self.function(kept, value))

    def absorb(self, other: ReducingHandle) -> None:
        """Move the value of another key to this one."""
        kept = other._load()
        if kept is not None:
            other.clear()
            self.add(kept)


class AggregatingHandle(_AddingHandle, AggregatingState):
    """An `AggregatingState` over `ValueContents`."""

    kind = "aggregating"
    function: AggregateFunction

    def get(self) -> Any:
        kept = self._load()
        return None if kept is None else self.function.get_result(kept)

    def add(self, value: Any) -> None:
        kept = self._load()
        self._store(self.function.add(value, self.function.create_accumulator() if kept is None else kept))

    def absorb(self, other: AggregatingHandle) -> None:
        """Move the accumulator of another key to this one."""
        kept = other._load()
        if kept is not None:
            other.clear()
            mine = self._load()
            self._store(kept if mine is None else self.function.merge(mine, kept))


class ListHandle(Handle, ListState):
    """A `ListState` over `ListContents`."""

    shape = kind = "list"
    parts = (", an element",)

    def get(self) -> Iterator[Any]:
        elements = self._contents.table.load(self._contents.key())
        # add() extends this list, update() and clear() replace it: the elements of now need no copy
        return map(self._codec.decode, islice(elements, len(elements)))

    def add(self, value: Any) -> None:
        encoded = self._codec.encode(value)
        if encoded is None:
            self._no_none()
        self._contents.table.append(self._contents.key(), [encoded])

    def add_all(self, values: Iterable[Any]) -> None:
        encoded = self._encode(values)
        if encoded:
            self._contents.table.append(self._contents.key(), encoded)

    def update(self, values: Iterable[Any]) -> None:
        self._contents.table.replace(self._contents.key(), self._encode(values))

    def clear(self) -> None:
        self._contents.table.replace(self._contents.key(), [])

    def absorb(self, other: ListState) -> None:
        """Move the elements of another key to this one."""
        elements = list(other.get())
        other.clear()
        self.add_all(elements)

    def _encode(self, values: Iterable[Any]) -> list[Any]:
        encoded = [self._codec.encode(value) for value in values]
        if any(value is None for value in encoded):
            self._no_none()
        return encoded

    def _no_none(self) -> NoReturn:
        raise ArgumentValueError(f"state {self._name!r}: an element of a list state must not be None")


class MapHandle(Handle, MapState):
    """A `MapState` over `MapContents`."""

    shape = kind = "map"
    parts = (", a key", ", a value")

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        super().__init__(contents, name, codecs)
        self._key_codec = codecs[0]

    def get(self, key: Any) -> Any:
        contents = self._contents
        return self._codec.decode(contents.table.find(contents.key(), self._encode_key(key))[1])

    def put(self, key: Any, value: Any) -> None:
        encoded = {self._encode_key(key): self._codec.encode(value)}
        self._contents.table.put(self._contents.key(), encoded)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        encoded = {self._encode_key(k): self._codec.encode(v) for k, v in dict_value.items()}
        if encoded:
            self._contents.table.put(self._contents.key(), encoded)

    def remove(self, key: Any) -> None:
        self._contents.table.remove(self._contents.key(), self._encode_key(key))

    def contains(self, key: Any) -> bool:
        found: bool = self._contents.table.find(self._contents.key(), self._encode_key(key))[0]
        return found

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((self._key_codec.decode(k), self._codec.decode(v)) for k, v in self._entries())

    def keys(self) -> Iterator[Any]:
        return (self._key_codec.decode(k) for k, _ in self._entries())

    def values(self) -> Iterator[Any]:
        return (self._codec.decode(v) for _, v in self._entries())

    def is_empty(self) -> bool:
        empty: bool = self._contents.table.is_empty(self._contents.key())
        return empty

    def clear(self) -> None:
        self._contents.table.remove_all(self._contents.key())

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        """Return the entries of now: changes during the iteration do not show, unless they have expired."""
        table, key = self._contents.table, self._contents.key()
        return table.visited(key) if isinstance(table, ExpiringMap) else iter(list(table.load(key).items()))

    def _encode_key(self, key: Any) -> Any:
        encoded = self._key_codec.encode(key)
        if encoded is None:
            raise ArgumentValueError(f"state {self._name!r}: a key of a map state must not be None")
        return encoded


H = TypeVar("H", bound=Handle)


class KeyedRuntimeContext(RuntimeContext):
    """Returns the handles of a function's states, and binds them to a backend.

    max_parallelism: the number of key groups, 1 to 32768
    metrics: the metrics of the function; None if it has not asked for a group that makes them
    """

    _expiring: ClassVar[dict[str, type[Expiring]]] = EXPIRING

    def __init__(self, keys: CurrentKey, types: ValueTypes, max_parallelism: int) -> None:
        self._keys = keys
        self._types = types
        self._max_parallelism = max_parallelism
        self._handles: dict[str, tuple[Handle, KeyedContents]] = {}
        self._ttls: dict[str, StateTtlConfig] = {}
        self._backend: StateBackend | None = None
        self.clock: ExpiryClock | None = None
        self.metrics: Metrics | None = None  # until the function asks for them

    def bind_backend(self, backend: StateBackend) -> list[Any]:
        """Bind all handles to this backend; return their contents there."""
        self._backend = backend
        return [self._bind(contents, backend) for _, contents in self._handles.values()]

    def times_to_live(self) -> dict[str, StateTtlConfig]:
        """Return the times to live of the states that have one, by the names of the states."""
        return self._ttls

    def _bind(self, contents: KeyedContents, backend: StateBackend) -> Any:
        table = contents.bind(backend)
        ttl = self._ttls.get(contents.name)
        if ttl is not None and self.clock is not None:
            contents.table = self._expiring[contents.shape](table, ttl, self.clock)
        return table

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._max_parallelism

    def get_metrics_group(self) -> MetricGroup:
        if self.metrics is None:
            self.metrics = Metrics()
        return MetricGroup(self.metrics)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        return self._value_state(ValueHandle, state_descriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        instance("state_descriptor", state_descriptor, ListStateDescriptor)
        type_ = self._types.resolve(state_descriptor.type_info, f"state {state_descriptor.name!r}")
        return self._handle(ListHandle, state_descriptor, (type_,))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        instance("state_descriptor", state_descriptor, MapStateDescriptor)
        argument = f"state {state_descriptor.name!r}"
        key, value = state_descriptor.key_and_value
        types = self._types.resolve_key(key, argument), self._types.resolve(value, argument)
        return self._handle(MapHandle, state_descriptor, types)

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        instance("state_descriptor", state_descriptor, ReducingStateDescriptor)
        handle = self._handle_of_value(ReducingHandle, state_descriptor)
        handle.function = state_descriptor.reduce_function
        return handle

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState:
        instance("state_descriptor", state_descriptor, AggregatingStateDescriptor)
        handle = self._handle_of_value(AggregatingHandle, state_descriptor)
        handle.function = state_descriptor.agg_function
        return handle

    def get_any_state(self, state_descriptor: StateDescriptor) -> Any:
        """Return the handle of a state of the kind that the descriptor says."""
        handles: dict[type[StateDescriptor], Callable[[Any], Any]] = {
            ListStateDescriptor: self.get_list_state,
            MapStateDescriptor: self.get_map_state,
            ReducingStateDescriptor: self.get_reducing_state,
            AggregatingStateDescriptor: self.get_aggregating_state,
        }
        return handles.get(type(state_descriptor), self.get_state)(state_descriptor)

    def _value_state(self, class_: type[H], descriptor: ValueStateDescriptor) -> H:
        instance("state_descriptor", descriptor, ValueStateDescriptor)
        return self._handle_of_value(class_, descriptor)

    def _handle_of_value(self, class_: type[H], descriptor: StateDescriptor) -> H:
        type_ = self._types.resolve(descriptor.type_info, f"state {descriptor.name!r}")
        return self._handle(class_, descriptor, (type_,))

    def _handle(self, class_: type[H], descriptor: StateDescriptor, types: tuple[Any, ...]) -> H:
        name, ttl, stored = descriptor.name, descriptor.ttl_config, types
        if ttl is not None:
            stored = (*types[:-1], self._types.timed(types[-1]))
        asked = KeyedContents(self._keys, name, class_.shape, stored, class_.kind)
        if name in self._handles:
            handle, contents = self._handles[name]
            if not isinstance(handle, class_) or contents.types != stored:
                raise ArgumentValueError(
                    f"state {name!r} is already in use as {contents}; it cannot also be {asked}"
                )
            return handle
        if ttl is not None:
            self._ttls[name] = ttl
        if self._backend is not None:
            self._bind(asked, self._backend)
        whats = (f"state {name!r}{part}" for part in class_.parts)
        makers = (self._types.key_codec, self._types.codec)[-len(types) :]
        codecs = [make(type_, what) for make, type_, what in zip(makers, types, whats, strict=True)]
        handle = class_(asked, name, codecs)
        self._handles[name] = handle, asked
        return handle
