"""The handles of keyed state, over whatever stores the contents: memory, or a key group on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar

from timerheap.functions import RuntimeContext
from timerheap.state import (
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)

__all__ = [
    "Codec",
    "Contents",
    "CurrentKey",
    "Handle",
    "KeyedContents",
    "KeyedRuntimeContext",
    "ListContents",
    "ListHandle",
    "MapContents",
    "MapHandle",
    "StateBackend",
    "ValueContents",
    "ValueHandle",
    "ValueTypes",
]


class CurrentKey(Protocol):
    """Where the current key is: a `timerheap.flink.KeyContext`."""

    @property
    def current_key(self) -> Any:
        """The key, or None if there is none."""


class ValueContents(Protocol):
    """The encoded values of one value state, by key; None for a key without state."""

    def load(self, key: Any, /) -> Any:
        """Return the value of a key."""

    def store(self, key: Any, value: Any, /) -> None:
        """Set the value of a key; None removes it."""


class ListContents(Protocol):
    """The encoded elements of one list state, by key."""

    def load(self, key: Any, /) -> Sequence[Any]:
        """Return the elements of a key; `append` may extend the sequence, `replace` leaves it as it is."""

    def append(self, key: Any, elements: list[Any], /) -> None:
        """Append elements, at a cost that does not depend on the length of the list."""

    def replace(self, key: Any, elements: list[Any], /) -> None:
        """Set the elements of a key; an empty list removes its state."""


class MapContents(Protocol):
    """The entries of one map state, by key, from the user's keys to encoded values."""

    def load(self, key: Any, /) -> Mapping[Any, Any]:
        """Return the entries of a key in the order of insertion."""

    def find(self, key: Any, entry: Any, /) -> tuple[bool, Any]:
        """Return whether a key has an entry, and the value of the entry."""

    def put(self, key: Any, entries: dict[Any, Any], /) -> None:
        """Set entries, at a cost that does not depend on the size of the map."""

    def remove(self, key: Any, entry: Any, /) -> None:
        """Remove an entry if there is one, at a cost that does not depend on the size of the map."""

    def remove_all(self, key: Any, /) -> None:
        """Remove all entries of a key."""


class StateBackend(Protocol):
    """Stores the contents of all states of one function."""

    def contents_of(self, name: str, shape: str, types: tuple[Any, ...]) -> Any:
        """Return the contents of one state: `ValueContents`, `ListContents` or `MapContents`.

        Parameters
        ----------
        name : str
        shape : {"value", "list", "map"}
        types : tuple
            The type of the value; of an element; of a key and a value. They come from `ValueTypes`.
        """


class Codec(Protocol):
    """Converts values between the user and a state."""

    def encode(self, value: Any) -> Any:
        """Return what is kept of `value`, or raise ValueError if it does not fit; None stays None."""

    def decode(self, kept: Any) -> Any:
        """Return the value of `kept`, an object of the caller's own."""


class ValueTypes(Protocol):
    """Reads the types of descriptors, and knows how their values are kept."""

    def resolve(self, type_info: object, argument: str) -> Any:
        """Return a type, comparable with ``==``; errors begin with `argument`."""

    def resolve_key(self, type_info: object, argument: str) -> Any:
        """Return the type of a map's keys."""

    def codec(self, type_: Any, what: str) -> Codec:
        """Return the codec of a type; `what` is named in errors."""


class Contents(Protocol):
    """Where a handle reads and writes: a table of contents, and a key in it."""

    @property
    def table(self) -> Any:
        """`ValueContents`, `ListContents` or `MapContents`, as the handle needs it."""

    def key(self) -> Any:
        """Return the key, such as the current one."""


