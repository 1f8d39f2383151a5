"""The timers of each key that fire in a micro-batch, so that many keys can ask for their next one at once."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from timerheap._native._heap import KeyTimerHeap, PlaceNumbers, row_order
from timerheap.spark._group.journalled_timers import JournalledTimers
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.timer import MAX_WATERMARK, TimerBatch

__all__ = ["StagedTimers"]


class StagedTimers:
    """The timers up to a watermark, by key.

    The timers stay in their heap until they are taken, so a deleted timer needs no search here: it is skipped
    when its turn comes. Each key has its next timer in `next`. The others are those that were due at the
    start, sorted, and a Python heap for the few keys with several timers that callbacks have registered.

    Parameters
    ----------
    timers : JournalledTimers
    watermark : int
        Timers up to it are staged.
    keys : KeyTable
        Must not be changed as long as timers are staged.
    rows : KeyedRows, n rows
    start : int
        The watermark so far.

    Attributes
    ----------
    ids : ndarray of int64, shape (k,)
        The id of each key that has rows or staged timers. Keys are numbered by their place here.
    row_numbers : ndarray of int64, shape (n,)
        The number of each row's key.
    next : ndarray of int64, shape (k,)
        The timestamp of each key's next timer, the largest int64 if there is none.
    staged : ndarray of bool, shape (k,)
        Whether there is one.
    watermarks : ndarray of int64, shape (k,)
        How far each key is in event time: the watermark that it sees.
    stalled : int
        How many times in a row `take` has not advanced any key.
    """

    def __init__(
        self, timers: JournalledTimers, watermark: int, keys: KeyTable, rows: KeyedRows, start: int
    ) -> None:
        self._timers = timers
        self._watermark = watermark
        self._moves = isinstance(timers.heap, KeyTimerHeap)
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
        """Remove and return the next timer of each of these keys, without those that callbacks have deleted.

        The numbers of their keys come first; both are sorted by time.
        """
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
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, namespaces: npt.ArrayLike, new: np.ndarray
    ) -> None:
        """Stage those of the timers just registered that fire in this micro-batch.

        Parameters
        ----------
        timestamps, key_ids, namespaces
            As they were passed to the heap's ``push_many``.
        new : ndarray of bool, shape (n,)
            What it returned.
        """
        if len(new) == 1:
            self._register_one(timestamps, key_ids, namespaces, new)
            return
        due = np.asarray(timestamps) <= self._watermark
        if not np.count_nonzero(due):
            return
        # A timer that is not new is staged already, unless it has been moved.
        due = np.broadcast_to(due, new.shape) if self._moves else due & new
        timers = self._columns(timestamps, key_ids, namespaces, due)
        if self._moves:
            self._drop(*timers)
        self._stage(*timers)

    def _register_one(
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, namespaces: npt.ArrayLike, new: np.ndarray
    ) -> None:
        """Do the same for one timer, in a fraction of the time: a key with many rows has as many waves."""
        timestamp = np.asarray(timestamps).item()
        if timestamp > self._watermark or not (self._moves or new.item()):
            return
        number, namespace = self._number_of(key_ids), np.asarray(namespaces).item()
        if self._moves and self.staged.item(number) and self._next_namespace.item(number) == namespace:
            self._fill_one(number)
        if not self.staged.item(number):
            self._set(number, timestamp, namespace)
        elif (self.next.item(number), self._next_namespace.item(number)) != (timestamp, namespace):
            self._insert(number, timestamp, namespace)

    def delete(
        self,
        timestamps: npt.ArrayLike,
        key_ids: npt.ArrayLike,
        namespaces: npt.ArrayLike,
        deleted: np.ndarray,
    ) -> None:
        """Drop deleted timers that are next in turn; the arguments are as in `register`.

        The others are skipped when it is their turn.
        """
        if not self._moves and len(deleted) == 1:
            self._delete_one(timestamps, key_ids, namespaces, deleted)
        elif not self._moves:
            due = deleted & (np.asarray(timestamps) <= self._watermark)
            if np.count_nonzero(due):
                self._drop(*self._columns(timestamps, key_ids, namespaces, due))

    def _delete_one(
        self,
        timestamps: npt.ArrayLike,
        key_ids: npt.ArrayLike,
        namespaces: npt.ArrayLike,
        deleted: np.ndarray,
    ) -> None:
        """Do the same for one timer."""
        timestamp = np.asarray(timestamps).item()
        if timestamp <= self._watermark and deleted.item():
            number = self._number_of(key_ids)
            head = self.next.item(number), self._next_namespace.item(number)
            if self.staged.item(number) and head == (timestamp, np.asarray(namespaces).item()):
                self._fill_one(number)

    def _number_of(self, key_ids: npt.ArrayLike) -> int:
        """Return the number of the only key."""
        ids = np.asarray(key_ids, np.int64)
        numbers = self._numbers if key_ids is self._at_hand else self._find(ids.reshape(1))
        return int(numbers.item())

    def _columns(
        self, timestamps: npt.ArrayLike, key_ids: npt.ArrayLike, namespaces: npt.ArrayLike, where: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of the keys, the timestamps and the namespaces of some of the timers."""
        rows = np.flatnonzero(where)
        at, ids, namespace = (
            np.broadcast_to(np.asarray(column, np.int64), where.shape)[rows]
            for column in (timestamps, key_ids, namespaces)
        )
        return self._numbers[rows] if key_ids is self._at_hand else self._find(ids), at, namespace

    def _drop(self, numbers: np.ndarray, timestamps: np.ndarray, namespaces: np.ndarray) -> None:
        """Drop these timers where they are next."""
        gone = self.staged[numbers] & (self._next_namespace[numbers] == namespaces)
        if not self._moves:
            gone &= self.next[numbers] == timestamps
        if gone.any():
            self._fill(numbers[gone])

    def _stage(self, numbers: np.ndarray, timestamps: np.ndarray, namespaces: np.ndarray) -> None:
        """Add timers to those of their keys."""
        free = np.flatnonzero(~self.staged[numbers])
        self.next[numbers[free]] = timestamps[free]
        self._next_namespace[numbers[free]] = namespaces[free]
        self.staged[numbers[free]] = True
        # With several timers of a key that had none, one of them is next now, and the others differ from it.
        rest = (self.next[numbers] != timestamps) | (self._next_namespace[numbers] != namespaces)
        for row in np.flatnonzero(rest).tolist():
            self._insert(int(numbers[row]), int(timestamps[row]), int(namespaces[row]))

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
