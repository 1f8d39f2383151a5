"""A key group's timers: a native heap whose changes are journalled for the checkpoint."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._native._heap import CurrentKey, KeyTimerHeap, RowTimers, TimerChanges, TimerHeap
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.timer_journal import (
    POP_DUE,
    PUSH,
    REMOVE,
    SCHEMA,
    TimerJournal,
    in_order,
    net_effect,
)
from timerheap.spark._group.timers_of_keys import TimersOfKeys
from timerheap.timer import TimerBatch

__all__ = ["JournalledTimers", "KeyTimers"]

_MANY_RUNS = 16
_FEW = 64  # changes that are copied one by one: for so few, keeping their columns takes longer


class JournalledTimers:
    """A `TimerHeap` or `KeyTimerHeap` that records its changes since the last save.

    Parameters
    ----------
    kind : int
        Kind of its chunks.
    one_timer_per_key : bool
        Whether the heap is a `KeyTimerHeap`.
    memory : Memory
        Where the heap is.

    Attributes
    ----------
    single : TimerChanges
        Receives changes of few timers.
    """

    schema = SCHEMA
    id_column = 2

    def __init__(self, kind: int, one_timer_per_key: bool, memory: Memory = PROCESS) -> None:
        self.kind = kind
        self.heap: TimerHeap | KeyTimerHeap = KeyTimerHeap() if one_timer_per_key else TimerHeap()
        self.heap._lend(memory)
        self.name = type(self.heap).__name__
        self.single = TimerChanges()
        self._losses = 0
        self._journal: list[tuple[int, TimerJournal]] = []  # the number of rows; columns may be scalars

    @classmethod
    def restored(cls, kind: int, name: str) -> JournalledTimers:
        """Return no timers, for chunks of this kind and name."""
        return cls(kind, one_timer_per_key=name == KeyTimerHeap.__name__)

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs; all changes must have been saved."""
        return [self.losses, self.heap._head()]

    @classmethod
    def attach(cls, kind: int, one_timer_per_key: bool, memory: Memory, head: list[Any]) -> JournalledTimers:
        """Return the timers that `head` describes; O(1)."""
        timers = cls(kind, one_timer_per_key)
        timers._losses, heap = head
        timers.heap = type(timers.heap)._attach(memory, heap)
        return timers

    @property
    def losses(self) -> int:
        """How many timers have been removed or have fired, except those that a key has moved."""
        self._gather()
        return self._losses

    def push_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        """Push many timers, like the heap's ``push_many``."""
        pushed = self.heap.push_many(timestamps, key_hashes, namespaces)
        if len(pushed) <= _FEW:
            self.single.push_many(timestamps, key_hashes, namespaces)
        else:
            self._record(PUSH, len(pushed), timestamps, key_hashes, namespaces)
        return pushed

    def pending(self) -> tuple[int, int | None]:
        """Return the number of timers and when the next is due; O(1)."""
        head = self.heap.peek()
        return len(self.heap), None if head is None else head.timestamp

    def remove_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        """Remove timers, like the heap's ``remove_many``; with one timer per key, `timestamps` is ignored."""
        if isinstance(self.heap, TimerHeap):
            removed = self.heap.remove_many(timestamps, key_hashes, namespaces)
        else:
            removed = self.heap.remove_many(key_hashes, namespaces)
        self._losses += int(np.count_nonzero(removed))
        self._record(REMOVE, len(removed), timestamps, key_hashes, namespaces)
        return removed

    def pop_due(self, watermark: int, limit: int | None = None) -> TimerBatch:
        """Pop due timers, like the heap's ``pop_due``."""
        due = self.heap.pop_due(watermark, limit)
        self._losses += len(due)
        if len(due) and len(due) == limit:  # more may be due
            self._record(REMOVE, len(due), due.timestamps, due.key_hashes, due.namespaces)
        elif len(due):
            self._record(POP_DUE, 1, watermark, 0, 0)
        return due

    def take_many(self, timestamps: np.ndarray, key_hashes: np.ndarray, namespaces: np.ndarray) -> np.ndarray:
        """Remove timers to fire them, and return a bool array that is True where there was one.

        Nothing is recorded: call `taken` when all timers up to a watermark have been taken.
        """
        if isinstance(self.heap, TimerHeap):
            live = self.heap.remove_many(timestamps, key_hashes, namespaces)
        else:
            at, live = self.heap.timestamps_of(key_hashes, namespaces)
            live &= at == timestamps
            self.heap.remove_many(key_hashes[live], namespaces[live])
        self._losses += int(np.count_nonzero(live))
        return live

    def take(self, timestamp: int, key_hash: int, namespace: int) -> bool:
        """Do the same for one timer, in a fraction of the time."""
        heap = self.heap
        if isinstance(heap, TimerHeap):
            live = heap.remove(timestamp, key_hash, namespace)
        else:
            live = heap.timestamp_of(key_hash, namespace) == timestamp and heap.remove(key_hash, namespace)
        self._losses += live
        return live

    def taken(self, watermark: int) -> None:
        """Record that all timers up to `watermark` have been taken."""
        self._record(POP_DUE, 1, watermark, 0, 0)

    def remove_keys(self, key_hashes: npt.ArrayLike) -> int:
        """Remove all timers of keys, like the heap's ``remove_keys``."""
        heap = self.heap
        rows = np.flatnonzero(np.isin(heap.key_hashes, key_hashes))
        gone = in_order(heap.timestamps[rows], heap.key_hashes[rows], heap.namespaces[rows])
        removed = heap.remove_keys(key_hashes)
        if removed:
            self._losses += removed
            self._record(REMOVE, removed, *gone)
        return removed

    def _record(
        self, op: int, n: int, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> None:
        self._gather()
        columns = (_kept(column) for column in (timestamps, key_hashes, namespaces))
        self._journal.append((n, TimerJournal(np.array(op, np.int8), *columns)))

    def _gather(self) -> None:
        if not len(self.single):
            return
        changes, until, gone = self.single.take()
        removed, ids = changes[:, 0] == REMOVE, changes[:, 2]
        moved = removed[:-1] & (changes[1:, 0] == PUSH) & (ids[1:] == ids[:-1])  # the key still has a timer
        self._losses += gone + int(np.count_nonzero(removed) - np.count_nonzero(moved))
        if until is None:
            self._append(changes)
            return
        self._append(changes[changes[:, 1] > until])
        self._append(np.array([[POP_DUE, until, 0, 0]]))
        heap = self.heap
        if len(left := heap._due_rows(until)):  # registered for a time that was over
            columns = (column[left] for column in (heap.timestamps, heap.key_hashes, heap.namespaces))
            self._append(np.column_stack([np.full(len(left), PUSH), *columns]))

    def _append(self, changes: np.ndarray) -> None:
        if len(changes):
            ops, *columns = changes.T
            self._journal.append((len(changes), TimerJournal(ops.astype(np.int8), *columns)))

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        """Return the journal since the last call, or None if it is empty."""
        self._gather()
        if not self._journal:
            return None
        total = sum(n for n, _ in self._journal)
        dtypes = (np.int8, np.int64, np.int64, np.int64)
        columns: list[np.ndarray] = [np.empty(total, dtype) for dtype in dtypes]
        start = 0
        for n, record in self._journal:
            for column, part in zip(columns, record, strict=True):
                column[start : start + n] = part
            start += n
        self._journal = []
        return TimerJournal(*columns).to_arrow()

    def snapshot(self) -> pa.RecordBatch:
        """Return all timers as a journal of pushes."""
        heap = self.heap
        columns = in_order(heap.timestamps, heap.key_hashes, heap.namespaces)
        return TimerJournal(np.full(len(heap), PUSH, np.int8), *columns).to_arrow()

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a journal of `changes` or `snapshot`."""
        if batch.schema != SCHEMA or any(column.null_count for column in batch.columns):
            raise ValueError(
                f"a chunk of kind {self.kind} must have the columns {SCHEMA} without nulls, got "
                f"{batch.schema}"
            )
        journal = TimerJournal.of(batch)
        unknown = journal.ops[(journal.ops < PUSH) | (journal.ops > POP_DUE)]
        if len(unknown):
            raise ValueError(f"a chunk of kind {self.kind} has the unknown operation {unknown[0]}")
        cuts = np.flatnonzero(np.diff(journal.ops)) + 1
        if len(cuts) > _MANY_RUNS:  # of single calls: far faster in bulk
            journal = self._merged(journal)
            cuts = np.flatnonzero(np.diff(journal.ops)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(journal.ops)]):
            if start < stop:
                self._replay_run(journal.take(np.s_[start:stop]))

    def _replay_run(self, run: TimerJournal) -> None:
        op, (_, timestamps, key_hashes, namespaces) = run.ops[0], run
        if op == PUSH:
            self.heap.push_many(timestamps, key_hashes, namespaces)
        elif op == POP_DUE:
            self.heap.pop_due(int(timestamps.max()))
        elif isinstance(self.heap, TimerHeap):
            self.heap.remove_many(timestamps, key_hashes, namespaces)
        else:
            self.heap.remove_many(key_hashes, namespaces)

    def reserve(self, times: float) -> None:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        self.heap.reserve(ceil(times * len(self.heap)))

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Merge batches of `changes`."""
        return self._merged(TimerJournal.of(pa.concat_batches(batches))).to_arrow()

    def _merged(self, journal: TimerJournal) -> TimerJournal:
        return net_effect(journal, isinstance(self.heap, KeyTimerHeap)).journal()

    def __len__(self) -> int:
        """Return the number of timers."""
        return len(self.heap)


def _kept(column: npt.ArrayLike) -> np.ndarray:
    """Return a column as int64: itself if nobody can change it, else a copy."""
    if isinstance(column, np.ndarray) and column.base is None and not column.flags.writeable:
        return np.asarray(column, np.int64)
    return np.array(column, np.int64)


class KeyTimers(RowTimers):
    """The timers of the current key in one time domain, for a function on rows.

    Parameters
    ----------
    timers : JournalledTimers
        Of a `TimerHeap`.
    keys : CurrentKey
    """

    def __init__(self, timers: JournalledTimers, keys: CurrentKey) -> None:
        assert isinstance(timers.heap, TimerHeap)
        super().__init__(timers.heap, timers.single, keys)
        self._timers = timers
        self._heap = timers.heap
        self._keys = keys
        self._of_keys: TimersOfKeys | None = None

    def timestamps(self) -> list[int]:
        """Return the timestamps of the current key's timers, of namespace 0, in ascending order."""
        if self._of_keys is None:
            self._of_keys = TimersOfKeys(self._heap)
            self.on_push(self._of_keys.push)
        return self._of_keys.timestamps(self._keys.current_key)

    def delete_all(self) -> int:
        """Delete the current key's timers of namespace 0, and return their number."""
        removed = self._timers.remove_many(self.timestamps(), self._keys.current_key, 0)
        return int(np.count_nonzero(removed))
