"""One key group in a worker: its watermark, keys, timers, buffered rows and states."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from timerheap._native._core import xxh64
from timerheap.spark._arrow import evolved_rows, has_time_to_live, misfit, renamed_fields, wide_rows, widen
from timerheap.spark._group.checkpoint import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    KEYS,
    OWN,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    ROWS,
    TIMER_NAMES,
    USER_STATE,
    CheckpointedPart,
    ChunkReader,
    LoadedPart,
    Manifest,
    Standing,
    Stored,
    described,
)
from timerheap.spark._group.growing_state import ListTable, MapTable
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.row_buffer import RowBuffer, RowOrder
from timerheap.spark._group.tables import KeyTable, StateTable
from timerheap.spark._group.timers import JournalledTimers, TimerNames
from timerheap.timer import MIN_WATERMARK

UserState = StateTable | ListTable | MapTable

_TABLES: dict[str, type[UserState]] = {table.shape: table for table in (StateTable, ListTable, MapTable)}
_EXPIRIES = (PROCESSING_EXPIRIES, EVENT_EXPIRIES)
_EXPIRY_NAMES = ("processing", "event")
_PARTS = ("keys", "event", "processing", "rows", "own")
_NEW: dict[str, Any] = {**dict.fromkeys(_PARTS, ()), "names": None, "states": {}, "expiries": {}}  # a head

BROADCAST_STATE = "broadcast:"
"""Prefix of the names of broadcast states, which a function asks for when it has rows.

They belong to the key group and not to a key: their tables have one id, which is none of `KeyGroup.keys`.
"""


class OwnPart(CheckpointedPart, Protocol):
    """What the key groups of a query have besides keys, timers, rows and states; it has timers of its own."""

    def head(self) -> Sequence[Any]:
        """Return the JSON values from which another process continues."""

    def loaded(self, watermark: int) -> None:
        """Finish a load at a watermark, after all chunks have been replayed."""

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that it keeps alive."""

    def count_losses(self) -> int:
        """Return how much has been removed so far."""

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        """Return the number of timers of a time domain, and when the next is due."""

    def misfit(self, stored: str) -> ValueError:
        """Return the error for a checkpoint whose part has another name."""


