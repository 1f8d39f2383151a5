"""The contents of a user's map state in one key group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from timerheap._values import KeyCodec
from timerheap.spark._group import growing_state, map_log
from timerheap.spark._group.growing_state import GrowingState, rows_of
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.python_values import python_values
from timerheap.spark._group.segments import Edits

__all__ = ["MapTable"]

_SEARCHES = 64  # of one map in a batch before it is loaded, which costs as much as about this many


class _Changes:
    """The changes of one map: what was there is replaced or not, keys are removed, then entries put."""

    __slots__ = ("puts", "removed", "replaces")

    def __init__(self, replaces: bool = False) -> None:
        self.replaces = replaces
        self.removed: dict[Any, None] = {}
        self.puts: dict[Any, Any] = {}

    def remove(self, entry: Any) -> None:
        self.puts.pop(entry, None)
        if not self.replaces:
            self.removed[entry] = None


class MapTable(GrowingState[dict[Any, Any]]):
    """The maps of one state; see `GrowingState` for its parameters.

    Implements `timerheap._state_handles.MapContents`.
    """

    shape = "map"

    def __init__(self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        super().__init__(kind, name, type_, memory)
        self._key = KeyCodec(type_.key_type, f"state {name!r}, a key", Row)
        self._pending: dict[int, _Changes] = {}
        self._searchable = map_log.searchable(type_.key_type)
        self._searched: dict[int, tuple[int, pa.Array | None]] = {}  # how often, and the log

    @staticmethod
    def _row_type(type_: pa.DataType) -> pa.DataType:
        return map_log.log_type(type_)

    @staticmethod
    def _type_of(rows: pa.DataType) -> pa.DataType:
        return map_log.map_type(rows)

    @staticmethod
    def _compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
        return map_log.compact(rows, whole)

    @staticmethod
    def _whole(rows: pa.Array) -> pa.Array:
        return map_log.maps(rows)

    def load(self, key_id: int) -> dict[Any, Any]:
        """Return the entries of a key in the order of insertion; changes reach the dict."""
        found = self._loaded.get(key_id)
        return self._load(key_id) if found is None else found

    def find(self, key_id: int, entry: Any) -> tuple[bool, Any]:
        """Return whether a key has an entry, and its value."""
        entries = self._loaded.get(key_id)
        if entries is None:
            if (changes := self._pending.get(key_id)) is not None:
                if entry in changes.puts:
                    return True, changes.puts[entry]
                if changes.replaces or entry in changes.removed:
                    return False, None
            if (log := self._large_log(key_id)) is not None:
                return map_log.find(log, entry)
            entries = self._load(key_id)
        return entry in entries, entries.get(entry)

    def is_empty(self, key_id: int) -> bool:
        """Return whether a key has no entries; a large map is not loaded."""
        if key_id in self._loaded:
            return not self._loaded[key_id]
        changes = self._pending.get(key_id, _Changes())
        if changes.puts or changes.replaces:
            return not changes.puts
        if changes.removed:
            if not self._is_large(key_id):
                return not self.load(key_id)
            self._settle()
        return not self._is_stored(key_id)

    def _is_large(self, key_id: int) -> bool:
        return int(self._chains.lengths(np.array([key_id]))[0]) > growing_state.SMALL

    def _large_log(self, key_id: int) -> pa.Array | None:
        """Return the log of a map that is too large to load for a few lookups; None if it is to be loaded."""
        found = self._searched.get(key_id)
        if found is None:
            large = self._searchable and self._is_large(key_id)
            found = 0, self._chains.get(np.array([key_id])) if large else None
        searches, log = found
        self._searched[key_id] = searches + 1, log
        return log if searches < _SEARCHES else None

    def _settle(self) -> None:
        super()._settle()
        self._searched.clear()

    def put(self, key_id: int, entries: dict[Any, Any]) -> None:
        """Set entries of a key."""
        self._changes(key_id).puts.update(entries)
        if key_id in self._loaded:
            self._loaded[key_id].update(entries)

    def remove(self, key_id: int, entry: Any) -> None:
        """Remove an entry of a key, if it has it.

        It is recorded even if the entry is known to be missing: whether that is known depends on what is
        loaded, and all attempts of a task must write the same.
        """
        if key_id in self._loaded:
            self._loaded[key_id].pop(entry, None)
        self._changes(key_id).remove(entry)

    def remove_all(self, key_id: int) -> None:
        """Remove all entries of a key."""
        self._pending[key_id] = _Changes(replaces=True)
        self._loaded[key_id] = {}

    def _changes(self, key_id: int) -> _Changes:
        changes = self._pending.get(key_id)
        if changes is None:
            changes = self._pending[key_id] = _Changes()
        return changes

    def _read(self, ids: list[int], rows: pa.Array) -> None:
        entries = rows.flatten()
        keys = self._keys(entries.field("key"))
        values = python_values(entries.field("value"))
        removed = python_values(entries.field("removed"))
        stop = 0
        for key_id, length in zip(ids, rows.value_lengths().to_pylist(), strict=True):
            start, stop = stop, stop + length
            changes = self._pending.get(key_id, _Changes())
            contents: dict[Any, Any] = {}
            if not changes.replaces:
                for at in range(start, stop):
                    if removed[at]:
                        contents.pop(keys[at], None)
                    else:
                        contents[keys[at]] = values[at]
            for entry in changes.removed:
                contents.pop(entry, None)
            contents.update(changes.puts)
            self._loaded[key_id] = contents

    def _keys(self, column: pa.Array) -> list[Any]:
        kept = python_values(column)
        if pa.types.is_struct(column.type) or pa.types.is_floating(column.type):
            return [self._key.decode(self._key.encode(key)) for key in kept]  # NaN becomes the one NaN
        return kept

    def _pending_edits(self) -> Edits | None:
        if not self._pending:
            return None
        pending, self._pending = self._pending, {}
        keys = [k for c in pending.values() for part in (c.removed, c.puts) for k in part]
        values = [v for c in pending.values() for v in (*c.removed.values(), *c.puts.values())]
        removed = [r for c in pending.values() for r in (*[True] * len(c.removed), *[False] * len(c.puts))]
        fields = list(self._chains.type.value_type)
        columns = zip((removed, keys, values), fields, strict=True)
        entries = pa.StructArray.from_arrays([pa.array(c, f.type) for c, f in columns], fields=fields)
        lengths = [len(c.removed) + len(c.puts) for c in pending.values()]
        replaces = np.array([c.replaces for c in pending.values()])
        rows = rows_of(entries, lengths, self._row_type(self.type))
        return Edits(np.fromiter(pending, np.int64, len(pending)), replaces, rows)
