"""What has settled of a key group: whole keys, as records in runs of its live file.

A record has the key, its timers and expiries, and the values of its states. The records are in ranges of ids,
each in runs of its own, which are written anew when more keys settle there. A record that is taken is dead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from timerheap._native._core import Run, row_order
from timerheap.spark._arrow import wide
from timerheap.spark._memory.blocks import Block, Memory, nbytes_of_bits, rounded_up
from timerheap.spark._memory.scratch import Scratch
from timerheap.spark._settling.records import EXPIRIES, Records, Timers, WholeKeys

LONGEST = 4070
"""The most bytes of a record."""

MOST_NAMESPACES = 250
"""Of timers that have settled: a record has the number of each."""

_PAGE = 4096
_SAMPLES = 8  # times of a range
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class FileMemory(Memory, Protocol):
    """A memory in a file."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, in which each block begins at its `at`."""

    @property
    def failure(self) -> OSError | None:
        """Why blocks are not in the file any more."""

    def allocate(self, nbytes: int, mapped: bool = True) -> Block:
        """See `Memory.allocate`; a block that is not `mapped` is first written through the descriptor."""

    def scratch(self) -> Scratch:
        """Return a new scratch file beside this one; raise OSError if that is impossible."""


@dataclass
class _Range:
    """Records of ids from `low` up to the next range.

    runs: one for each kind of timers, or its head; the first has the bytes of records; none without records
    place: where they are
    dead: a bit for each record
    first: of each run the number of the first time that may be alive, that time or None, and whose it is
    """

    low: int
    live: int = 0
    runs: list[Any] = field(default_factory=list)
    place: Block | None = None
    dead: Block | None = None
    first: list[list[Any]] = field(default_factory=list)

    @property
    def bits(self) -> np.ndarray:
        assert self.dead is not None
        return self.dead.bytes[: nbytes_of_bits(len(self.runs[0]))]

    def head(self) -> list[Any]:
        runs = [run if isinstance(run, list) else run.head for run in self.runs]
        places = [[each.at, len(each.bytes)] for each in (self.place, self.dead) if each is not None]
        return [self.low, self.live, runs, places, self.first]


