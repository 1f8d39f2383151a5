"""The contents of keyed state: where they are kept by key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class CurrentKey(Protocol):
    """Where the current key is, such as a `KeyContext`."""

    @property
    def current_key(self) -> Any:
        """The key, or None if there is none."""


class KeyContext(Generic[K]):
    """Holds the current key of the services of one operator; they set it, too, when a timer fires."""

    def __init__(self) -> None:
        self.current_key: K = None  # type: ignore[assignment]  # before the first one


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
    """The entries of one map state, by key, from encoded keys to encoded values."""

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


class DictEntries(dict[Hashable, Any]):
    """Contents by key in memory, with the methods of a map state that `WholeValues` needs."""

    put = dict.__setitem__

    def remove(self, key: Hashable) -> None:
        self.pop(key, None)


class WholeValues:
    """`ValueContents` that read and write all that a key has: an entry of a map state, or of a dict."""

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def load(self, key: Any) -> Any:
        return self.entries.get(key)

    def is_empty(self, key: Any) -> bool:
        return not self.load(key)

    def store(self, key: Any, contents: Any) -> None:
        if contents is None:
            self.entries.remove(key)
        else:
            self.entries.put(key, contents)


class WholeLists(WholeValues):
    """`ListContents` that read and write the whole list."""

    def load(self, key: Any) -> list[Any]:
        return super().load(key) or []

    def append(self, key: Any, elements: list[Any]) -> None:
        held = self.load(key)
        held += elements
        self.store(key, held)

    def replace(self, key: Any, elements: list[Any]) -> None:
        self.store(key, elements or None)


class WholeMaps(WholeValues):
    """`MapContents` that read and write the whole map."""

    def load(self, key: Any) -> dict[Any, Any]:
        return super().load(key) or {}

    def find(self, key: Any, entry: Any) -> tuple[bool, Any]:
        entries = self.load(key)
        return entry in entries, entries.get(entry)

    def put(self, key: Any, entries: dict[Any, Any]) -> None:
        held = self.load(key)
        held.update(entries)
        self.store(key, held)

    def remove(self, key: Any, entry: Any) -> None:
        entries = self.load(key)
        if entry in entries:
            del entries[entry]
            self.store(key, entries or None)

    def remove_all(self, key: Any) -> None:
        self.store(key, None)


WHOLE = {"value": WholeValues, "list": WholeLists, "map": WholeMaps}


class StateBackend(Protocol):
    """Stores the contents of all states of one function."""

    def contents_of(self, name: str, shape: str, types: tuple[Any, ...]) -> Any:
        """Return the contents of one state: `ValueContents`, `ListContents` or `MapContents`.

        shape ({"value", "list", "map"})
        types: the type of the value; of an element; of a key and a value. They come from `ValueTypes`.
        """


class Codec(Protocol):
    """Converts values between the user and a state."""

    def encode(self, value: Any) -> Any:
        """Return what is kept of `value`, or raise ArgumentValueError if it does not fit; None stays None."""

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
        """Return the codec of the type of a map's keys, which are kept in a hashable form."""


class Contents(Protocol):
    """Where a handle reads and writes: a table of contents, and a key in it."""

    @property
    def table(self) -> Any:
        """`ValueContents`, `ListContents` or `MapContents`, as the handle needs it."""

    def key(self) -> Any:
        """Return the key, such as the current one."""


class KeyedContents:
    """The current key's contents of one state.

    name, shape, types: as in `StateBackend.contents_of`
    kind: the kind of the state, in errors
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
        key = self.keys.current_key
        if key is None:
            raise RuntimeError(
                f"state {self.name!r}: there is no current key; use state in the calls that process elements "
                "or timers, not in open(), and in a BatchProcessFunction after ctx.set_current_key(key_id)"
            )
        return key

    def __str__(self) -> str:
        types = ", ".join(map(str, self.types))
        text = {"value": types, "list": f"list<element: {types}>", "map": f"map<{types}>"}[self.shape]
        return f"{'an' if self.kind[0] == 'a' else 'a'} {self.kind} state of {text}"
