"""Where the handles of keyed state read and write: memory, or a key group on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = [
    "Codec",
    "Contents",
    "CurrentKey",
    "KeyedContents",
    "ListContents",
    "MapContents",
    "StateBackend",
    "ValueContents",
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

    def is_empty(self, key: Any, /) -> bool:
        """Return whether a key has no elements, at a cost that does not depend on the length of the list."""

    def append(self, key: Any, elements: list[Any], /) -> None:
        """Append elements, at a cost that does not depend on the length of the list."""

    def replace(self, key: Any, elements: list[Any], /) -> None:
        """Set the elements of a key; an empty list removes its state."""


class MapContents(Protocol):
    """The entries of one map state, by key, from the user's keys to encoded values."""

    def load(self, key: Any, /) -> Mapping[Any, Any]:
        """Return the entries of a key in the order of insertion."""

    def is_empty(self, key: Any, /) -> bool:
        """Return whether a key has no entries, at a cost that does not depend on the size of the map."""

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

    def timed(self, type_: Any) -> Any:
        """Return the type of values with the time of their last access: ``value`` and ``at``."""

    def codec(self, type_: Any, what: str) -> Codec:
        """Return the codec of a type; `what` is named in errors."""

    def key_codec(self, type_: Any, what: str) -> Codec:
        """Return the codec of the type of a map's keys."""


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
    kind : str
        The kind of the state, in errors.
    """

    table: Any

    def __init__(self, keys: CurrentKey, name: str, shape: str, types: tuple[Any, ...], kind: str) -> None:
        self.keys = keys
        self.name = name
        self.shape = shape
        self.types = types
        self.kind = kind

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
        return f"{'an' if self.kind[0] == 'a' else 'a'} {self.kind} state of {text}"