class KeyedContents:
    """The current key's contents of one state.

    Parameters
    ----------
    keys : CurrentKey
    name, shape, types
        As in `StateBackend.contents_of`.
    """

    table: Any

    def __init__(self, keys: CurrentKey, name: str, shape: str, types: tuple[Any, ...]) -> None:
        self.keys = keys
        self.name = name
        self.shape = shape
        self.types = types

    def bind(self, backend: StateBackend) -> Any:
        """Use this backend from now on; return its contents of the state."""
        self.table = backend.contents_of(self.name, self.shape, self.types)
        return self.table

    def key(self) -> Any:
        """See `Contents`."""
        key = self.keys.current_key
        if key is None:
            raise RuntimeError(
                f"state {self.name!r}: there is no current key; use state in the calls that process elements "
                "or timers, not in open()"
            )
        return key

    def __str__(self) -> str:
        types = ", ".join(map(str, self.types))
        text = {"value": types, "list": f"list<element: {types}>", "map": f"map<{types}>"}[self.shape]
        return f"a {self.shape} state of {text}"


class Handle(State):
    """What all handles have: contents, and the codecs of what is in them.

    Parameters
    ----------
    contents : Contents
    name : str
        The name of the state.
    codecs : sequence of Codec
        One for each of `parts`.
    """

    shape: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        self._contents = contents
        self._name = name
        *_, self._codec = codecs


class ValueHandle(Handle, ValueState):
    """A `ValueState` over `ValueContents`."""

    shape = "value"
    parts = ("",)

    def value(self) -> Any:
        """See `timerheap.ValueState`."""
        return self._codec.decode(self._contents.table.load(self._contents.key()))

    def update(self, value: Any) -> None:
        """See `timerheap.ValueState`."""
        self._contents.table.store(self._contents.key(), self._codec.encode(value))

    def clear(self) -> None:
        """See `timerheap.state.State.clear`."""
        self._contents.table.store(self._contents.key(), None)


