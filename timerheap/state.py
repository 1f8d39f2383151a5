"""Keyed state as PyFlink spells it: descriptors, and the handles that a function holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = [
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "State",
    "StateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
]


class StateDescriptor:
    """A state's name and the type of what it keeps.

    Parameters
    ----------
    name : str
        Unique within the function; it is the state's name in the checkpoint.
    type_info
        A ``Types.*``, a DDL string, a Spark type or a pyarrow type. Values are kept as Arrow of that type. An
        int stands for a timestamp, in epoch ms.
    """

    def __init__(self, name: str, type_info: object) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name: {name!r} is no state name; give a non-empty str")
        self.name = name
        self.type_info = type_info

    def get_name(self) -> str:
        """Give the state's name."""
        return self.name

    def enable_time_to_live(self, ttl_config: object) -> NoReturn:
        """Refused: register a timer that clears the state instead."""
        raise NotImplementedError(
            f"StateTtlConfig on state {self.name!r}: timerheap has no state time-to-live; "
            "register a timer and clear() the state in on_timer"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"


class ValueStateDescriptor(StateDescriptor):
    """Describes a `ValueState`: ``ValueStateDescriptor("last", Types.LONG())``."""

    def __init__(self, name: str, value_type_info: object) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Describes a `ListState`; `elem_type_info` is the type of one element."""

    def __init__(self, name: str, elem_type_info: object) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """Describes a `MapState`; keys must be hashable Python values of `key_type_info`."""

    def __init__(self, name: str, key_type_info: object, value_type_info: object) -> None:
        super().__init__(name, (key_type_info, value_type_info))
        self.key_and_value = (key_type_info, value_type_info)


class State(ABC):
    """State of the current key. A value that does not fit the descriptor's type is a ValueError."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what the current key has here."""


class ValueState(State):
    """One value for each key (Flink's ``ValueState``). Each call costs O(1)."""

    @abstractmethod
    def value(self) -> Any:
        """Give the current key's value, None where there is none; a fresh copy, so mutate and ``update``."""

    @abstractmethod
    def update(self, value: Any) -> None:
        """Set the current key's value; None clears it."""

    @abstractmethod
    def values(self, key_hashes: npt.ArrayLike) -> pa.Array:
        """Give the values of many keys as an Arrow array: shape (n,), null where a key has none.

        For a `BatchProcessFunction`. Costs O(n), and no Python object a row.

        Parameters
        ----------
        key_hashes : array_like of int64, shape (n,)
        """

    @abstractmethod
    def update_many(self, key_hashes: npt.ArrayLike, values: object) -> None:
        """Set the values of many keys; of a key that comes twice the last one counts, a null clears.

        Parameters
        ----------
        key_hashes : array_like of int64, shape (n,)
        values : pyarrow Array, or what ``pyarrow.array`` takes, shape (n,)
        """


class ListState(State):
    """A list for each key (Flink's ``ListState``).

    A key's list is one value in the checkpoint: a batch that touches it writes it whole.
    """

    @abstractmethod
    def get(self) -> Iterator[Any]:
        """Iterate over the elements that the current key has now; over nothing where there are none.

        The list is not copied, and what is added later is not seen.
        """

    @abstractmethod
    def add(self, value: Any) -> None:
        """Append an element; None is refused, as in Flink."""

    @abstractmethod
    def add_all(self, values: Iterable[Any]) -> None:
        """Append all elements, or none where one does not fit."""

    @abstractmethod
    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one clears the state."""

    def __iter__(self) -> Iterator[Any]:
        return self.get()


class MapState(State):
    """A dict for each key (Flink's ``MapState``); the order of iteration is that of insertion.

    A key's map is one value in the checkpoint: a batch that touches it writes it whole.
    """

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Give the value of `key`, None where there is none."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set all entries, or none where one does not fit."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove `key`; nothing happens where it is missing."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Tell whether `key` has an entry."""

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
        """Tell whether the current key has no entry."""

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