class OwnLayout(Protocol):
    """What an `OwnPart` is made of; groups whose layouts have the same name have the same part."""

    @property
    def name(self) -> str:
        """Describe the part; a checkpoint records it."""

    def part(self, memory: Memory, head: Sequence[Any]) -> OwnPart:
        """Return the part of one key group; see `KeyGroup`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLayout:
    """What the key groups of a query hold.

    A live group outlives the task that has loaded it, so it must not refer to the query, whose function may
    have made large objects.
    """

    key_fields: list[pa.Field]
    rows: pa.Schema  # of rows that may wait
    order: RowOrder
    ties: tuple[str, ...] = ()  # columns that order the rows of one key and time
    own: OwnLayout | None = None
    drop_state: tuple[str, ...]  # names of states that a load leaves out
    rename_state: dict[str, str]  # the new names of states by the old ones
    encrypted: bool = False  # Spark encrypts local files, so that live groups must stay in memory


class KeyGroup:
    """Holds everything that one key group of a query has.

    In `memory` is everything that another process needs to continue the group. With the `head` that `head()`
    returned in that process, the group is the one in that memory, and the layout must be one that it `fits`;
    O(1), except for an own part. `wake_up` is the timestamp of the group's timer in Spark.
    """

    def __init__(
        self, layout: GroupLayout, memory: Memory = PROCESS, head: dict[str, Any] | None = None
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.late_rows = 0
        self.wake_up: int | None = None
        self.watermark = MIN_WATERMARK
        heads = _NEW if head is None else head
        self.keys = KeyTable(layout.key_fields, memory, heads["keys"])
        self.event_timers = JournalledTimers(EVENT_TIMERS, memory, heads["event"])
        self.processing_timers = JournalledTimers(PROCESSING_TIMERS, memory, heads["processing"])
        self.timer_names = TimerNames(memory, heads["names"])
        self.rows = RowBuffer(layout.rows, layout.order, memory, heads["rows"], layout.ties)
        self.own = None if layout.own is None else layout.own.part(memory, heads["own"])
        self.states: dict[str, UserState] = {
            name: attached_state(memory, each) for name, each in heads["states"].items()
        }
        expiries = heads["expiries"]
        self._expiries: dict[bool, JournalledTimers] = {
            event_time: JournalledTimers(_EXPIRIES[event_time], memory, expiries[name], named=False)
            for event_time, name in zip((False, True), _EXPIRY_NAMES, strict=True)
            if name in expiries
        }
        self._asked_for: set[str] = set()  # names of states
        self.evolved = False  # whether a part has another name or type than its chunks
        self.untimed: set[str] = set()  # states whose contents have no time yet, from before a time to live
        self._losses_seen = 0
        if head is not None:
            self.watermark, self.late_rows, self.wake_up, self._losses_seen = head["numbers"]

    def head(self) -> dict[str, Any]:
        """Return the JSON values from which another process continues; all changes must have been saved."""
        return {
            "shape": _shape(self.layout),
            "keys": self.keys.head(),
            "event": self.event_timers.head(),
            "processing": self.processing_timers.head(),
            "names": None if self.timer_names.table is None else self.timer_names.table.head(),
            "rows": self.rows.head(),
            "own": None if self.own is None else self.own.head(),
            "states": {name: head_of(state) for name, state in self.states.items()},
            "expiries": {_EXPIRY_NAMES[at]: timers.head() for at, timers in self._expiries.items()},
            "numbers": [self.watermark, self.late_rows, self.wake_up, self._losses_seen],
        }

    @staticmethod
    def fits(layout: GroupLayout, head: dict[str, Any]) -> bool:
        """Return whether the layout has the key, rows, timers, own part and states of `head`."""
        gone = {*layout.drop_state, *layout.rename_state}
        return bool(head["shape"] == _shape(layout)) and head["states"].keys().isdisjoint(gone)

    def parts(self) -> Iterator[CheckpointedPart]:
        """Yield the parts in the order in which they are saved."""
        yield from (self.keys, self.event_timers, self.processing_timers, self.rows)
        if self.own is not None:
            yield self.own
        if self.timer_names.table is not None:
            yield self.timer_names.table
        yield from self.states.values()
        yield from self._expiries.values()

    def part(self, kind: int, name: str, schema: pa.Schema) -> LoadedPart:
        """Return the part that a run of chunks belongs to."""
        if kind >= USER_STATE:
            return self._restored_state(kind, name, schema)
        if kind in _EXPIRIES:
            return self.expiries(event_time=kind == EVENT_EXPIRIES)
        if kind == TIMER_NAMES:
            return self.timer_names.part()
        part = next((part for part in self.parts() if part.kind == kind), None)
        if self.own is not None and part is self.own and name != self.own.name:
            raise self.own.misfit(name)
        if part is None or part.name != name:
            raise ValueError(
                f"the checkpoint has chunks of kind {kind}, which this version cannot read; use the "
                "version that wrote them, or start a new checkpoint"
            )
        return part

    def expiries(self, event_time: bool) -> JournalledTimers:
        """Return when states with a time to live expire; the namespace is `expiry_namespace` of a state."""
        if event_time not in self._expiries:
            self._expiries[event_time] = JournalledTimers(_EXPIRIES[event_time], self.memory, named=False)
        return self._expiries[event_time]

    def due_expiries(self, event_time: bool, time: int, states: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Remove the expiries of `states` up to `time`; yield the name of each state, and the ids of keys."""
        # Those of other states that the group has stay, until their function asks for them again.
        timers = self._expiries.get(event_time)
        if timers is None or not len(rows := timers.heap._due_rows(time)):
            return
        heap = timers.heap
        due = [column[rows] for column in (heap.timestamps, heap.key_hashes, heap.namespaces)]
        others = [expiry_namespace(name) for name in self.states.keys() - states]
        if others:
            due = [column[~np.isin(due[2], others)] for column in due]
        timers.remove_many(*due)
        _, ids, namespaces = due
        for name in states:
            mine = namespaces == expiry_namespace(name)
            if mine.any():
                yield name, np.unique(ids[mine])

    def next_due(self, event_time: bool) -> int | None:
        """Return when the next timer or expiry is due, None for never."""
        due = [self._pending(event_time)[1]]
        if event_time in self._expiries:
            due.append(self._expiries[event_time].pending()[1])
        return min((time for time in due if time is not None), default=None)

    def _pending(self, event_time: bool) -> tuple[int, int | None]:
        """Return the number of timers of a time domain, and when the next is due."""
        count, due = (self.event_timers if event_time else self.processing_timers).pending()
        if self.own is None:
            return count, due
        more, other = self.own.pending(event_time)
        return count + more, min((time for time in (due, other) if time is not None), default=None)

    def _restored_state(self, kind: int, name: str, schema: pa.Schema) -> UserState:
        if name in self.layout.rename_state:
            old, name = name, self.layout.rename_state[name]
            self.evolved = True
            if name in self.states:
                raise _taken(old, name)
        elif name in self.states:
            raise _taken(*next(names for names in self.layout.rename_state.items() if names[1] == name))
        table = restored_state(kind, name, schema, self.memory)
        self.states[name] = table
        return table

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> UserState:
        """Return the table of a user's state; raise a ValueError if its shape or type has changed."""
        name = state_name(self.layout, name, broadcast)
        self._asked_for.add(name)
        table = self.states.get(name)
        if table is None:
            kind = max((f.kind + 1 for f in self.states.values()), default=USER_STATE)
            table = self.states[name] = new_state(kind, name, shape, type_, self.memory)
        elif (table.shape, table.type) != (shape, type_):
            table = self.states[name] = self._evolved(table, shape, type_)
        return table

    def _evolved(self, table: UserState, shape: str, type_: pa.DataType) -> UserState:
        """Return a state as one of another type; raise a ValueError if that would lose anything."""
        path = table.name.removeprefix(BROADCAST_STATE)
        was = renamed_fields(table.type, path, self.layout.rename_state)
        why = misfit(was, type_, path=path, dropped=self.layout.drop_state)
        if table.shape != shape:
            why = f"it is a {table.shape} state"
        if why is not None:
            raise ValueError(
                f"state {table.name!r} must stay a {table.shape} state of {table.type}, got a {shape} state "
                f"of {type_}: {why}; keep the type, or choose another name and pass "
                f"state_changes={{{path!r}: None}}"
            )
        new = new_state(table.kind, table.name, shape, type_, self.memory)
        named = wide_rows(new_state(table.kind, table.name, shape, was).schema)
        columns = [
            column.view(type_)
            for column, type_ in zip(widen(table.snapshot()).columns, named.types, strict=True)
        ]
        new.replay(evolved_rows(pa.RecordBatch.from_arrays(columns, schema=named), new.schema))
        if has_time_to_live(shape, type_) and not has_time_to_live(shape, table.type):
            self.untimed.add(table.name)
        elif has_time_to_live(shape, table.type) and not has_time_to_live(shape, type_):
            for timers in self._expiries.values():
                timers.remove_many(*_of_namespace(timers, expiry_namespace(table.name)))
        self.evolved = True
        return new

    def standing(self) -> Standing:
        (event, next_event), (processing, next_processing) = map(self._pending, (True, False))
        keys, rows = len(self.keys), len(self.rows)
        return Standing(event, processing, keys, rows, next_event, next_processing)

    def notices(self) -> frozenset[str]:
        """Return what the user should know about the loaded state."""
        return frozenset(
            f"state {name!r} is in the checkpoint, and the function has not asked for it; if it was renamed "
            f"or removed, pass state_changes={{{name!r}: None}}: until then it stays there with its keys"
            for name in self.states.keys() - self._asked_for
            if not name.startswith(BROADCAST_STATE)
        )

    def forget_dead_keys(self, always: bool = False) -> None:
        """Drop the keys that have no timer, state, own part or waiting row."""
        # A search costs O(keys + timers + waiting rows), so unless it is to be done `always`, it starts only
        # once half as many have gone: each pays amortised O(1), and the dead keys take about as much memory
        # as the rest at most.
        if not always and 2 * self.losses() < self._size():
            return
        self._losses_seen += self.losses()
        heaps = self.event_timers.heap, self.processing_timers.heap
        self.timer_names.retain([heap.namespaces for heap in heaps])
        holders = [self.event_timers.heap.key_hashes, self.processing_timers.heap.key_hashes, self.rows.ids()]
        holders += [
            table.ids() for name, table in self.states.items() if not name.startswith(BROADCAST_STATE)
        ]
        holders += [timers.heap.key_hashes for timers in self._expiries.values()]
        if self.own is not None:
            holders.append(self.own.ids())
        self.keys.retain(holders)

    def losses(self) -> int:
        """Return what has gone since the last search for dead keys."""
        parts = [self.keys, self.event_timers, self.processing_timers, self.rows, *self.states.values()]
        own = 0 if self.own is None else self.own.count_losses()
        return own + sum(part.count_losses() for part in parts) - self._losses_seen

    def loaded(self, losses: int | None = None) -> KeyGroup:
        """Finish a load after all chunks have been replayed."""
        # `losses` is what the method of that name returned after the save. Without it, any key may be dead.
        for timers in (self.event_timers, self.processing_timers):
            timers.heap.reserve(0)  # from now on the memory may shrink
        for timers in self._expiries.values():
            timers.heap.reserve(0)
            for old, new in self.layout.rename_state.items():
                due = _of_namespace(timers, expiry_namespace(old))
                timers.remove_many(*due)
                timers.push_many(*due[:2], expiry_namespace(new))
        self.evolved |= self.rows.loaded(self.watermark)
        if self.own is not None:
            self.own.loaded(self.watermark)
        self._losses_seen = 0
        self._losses_seen = self.losses() - (self._size() if losses is None else losses)
        return self

    def _size(self) -> int:
        return len(self.keys) + sum(
            len(part) for part in (self.event_timers.heap, self.processing_timers.heap, self.rows)
        )


