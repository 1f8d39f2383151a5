"""The timers of event time that are due in a micro-batch, by key: which fires next, in waves over keys."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from timerheap._native._core import PlaceNumbers, row_order
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.timers import JournalledTimers
from timerheap.timer import MAX_WATERMARK, TimerBatch

Fire = Callable[[np.ndarray, TimerBatch], None]


class NextTimers:
    """The next timer of each key, in columns by the numbers of the keys.

    timestamps (int64, shape (k,)): the largest int64 for a key without a timer
    namespaces (int64, shape (k,)): undefined for a key without a timer
    there (bool, shape (k,)): whether the key has one
    """

    __slots__ = ("namespaces", "there", "timestamps")

    def __init__(self, n: int) -> None:
        self.timestamps = np.full(n, MAX_WATERMARK)
        self.namespaces = np.zeros(n, np.int64)
        self.there = np.zeros(n, bool)

    def set(self, number: int, timestamp: int, namespace: int) -> None:
        self.timestamps[number], self.namespaces[number], self.there[number] = timestamp, namespace, True

    def of(self, number: int) -> tuple[int, int]:
        """Return the timestamp and the namespace of a key's timer."""
        return self.timestamps.item(number), self.namespaces.item(number)

    def extend(self, n: int) -> None:
        """Add keys without timers."""
        added = NextTimers(n)
        self.timestamps = np.concatenate([self.timestamps, added.timestamps])
        self.namespaces = np.concatenate([self.namespaces, added.namespaces])
        self.there = np.concatenate([self.there, added.there])


