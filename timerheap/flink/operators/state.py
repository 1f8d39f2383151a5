"""Keyed state in this process's memory, for functions that run without Spark."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, ClassVar, NoReturn, TypeVar

from timerheap.flink.internal_timer_service import KeyContext
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

__all__ = ["MemoryRuntimeContext"]

H = TypeVar("H", bound="_Handle")


class _Handle(State):
    """One state of all keys: what a key has is never None and never empty."""

    kind: ClassVar[str]

    def __init__(self, key_context: KeyContext[Any], descriptor: StateDescriptor) -> None:
        self.name = descriptor.name
        self.type = _comparable(descriptor.type_info)
        self.contents: dict[Hashable, Any] = {}
        self._keys = key_context

    @property
    def key(self) -> Hashable:
        key: Hashable = self._keys.current_key
        if key is None:
            raise RuntimeError(f"state {self.name!r}: there is no current key, and state is of a key")
        return key

    def clear(self) -> None:
        self.contents.pop(self.key, None)


class _ValueHandle(_Handle, ValueState):
    kind = "value"

    def value(self) -> Any:
        return deepcopy(self.contents.get(self.key))

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self.contents[self.key] = deepcopy(value)

    def values(self, key_hashes: object) -> NoReturn:
        self._no_columns()

    def update_many(self, key_hashes: object, values: object) -> NoReturn:
        self._no_columns()

    def _no_columns(self) -> NoReturn:
        raise NotImplementedError(
            f"state {self.name!r} is kept by key, not by key id, and has no columns: they are for a "
            "BatchProcessFunction, which runs on Spark; use value() and update()"
        )


class _ListHandle(_Handle, ListState):
    kind = "list"

    def get(self) -> Iterator[Any]:
        elements = self.contents.get(self.key, ())
        # add() appends to this very list, update() and clear() leave it: what is there now needs no copy
        return map(deepcopy, islice(elements, len(elements)))

    def add(self, value: Any) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        elements = self._elements(values)
        if elements:
            self.contents.setdefault(self.key, []).extend(elements)

    def update(self, values: Iterable[Any]) -> None:
        elements = self._elements(values)
        if elements:
            self.contents[self.key] = elements
        else:
            self.clear()

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        elements = [deepcopy(value) for value in values]
        if any(element is None for element in elements):
            raise ValueError(f"state {self.name!r}: a list state takes no None")
        return elements


class _MapHandle(_Handle, MapState):
    kind = "map"

    def get(self, key: Any) -> Any:
        return deepcopy(self._entries().get(key))

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        if None in dict_value:
            raise ValueError(f"state {self.name!r}: a key of a map state cannot be None")
        entries = {key: deepcopy(value) for key, value in dict_value.items()}
        if entries:
            self.contents.setdefault(self.key, {}).update(entries)

    def remove(self, key: Any) -> None:
        entries = self._entries()
        if key in entries:
            del entries[key]
            if not entries:
                self.clear()

    def contains(self, key: Any) -> bool:
        return key in self._entries()

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(deepcopy(self._entries()).items())

    def keys(self) -> Iterator[Any]:
        return iter(list(self._entries()))

    def values(self) -> Iterator[Any]:
        return iter(deepcopy(list(self._entries().values())))

    def is_empty(self) -> bool:
        return not self._entries()

    def _entries(self) -> dict[Any, Any]:
        entries: dict[Any, Any] = self.contents.get(self.key, {})
        return entries


class MemoryRuntimeContext(RuntimeContext):
    """Hands out states that live in memory.

    They keep copies (``copy.deepcopy``) of what they are given, and give copies: changing a value does
    nothing to the state before it is put back. Descriptors' types are compared, not enforced: values may be
    any that can be copied.

    Parameters
    ----------
    key_context : KeyContext
        Holds the current key.
    max_parallelism : int, default 128
        What `get_max_number_of_parallel_subtasks` gives.

    Examples
    --------
    >>> from timerheap.flink import KeyContext
    >>> from timerheap import ListStateDescriptor, Types
    >>> keys = KeyContext()
    >>> seen = MemoryRuntimeContext(keys).get_list_state(ListStateDescriptor("seen", Types.STRING()))
    >>> keys.current_key = "N14228"
    >>> seen.add("EWR")
    >>> keys.current_key = "N24211"
    >>> list(seen)
    []
    """

    def __init__(self, key_context: KeyContext[Any], max_parallelism: int = 128) -> None:
        self._keys = key_context
        self._max_parallelism = max_parallelism
        self._handles: dict[str, _Handle] = {}

    def get_max_number_of_parallel_subtasks(self) -> int:
        """See `timerheap.RuntimeContext`."""
        return self._max_parallelism

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """See `timerheap.RuntimeContext`."""
        return self._handle(_ValueHandle, ValueStateDescriptor, state_descriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """See `timerheap.RuntimeContext`."""
        return self._handle(_ListHandle, ListStateDescriptor, state_descriptor)

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """See `timerheap.RuntimeContext`."""
        return self._handle(_MapHandle, MapStateDescriptor, state_descriptor)

    def num_keyed_state_entries(self) -> int:
        """Count the values, lists and maps of all keys: how many (key, state) pairs hold something."""
        return sum(len(handle.contents) for handle in self._handles.values())

    def _handle(self, class_: type[H], expected: type[StateDescriptor], descriptor: StateDescriptor) -> H:
        if not isinstance(descriptor, expected):
            raise TypeError(f"state_descriptor: {descriptor!r} is no {expected.__name__}")
        handle = self._handles.setdefault(descriptor.name, class_(self._keys, descriptor))
        if not isinstance(handle, class_) or handle.type != _comparable(descriptor.type_info):
            raise ValueError(
                f"state {descriptor.name!r} is already in use as a {handle.kind} state of {handle.type!r}; "
                f"it cannot also be what {descriptor!r} says"
            )
        return handle


def _comparable(type_info: object) -> object:
    """Give a type so that the DDL "bigint" equals ``Types.LONG()``."""
    if isinstance(type_info, tuple):
        return tuple(map(_comparable, type_info))
    return getattr(type_info, "ddl", type_info)
