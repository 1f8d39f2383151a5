"""One key group in a worker: its watermark, keys, timers, buffered rows and states."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import xxh64
from timerheap.errors import ForeignCheckpointError
from timerheap.spark._group.evolution import evolved_state, has_time_to_live
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.state_names import BROADCAST_STATE, name_taken, state_name
from timerheap.spark._group.stored.kinds import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    TIMER_NAMES,
    USER_STATE,
)
from timerheap.spark._group.stored.manifest import Standing
from timerheap.spark._group.stored.parts import CheckpointedPart, LoadedPart
from timerheap.spark._group.timers import JournalledTimers, TimerNames, timers_in_order
from timerheap.spark._group.user_states import (
    UserState,
    attached_state,
    has_type,
    head_of,
    new_state,
    restored_state,
)
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._settling.settling_keys import SettlingKeys
from timerheap.timer import MIN_WATERMARK

_EXPIRIES = (PROCESSING_EXPIRIES, EVENT_EXPIRIES)
_EXPIRY_NAMES = ("processing", "event")
_PARTS = ("keys", "event", "processing", "rows", "own")
_NEW: dict[str, Any] = {  # a head
    **dict.fromkeys((*_PARTS, "settling"), ()),
    "names": None,
    "states": {},
    "expiries": {},
}


class KeyGroup:
    """Holds everything that one key group of a query has.

    In `memory` is everything that another process needs to continue the group. With the `head` that `head()`
    returned in that process, the group is the one in that memory, and the layout must be one that it `fits`;
    O(1), except for own parts. `wake_up` is the timestamp of the group's timer in Spark.
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
        self.rows = RowBuffer(
            layout.rows, layout.order, memory, heads["rows"], layout.ties, layout.event_time
        )
        heads_of_own = heads["own"] or [()] * len(layout.own)
        self.own = tuple(own.part(memory, of) for own, of in zip(layout.own, heads_of_own, strict=True))
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
        self.settling = SettlingKeys(self, heads["settling"])
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
            "own": [own.head() for own in self.own],
            "states": {name: head_of(state) for name, state in self.states.items()},
            "expiries": {_EXPIRY_NAMES[at]: timers.head() for at, timers in self._expiries.items()},
            "settling": self.settling.head(),
            "numbers": [self.watermark, self.late_rows, self.wake_up, self._losses_seen],
        }

    @staticmethod
    def fits(layout: GroupLayout, head: dict[str, Any]) -> bool:
        """Return whether the layout has the key, rows, timers, own part and states of `head`."""
        gone = (name in layout.rename_state or layout.drops(name) for name in head["states"])
        return bool(head["shape"] == _shape(layout)) and not any(gone)

    def parts(self) -> Iterator[CheckpointedPart]:
        """Yield the parts in the order in which they are saved."""
        yield from (self.keys, self.event_timers, self.processing_timers, self.rows)
        yield from self.own
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
        own = next((own for own in self.own if own.kind == kind), None)
        if own is not None and name != own.name:
            raise own.misfit(name)
        part = next((part for part in self.parts() if part.kind == kind), None)
        if part is None or part.name != name:
            raise ForeignCheckpointError(
                f"the checkpoint has chunks of kind {kind}, which this version cannot read; use the "
                "version that wrote them, or start a new checkpoint"
            )
        return part

    def expiries(self, event_time: bool) -> JournalledTimers:
        """Return when states with a time to live expire; the namespace is `expiry_namespace` of a state."""
        if event_time not in self._expiries:
            self._expiries[event_time] = JournalledTimers(_EXPIRIES[event_time], self.memory, named=False)
        return self._expiries[event_time]

    def known_expiries(self) -> list[JournalledTimers | None]:
        """Return the expiries by processing time and by event time, None where there were none."""
        return [self._expiries.get(event_time) for event_time in (False, True)]

    def due_expiries(self, event_time: bool, time: int, states: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Remove the expiries of `states` up to `time`; yield the name of each state, and the ids of keys."""
        # Those of other states that the group has stay, until their function asks for them again.
        self.settling.bring_due(event_time, time)
        timers = self._expiries.get(event_time)
        if timers is None or not len(rows := timers.heap._due_rows(time)):
            return
        heap = timers.heap
        due = [column[rows] for column in (heap.timestamps, heap.key_hashes, heap.namespaces)]
        others = [expiry_namespace(name) for name in self.states.keys() - states]
        if others:
            due = [column[~np.isin(due[2], others)] for column in due]
        due = [*timers_in_order(*due)]  # not that of the heap, which depends on how it was filled
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
        for own in self.own:
            more, other = own.pending(event_time)
            count, due = count + more, min((time for time in (due, other) if time is not None), default=None)
        return count, due

    def _restored_state(self, kind: int, name: str, schema: pa.Schema) -> UserState:
        if name in self.layout.rename_state:
            old, name = name, self.layout.rename_state[name]
            self.evolved = True
            if name in self.states:
                raise name_taken(old, name)
        elif name in self.states:
            raise name_taken(*next(names for names in self.layout.rename_state.items() if names[1] == name))
        table = restored_state(kind, name, schema, self.memory)
        self.states[name] = table
        return table

    def keyed_states(self) -> dict[str, UserState]:
        """Return the states that are not broadcast, by name."""
        return {name: state for name, state in self.states.items() if not name.startswith(BROADCAST_STATE)}

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> UserState:
        """Return the table of a state; raise an error if its shape is another, or its type cannot change."""
        name = state_name(self.layout, name, broadcast)
        self._asked_for.add(name)
        table = self.states.get(name)
        if table is None:
            kind = max((f.kind + 1 for f in self.states.values()), default=USER_STATE)
            table = self.states[name] = new_state(kind, name, shape, type_, self.memory)
        elif not has_type(table, shape, type_):
            self.settling.bring_all()
            table = self.states[name] = self._evolved(table, shape, type_)
        return table

    def _evolved(self, table: UserState, shape: str, type_: pa.DataType) -> UserState:
        """Return a state as one of another type; raise an error if that would lose anything."""
        path = table.name.removeprefix(BROADCAST_STATE)
        changes = self.layout.rename_state, self.layout.drop_state
        new = evolved_state(table, path, shape, type_, *changes, self.memory)
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
            f"state {name!r} is in the checkpoint, and the function has not asked for it: it stays there "
            f"with its keys. If it was renamed, pass state_changes={{{name!r}: 'the new name'}}; if it was "
            f"removed, state_changes={{{name!r}: None}}"
            for name in self.keyed_states().keys() - self._asked_for
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
        settled = self.settling.settled
        named = [heap.namespaces for heap in heaps]
        self.timer_names.retain(named if settled is None else [*named, settled.namespaces()])
        holders = [self.event_timers.heap.key_hashes, self.processing_timers.heap.key_hashes, self.rows.ids()]
        holders += [state.ids() for state in self.keyed_states().values()]
        holders += [timers.heap.key_hashes for timers in self._expiries.values()]
        holders += [own.ids() for own in self.own]
        self.keys.retain(holders)

    def losses(self) -> int:
        """Return what has gone since the last search for dead keys."""
        parts = [self.keys, self.event_timers, self.processing_timers, self.rows, *self.states.values()]
        return sum(part.count_losses() for part in (*parts, *self.own)) - self._losses_seen

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
        for own in self.own:
            own.loaded(self.watermark)
        self._losses_seen = 0
        self._losses_seen = self.losses() - (self._size() if losses is None else losses)
        return self

    def _size(self) -> int:
        return len(self.keys) + sum(
            len(part) for part in (self.event_timers, self.processing_timers, self.rows)
        )


def _shape(layout: GroupLayout) -> list[Any]:
    """Return JSON values that are equal for layouts whose groups have the same parts."""
    key = [field.name for field in layout.key_fields]
    return [key, str(layout.rows), layout.order, [own.name for own in layout.own]]


def _of_namespace(timers: JournalledTimers, namespace: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the timestamps, keys and namespaces of the timers of a namespace."""
    heap = timers.heap
    rows = np.flatnonzero(heap.namespaces == namespace)
    return heap.timestamps[rows], heap.key_hashes[rows], heap.namespaces[rows]


def expiry_namespace(name: str) -> int:
    """Return the namespace of the expiries of a state, which depends on its name alone."""
    return xxh64(name.encode()) - (1 << 63)