class Settled:
    """The keys of a group that have settled; `records` is their format.

    What reads raises an error if that is impossible, or a page is not what was written.
    """

    def __init__(self, memory: FileMemory, records: Records, head: Sequence[Any] = ()) -> None:
        self.records = records
        self._memory = memory
        kinds, states = len(records.slots), len(records.states)
        # Numbers of timers by kind; by state of keys with contents, and of their entries; namespaces,
        # and how many timers have each.
        self._timers: list[int]
        self._values: list[list[int]]
        self._timers, self._values, namespaces, uses, ranges = head or (
            [0] * kinds,
            [[0, 0] for _ in range(states)],
            [],
            [],
            [[_LEAST, 0, [], [], []]],
        )
        self._namespaces, self._uses = np.array(namespaces, np.int64), np.array(uses, np.int64)
        # The kind of the timers of each run of a range.
        self._kinds = [kind for kind, count in enumerate(records.slots.values()) if count != 0]
        self._has_names = [not name.startswith(EXPIRIES) for name in records.slots]
        self._ranges: list[_Range] = []
        for low, live, runs, places, first in ranges:
            place, dead = [memory.attach(at, nbytes) for at, nbytes in places] or (None, None)
            self._ranges.append(_Range(low, live, runs, place, dead, first))
        self._find_lows()

    def head(self) -> list[Any]:
        ranges = [each.head() for each in self._ranges]
        return [self._timers, self._values, self._namespaces.tolist(), self._uses.tolist(), ranges]

    def __len__(self) -> int:
        return sum(each.live for each in self._ranges)

    @property
    def places(self) -> list[Block]:
        """Where the runs are in the file."""
        return [each.place for each in self._ranges if each.place is not None]

    def namespaces(self) -> np.ndarray:
        """Return the namespaces of timers, those of expiries left out."""
        return self._namespaces[self._uses > 0]

    def numbers(self, namespaces: np.ndarray) -> np.ndarray:
        """Return the numbers of namespaces, int64, -1 for one that has none and gets none."""
        new = np.setdiff1d(namespaces, self._namespaces)[: MOST_NAMESPACES - len(self._namespaces)]
        if len(new):
            self._namespaces = np.concatenate([self._namespaces, new])
            self._uses = np.concatenate([self._uses, np.zeros(len(new), np.int64)])
        order = np.argsort(self._namespaces)
        at = np.searchsorted(self._namespaces, namespaces, sorter=order)
        at = order[np.minimum(at, len(order) - 1)] if len(order) else at
        known = self._namespaces[at] == namespaces if len(order) else np.zeros(len(at), bool)
        numbers: np.ndarray = np.where(known, at, -1)
        return numbers

    # ---- reading ----

    def count(self, kind: int) -> int:
        """Return the number of timers of a kind that records have room for."""
        return self._timers[kind]

    def values(self, state: int) -> tuple[int, int]:
        """Return how many keys have contents of a state, and how many entries these have."""
        keys, entries = self._values[state]
        return keys, entries

    def first(self, kind: int) -> int | None:
        """Return the first time of timers of a kind."""
        if kind not in self._kinds:
            return None
        at = self._kinds.index(kind)
        times = [each.first[at][1] for each in self._ranges if each.first]
        return min((time for time in times if time is not None), default=None)

    def parts(self) -> Iterator[WholeKeys]:
        """Yield all keys, in ascending order of the ids."""
        for each in self._ranges:
            if each.live:
                yield self._decoded([self._gathered(each, self._alive(each))])

    def take(self, ids: np.ndarray) -> WholeKeys | None:
        """Remove and return the keys that are among distinct `ids`, None for none."""
        ids = np.sort(ids)
        found = []
        bounds = np.searchsorted(ids, self._lows[1:])
        for each, mine in zip(self._ranges, np.split(ids, bounds), strict=True):
            if each.live and len(mine):
                self._open(each)
                numbers, ends, data = each.runs[0].find(mine, each.bits)
                there = numbers >= 0
                if there.any():
                    found.append((each, numbers[there], mine[there], ends[there], data))
        return self._taken(found)

    def take_due(self, kind: int, time: int) -> WholeKeys | None:
        """Remove and return the keys that have a timer of a kind up to `time`, None for none."""
        if kind not in self._kinds:
            return None
        at, found = self._kinds.index(kind), []
        for each in self._ranges:
            if each.first and each.first[at][1] is not None and each.first[at][1] <= time:
                self._open(each)
                _, numbers, each.first[at][0] = each.runs[at].due(time, each.first[at][0], each.bits)
                found.append(self._gathered(each, np.unique(numbers)))
        return self._taken(found)

    def some_times(self, kind: int) -> np.ndarray:
        """Return some of the timestamps of a kind, in order, from all over: int64."""
        if kind not in self._kinds:
            return np.empty(0, np.int64)
        at, found = self._kinds.index(kind), []
        for number, each in enumerate(self._ranges):
            if each.live:
                self._open(each)
                shift = 0.618 * number % 1  # ranges may have the same times: take different ones of each
                for sample in range(_SAMPLES):
                    start = int(each.runs[at].times * (sample + shift) / _SAMPLES)
                    found.append(_first_alive(each.runs[at], start, each.bits)[1])
        return np.sort(np.array([time for time in found if time is not None], np.int64))

    def scratch(self) -> Scratch:
        """Return a new scratch file beside the runs; raise OSError if that is impossible."""
        return self._memory.scratch()

    def clear(self) -> None:
        """Forget all keys."""
        for each in self._ranges:
            self._release(each)
        self._ranges = [_Range(_LEAST)]
        self._find_lows()

    @property
    def lows(self) -> np.ndarray:
        """The first id of each range, int64."""
        return self._lows

    def _find_lows(self) -> None:
        self._lows = np.array([each.low for each in self._ranges], np.int64)

    def _open(self, each: _Range) -> None:
        fd = self._memory.descriptor
        each.runs = [Run.open(fd, run) if isinstance(run, list) else run for run in each.runs]

    def _alive(self, each: _Range) -> np.ndarray:
        self._open(each)
        bits = np.unpackbits(each.bits, count=len(each.runs[0]), bitorder="little")
        return np.flatnonzero(bits == 0)

    def _gathered(self, each: _Range, numbers: np.ndarray) -> tuple[Any, ...]:
        return each, numbers, *each.runs[0].gather(numbers)

    def _decoded(self, found: list[tuple[Any, ...]]) -> WholeKeys:
        _, _, ids, ends, data = zip(*found, strict=True)
        starts = np.cumsum([0, *map(len, data[:-1])])
        whole = self.records.decoded(
            np.concatenate(ids),
            np.concatenate([each + start for each, start in zip(ends, starts, strict=True)]),
            np.concatenate(data),
        )
        timers = [(times, owners, self._namespaces[numbers]) for times, owners, numbers in whole.timers]
        return whole._replace(timers=timers)

    def _taken(self, found: list[tuple[Any, ...]]) -> WholeKeys | None:
        if not found:
            return None
        whole = self._decoded(found)
        self._add(whole, -1)
        for each, numbers, *_ in found:
            np.bitwise_or.at(each.bits, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))
            each.live -= len(numbers)
            if each.live:
                self._look(each)
            else:
                self._release(each)
        return whole

    def _add(self, whole: WholeKeys, sign: int) -> None:
        """Count keys that have come or gone."""
        for kind, (slots, columns) in enumerate(zip(self.records.slots.values(), whole.timers, strict=True)):
            timestamps, _, namespaces = columns
            if slots is None or not len(timestamps):
                continue
            self._timers[kind] += sign * len(timestamps)
            if self._has_names[kind]:
                np.add.at(self._uses, self.numbers(namespaces), sign)
        for state, values in enumerate(whole.values):
            count = self._values[state]
            count[0] += sign * (len(values) - values.null_count)
            if pa.types.is_large_list(values.type):
                count[1] += sign * len(values.flatten())

    def _look(self, each: _Range) -> None:
        """Find the earliest times of timers that are there."""
        for run, first in zip(each.runs, each.first, strict=True):
            number = first[2]
            if number is not None and each.bits[number >> 3] >> (number & 7) & 1:
                first[:] = _first_alive(run, first[0], each.bits)

    def _release(self, each: _Range) -> None:
        for block in (each.place, each.dead):
            if block is not None:
                self._memory.release(block)
        each.live, each.runs, each.place, each.dead, each.first = 0, [], None, None, []

    # ---- writing ----

    def bounds(self, at: int) -> tuple[int, int]:
        """Return the first and the last id of a range."""
        after = self._ranges[at + 1].low - 1 if at + 1 < len(self._ranges) else _MOST
        return self._ranges[at].low, after

    def shares(self, ids: np.ndarray) -> np.ndarray:
        """Return how many ids lie in each range."""
        at = np.searchsorted(self._lows, ids, side="right") - 1
        return np.bincount(at, minlength=len(self._ranges))

    def live(self, at: int) -> int:
        """Return how many records of a range are alive."""
        return self._ranges[at].live

    def split(self, at: int, lows: np.ndarray) -> None:
        """Make several ranges of one without records, which begin with its first id and with `lows`."""
        self._ranges[at : at + 1] = [_Range(low) for low in (self._ranges[at].low, *lows.tolist())]
        self._find_lows()

    def add(self, at: int, whole: WholeKeys, most: int) -> np.ndarray:
        """Let keys settle in a range, which becomes several if it would have many more than `most` records.

        Returns the ids of those that have settled: a key whose record would be too long does not. An error
        changes nothing.
        """
        timers = [
            each if slots is None else (each[0], each[1], self.numbers(each[2]))
            for each, slots in zip(whole.timers, self.records.slots.values(), strict=True)
        ]
        ends, data = self.records.encoded(whole._replace(timers=timers))
        long = np.diff(ends, prepend=0) > LONGEST
        if long.any():
            whole = whole.where(~long)
            return self.add(at, whole, most) if len(whole.ids) else whole.ids
        old, n = self._ranges[at], len(whole.ids)
        count = old.live + n
        pieces = max(1, min(n, -(-count // most) if 2 * count > 3 * most else 1))
        cuts = [n * piece // pieces for piece in range(pieces + 1)]
        low, high = self.bounds(at)
        lows = [low, *whole.ids[cuts[1:-1]].tolist()]
        highs = [*(each - 1 for each in lows[1:]), high]
        if old.live:
            self._open(old)
        written: list[_Range] = []
        try:
            for piece, (start, stop) in enumerate(pairwise(cuts)):
                begin = int(ends[start - 1]) if start else 0
                part = ends[start:stop] - begin, data[begin : int(ends[stop - 1])]
                mine = [_owned_between(each, whole.ids[start], whole.ids[stop - 1]) for each in whole.timers]
                written.append(
                    self._written(old, lows[piece], highs[piece], whole.ids[start:stop], part, mine)
                )
        except BaseException:
            for each in written:
                self._release(each)
            raise
        self._ranges[at : at + 1] = written
        self._find_lows()
        self._release(old)
        self._add(whole, 1)
        return whole.ids

    def take_over(self, other: Settled, most: int) -> Iterator[WholeKeys]:
        """Let the keys of `other` settle here, where none have, and yield those that cannot.

        They are in the format of `other`, which then has none. Its states are here under the same names.
        """
        self.split(0, other.lows[1:])
        for old in other.parts():
            at = int(np.searchsorted(self._lows, old.ids[0], side="right")) - 1
            known = dict(zip(other.records.states, old.values, strict=True))
            nulls = {name: pa.nulls(len(old.ids), wide(type_)) for name, type_ in self.records.states.items()}
            values = [known.get(name, none) for name, none in nulls.items()]
            try:
                settled = self.add(at, old._replace(values=values), most)
            except MemoryError:
                settled = old.ids[:0]
            if len(settled) < len(old.ids):
                yield old.where(~np.isin(old.ids, settled))
        other.clear()

    def _written(
        self,
        old: _Range,
        low: int,
        high: int,
        ids: np.ndarray,
        records: tuple[np.ndarray, np.ndarray],
        timers: list[Timers],
    ) -> _Range:
        """Write what a range has between bounds, and more records."""
        none = np.empty(0, np.int64)
        times = [_in_order_of_time(timers[kind], ids) for kind in self._kinds] or [(none, none)]
        befores: list[Run | None] = list(old.runs) if old.live else [None] * len(times)
        dead = old.bits if old.live else None
        bound = _PAGE + sum(
            Run.most_bytes(len(ids), len(records[1]) if not number else 0, len(each[0]), before)
            for number, (each, before) in enumerate(zip(times, befores, strict=True))
        )
        memory, fd = self._memory, self._memory.descriptor
        block = memory.allocate(bound, mapped=False)
        start = at = rounded_up(block.at, _PAGE)
        made, runs = _Range(low, place=block), []
        try:
            if not block.at:
                raise MemoryError("the live file has no room")
            for number, (each, before) in enumerate(zip(times, befores, strict=True)):
                ends, data = records if not number else (np.zeros(len(ids), np.int64), np.empty(0, np.uint8))
                runs.append(Run.merged(fd, at, ids, ends, data, *each, before, dead, low, high))
                at += runs[-1].nbytes
            made.live = len(runs[0])
            made.dead = memory.allocate(nbytes_of_bits(made.live))
            if not made.dead.at:
                raise MemoryError("the live file has no room")
        except BaseException:
            self._release(made)
            raise
        made.dead.bytes[:] = 0
        made.runs = runs
        made.first = [_first_alive(run, 0, made.bits) for run in runs]
        for begin, end in ((block.at, start), (at, block.at + len(block.bytes))):
            if begin < end:
                memory.release(Block(block.bytes[begin - block.at : end - block.at], begin))
        made.place = Block(block.bytes[start - block.at : at - block.at], start)
        return made


def _first_alive(run: Run, start: int, dead: np.ndarray) -> list[Any]:
    times, numbers, after = run.due(_MOST, start, dead, most=1)
    return [after - 1, int(times[0]), int(numbers[0])] if len(times) else [after, None, None]


def _owned_between(timers: Timers, low: int, high: int) -> Timers:
    start, stop = np.searchsorted(timers[1], low), np.searchsorted(timers[1], high, side="right")
    timestamps, ids, namespaces = (column[start:stop] for column in timers)
    return timestamps, ids, namespaces


def _in_order_of_time(timers: Timers, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return timestamps in order, and of which record each is."""
    owners = np.searchsorted(ids, timers[1])
    order = row_order(timers[0], owners, timers[2])
    return timers[0][order], owners[order]
