"""The states of a function whose calls can be undone: each change leaves a step that undoes it.

A step is a function and its arguments. The steps of a call run from the last to the first.
Changes go to the states as they do without steps, so what is read, saved and counted is the same, and a call
that returns leaves nothing but a list to empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Steps: TypeAlias = list[tuple[Any, ...]]


def undo(steps: Steps) -> None:
    """Run all steps, the last one first, and remove them."""
    for call, *arguments in steps[::-1]:
        call(*arguments)  # which may add steps
    steps.clear()


class _Revocable:
    """The contents of a state with the methods of its table, of which some keep how to undo what they do."""

    def __init__(self, table: Any, steps: Steps) -> None:
        self._table = table
        self._steps = steps
        self.load = table.load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


class _RevocableValues(_Revocable):
    def store(self, key: int, value: Any) -> None:
        self._steps.append((self._table.store, key, self.load(key)))
        self._table.store(key, value)

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        self._steps.append((self._table.put_many, ids, self._table.get_many(ids)))
        self._table.put_many(ids, values)


class _RevocableLists(_Revocable):
    def append(self, key: int, elements: list[Any]) -> None:
        self._steps.append((self._cut, key, len(elements)))
        self._table.append(key, elements)

    def replace(self, key: int, elements: list[Any]) -> None:
        # The list itself, which is not changed once the table has another one.
        self._steps.append((self._table.replace, key, self.load(key)))
        self._table.replace(key, elements)

    def _cut(self, key: int, n: int) -> None:
        """Remove the last elements of a list."""
        elements = self.load(key)
        self._table.replace(key, elements[: len(elements) - n])


class _RevocableMaps(_Revocable):
    def put(self, key: int, entries: dict[Any, Any]) -> None:
        find = self._table.find
        self._steps.append((self._put_entries_back, key, [(entry, *find(key, entry)) for entry in entries]))
        self._table.put(key, entries)

    def remove(self, key: int, entry: Any) -> None:
        self._steps.append((self._put_entries_back, key, [(entry, *self._table.find(key, entry))]))
        self._table.remove(key, entry)

    def remove_all(self, key: int) -> None:
        self._steps.append((self._fill, key, self.load(key)))  # the map itself: see `_RevocableLists.replace`
        self._table.remove_all(key)

    def _put_entries_back(self, key: int, entries: list[tuple[Any, bool, Any]]) -> None:
        """Put the entries back that were found, and remove the others."""
        for entry, found, value in entries:
            if found:
                self._table.put(key, {entry: value})
            else:
                self._table.remove(key, entry)

    def _fill(self, key: int, entries: dict[Any, Any]) -> None:
        self._table.remove_all(key)
        if entries:
            self._table.put(key, entries)


_BY_SHAPE: dict[str, type[_Revocable]] = {
    "value": _RevocableValues,
    "list": _RevocableLists,
    "map": _RevocableMaps,
}


def revocable(table: Any, steps: Steps) -> Any:
    """Return the contents of a state whose changes add steps that undo them."""
    return _BY_SHAPE[table.shape](table, steps)


def restore_timers(timers: Any, steps: Steps, changed: Sequence[Any]) -> None:
    """Add a step that puts timers back as they are now: `changed` are timestamps, ids and a namespace."""
    timestamps, ids, namespace = np.broadcast_arrays(*changed)
    at, found = timers.heap.find_many(timestamps, ids, namespace)
    steps.append((_put_timers_back, timers, np.where(found, at, timestamps), ids.copy(), namespace, found))


def _put_timers_back(
    timers: Any, timestamps: np.ndarray, ids: np.ndarray, namespaces: np.ndarray, there: np.ndarray
) -> None:
    """Register the timers that were there, and delete the others."""
    timers.remove_many(timestamps[~there], ids[~there], namespaces[~there])
    timers.push_many(timestamps[there], ids[there], namespaces[there])
