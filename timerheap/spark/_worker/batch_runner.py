"""Runs a BatchProcessFunction on key groups: rows and timers as columns, in waves over keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._arguments import instance
from timerheap._moments import millis
from timerheap._native._core import (
    FIRINGS,
    FIRINGS_EACH,
    THIRTY_YEARS,
    CurrentKey,
    PlaceNumbers,
    row_order,
    wave_order,
)
from timerheap._values import records
from timerheap.functions import BatchProcessFunction, BatchTimerService, DueTimers
from timerheap.output_tag import is_tagged
from timerheap.spark._arrow import KeyedRows, fitting, narrow
from timerheap.spark._columns import shown_name
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.tables import KeyTable
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._query import Query
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.partition import RowsAhead
from timerheap.spark._worker.states import (
    BatchGroupRuntimeContext,
    FunctionRunner,
    FunctionWork,
    GroupExpiryClock,
    WithoutStates,
    endless,
    no_processing_time,
)
from timerheap.time import TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, TimerBatch

Fire = Callable[[np.ndarray, TimerBatch], None]


class StagedTimers:
    """The timers up to a watermark, by key.

    The timers stay in their heap until they are taken, so a deleted timer needs no search here: it is skipped
    when its turn comes. Each key has its next timer in `next`. The others are those that were due at the
    start, sorted, and a Python heap for the few keys with several timers that callbacks have registered.

    watermark: timers up to it are staged
    keys: must not be changed as long as timers are staged
    rows (KeyedRows, n rows)
    start: the watermark so far
    ids (int64, shape (k,)): the id of each key that has rows or staged timers. Keys are numbered by their
        place here.
    row_numbers (int64, shape (n,)): the number of each row's key
    next (int64, shape (k,)): the timestamp of each key's next timer, the largest int64 if there is none
    staged (bool, shape (k,)): whether there is one
    watermarks (int64, shape (k,)): how far each key is in event time: the watermark that it sees
    stalled: how many times in a row `take` has not advanced any key
    """

    def __init__(
        self, timers: JournalledTimers, watermark: int, keys: KeyTable, rows: KeyedRows, start: int
    ) -> None:
        self._timers = timers
        self._watermark = watermark
        heap = timers.heap
        due = heap._due_rows(watermark)
        ids, self._keys = heap.key_hashes[due], keys.table
        self._key_numbers = PlaceNumbers(self._keys.end)
        places = self._keys.places(rows.ids) if rows.places is None else rows.places
        self.row_numbers, first = self._key_numbers.number_many(places)
        number, new = self._key_numbers.number_many(self._keys.places(ids))
        self.ids = np.concatenate([rows.ids[first], ids[new]])
        self._timestamps, self._namespaces = heap.timestamps[due], heap.namespaces[due]
        order = row_order(number, self._timestamps, self._namespaces)
        self._timestamps, self._namespaces = self._timestamps[order], self._namespaces[order]
        counts = np.bincount(number, minlength=len(self.ids))
        self._stop = np.cumsum(counts)
        self._start = self._stop - counts
        self.next = np.full(len(self.ids), MAX_WATERMARK)
        self.staged = np.zeros(len(self.ids), bool)
        self._next_namespace = np.zeros(len(self.ids), np.int64)
        self._more: dict[int, list[tuple[int, int]]] = {}
        self._at_hand = self._numbers = np.empty(0, np.int64)
        self._taken = False
        self._oldest = start
        self.watermarks = np.full(len(self.ids), start)
        self.stalled = 0
        self._fill(np.flatnonzero(counts))

    def begin_call(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        """Note the keys of a call, which need not be searched for when it registers timers for them."""
        self._at_hand, self._numbers = ids, numbers

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, TimerBatch]:
        """Remove and return the next timers of these keys, without those that callbacks have deleted."""
        # The numbers of their keys come first; both are sorted by time.
        timestamps, namespaces = self.next[numbers], self._next_namespace[numbers]
        ids = self.ids[numbers]
        self._taken = True
        if len(numbers) == 1:
            return self._take_one(numbers, timestamps, ids, namespaces)
        self._fill(numbers)
        rows = np.flatnonzero(self._timers.take_many(timestamps, ids, namespaces))
        if len(rows) > 1:
            rows = rows[row_order(timestamps[rows], ids[rows], namespaces[rows])]
        numbers, timestamps = numbers[rows], timestamps[rows]
        before = self.watermarks[numbers]
        self.stalled = 0 if (timestamps > before).any() else self.stalled + 1
        self.watermarks[numbers] = np.maximum(timestamps, before)
        return numbers, TimerBatch(timestamps, ids[rows], namespaces[rows])

    def _take_one(
        self, numbers: np.ndarray, timestamps: np.ndarray, ids: np.ndarray, namespaces: np.ndarray
    ) -> tuple[np.ndarray, TimerBatch]:
        """Do the same for one key, whose next timer these are."""
        number, timestamp = numbers.item(), timestamps.item()
        self._fill_one(number)
        live = self._timers.take(timestamp, ids.item(), namespaces.item())
        if live and timestamp > self.watermarks.item(number):
            self.watermarks[number] = timestamp
            self.stalled = 0
        else:
            self.stalled += 1
        timers = TimerBatch(timestamps, ids, namespaces)
        return (numbers, timers) if live else (numbers[:0], timers[:0])

    def end(self) -> None:
        """Record that all timers up to the watermark have been taken."""
        if self._taken:
            self._timers.taken(self._watermark)

    def register(
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, namespace: int, new: np.ndarray
    ) -> None:
        """Stage those of the timers just registered that fire in this micro-batch.

        timestamps, key_ids, namespace: as they were passed to the heap's ``push_many``
        new (bool, shape (n,)): what it returned
        """
        if len(new) == 1:
            self._register_one(timestamps, key_ids, namespace, new)
            return
        due = np.asarray(timestamps) <= self._watermark
        if not np.count_nonzero(due):
            return
        # A timer that is not new is staged already, unless it has a name and has been moved.
        due = np.broadcast_to(due, new.shape) if namespace else due & new
        numbers, at = self._columns(timestamps, key_ids, due)
        if namespace:
            self._drop(numbers, at, namespace)
        self._stage(numbers, at, namespace)

    def _register_one(
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, namespace: int, new: np.ndarray
    ) -> None:
        """Do the same for one timer, in a fraction of the time: a key with many rows has as many waves."""
        timestamp = np.asarray(timestamps).item()
        if timestamp > self._watermark or not (namespace or new.item()):
            return
        number = self._number_of(key_ids)
        if namespace and self.staged.item(number) and self._next_namespace.item(number) == namespace:
            self._fill_one(number)
        if not self.staged.item(number):
            self._set(number, timestamp, namespace)
        elif (self.next.item(number), self._next_namespace.item(number)) != (timestamp, namespace):
            self._insert(number, timestamp, namespace)

    def delete(self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, deleted: np.ndarray) -> None:
        """Drop deleted timers without a name that are next in turn; the arguments are as in `register`."""
        # The others are skipped when it is their turn.
        if len(deleted) == 1:
            self._delete_one(timestamps, key_ids, deleted)
            return
        due = deleted & (np.asarray(timestamps) <= self._watermark)
        if np.count_nonzero(due):
            self._drop(*self._columns(timestamps, key_ids, due), 0)

    def _delete_one(self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, deleted: np.ndarray) -> None:
        """Do the same for one timer."""
        timestamp = np.asarray(timestamps).item()
        if timestamp <= self._watermark and deleted.item():
            number = self._number_of(key_ids)
            head = self.next.item(number), self._next_namespace.item(number)
            if self.staged.item(number) and head == (timestamp, 0):
                self._fill_one(number)

    def _number_of(self, key_ids: npt.ArrayLike) -> int:
        """Return the number of the only key."""
        ids = np.asarray(key_ids, np.int64)
        numbers = self._numbers if key_ids is self._at_hand else self._find(ids.reshape(1))
        return int(numbers.item())

    def _columns(
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, where: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the keys and the timestamps of some of the timers."""
        rows = np.flatnonzero(where)
        at, ids = (
            np.broadcast_to(np.asarray(column, np.int64), where.shape)[rows]
            for column in (timestamps, key_ids)
        )
        return self._numbers[rows] if key_ids is self._at_hand else self._find(ids), at

    def _drop(self, numbers: np.ndarray, timestamps: np.ndarray, namespace: int) -> None:
        """Drop these timers where they are next; those with a name, whatever their timestamps."""
        gone = self.staged[numbers] & (self._next_namespace[numbers] == namespace)
        if not namespace:
            gone &= self.next[numbers] == timestamps
        if gone.any():
            self._fill(numbers[gone])

    def _stage(self, numbers: np.ndarray, timestamps: np.ndarray, namespace: int) -> None:
        """Add timers to those of their keys."""
        free = np.flatnonzero(~self.staged[numbers])
        self.next[numbers[free]] = timestamps[free]
        self._next_namespace[numbers[free]] = namespace
        self.staged[numbers[free]] = True
        # With several timers of a key that had none, one of them is next now, and the others differ from it.
        rest = (self.next[numbers] != timestamps) | (self._next_namespace[numbers] != namespace)
        for row in np.flatnonzero(rest).tolist():
            self._insert(int(numbers[row]), int(timestamps[row]), namespace)

    def _insert(self, number: int, timestamp: int, namespace: int) -> None:
        head = self.next.item(number), self._next_namespace.item(number)
        timer = timestamp, namespace
        if timer < head:
            self.next[number], self._next_namespace[number] = timer
            timer = head
        heappush(self._more.setdefault(number, []), timer)

    def _fill(self, numbers: np.ndarray) -> None:
        """Find the next timers of these keys in place of those that were."""
        start = self._start[numbers]
        some = start < self._stop[numbers]
        self.staged[numbers] = some
        self.next[numbers] = MAX_WATERMARK
        if some.any():
            rest, start = numbers[some], start[some]
            self.next[rest] = self._timestamps[start]
            self._next_namespace[rest] = self._namespaces[start]
            self._start[rest] += 1
        if self._more:
            for number in self._more.keys() & set(numbers.tolist()):
                self._fill_from_more(number)

    def _fill_one(self, number: int) -> None:
        """Do the same for one key."""
        start = self._start.item(number)
        if start < self._stop.item(number):
            self._set(number, self._timestamps.item(start), self._namespaces.item(start))
            self._start[number] = start + 1
        else:
            self.staged[number] = False
            self.next[number] = MAX_WATERMARK
        if number in self._more:
            self._fill_from_more(number)

    def _set(self, number: int, timestamp: int, namespace: int) -> None:
        self.next[number], self._next_namespace[number], self.staged[number] = timestamp, namespace, True

    def _fill_from_more(self, number: int) -> None:
        timers = self._more[number]
        if self.staged[number]:
            if (self.next[number], self._next_namespace[number]) <= timers[0]:
                return
            self._start[number] -= 1  # it stays where it is sorted
        self.next[number], self._next_namespace[number] = heappop(timers)
        self.staged[number] = True
        if not timers:
            del self._more[number]

    def _find(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of keys, which are added if they have neither rows nor staged timers."""
        numbers, new = self._key_numbers.number_many(self._keys.places(ids))
        added = ids[new]
        if len(added):
            zeros = np.zeros(len(added), np.int64)
            self.ids = np.concatenate([self.ids, added])
            self.next = np.concatenate([self.next, np.full(len(added), MAX_WATERMARK)])
            self.staged = np.concatenate([self.staged, zeros.astype(bool)])
            self._next_namespace = np.concatenate([self._next_namespace, zeros])
            self.watermarks = np.concatenate([self.watermarks, zeros + self._oldest])
            self._start = np.concatenate([self._start, zeros])
            self._stop = np.concatenate([self._stop, zeros])
        return numbers


def fire_before(staged: StagedTimers, numbers: np.ndarray, timestamps: np.ndarray, fire: Fire) -> None:
    """Fire the timers of these keys that are due before their rows of these times, one of a key at a time."""
    if len(numbers) == 1:  # the same in a fraction of the time: a key with many rows has as many waves
        number, timestamp = numbers.item(), timestamps.item()
        if staged.watermarks.item(number) < timestamp - 1:
            while staged.next.item(number) < timestamp:
                _fire(staged, numbers, fire)
        return
    due = staged.next[numbers] < timestamps
    if np.count_nonzero(due):  # faster than any()
        due &= staged.watermarks[numbers] < timestamps - 1  # no timer comes between rows of one timestamp
    while np.count_nonzero(due):
        numbers, timestamps = numbers[due], timestamps[due]
        _fire(staged, numbers, fire)
        due = staged.next[numbers] < timestamps


def fire_rest(staged: StagedTimers, fire: Fire) -> None:
    """Fire all staged timers, one of a key at a time."""
    while len(numbers := np.flatnonzero(staged.staged)):
        while len(numbers):
            _fire(staged, numbers, fire)
            numbers = numbers[staged.staged[numbers]]


def _fire(staged: StagedTimers, numbers: np.ndarray, fire: Fire) -> None:
    numbers, due = staged.take(numbers)
    if len(due):
        fire(numbers, due)


class _TimerService(BatchTimerService):
    def __init__(
        self, group: KeyGroup, watermark: int, now: int | None, too_early: Callable[[int, int], None]
    ) -> None:
        self._group = group
        self._too_early = too_early
        self.times: np.ndarray | None = None  # the event times of the rows or timers of a call
        self.watermark = watermark
        self.watermarks: np.ndarray | None = None  # of each row or timer, in event-time order
        self.staged: StagedTimers | None = None  # while rows are processed in event-time order
        self._now = now

    def current_watermark(self) -> int:
        return self.watermark if self.watermarks is None else int(self.watermarks.min())

    def current_processing_time(self) -> int:
        return no_processing_time() if self._now is None else self._now

    def register_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        namespace, timestamps = self._namespace(name), millis("timestamps", timestamps)
        self._group.keys.expect(ids)
        new = self._group.event_timers.push_many(timestamps, ids, namespace)
        self._check(timestamps, self.times)
        if self.staged is not None:
            self.staged.register(timestamps, ids, namespace, new)
        return new

    def delete_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        timestamps = None if timestamps is None else millis("timestamps", timestamps)
        deleted = self._delete(self._group.event_timers, ids, timestamps, name)
        if self.staged is not None and timestamps is not None:
            self.staged.delete(timestamps, ids, deleted)
        return deleted

    def register_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        now = self.current_processing_time()
        namespace, timestamps = self._namespace(name), millis("timestamps", timestamps)
        self._group.keys.expect(ids)
        new = self._group.processing_timers.push_many(timestamps, ids, namespace)
        self._check(timestamps, np.array([now]))
        return new

    def _check(self, timestamps: npt.ArrayLike, times: np.ndarray | None) -> None:
        """Warn of timers far before the times of the rows, as those in seconds are."""
        if times is not None and len(times) and np.size(timestamps):
            early, latest = int(np.min(timestamps)), int(times.max())
            if 0 < early < latest - THIRTY_YEARS:
                self._too_early(early, latest)

    def delete_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        self.current_processing_time()
        timestamps = None if timestamps is None else millis("timestamps", timestamps)
        return self._delete(self._group.processing_timers, ids, timestamps, name)

    def _namespace(self, name: str | None) -> int:
        if name is None:
            return 0
        instance("name", name, str)
        names = self._group.timer_names
        return names.known[name] if name in names.known else names.new(name)

    def _delete(
        self, timers: JournalledTimers, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None, name: str | None
    ) -> np.ndarray:
        if (timestamps is None) == (name is None):
            raise TypeError(
                "timestamps must be those of the timers to delete, got None; leave them out only with a name"
                if timestamps is None
                else f"timestamps must be left out for the timers with the name {name!r}, got {timestamps!r}"
            )
        return timers.remove_many(0 if timestamps is None else timestamps, ids, self._namespace(name))


class _Context(WithoutStates, BatchProcessFunction.Context):
    def __init__(self, keys: CurrentKey) -> None:
        self.ids = np.empty(0, np.int64)
        self.timestamps: np.ndarray | None = None
        self.timers: _TimerService
        self.domain = TimeDomain.EVENT_TIME
        self.ended = False
        self._keys = keys

    def begin(self, group: KeyGroup, timers: _TimerService) -> None:
        self._group, self.timers, self.ended = group, timers, False
        self._one: int | None = None  # the id of `_key`, since a key with many timers is asked for many times
        self._key: pa.RecordBatch

    @property
    def watermarks(self) -> np.ndarray:
        watermarks = self.timers.watermarks
        return np.full(len(self.ids), self.timers.watermark) if watermarks is None else watermarks

    def keys(self, ids: npt.ArrayLike) -> pa.RecordBatch:
        ids = np.asarray(ids, np.int64)
        one = ids.item() if ids.shape == (1,) else None
        if one is None or one != self._one:
            keys = self._group.keys.keys(ids)
            keys = keys.rename_columns([shown_name(name) for name in keys.schema.names])
            if one is None:
                return keys
            self._one, self._key = one, keys
        return self._key

    def set_current_key(self, key_id: int) -> None:
        self._group.keys.expect(key_id)
        self._keys.current_key = int(key_id)

    def timer_service(self) -> BatchTimerService:
        return self.timers

    def time_domain(self) -> TimeDomain:
        return self.domain

    def input_has_ended(self) -> bool:
        return self.ended


class BatchRunner(FunctionRunner):
    """Runs one copy of a function, on many rows or timers at once."""

    fired_timers = 0

    def __init__(self, function: BatchProcessFunction, query: Query, max_parallelism: int) -> None:
        self._function = function
        self.any_order = function._takes_all and function._any_order
        self._timed = query.event_time is not None
        self._schema = pa.schema([query.schema.field(name) for name in query.seen_rows.names])
        self.rows_ahead = RowsAhead()
        self._current = CurrentKey()
        self._states = BatchGroupRuntimeContext(self._current, max_parallelism)
        self._states.clock = self._clock = GroupExpiryClock()
        self._context = _Context(self._current)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        self._group = group
        self._output = output
        self._clock.begin(group, now)
        self._tables = self._states.bind(group)
        self._timers = _TimerService(group, group.watermark, now, self.rows_ahead.too_early)
        self._context.begin(group, self._timers)
        self._again = 0  # timers registered in place of those that have fired, since these last advanced

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, in waves of at most one row or timer of each key."""
        timers = self._timers
        group = self._group
        if self._function._takes_all:
            timers.watermark = max(watermark, timers.watermark)
            if len(order):
                due = waiting.select(self._schema.names).take(order)
                self._process(due.rows, due.ids, due.timestamps)
            self._fire(group.event_timers, watermark, TimeDomain.EVENT_TIME)
            return
        timers.staged = staged = StagedTimers(
            group.event_timers, watermark, group.keys, waiting, timers.watermark
        )
        order, numbers, stops = wave_order(order, staged.row_numbers, len(staged.ids))
        waiting = replace(waiting.select(self._schema.names), places=None).take(order)
        first = 0
        for part in self._narrowed(waiting):
            last = first + len(part)
            inside = stops[(first < stops) & (stops < last)] - first
            watermarks = part.timestamps - 1
            for begin, end in pairwise([0, *inside.tolist(), len(part)]):
                wave, of_keys = slice(begin, end), numbers[first + begin : first + end]
                ids, timestamps = part.ids[wave], part.timestamps[wave]
                fire_before(staged, of_keys, timestamps, self._fire_wave)
                staged.begin_call(ids, of_keys)
                timers.watermarks = staged.watermarks[of_keys] = watermarks[wave]
                self._process(part.rows.slice(begin, end - begin), ids, timestamps)
            first = last
        self._context.ended = watermark == MAX_WATERMARK
        fire_rest(staged, self._fire_wave)
        staged.end()
        timers.staged = timers.watermarks = None
        timers.watermark = max(watermark, timers.watermark)

    def _fire_wave(self, numbers: np.ndarray, due: TimerBatch) -> None:
        staged = self._timers.staged
        assert staged is not None
        staged.begin_call(due.key_hashes, numbers)
        self._timers.watermarks = staged.watermarks[numbers]
        self._on_timers(self._group.event_timers, due, TimeDomain.EVENT_TIME, not staged.stalled)

    def process(self, waiting: KeyedRows, watermark: int) -> None:
        """Process rows in the order of arrival, in one call unless they exceed an Arrow column."""
        self.rows_ahead.begin(self._group, watermark)
        for part in self._narrowed(waiting):
            due = self.rows_ahead.due() if self._timed else None
            self._process(part.rows, part.ids, part.timestamps)
            if due is not None:
                self.rows_ahead.check_many(part, due)

    def _narrowed(self, waiting: KeyedRows) -> Iterator[KeyedRows]:
        """Yield the rows as the function sees them, in parts if they exceed an Arrow column."""
        for start, stop in fitting(waiting.rows):
            part = waiting.slice(start, stop)
            rows = narrow(part.rows.select(self._schema.names), self._schema)
            yield KeyedRows(rows, part.ids, part.timestamps)

    def _process(self, rows: pa.RecordBatch, ids: np.ndarray, timestamps: np.ndarray) -> None:
        self._begin_call(ids)
        self._timers.times = self._context.timestamps = timestamps if self._timed else None
        self._emit(self._function.process_batch, rows)

    def advance(self, watermark: int) -> None:
        self._timers.watermark = watermark
        self._fire(self._group.event_timers, watermark, TimeDomain.EVENT_TIME)

    def advance_clock(self, now: int) -> None:
        """Fire processing-time timers; those of time t fire when the clock shows t + 1."""
        self._fire(self._group.processing_timers, now - 1, TimeDomain.PROCESSING_TIME)
        self._clock.purge(False, now)

    def _fire(self, timers: JournalledTimers, time: int, domain: TimeDomain) -> None:
        self._context.ended = domain is TimeDomain.EVENT_TIME and time == MAX_WATERMARK
        latest = MIN_WATERMARK
        while len(due := timers.pop_due(time)):
            newest = due.timestamps[-1].item()
            self._on_timers(timers, due, domain, newest > latest)
            latest = max(latest, newest)

    def _on_timers(
        self, timers: JournalledTimers, due: TimerBatch, domain: TimeDomain, advances: bool
    ) -> None:
        """Call the function; `advances`: whether some timer is later than those before it."""
        # Raises RuntimeError if the function goes on registering timers in their place without an advance, or
        # after the end of the input, where there is no time to advance to.
        pending = len(timers.heap)
        self.fired_timers += len(due)
        self._begin_call(due.key_hashes)
        self._context.timestamps = due.timestamps
        self._timers.times = due.timestamps if domain is TimeDomain.EVENT_TIME else None
        self._context.domain = domain
        names = partial(self._group.timer_names.names, due.namespaces)
        self._emit(self._function.on_timers, DueTimers(due.timestamps, due.key_hashes, names))
        registered, ended = len(timers.heap) - pending, self._context.ended
        if registered <= 0:
            return
        if advances and not ended:
            self._again = 0
        if not self._again:
            self._allowed = FIRINGS + FIRINGS_EACH * (pending + len(due))
        self._again += registered
        if self._again > self._allowed:
            key = self._group.keys.keys(due.key_hashes[:1]).to_pylist()[0]
            name = self._group.timer_names.names(due.namespaces[:1])[0]
            endless(self._function, key, due[0].timestamp, name, ended)

    def _begin_call(self, ids: np.ndarray) -> None:
        ids.setflags(write=False)
        self._current.current_key = None  # the next key group has other keys
        for table in self._tables:
            table.announce(ids)
        self._context.ids = self._group.keys.at_hand = ids

    def _emit(self, method: Callable[[Any, Any], object], columns: object) -> None:
        """Call a method of the function with rows or timers, and emit what it returns."""
        source = method.__name__
        try:
            for batch in records(source, method(columns, self._context)):
                self._output.batch(_detached(batch), source)
        except Exception as e:
            e.add_note(f"timerheap: in {source}, {len(self._context.ids):,} keys")
            raise


def _detached(batch: Any) -> Any:
    """Return a batch, or a tag and one, in memory of its own, since arrays may be NumPy's; 1 ns a value."""
    if is_tagged(batch):
        tag, batch = batch
        return tag, _detached(batch)
    if isinstance(batch, pa.Table):
        return pa.Table.from_batches(map(_detached, batch.to_batches()), batch.schema)
    if isinstance(batch, pa.RecordBatch) and batch.num_columns:
        columns = [pa.concat_arrays([column]) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return batch


@dataclass(frozen=True)
class BatchWork(FunctionWork):
    """A function to run on many rows or timers at once."""

    function: BatchProcessFunction
    context_class = BatchGroupRuntimeContext
    runner_class = BatchRunner
