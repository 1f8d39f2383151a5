"""Whole keys as records, which are bytes, and back."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.spark._settling.bit_codes import BitCodes

Timers = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Timestamps, ids of keys, and namespaces, in the order of the ids."""

EXPIRIES = "expiries "
"""Begins the names of the kinds of timers whose namespaces are those of states."""


class WholeKeys(NamedTuple):
    """Keys with all that they have.

    ids: int64, shape (n,), in ascending order
    keys: structs of the key columns
    values: of each state, null for a key without one
    timers: of each kind
    """

    ids: np.ndarray
    keys: pa.StructArray
    values: list[pa.Array]
    timers: list[Timers]

    def where(self, mask: np.ndarray) -> WholeKeys:
        """Return the keys of a mask, shape (n,)."""
        rows, kept = pa.array(mask), self.ids[mask]
        timers = []
        for columns in self.timers:
            mine = mask[np.searchsorted(self.ids, columns[1])]
            timers.append((columns[0][mine], columns[1][mine], columns[2][mine]))
        return WholeKeys(kept, self.keys.filter(rows), [each.filter(rows) for each in self.values], timers)


class Records:
    """How whole keys become bytes, and back.

    key: the type of the key
    states: the types of what states have of a key, by name
    slots: how many timers of each kind, by name, a record has room for; None if the contents tell them
    """

    def __init__(
        self, key: pa.StructType, states: dict[str, pa.DataType], slots: dict[str, int | None]
    ) -> None:
        self.states, self.slots = states, slots
        self._key = key
        columns = [*key, *(pa.field(f"s{number}", type_) for number, type_ in enumerate(states.values()))]
        for kind, count in enumerate(slots.values()):
            for slot in range(count or 0):
                columns += [
                    pa.field(f"t{kind}.{slot}", pa.int64()),
                    pa.field(f"n{kind}.{slot}", pa.uint8()),
                ]
        self._codes = BitCodes(pa.struct(columns))

    @property
    def tells_all_timers(self) -> bool:
        """Whether no contents tell timers."""
        return None not in self.slots.values()

    def head(self) -> list[Any]:
        schema = pa.schema(list(self.states.items())).serialize().to_pybytes()
        return [base64.b64encode(schema).decode(), self.slots]

    @classmethod
    def of(cls, key: pa.StructType, head: list[Any]) -> Records:
        """Return the records that `head` describes."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(head[0])))
        return cls(key, dict(zip(schema.names, schema.types, strict=True)), head[1])

    def fits(self, other: Records) -> bool:
        return (self.states, self.slots) == (other.states, other.slots)

    def encoded(self, whole: WholeKeys) -> tuple[np.ndarray, np.ndarray]:
        """Return where each record ends, int64, and their bytes; the namespaces are numbers."""
        n = len(whole.ids)
        columns = [*whole.keys.flatten(), *whole.values]
        for count, (timestamps, ids, namespaces) in zip(self.slots.values(), whole.timers, strict=True):
            at = np.searchsorted(whole.ids, ids)
            turns = np.arange(len(at)) - np.searchsorted(at, at)
            for slot in range(count or 0):
                mine, empty = turns == slot, np.ones(n, bool)
                empty[at[mine]] = False
                times, numbers = np.zeros(n, np.int64), np.zeros(n, np.uint8)
                times[at[mine]], numbers[at[mine]] = timestamps[mine], namespaces[mine]
                columns += [pa.array(times, mask=empty), pa.array(numbers, mask=empty)]
        fields = [each.with_type(c.type) for each, c in zip(self._codes.type, columns, strict=True)]
        return self._codes.encoded(pa.StructArray.from_arrays(columns, fields=fields))

    def decoded(self, ids: np.ndarray, ends: np.ndarray, data: np.ndarray) -> WholeKeys:
        """Return the keys of records; the namespaces are numbers."""
        columns = self._codes.decoded(ends, data).flatten()
        keys, count = columns[: self._key.num_fields], self._key.num_fields + len(self.states)
        fields = [each.with_type(c.type) for each, c in zip(self._key, keys, strict=True)]
        values, slots = columns[self._key.num_fields : count], iter(columns[count:])
        timers = [
            _in_slots([(next(slots), next(slots)) for _ in range(of or 0)], ids) for of in self.slots.values()
        ]
        return WholeKeys(ids, pa.StructArray.from_arrays(keys, fields=fields), values, timers)


def _in_slots(slots: list[tuple[pa.Array, pa.Array]], ids: np.ndarray) -> Timers:
    none = np.empty(0, np.int64)
    parts = [(none, none, none)]
    for times, numbers in slots:
        (at,) = times.is_valid().to_numpy(zero_copy_only=False).nonzero()
        rows = pa.array(at)
        parts.append((times.take(rows).to_numpy(), ids[at], numbers.take(rows).to_numpy().astype(np.int64)))
    timestamps, owners, namespaces = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(owners, kind="stable")
    return timestamps[order], owners[order], namespaces[order]
