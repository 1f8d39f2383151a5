"""The contents of a user's list state in one key group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._group.growing_state import GrowingState, rows_of
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.python_values import python_values
from timerheap.spark._group.segments import Edits

__all__ = ["ListTable"]


class ListTable(GrowingState[list[Any]]):
    """The lists of one state; see `GrowingState` for its parameters.

    Implements `timerheap._state_handles.ListContents`.
    """

    shape = "list"

    def __init__(self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        super().__init__(kind, name, type_, memory)
        self._pending: dict[int, tuple[bool, list[Any]]] = {}  # whether it replaces, and elements

    @staticmethod
    def _row_type(type_: pa.DataType) -> pa.DataType:
        return type_

    @staticmethod
    def _type_of(rows: pa.DataType) -> pa.DataType:
        return rows

    @staticmethod
    def _compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
        return rows

    def load(self, key_id: int) -> list[Any]:
        """Return the elements of a key; `append` extends the list."""
        found = self._loaded.get(key_id)
        return self._load(key_id) if found is None else found

    def is_empty(self, key_id: int) -> bool:
        """Return whether a key has no elements, without loading them."""
        replaces, added = self._pending.get(key_id, (False, []))
        return not added and (replaces or not self._is_stored(key_id))

    def append(self, key_id: int, elements: list[Any]) -> None:
        """Append elements to the list of a key."""
        _, added = self._pending.setdefault(key_id, (False, []))
        added.extend(elements)
        loaded = self._loaded.get(key_id, added)
        if loaded is not added:
            loaded.extend(elements)

    def replace(self, key_id: int, elements: list[Any]) -> None:
        """Set the list of a key; an empty one removes it."""
        self._pending[key_id] = True, elements
        self._loaded[key_id] = elements

    def _read(self, ids: list[int], rows: pa.Array) -> None:
        flat, stop = python_values(rows.flatten()), 0
        for key_id, length in zip(ids, rows.value_lengths().to_pylist(), strict=True):
            start, stop = stop, stop + length
            elements = flat[start:stop]
            replaces, added = self._pending.get(key_id, (False, []))
            self._loaded[key_id] = added if replaces or not elements else elements + added

    def _pending_edits(self) -> Edits | None:
        if not self._pending:
            return None
        pending, self._pending = self._pending, {}
        flat = [element for _, elements in pending.values() for element in elements]
        rows = rows_of(
            pa.array(flat, self._chains.type.value_type),
            [len(elements) for _, elements in pending.values()],
            self.type,
        )
        replaces = np.array([replaces for replaces, _ in pending.values()])
        return Edits(np.fromiter(pending, np.int64, len(pending)), replaces, rows)