def state_name(layout: GroupLayout, name: str, broadcast: bool) -> str:
    """Return the name in the checkpoint of a state that a function asks for; raise if it cannot have that."""
    if broadcast:
        name = BROADCAST_STATE + name
    elif name.startswith(BROADCAST_STATE):
        raise ValueError(f"a keyed state's name must not start with {BROADCAST_STATE!r}, got {name!r}")
    for change, names in ("drop", layout.drop_state), ("rename", layout.rename_state):
        if name in names:
            raise ValueError(
                f"state_changes must {change} states that the function no longer has, got {name!r}, which it "
                "uses; leave that out, or give the function's state another name"
            )
    return name


def _shape(layout: GroupLayout) -> list[Any]:
    """Return JSON values that are equal for layouts whose groups have the same parts."""
    key = [field.name for field in layout.key_fields]
    return [key, str(layout.rows), layout.order, None if layout.own is None else layout.own.name]


def _taken(old: str, new: str) -> ValueError:
    return ValueError(
        f"state_changes must give {old!r} a name that no state in the checkpoint has, got {new!r}; choose "
        f"another name, or run once with state_changes={{{new!r}: None}}"
    )


def _of_namespace(timers: JournalledTimers, namespace: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the timestamps, keys and namespaces of the timers of a namespace."""
    heap = timers.heap
    rows = np.flatnonzero(heap.namespaces == namespace)
    return heap.timestamps[rows], heap.key_hashes[rows], heap.namespaces[rows]


def expiry_namespace(name: str) -> int:
    """Return the namespace of the expiries of a state, which depends on its name alone."""
    return xxh64(name.encode()) - (1 << 63)


def load_group(
    store: ChunkReader, manifest: Manifest, layout: GroupLayout, memory: Memory = PROCESS
) -> tuple[KeyGroup, Stored]:
    """Return the group that a manifest describes; raise ValueError if it does not fit the layout."""
    group = KeyGroup(layout, memory)
    stored = Stored.load(store, manifest, group.part, layout.drop_state)
    group.watermark, group.late_rows = manifest.watermark, manifest.late_rows
    group.wake_up = manifest.wake_up
    return group.loaded(None if stored.drops else manifest.losses), stored


class StoredGroup(KeyGroup):
    """A key group as its manifest describes it, for a reader that does not know the query.

    Only the parts of `kinds` are loaded. Raises ValueError if a chunk is missing or damaged, or belongs to
    another save than the others.
    """

    def __init__(self, store: ChunkReader, manifest: Manifest, kinds: Collection[int]) -> None:
        self.manifest = manifest
        self.stored_own: dict[int, StoredOwn] = {}
        runs = [run for run in manifest.runs if run.kind in kinds]
        found = {run.kind: (name, schema) for run, name, schema in described(store, runs)}
        rows = found[ROWS][1] if ROWS in found else pa.schema([])
        layout = GroupLayout(
            key_fields=KeyTable.fields(found[KEYS][1]) if KEYS in found else [],
            rows=RowBuffer.rows_of(rows),
            order="event_time",
            drop_state=(),
            rename_state={},
        )
        super().__init__(layout)
        Stored.load(store, replace(manifest, runs=runs), self.part)
        self.watermark = manifest.watermark
        self.loaded()

    def part(self, kind: int, name: str, schema: pa.Schema) -> LoadedPart:
        if kind not in OWN:
            return super().part(kind, name, schema)
        self.stored_own[kind] = StoredOwn(name, schema)
        return self.stored_own[kind]


class StoredOwn:
    """An `OwnPart` as it is stored: its chunks, for a reader that knows what they mean."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name = name
        self.schema = schema
        self.chunks: list[pa.RecordBatch] = []

    def replay(self, batch: pa.RecordBatch) -> None:
        self.chunks.append(widen(batch))

    def reserve(self, times: float) -> None:
        """Do nothing: chunks are kept as they are."""


def new_state(kind: int, name: str, shape: str, type_: pa.DataType, memory: Memory = PROCESS) -> UserState:
    """Return an empty state; see `StateTable` and `GrowingState`."""
    return _TABLES[shape](kind, name, type_, memory)


def restored_state(kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> UserState:
    """Return an empty state for chunks of this schema; raise a ValueError if no state has it."""
    table = _TABLES.get(schema.names[-1])
    if table is not None:
        state = table.restored(kind, name, schema, memory)
        if state.schema == schema:
            return state
    raise ValueError(f"a chunk of state {name!r} has the columns {schema}")


def head_of(state: UserState) -> list[Any]:
    """Return the JSON values that `attached_state` needs."""
    schema = pa.schema([(state.name, state.type)]).serialize().to_pybytes()
    return [state.kind, state.shape, base64.b64encode(schema).decode(), state.head()]


def attached_state(memory: Memory, head: list[Any]) -> UserState:
    """Return the state that `head` describes; O(1)."""
    kind, shape, schema, head = head
    (field,) = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))
    return _TABLES[shape](kind, field.name, field.type, memory, head)
