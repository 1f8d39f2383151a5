"""Which keys of a group settle, when, and how they come back before anything looks at them."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from timerheap._native._core import IdIndex, row_order
from timerheap.spark._memory.blocks import Block
from timerheap.spark._memory.value_codes import has_codes
from timerheap.spark._settling.bit_codes import has_bit_codes
from timerheap.spark._settling.records import EXPIRIES, Records, Timers, WholeKeys
from timerheap.spark._settling.settled import LONGEST, FileMemory, Settled
from timerheap.spark._settling.settled_parts import SettledPart, SettledTimers
from timerheap.spark._settling.settling_parts import (
    SettlingContents,
    SettlingKind,
    SettlingParts,
    SettlingTimers,
)
from timerheap.timer import MAX_WATERMARK

_OWN = "\0own part "  # begins no name of a state
_SLOTS = 4  # the most timers of one kind in a record
_ENTRIES = LONGEST // 4  # of a state: more would hardly fit in a record, so they are not even copied
_COPIED = 64 << 20  # bytes of keys that settle together
TIMER_BYTES = 27
"""What each takes in memory."""

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


class SettlingKeys:
    """Lets keys of one group settle, and brings them back."""

    def __init__(self, group: SettlingParts, head: Sequence[Any] = ()) -> None:
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
        kinds, states = _all_kinds(group), _all_contents(group)
        for kind in kinds.values():
            if kind.timers is not None:
                kind.timers.settled = None
        for state in states.values():
            state.settled = None
        if settled is None:
            return
        for number, name in enumerate(settled.records.slots):
            if (timers := kinds[name].timers) is not None:
                timers.settled = SettledTimers(settled, number)
        for number, name in enumerate(settled.records.states):
            states[name].settled = SettledPart(settled, self.bring, number)

    def _here(self) -> SettlingParts:
        group = self._group()
        assert group is not None
        return group

    # ---- coming back ----

    def begin(self, ids: np.ndarray | None, watermark: int, now: int | None) -> None:
        """Bring back what a micro-batch may look at; nothing has changed after a SettledLost."""
        if self.settled is None:
            return
        try:
            if watermark == MAX_WATERMARK:  # on the end of time, functions look at all keys
                self.bring_all()
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
            kinds = _all_kinds(self._here())
            for number, name in enumerate(self.settled.records.slots):
                if kinds[name].event_time == event_time:
                    self._put(self.settled.take_due(number, time))

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
        states = _all_contents(group)
        for name, values in zip(self.settled.records.states, whole.values, strict=True):
            held = values.is_valid()
            if held.true_count:
                states[name].put_back(ids[held.to_numpy(zero_copy_only=False)], values.filter(held))
        kinds = _all_kinds(group)
        for name, columns in zip(self.settled.records.slots, whole.timers, strict=True):
            timers = kinds[name].timers
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
        if memory.failure is not None or group.watermark == MAX_WATERMARK or self._rests(settling, came):
            return 0
        if hot_bytes(group) <= settling.above:
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
            parts = -(-len(mine) // settling.records) or 1
            if parts > 1 and not settled.live(at):
                settled.split(at, mine[len(mine) * np.arange(1, parts) // parts])
                continue
            copied = len(mine) * hot_bytes(group) // len(hot)
            mine = mine[:: max(parts, -(-copied // _COPIED))]  # the others later, since each is copied
            done += self.settled_in(at, self.fitting(mine, settled), settling)
            lows = settled.lows
            tried = np.concatenate([tried, lows[(lows >= low) & (lows <= high)]])
            budget -= int(np.count_nonzero((lows >= low) & (lows <= high)))
        if not done and settling.share and 2 * len(seen) < len(group.keys.table):  # else they may in the next
            self._rest = _SHORTEST
        return done

    def with_records(self, wanted: Records, settling: Settling) -> Settled:
        """Return what has settled, as records of this format."""
        if self.settled is None or not wanted.fits(self.settled.records):
            settled = Settled(cast(FileMemory, self._here().memory), wanted)
            if self.settled is not None and self.settled.records.tells_all_timers:
                for left in settled.take_over(self.settled, settling.records):
                    self._put(left)
            else:
                self.bring_all()
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
        if any(part.settling is None for part in group.own) or not has_codes(group.keys.type):
            return None
        types = {name: state.record_type for name, state in _all_contents(group).items()}
        if not all(map(has_bit_codes, types.values())):
            return None
        n = max(1, len(group.keys))
        before = {} if self.settled is None else self.settled.records.slots
        slots: dict[str, int | None] = {}
        for name, kind in _all_kinds(group).items():
            per_key = 0.0 if kind.timers is None else len(kind.timers) / n
            least = max(before.get(name) or 0, min(_SLOTS, int(np.ceil(per_key / 1.25))))
            slots[name] = None if kind.of_contents else least
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
        for state in _all_contents(group).values():
            state.take_out(ids)
        kinds = _all_kinds(group)
        for name, columns in zip(self.settled.records.slots, whole.timers, strict=True):
            timers = kinds[name].timers
            if timers is not None and not kinds[name].of_contents and len(columns[0]):
                timers.heap.remove_many(*columns)
        return len(ids)

    def fitting(self, ids: np.ndarray, settled: Settled) -> WholeKeys:
        """Return those of the keys, in the order of ids, that may settle, with all that they have."""
        group = self._here()
        states = _all_contents(group)
        if len(waiting := group.rows.ids()):
            index = IdIndex()
            index.put_many(waiting, 0)
            ids = ids[~index.find_many(ids)[1]]
        ids = ids[~group.keys.are_displaced(ids)]
        for state in states.values():
            ids = ids[state.entries(ids) <= _ENTRIES]
        holds = np.zeros(len(ids), np.int64)
        fits = np.ones(len(ids), bool)
        timers: list[Timers] = []
        kinds = _all_kinds(group)
        for name, slots in settled.records.slots.items():
            found = _timers_of_keys(kinds[name].timers, ids)
            at = np.searchsorted(ids, found[1])
            counts = np.bincount(at, minlength=len(ids))
            if slots is not None:
                fits &= counts <= slots
                fits[at[settled.numbers(found[2]) < 0]] = False
            if kinds[name].event_time:  # those that are due come back with the next micro-batch
                fits[at[found[0] <= group.watermark]] = False
            holds += counts
            timers.append(found)
        values = [states[name].in_table(ids) for name in settled.records.states]
        for column in values:
            holds += column.is_valid().to_numpy(zero_copy_only=False)
        # A key that nothing holds is forgotten soon, which the checkpoint shows.
        whole = WholeKeys(ids, group.keys.table.get(ids), values, timers)
        return whole.where(fits & (holds > 0))


def _lost(error: Exception) -> SettledLost:
    return SettledLost(f"keys that have settled cannot be read: {error}")


def _all_kinds(group: SettlingParts) -> dict[str, SettlingKind]:
    """Return the kinds of timers by name."""
    by_clock, by_events = group.known_expiries()
    kinds = {
        "event": SettlingKind(True, group.event_timers),
        "processing": SettlingKind(False, group.processing_timers),
        f"{EXPIRIES}by processing time": SettlingKind(False, by_clock),
        f"{EXPIRIES}by event time": SettlingKind(True, by_events),
    }
    for number, part in enumerate(group.own):
        if part.settling is not None:
            kinds |= {f"own {number}: {name}": kind for name, kind in part.settling.timers.items()}
    return kinds


def _all_contents(group: SettlingParts) -> dict[str, SettlingContents]:
    """Return what has contents of keys, by name."""
    found: dict[str, SettlingContents] = {**group.keyed_states()}
    for number, part in enumerate(group.own):
        if part.settling is not None:
            found |= {f"{_OWN}{number}: {name}": part for name, part in part.settling.contents.items()}
    return found


def _timers_of_keys(timers: SettlingTimers | None, ids: np.ndarray) -> Timers:
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


def hot_bytes(group: SettlingParts) -> int:
    """Return about how many bytes the keys take in memory that have not settled; O(1)."""
    found = group.keys.table.used_bytes()
    found += TIMER_BYTES * sum(
        len(kind.timers.heap) for kind in _all_kinds(group).values() if kind.timers is not None
    )
    return int(found + sum(state.hot_bytes() for state in _all_contents(group).values()))
