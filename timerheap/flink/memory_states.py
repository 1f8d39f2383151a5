"""Keyed state in memory, for functions that run without Spark."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

from timerheap._contents import WHOLE, CurrentKey, DictEntries, ValueTypes, WholeValues
from timerheap._native._core import set_item
from timerheap._states import KeyedRuntimeContext
from timerheap._values import ArrowTypes


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
    """Returns states that live in memory, with the checks of those on Spark.

    A struct is returned as a tuple with named fields. Without pyarrow values are copied, and not checked.
    """

    def __init__(self, key_context: CurrentKey, max_parallelism: int = 128) -> None:
        types: ValueTypes = (
            _CopyingTypes() if find_spec("pyarrow") is None else ArrowTypes(_ChangeableRow.of, NamedRow.of)
        )
        super().__init__(key_context, types, max_parallelism)
        self._states: dict[str, WholeValues] = {}
        self.bind_backend(self)

    def contents_of(self, name: str, shape: str, types: tuple[Any, ...]) -> WholeValues:
        """Return the contents of a state, which are in memory."""
        return self._states.setdefault(name, WHOLE[shape](DictEntries()))

    def num_keyed_state_entries(self) -> int:
        """Return the number of (key, state) pairs that have a value, an element or an entry."""
        return sum(len(table.entries) for table in self._states.values())
