"""Which keys of a group settle, when, and how they come back before anything looks at them."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from timerheap._native._core import IdIndex, row_order
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.layout import OwnPart
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.state_names import BROADCAST_STATE
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._group.user_states import UserState
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._memory.blocks import Block, Memory
from timerheap.spark._memory.settled import (
    FileMemory,
    Records,
    Settled,
    Timers,
    WholeKeys,
)
from timerheap.spark._memory.settled_parts import SettledPart, SettledTimers
from timerheap.spark._memory.value_codes import has_codes

_SLOTS = 4  # the most timers of one time domain in a record
KEY_BYTES, TIMER_BYTES, VALUE_BYTES = 42, 27, 40
"""What each takes in memory, beside the bytes of keys and of values."""
_SHORTEST, _LONGEST = 16, 1024  # micro-batches without settling


@dataclass(frozen=True)
class Settling:
    """When keys settle.

    above: bytes of a group in memory from which on keys settle
    records: of a range
    ranges: how many are written in a micro-batch at most
    least: keys for which a range is written anew
    share: keys settle no more for a while if one in so many came back in one micro-batch; 0 for never
    """

    above: int = 64 << 20
    records: int = 1 << 16
    ranges: int = 4
    least: int = 1 << 11
    share: int = 4


SETTLING = Settling(*json.loads(os.environ.get("TIMERHEAP_SETTLING", "[]")))
"""That of this process; the variable is for tests."""


class SettledLost(Exception):
    """What has settled cannot be read; the group is in the checkpoint as it was."""


class Parts(Protocol):
    """What a key group has, as far as its keys may settle."""

    keys: KeyTable
    event_timers: JournalledTimers
    processing_timers: JournalledTimers
    rows: RowBuffer
    states: dict[str, UserState]
    memory: Memory
    watermark: int

    @property
    def own(self) -> Sequence[OwnPart]: ...

    def known_expiries(self) -> list[JournalledTimers | None]: ...


class SettlingKeys:
    """Lets keys of one group settle, and brings them back."""

    def __init__(self, group: Parts, head: Sequence[Any] = ()) -> None:
        self._group = weakref.ref(group)
        self._seen = IdIndex()  # ids of this micro-batch, which have not settled
        self.came = 0  # keys that have come back in it
        self.settled: Settled | None = None
        self._pause: int
        self._rest: int
        self._pause, self._rest, records, settled = head or (0, 0, None, ())
        if records is not None:
            key = group.keys.table.type
            self.attach(Settled(cast(FileMemory, group.memory), Records.of(key, records), settled))

    def head(self) -> list[Any]:
        if self.settled is None:
            return [self._pause, self._rest, None, []]
        return [self._pause, self._rest, self.settled.records.head(), self.settled.head()]

    @property
    def runs(self) -> list[Block]:
        """Where the runs of the keys that have settled are in the file."""
        return [] if self.settled is None else self.settled.places

    def attach(self, settled: Settled | None) -> None:
        """Tell the parts of the group what has settled of each."""
        group, self.settled = self._here(), settled
        group.keys.settled = None if settled is None else SettledPart(settled, self.bring)
        for domain, timers in enumerate(_domains(group)):
            if timers is not None:
                timers.settled = None if settled is None else SettledTimers(settled, domain)
        for state in group.states.values():
            if isinstance(state, StateTable):
                state.settled = None
        for number, name in enumerate([] if settled is None else settled.records.states):
            state = group.states[name]
            assert settled is not None
            assert isinstance(state, StateTable)
            state.settled = SettledPart(settled, self.bring, number)

    def _here(self) -> Parts:
        group = self._group()
        assert group is not None
        return group

    # ---- coming back ----

    def begin(self, ids: np.ndarray | None, watermark: int, now: int | None) -> None:
        """Bring back what a micro-batch may look at; nothing has changed after a SettledLost."""
        if self.settled is None:
            return
        try:
            self.bring_due(True, watermark)
            if now is not None:
                self.bring_due(False, now)
            if ids is not None:
                self.bring(ids)
        except (OSError, ValueError) as e:
            raise _lost(e) from e

    def bring(self, ids: np.ndarray) -> None:
        """Bring back the keys that have settled of these ids."""
        if self.settled is None:
            return
        ids = ids[self._seen.put_many(ids, 0)]
        if len(ids):
            ids = ids[~self._here().keys.table.find(ids)]
        if len(ids):
            self._put(self.settled.take(ids))

    def bring_due(self, event_time: bool, time: int) -> None:
        """Bring back the keys whose timers or expiries of a time domain are due."""
        if self.settled is not None:
            for domain in (0, 3) if event_time else (1, 2):
                self._put(self.settled.take_due(domain, time))

    def bring_all(self) -> None:
        """Bring back all keys."""
        if self.settled is not None:
            for part in self.settled.parts():
                self._put(part)
            self.settled.clear()
            self.attach(None)

    def _put(self, whole: WholeKeys | None) -> None:
        if whole is None or self.settled is None:
            return
        group, ids = self._here(), whole.ids
        self._seen.put_many(ids, 0)
        self.came += len(ids)
        group.keys.table.put(ids, whole.keys)
        for name, values in zip(self.settled.records.states, whole.values, strict=True):
            held = values.is_valid()
            _value_table(group, name).put_back(ids[held.to_numpy(zero_copy_only=False)], values.filter(held))
        for timers, columns in zip(_domains(group), whole.timers, strict=True):
            if timers is not None and len(columns[0]):
                timers.heap.push_many(*columns)

    # ---- settling ----

    def settle(self, settling: Settling) -> int:
        """Let keys settle after a save, if the group is large, and return how many have.

        After a SettledLost the group must be loaded from the checkpoint.
        """
        seen, came = self._seen, self.came
        try:
            return self._settle(settling, seen, came)
        except (OSError, ValueError) as e:
            raise _lost(e) from e
        finally:  # what it has looked at may have settled since
            self.came = 0
            if len(self._seen):
                self._seen = IdIndex()

    def _settle(self, settling: Settling, seen: IdIndex, came: int) -> int:
        group = self._here()
        memory = cast(FileMemory, group.memory)
        if memory.failure is not None or self._rests(settling, came) or hot_bytes(group) <= settling.above:
            return 0
        wanted = self.wanted()
        if wanted is None:
            return 0
        settled = self.with_records(wanted, settling)
        group.keys.forget_at_hand()
        done, budget, tried = 0, settling.ranges, np.empty(0, np.int64)
        while budget > 0 and hot_bytes(group) > settling.above:
            hot = np.sort(group.keys.table.ids())
            shares = np.where(np.isin(settled.lows, tried), 0, settled.shares(hot))
            at = int(np.argmax(shares))
            if not shares[at]:
                break
            low, high = settled.bounds(at)
            mine = hot[np.searchsorted(hot, low) : np.searchsorted(hot, high, side="right")]
            mine = mine[~seen.find_many(mine)[1]]
            parts = -(-len(mine) // settling.records) or 1  # one at a time, since each is a copy of its keys
            if parts > 1 and not settled.live(at):
                settled.split(at, mine[len(mine) * np.arange(1, parts) // parts])
                continue
            mine = mine[::parts]
            done += self.settled_in(at, self.fitting(mine, settled), settling)
            lows = settled.lows
            tried = np.concatenate([tried, lows[(lows >= low) & (lows <= high)]])
            budget -= int(np.count_nonzero((lows >= low) & (lows <= high)))
        if not done and settling.share:
            self._rest = _SHORTEST
        return done

    def with_records(self, wanted: Records, settling: Settling) -> Settled:
        """Return what has settled, as records of this format."""
        if self.settled is None or not wanted.fits(self.settled.records):
            settled = Settled(cast(FileMemory, self._here().memory), wanted)
            for left in () if self.settled is None else settled.take_over(self.settled, settling.records):
                self._put(left)
            self.attach(settled)
        assert self.settled is not None
        return self.settled

    def _rests(self, settling: Settling, came: int) -> bool:
        """Return whether nothing settles now, given how many keys have come back."""
        if self.settled is not None and settling.share:
            if came * settling.share > len(self.settled) + came:
                self._pause = min(max(_SHORTEST, 2 * self._pause), _LONGEST)
                self._rest = self._pause
            elif not self._rest:
                self._pause //= 2
        self._rest = max(0, self._rest - 1)
        return self._rest > 0

    def wanted(self) -> Records | None:
        """Return the records that keys of the group would have, None if they cannot settle."""
        group = self._here()
        if group.own or not has_codes(group.keys.type):
            return None
        types = {name: state.type for name, state in group.states.items() if can_settle(name, state)}
        n = max(1, len(group.keys))
        before = [0] * 4 if self.settled is None else self.settled.records.slots
        slots = []
        for timers, least in zip(_domains(group), before, strict=True):
            per_key = 0.0 if timers is None else len(timers) / n
            slots.append(max(least, min(_SLOTS, int(np.ceil(per_key / 1.25)))))
        return Records(group.keys.type, types, slots)

    def settled_in(self, at: int, whole: WholeKeys, settling: Settling) -> int:
        """Let keys settle in a range, and remove them from memory; return how many."""
        assert self.settled is not None
        if len(whole.ids) < min(settling.least, settling.records):
            return 0
        try:
            ids = self.settled.add(at, whole, settling.records)
        except MemoryError:
            return 0
        if len(ids) < len(whole.ids):
            whole = whole.where(np.isin(whole.ids, ids))
        group = self._here()
        group.keys.table.remove(ids)
        for name in self.settled.records.states:
            _value_table(group, name).take_out(ids)
        for timers, columns in zip(_domains(group), whole.timers, strict=True):
            if timers is not None and len(columns[0]):
                timers.heap.remove_many(*columns)
        return len(ids)

    def fitting(self, ids: np.ndarray, settled: Settled) -> WholeKeys:
        """Return those of the keys, in the order of ids, that may settle, with all that they have."""
        group = self._here()
        others = [state for name, state in group.states.items() if name not in settled.records.states]
        for holder in (group.rows, *others):
            if len(held := holder.ids()):
                index = IdIndex()
                index.put_many(held, 0)
                ids = ids[~index.find_many(ids)[1]]
        ids = ids[~group.keys.are_displaced(ids)]
        holds = np.zeros(len(ids), np.int64)
        fits = np.ones(len(ids), bool)
        timers: list[Timers] = []
        for domain, (of, slots) in enumerate(zip(_domains(group), settled.records.slots, strict=True)):
            found = _timers_of_keys(of, ids)
            at = np.searchsorted(ids, found[1])
            counts = np.bincount(at, minlength=len(ids))
            fits &= counts <= slots
            fits[at[settled.numbers(found[2]) < 0]] = False
            if domain == 0:  # those that are due come back with the next micro-batch
                fits[at[found[0] <= group.watermark]] = False
            holds += counts
            timers.append(found)
        values = [_value_table(group, name).in_table(ids) for name in settled.records.states]
        for column in values:
            holds += column.is_valid().to_numpy(zero_copy_only=False)
        # A key that nothing holds is forgotten soon, which the checkpoint shows.
        whole = WholeKeys(ids, group.keys.table.get(ids), values, timers)
        return whole.where(fits & (holds > 0))


def _lost(error: Exception) -> SettledLost:
    return SettledLost(f"keys that have settled cannot be read: {error}")


def _domains(group: Parts) -> list[JournalledTimers | None]:
    """Return the timers of each time domain: two kinds of timers, then of expiries."""
    return [group.event_timers, group.processing_timers, *group.known_expiries()]


def can_settle(name: str, state: UserState) -> bool:
    """Return whether values of a state may settle; keys that have any in other states do not."""
    plain = isinstance(state, StateTable) and has_codes(state.type)
    return plain and not name.startswith(BROADCAST_STATE)


def _value_table(group: Parts, name: str) -> StateTable:
    state = group.states[name]
    assert isinstance(state, StateTable)
    return state


def _timers_of_keys(timers: JournalledTimers | None, ids: np.ndarray) -> Timers:
    """Return the timers of keys, in the order of ids."""
    none = np.empty(0, np.int64)
    if timers is None or not len(ids):
        return none, none, none
    heap = timers.heap
    owners = heap.key_hashes
    (rows,) = ((owners >= ids[0]) & (owners <= ids[-1])).nonzero()
    wanted = IdIndex()
    wanted.put_many(ids, 0)
    rows = rows[wanted.find_many(owners[rows])[1]]
    timestamps, owners, namespaces = heap.timestamps[rows], owners[rows], heap.namespaces[rows]
    order = row_order(owners, timestamps, namespaces)
    return timestamps[order], owners[order], namespaces[order]


def hot_bytes(group: Parts) -> int:
    """Return about how many bytes the keys take in memory that have not settled; O(1)."""
    found = (KEY_BYTES + group.keys.table.value_bytes()) * len(group.keys.table)
    found += TIMER_BYTES * sum(len(timers.heap) for timers in _domains(group) if timers is not None)
    for state in group.states.values():
        if isinstance(state, StateTable):
            found += state.hot_bytes(VALUE_BYTES)
    return int(found)
