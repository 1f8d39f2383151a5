"""Keyed state with PyFlink's names: descriptors, and the handles that functions use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from timerheap.errors import ArgumentTypeError
from timerheap.state_ttl import StateTtlConfig
from timerheap.types import _Subscripted

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


class StateDescriptor:
    """The name of a state and the type of its values.

    Parameters
    ----------
    name : str
        Unique within the function; also the name of the state in the checkpoint.
    type_info
        A ``Types.*``, a DDL string, a Spark type or a pyarrow type. Values are stored as Arrow values of that
        type. An int stands for a timestamp, in epoch ms. There is no default: where PyFlink would pickle the
        values, using the state raises ArgumentTypeError.
    """

    def __init__(self, name: str, type_info: object) -> None:
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"name must be a non-empty str, got {name!r}")
        self.name = name
        self.type_info = type_info
        self.ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name of the state."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Have the state expire."""
        if not isinstance(ttl_config, StateTtlConfig):
            raise ArgumentTypeError(
                f"ttl_config of state {self.name!r} must be a StateTtlConfig, got {ttl_config!r}"
            )
        self.ttl_config = ttl_config if ttl_config.is_enabled() else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"


class ValueStateDescriptor(StateDescriptor):
    """Describes a `ValueState`: ``ValueStateDescriptor("last", Types.LONG())``."""

    def __init__(self, name: str, value_type_info: object = None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Describes a `ListState`; `elem_type_info` is the type of one element."""

    def __init__(self, name: str, elem_type_info: object = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """Describes a `MapState`; keys must be hashable Python values of `key_type_info`."""

    def __init__(self, name: str, key_type_info: object = None, value_type_info: object = None) -> None:
        super().__init__(name, (key_type_info, value_type_info))
        self.key_and_value = (key_type_info, value_type_info)


class ReducingStateDescriptor(StateDescriptor):
    """Describes a `ReducingState`.

    Parameters
    ----------
    name : str
    reduce_function : ReduceFunction or callable
        An associative function ``(value1, value2) -> value``.
    type_info
        The type of the value, as in other descriptors.

    Examples
    --------
    >>> from timerheap import Types
    >>> ReducingStateDescriptor("last", max, Types.LONG())
    ReducingStateDescriptor('last', TypeInformation('bigint'))
    """

    def __init__(self, name: str, reduce_function: Any, type_info: object = None) -> None:
        super().__init__(name, type_info)
        self.reduce_function: Callable[[Any, Any], Any] = getattr(reduce_function, "reduce", reduce_function)
        if not callable(self.reduce_function):
            raise ArgumentTypeError(
                "reduce_function must be a ReduceFunction or a callable (value1, value2) -> value, got "
                f"{reduce_function!r}"
            )


class AggregatingStateDescriptor(StateDescriptor):
    """Describes an `AggregatingState`.

    Parameters
    ----------
    name : str
    agg_function : AggregateFunction
    state_type_info
        The type of the accumulators, as in other descriptors.
    """

    def __init__(self, name: str, agg_function: Any, state_type_info: object = None) -> None:
        super().__init__(name, state_type_info)
        for method in ("create_accumulator", "add", "get_result"):
            if isinstance(agg_function, type) or not callable(getattr(agg_function, method, None)):
                raise ArgumentTypeError(f"agg_function must be an AggregateFunction, got {agg_function!r}")
        self.agg_function = agg_function


class State(_Subscripted, ABC):
    """State of the current key. A value that does not fit the descriptor's type raises ArgumentValueError."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""


class ValueState(State):
    """One value for each key (Flink's ``ValueState``). Each call costs O(1)."""

    @abstractmethod
    def value(self) -> Any:
        """Return a copy of the current key's value, or None; call `update` to store a changed copy."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it."""


class BatchValueState(ValueState):
    """A `ValueState` of a `BatchProcessFunction`, which also reads and writes many keys in one call."""

    @abstractmethod
    def values(self, ids: npt.ArrayLike) -> pa.Array:
        """Return the values of many keys as an Arrow array of shape (n,), null for a key without a value.

        Costs O(n) and creates no Python object for each row.

        Parameters
        ----------
        ids : array_like of int64, shape (n,)
        """

    @abstractmethod
    def update_many(self, ids: npt.ArrayLike, values: object) -> None:
        """Set the values of many keys.

        A null clears the state of its key. If a key occurs more than once, its last value is kept.

        Parameters
        ----------
        ids : array_like of int64, shape (n,)
        values : pyarrow Array, or an argument of ``pyarrow.array``, shape (n,)
        """


class ReducingState(State):
    """One value for each key that combines all added values (Flink's ``ReducingState``).

    Each call costs O(1) and a call of the function.
    """

    @abstractmethod
    def get(self) -> Any:
        """Return the combined value, or None if nothing has been added."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Combine `value` with the value of the state; None raises ArgumentValueError."""


class AggregatingState(State):
    """One accumulator for each key, to which values are added (Flink's ``AggregatingState``).

    Each call costs O(1) and a call of the function.
    """

    @abstractmethod
    def get(self) -> Any:
        """Return the result of the accumulator, or None if nothing has been added."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Add `value` to the accumulator."""


class ListState(State):
    """A list for each key (Flink's ``ListState``).

    `add` and `add_all` cost what they add, in memory and in the checkpoint, however long the list is.
    `update` writes the whole list.
    """

    @abstractmethod
    def get(self) -> Iterator[Any]:
        """Iterate over the current elements of the current key; the iterator is empty without elements.

        The list is not copied. Elements added later are not included.
        """

    @abstractmethod
    def add(self, value: Any) -> None:
        """Append an element; None raises ArgumentValueError, as in Flink."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Append all elements; if one does not fit the type, append none."""

    @abstractmethod
    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one clears the state."""

    def __iter__(self) -> Iterator[Any]:
        return self.get()


class MapState(State):
    """A dict for each key (Flink's ``MapState``), iterated in insertion order.

    `put`, `put_all` and `remove` cost what they change, in memory and in the checkpoint, however large the
    map is. All NaNs are one key. As in PyFlink, ``state[key]`` is ``state.get(key)``: None for a key without
    an entry, never a KeyError. `contains` tells an entry that is None from none.
    """

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None if it has no entry."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set all entries; if one does not fit the type, set none."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove `key` if it has an entry."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Return whether `key` has an entry."""

    @abstractmethod
    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over a copy of the entries."""

    @abstractmethod
    def keys(self) -> Iterator[Any]:
        """Iterate over a copy of the keys."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """Iterate over a copy of the values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether the current key has no entries."""

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()