class ListHandle(Handle, ListState):
    """A `ListState` over `ListContents`."""

    shape = "list"
    parts = (", an element",)

    def get(self) -> Iterator[Any]:
        """See `timerheap.ListState`."""
        elements = self._contents.table.load(self._contents.key())
        # add() extends this list, update() and clear() replace it: the elements of now need no copy
        return map(self._codec.decode, islice(elements, len(elements)))

    def add(self, value: Any) -> None:
        """See `timerheap.ListState`."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """See `timerheap.ListState`."""
        encoded = self._encode(values)
        if encoded:
            self._contents.table.append(self._contents.key(), encoded)

    def update(self, values: Iterable[Any]) -> None:
        """See `timerheap.ListState`."""
        self._contents.table.replace(self._contents.key(), self._encode(values))

    def clear(self) -> None:
        """See `timerheap.state.State.clear`."""
        self._contents.table.replace(self._contents.key(), [])

    def _encode(self, values: Iterable[Any]) -> list[Any]:
        encoded = [self._codec.encode(value) for value in values]
        if any(value is None for value in encoded):
            raise ValueError(f"state {self._name!r}: an element of a list state must not be None")
        return encoded


class MapHandle(Handle, MapState):
    """A `MapState` over `MapContents`."""

    shape = "map"
    parts = (", a key", ", a value")

    def __init__(self, contents: Contents, name: str, codecs: Sequence[Codec]) -> None:
        super().__init__(contents, name, codecs)
        self._key_codec = codecs[0]

    def get(self, key: Any) -> Any:
        """See `timerheap.MapState`."""
        _, value = self._find(key)
        return self._codec.decode(value)

    def put(self, key: Any, value: Any) -> None:
        """See `timerheap.MapState`."""
        self.put_all({key: value})

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """See `timerheap.MapState`."""
        encoded = {self._encode_key(k): self._codec.encode(v) for k, v in dict_value.items()}
        if encoded:
            self._contents.table.put(self._contents.key(), encoded)

    def remove(self, key: Any) -> None:
        """See `timerheap.MapState`."""
        self._contents.table.remove(self._contents.key(), self._encode_key(key))

    def contains(self, key: Any) -> bool:
        """See `timerheap.MapState`."""
        found, _ = self._find(key)
        return found

    def items(self) -> Iterator[tuple[Any, Any]]:
        """See `timerheap.MapState`."""
        return iter([(k, self._codec.decode(v)) for k, v in self._entries().items()])

    def keys(self) -> Iterator[Any]:
        """See `timerheap.MapState`."""
        return iter(list(self._entries()))

    def values(self) -> Iterator[Any]:
        """See `timerheap.MapState`."""
        return iter([self._codec.decode(v) for v in self._entries().values()])

    def is_empty(self) -> bool:
        """See `timerheap.MapState`."""
        return not self._entries()

    def clear(self) -> None:
        """See `timerheap.state.State.clear`."""
        self._contents.table.remove_all(self._contents.key())

    def _entries(self) -> Mapping[Any, Any]:
        entries: Mapping[Any, Any] = self._contents.table.load(self._contents.key())
        return entries

    def _find(self, key: Any) -> tuple[bool, Any]:
        found: tuple[bool, Any] = self._contents.table.find(self._contents.key(), self._encode_key(key))
        return found

    def _encode_key(self, key: Any) -> Any:
        encoded = self._key_codec.decode(self._key_codec.encode(key))
        if encoded is None:
            raise ValueError(f"state {self._name!r}: a key of a map state must not be None")
        return encoded


H = TypeVar("H", bound=Handle)


class KeyedRuntimeContext(RuntimeContext):
    """Returns the handles of a function's states, and binds them to a backend.

    Parameters
    ----------
    keys : CurrentKey
    types : ValueTypes
    max_parallelism : int
        The number of key groups, 1 to 32768.
    """

    def __init__(self, keys: CurrentKey, types: ValueTypes, max_parallelism: int) -> None:
        self._keys = keys
        self._types = types
        self._max_parallelism = max_parallelism
        self._handles: dict[str, tuple[Handle, KeyedContents]] = {}
        self._backend: StateBackend | None = None

    def bind_backend(self, backend: StateBackend) -> list[Any]:
        """Bind all handles to this backend; return their contents there."""
        self._backend = backend
        return [contents.bind(backend) for _, contents in self._handles.values()]

    def get_max_number_of_parallel_subtasks(self) -> int:
        """See `timerheap.RuntimeContext`."""
        return self._max_parallelism

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """See `timerheap.RuntimeContext`."""
        return self._value_state(ValueHandle, state_descriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """See `timerheap.RuntimeContext`."""
        _expect(state_descriptor, ListStateDescriptor)
        type_ = self._types.resolve(state_descriptor.type_info, f"state {state_descriptor.name!r}")
        return self._handle(ListHandle, state_descriptor.name, (type_,))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """See `timerheap.RuntimeContext`."""
        _expect(state_descriptor, MapStateDescriptor)
        argument = f"state {state_descriptor.name!r}"
        key, value = state_descriptor.key_and_value
        types = self._types.resolve_key(key, argument), self._types.resolve(value, argument)
        return self._handle(MapHandle, state_descriptor.name, types)

    def _value_state(self, class_: type[H], descriptor: ValueStateDescriptor) -> H:
        _expect(descriptor, ValueStateDescriptor)
        type_ = self._types.resolve(descriptor.type_info, f"state {descriptor.name!r}")
        return self._handle(class_, descriptor.name, (type_,))

    def _handle(self, class_: type[H], name: str, types: tuple[Any, ...]) -> H:
        asked = KeyedContents(self._keys, name, class_.shape, types)
        if name in self._handles:
            handle, contents = self._handles[name]
            if not isinstance(handle, class_) or contents.types != types:
                raise ValueError(f"state {name!r} is already in use as {contents}; it cannot also be {asked}")
            return handle
        if self._backend is not None:
            asked.bind(self._backend)
        whats = (f"state {name!r}{part}" for part in class_.parts)
        handle = class_(asked, name, [*map(self._types.codec, types, whats)])
        self._handles[name] = handle, asked
        return handle


def _expect(descriptor: object, class_: type[StateDescriptor]) -> None:
    if not isinstance(descriptor, class_):
        raise TypeError(f"state_descriptor must be a {class_.__name__}, got {descriptor!r}")
