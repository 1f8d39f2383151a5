"""Keyed state in memory, for functions that run without Spark."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

from timerheap._native._core import set_item
from timerheap._states import KeyContext, KeyedRuntimeContext, ValueTypes
from timerheap._values import ArrowTypes


class Values(dict[Hashable, Any]):
    """`ValueContents`."""

    def load(self, key: Hashable) -> Any:
        return self.get(key)

    def store(self, key: Hashable, value: Any) -> None:
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value


class Lists(dict[Hashable, list[Any]]):
    """`ListContents`."""

    def load(self, key: Hashable) -> Sequence[Any]:
        return self.get(key, ())

    def is_empty(self, key: Hashable) -> bool:
        return not self.get(key)

    def append(self, key: Hashable, elements: list[Any]) -> None:
        self.setdefault(key, []).extend(elements)

    def replace(self, key: Hashable, elements: list[Any]) -> None:
        if elements:
            self[key] = elements
        else:
            self.pop(key, None)


class Maps(dict[Hashable, dict[Any, Any]]):
    """`MapContents`."""

    def load(self, key: Hashable) -> Mapping[Any, Any]:
        return self.get(key, {})

    def is_empty(self, key: Hashable) -> bool:
        return not self.get(key)

    def find(self, key: Hashable, entry: Any) -> tuple[bool, Any]:
        entries = self.load(key)
        return entry in entries, entries.get(entry)

    def put(self, key: Hashable, entries: dict[Any, Any]) -> None:
        self.setdefault(key, {}).update(entries)

    def remove(self, key: Hashable, entry: Any) -> None:
        entries = self.get(key, {})
        entries.pop(entry, None)
        if not entries:
            self.pop(key, None)

    def remove_all(self, key: Hashable) -> None:
        self.pop(key, None)


_CONTENTS: dict[str, Callable[[], Values | Lists | Maps]] = {"value": Values, "list": Lists, "map": Maps}


class _MemoryBackend:
    """Stores states in dicts."""

    def __init__(self) -> None:
        self.states: dict[str, Values | Lists | Maps] = {}

    def contents_of(self, name: str, shape: str, types: tuple[Any, ...]) -> Values | Lists | Maps:
        return self.states.setdefault(name, _CONTENTS[shape]())


class _CopyingTypes:
    """The types where pyarrow is missing: compared, not enforced; values may be any that can be copied."""

    def resolve(self, type_info: object, argument: str) -> object:
        return getattr(type_info, "ddl", type_info)

    resolve_key = resolve

    def timed(self, type_: object) -> object:
        return "timed", type_

    def codec(self, type_: object, what: str) -> _CopyingCodec:
        return _CopyingCodec()

    key_codec = codec


class _CopyingCodec:
    def encode(self, value: Any) -> Any:
        return deepcopy(value)

    decode = encode


class NamedRow(tuple[Any, ...]):
    """A tuple with named fields, read like a ``pyspark.sql.Row``, without pyspark."""

    __fields__: tuple[str, ...]

    @classmethod
    def of(cls, *names: str) -> Callable[..., NamedRow]:
        """Return a function that makes rows with these fields of their values."""

        def make(*values: Any) -> NamedRow:
            row = cls(values)
            row.__fields__ = names
            return row

        return make

    def asDict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dict(zip(self.__fields__, self, strict=True))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return super().__getitem__(self._index(item, KeyError))
        return super().__getitem__(item)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return super().__getitem__(self._index(name, AttributeError))

    def __contains__(self, item: object) -> bool:
        return item in self.__fields__

    def _index(self, name: str, error: type[Exception]) -> int:
        if name not in self.__fields__:
            raise error(f"field must be one of {self.__fields__}, got {name!r}")
        return self.__fields__.index(name)

    def __reduce__(self) -> Any:
        return _named_row, (self.__fields__, tuple(self))


def _named_row(names: tuple[str, ...], values: tuple[Any, ...]) -> NamedRow:
    return NamedRow.of(*names)(*values)


class _ChangeableRow(NamedRow):
    def __setitem__(self, item: Any, value: Any) -> None:
        set_item(self, self._index(item, KeyError) if isinstance(item, str) else item, value)


class MemoryRuntimeContext(KeyedRuntimeContext):
    """Returns states that live in memory.

    They accept, refuse and return what the states of a function on Spark do, except that a struct is returned
    as a tuple with named fields instead of a ``pyspark.sql.Row``. Values are copied on the way in and out;
    without pyarrow, which checks them, that is all.
    """

    def __init__(self, key_context: KeyContext[Any], max_parallelism: int = 128) -> None:
        types: ValueTypes = (
            _CopyingTypes() if find_spec("pyarrow") is None else ArrowTypes(_ChangeableRow.of, NamedRow.of)
        )
        super().__init__(key_context, types, max_parallelism)
        self._memory = _MemoryBackend()
        self.bind_backend(self._memory)

    def num_keyed_state_entries(self) -> int:
        """Return the number of (key, state) pairs that have a value, an element or an entry."""
        return sum(map(len, self._memory.states.values()))
