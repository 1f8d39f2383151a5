"""The state handles that a user's function holds; they speak of whatever key is current."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap.flink.internal_timer_service import KeyContext
from timerheap.functions import RuntimeContext
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.offsets import narrow_column, wide
from timerheap.spark._group.state_table import Codec, StateTable
from timerheap.spark._group.values import cast as to_type
from timerheap.state import (
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.types import arrow_type

__all__ = ["SparkRuntimeContext"]


class _Handle:
    """What all handles share: the descriptor, and the family of the group that is being processed."""

    shape: ClassVar[str]

    def __init__(self, keys: KeyContext[int], name: str, type_: pa.DataType) -> None:
        self.name = name
        self.type = type_
        self._keys = keys
        self._family: StateTable
        self._known: KeyTable

    def bind(self, group: KeyGroup) -> StateTable:
        """Speak of this group from now on."""
        self._family = group.state(self.name, self.shape, self.type)
        self._known = group.keys
        return self._family

    def clear(self) -> None:
        """See `timerheap.state.State.clear`."""
        self._family.store(self._keys.current_key, None)

    def _load(self) -> Any:
        return self._family.load(self._keys.current_key)

    def _store(self, contents: Any) -> None:
        self._family.store(self._keys.current_key, contents)


class _ValueHandle(_Handle, ValueState):
    shape = "value"

    def __init__(self, keys: KeyContext[int], name: str, type_: pa.DataType) -> None:
        super().__init__(keys, name, type_)
        self._codec = Codec(type_, f"state {name!r}")

    def value(self) -> Any:
        return self._codec.decode(self._load())

    def update(self, value: Any) -> None:
        self._store(self._codec.encode(value))

    def values(self, key_hashes: npt.ArrayLike) -> pa.Array:
        return narrow_column(self._family.get_many(_ids(key_hashes)), self.type)

    def update_many(self, key_hashes: npt.ArrayLike, values: object) -> None:
        ids = _ids(key_hashes)
        try:
            column = values if isinstance(values, pa.Array) else pa.array(values)
            column = to_type(column, wide(self.type))
            if isinstance(column, pa.ChunkedArray):  # of more than 2 GiB
                column = column.combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise ValueError(
                f"values: what was given for state {self.name!r} does not fit {self.type}: {e}"
            ) from None
        if len(column) != len(ids):
            raise ValueError(f"values: {len(column)} values for {len(ids)} key_hashes of state {self.name!r}")
        self._known.expect(key_hashes)
        distinct, last = np.unique(ids[::-1], return_index=True)
        self._family.put_many(distinct, column.take(pa.array(len(ids) - 1 - last)))


class _ListHandle(_Handle, ListState):
    shape = "list"

    def __init__(self, keys: KeyContext[int], name: str, type_: pa.DataType) -> None:
        super().__init__(keys, name, type_)
        self._codec = Codec(type_.value_type, f"state {name!r}, an element")

    def _encode(self, values: Iterable[Any]) -> list[Any]:
        encoded = [self._codec.encode(value) for value in values]
        if None in encoded:
            raise ValueError(f"state {self.name!r}: a list state takes no None")
        return encoded

    def get(self) -> Iterator[Any]:
        contents = self._load() or ()
        # add() appends to this very list, update() and clear() leave it: what is there now needs no copy
        return map(self._codec.decode, islice(contents, len(contents)))

    def add(self, value: Any) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        encoded = self._encode(values)
        contents = self._load()
        if contents is None:
            contents = []
        contents += encoded
        self._store(contents)

    def update(self, values: Iterable[Any]) -> None:
        self._store(self._encode(values))


class _MapHandle(_Handle, MapState):
    shape = "map"

    def __init__(self, keys: KeyContext[int], name: str, type_: pa.DataType) -> None:
        super().__init__(keys, name, type_)
        self._key_codec = Codec(type_.key_type, f"state {name!r}, a key")
        self._codec = Codec(type_.item_type, f"state {name!r}, a value")

    def _encode_key(self, key: Any) -> Any:
        encoded = self._key_codec.decode(self._key_codec.encode(key))
        if encoded is None:
            raise ValueError(f"state {self.name!r}: a key of a map state cannot be None")
        return encoded

    def get(self, key: Any) -> Any:
        return self._codec.decode((self._load() or {}).get(self._encode_key(key)))

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        encoded = {self._encode_key(k): self._codec.encode(v) for k, v in dict_value.items()}
        contents = self._load()
        if contents is None:
            contents = {}
        contents.update(encoded)
        self._store(contents)

    def remove(self, key: Any) -> None:
        contents = self._load() or {}
        encoded = self._encode_key(key)
        if encoded in contents:
            del contents[encoded]
            self._store(contents)

    def contains(self, key: Any) -> bool:
        return self._encode_key(key) in (self._load() or {})

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([(k, self._codec.decode(v)) for k, v in (self._load() or {}).items()])

    def keys(self) -> Iterator[Any]:
        return iter(list(self._load() or ()))

    def values(self) -> Iterator[Any]:
        return iter([self._codec.decode(v) for v in (self._load() or {}).values()])

    def is_empty(self) -> bool:
        return not self._load()


def _ids(key_hashes: npt.ArrayLike) -> np.ndarray:
    ids = np.asarray(key_hashes)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise TypeError(
            f"key_hashes: give an int64 array of shape (n,), not {ids.dtype} of shape {ids.shape}"
        )
    return ids


class SparkRuntimeContext(RuntimeContext):
    """Hands out handles, and points them all at the group that is being processed.

    Parameters
    ----------
    keys : KeyContext
        Holds the id of the current key.
    max_parallelism : int
    """

    def __init__(self, keys: KeyContext[int], max_parallelism: int) -> None:
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._handles: dict[str, _Handle] = {}
        self._group: KeyGroup | None = None

    def get_max_number_of_parallel_subtasks(self) -> int:
        """See `timerheap.RuntimeContext`."""
        return self._max_parallelism

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """See `timerheap.RuntimeContext`."""
        self._expect(state_descriptor, ValueStateDescriptor)
        type_ = self._type(state_descriptor, state_descriptor.type_info)
        return cast(ValueState, self._handle(_ValueHandle, state_descriptor, type_))

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """See `timerheap.RuntimeContext`."""
        self._expect(state_descriptor, ListStateDescriptor)
        element = self._type(state_descriptor, state_descriptor.type_info)
        type_ = pa.list_(pa.field("element", element))
        return cast(ListState, self._handle(_ListHandle, state_descriptor, type_))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """See `timerheap.RuntimeContext`."""
        self._expect(state_descriptor, MapStateDescriptor)
        key, value = (self._type(state_descriptor, t) for t in state_descriptor.key_and_value)
        if pa.types.is_list(key) or pa.types.is_map(key):
            raise ValueError(f"state {state_descriptor.name!r}: {key} cannot be a key; it is not hashable")
        return cast(MapState, self._handle(_MapHandle, state_descriptor, pa.map_(key, value)))

    def bind(self, group: KeyGroup) -> list[StateTable]:
        """Point all handles at this group; give its families that they use."""
        self._group = group
        return [handle.bind(group) for handle in self._handles.values()]

    def _expect(self, descriptor: object, class_: type[StateDescriptor]) -> None:
        if not isinstance(descriptor, class_):
            raise TypeError(f"state_descriptor: {descriptor!r} is no {class_.__name__}")

    def _type(self, descriptor: StateDescriptor, type_info: object) -> pa.DataType:
        return arrow_type(type_info, f"state {descriptor.name!r}")

    def _handle(self, class_: type[_Handle], descriptor: StateDescriptor, type_: pa.DataType) -> _Handle:
        known = self._handles.get(descriptor.name)
        if known is not None:
            if type(known) is not class_ or known.type != type_:
                raise ValueError(
                    f"state {descriptor.name!r} is already in use as a {known.shape} state of {known.type}; "
                    f"it cannot also be a {class_.shape} state of {type_}"
                )
            return known
        handle = class_(self._keys, descriptor.name, type_)
        if self._group is not None:
            handle.bind(self._group)
        self._handles[descriptor.name] = handle
        return handle