class SortedTimers:
    """Timers by key, sorted, from which the next one of each key is taken; nothing is added.

    numbers, timestamps, namespaces (int64, shape (n,)): the number of each timer's key, and the timer
    keys: the number of keys
    """

    def __init__(
        self, numbers: np.ndarray, timestamps: np.ndarray, namespaces: np.ndarray, keys: int
    ) -> None:
        order = row_order(numbers, timestamps, namespaces)
        self._timestamps, self._namespaces = timestamps[order], namespaces[order]
        self.counts = np.bincount(numbers, minlength=keys)
        self._stop = np.cumsum(self.counts)
        self._start = self._stop - self.counts

    def take(self, numbers: np.ndarray, next_: NextTimers) -> None:
        """Move the first timers of these keys to `next_`, in place of those that were there."""
        start = self._start[numbers]
        some = start < self._stop[numbers]
        next_.there[numbers] = some
        next_.timestamps[numbers] = MAX_WATERMARK
        if some.any():
            rest, start = numbers[some], start[some]
            next_.timestamps[rest] = self._timestamps[start]
            next_.namespaces[rest] = self._namespaces[start]
            self._start[rest] += 1

    def take_one(self, number: int, next_: NextTimers) -> None:
        """Do the same for one key."""
        start = self._start.item(number)
        if start < self._stop.item(number):
            next_.set(number, self._timestamps.item(start), self._namespaces.item(start))
            self._start[number] = start + 1
        else:
            next_.there[number] = False
            next_.timestamps[number] = MAX_WATERMARK

    def put_back(self, number: int) -> None:
        """Have the timer of a key that was taken last be its first again."""
        self._start[number] -= 1

    def extend(self, n: int) -> None:
        """Add keys without timers."""
        self._start, self._stop = (
            np.append(ends, np.zeros(n, np.int64)) for ends in (self._start, self._stop)
        )


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
    next (k keys)
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
        numbers, new = self._key_numbers.number_many(self._keys.places(ids))
        self.ids = np.concatenate([rows.ids[first], ids[new]])
        self._sorted = SortedTimers(numbers, heap.timestamps[due], heap.namespaces[due], len(self.ids))
        self._more: dict[int, list[tuple[int, int]]] = {}
        self._at_hand = self._numbers = np.empty(0, np.int64)
        self._taken = False
        self._oldest = start
        self.watermarks = np.full(len(self.ids), start)
        self.stalled = 0
        self.next = NextTimers(len(self.ids))
        self._fill(np.flatnonzero(self._sorted.counts))

    def begin_call(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        """Note the keys of a call, which need not be searched for when it registers timers for them."""
        self._at_hand, self._numbers = ids, numbers

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, TimerBatch]:
        """Remove and return the next timers of these keys, without those that callbacks have deleted."""
        # The numbers of their keys come first; both are sorted by time.
        timestamps, namespaces = self.next.timestamps[numbers], self.next.namespaces[numbers]
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
        number, next_ = self._number_of(key_ids), self.next
        if namespace and next_.there.item(number) and next_.namespaces.item(number) == namespace:
            self._fill_one(number)
        if not next_.there.item(number):
            next_.set(number, timestamp, namespace)
        elif next_.of(number) != (timestamp, namespace):
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
            number, next_ = self._number_of(key_ids), self.next
            if next_.there.item(number) and next_.of(number) == (timestamp, 0):
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
        next_ = self.next
        gone = next_.there[numbers] & (next_.namespaces[numbers] == namespace)
        if not namespace:
            gone &= next_.timestamps[numbers] == timestamps
        if gone.any():
            self._fill(numbers[gone])

    def _stage(self, numbers: np.ndarray, timestamps: np.ndarray, namespace: int) -> None:
        """Add timers to those of their keys."""
        next_ = self.next
        free = np.flatnonzero(~next_.there[numbers])
        next_.timestamps[numbers[free]] = timestamps[free]
        next_.namespaces[numbers[free]] = namespace
        next_.there[numbers[free]] = True
        # With several timers of a key that had none, one of them is next now, and the others differ from it.
        rest = (next_.timestamps[numbers] != timestamps) | (next_.namespaces[numbers] != namespace)
        for row in np.flatnonzero(rest).tolist():
            self._insert(int(numbers[row]), int(timestamps[row]), namespace)

    def _insert(self, number: int, timestamp: int, namespace: int) -> None:
        """Add a timer to those of a key that has a next one."""
        head, timer = self.next.of(number), (timestamp, namespace)
        if timer < head:
            self.next.set(number, *timer)
            timer = head
        heappush(self._more.setdefault(number, []), timer)

    def _fill(self, numbers: np.ndarray) -> None:
        """Find the next timers of these keys in place of those that were."""
        self._sorted.take(numbers, self.next)
        if self._more:
            for number in self._more.keys() & set(numbers.tolist()):
                self._fill_from_more(number)

    def _fill_one(self, number: int) -> None:
        """Do the same for one key."""
        self._sorted.take_one(number, self.next)
        if number in self._more:
            self._fill_from_more(number)

    def _fill_from_more(self, number: int) -> None:
        timers = self._more[number]
        if self.next.there[number]:
            if self.next.of(number) <= timers[0]:
                return
            self._sorted.put_back(number)
        self.next.set(number, *heappop(timers))
        if not timers:
            del self._more[number]

    def _find(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of keys, which are added if they have neither rows nor staged timers."""
        numbers, new = self._key_numbers.number_many(self._keys.places(ids))
        added = ids[new]
        if len(added):
            self.ids = np.concatenate([self.ids, added])
            self.watermarks = np.append(self.watermarks, np.full(len(added), self._oldest))
            self.next.extend(len(added))
            self._sorted.extend(len(added))
        return numbers


def fire_before(staged: StagedTimers, numbers: np.ndarray, timestamps: np.ndarray, fire: Fire) -> None:
    """Fire the timers of these keys that are due before their rows of these times, one of a key at a time."""
    next_ = staged.next
    if len(numbers) == 1:  # the same in a fraction of the time: a key with many rows has as many waves
        number, timestamp = numbers.item(), timestamps.item()
        if staged.watermarks.item(number) < timestamp - 1:
            while next_.timestamps.item(number) < timestamp:
                _fire(staged, numbers, fire)
        return
    due = next_.timestamps[numbers] < timestamps
    if np.count_nonzero(due):  # faster than any()
        due &= staged.watermarks[numbers] < timestamps - 1  # no timer comes between rows of one timestamp
    while np.count_nonzero(due):
        numbers, timestamps = numbers[due], timestamps[due]
        _fire(staged, numbers, fire)
        due = next_.timestamps[numbers] < timestamps


def fire_rest(staged: StagedTimers, fire: Fire) -> None:
    """Fire all staged timers, one of a key at a time."""
    next_ = staged.next
    while len(numbers := np.flatnonzero(next_.there)):
        while len(numbers):
            _fire(staged, numbers, fire)
            numbers = numbers[next_.there[numbers]]


def _fire(staged: StagedTimers, numbers: np.ndarray, fire: Fire) -> None:
    numbers, due = staged.take(numbers)
    if len(due):
        fire(numbers, due)
