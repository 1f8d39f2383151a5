"""A key group's timers: a native heap whose changes are journalled for the checkpoint."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._arguments import int64
from timerheap._native._heap import KeyTimerHeap, TimerHeap
from timerheap.flink.internal_timer import InternalTimer
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

__all__ = ["JournalledQueue", "JournalledTimers"]

_MANY_RUNS = 16


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
    """

    schema = SCHEMA

    def __init__(self, kind: int, one_timer_per_key: bool, memory: Memory = PROCESS) -> None:
        self.kind = kind
        self.heap: TimerHeap | KeyTimerHeap = KeyTimerHeap() if one_timer_per_key else TimerHeap()
        self.heap._lend(memory)
        self.name = type(self.heap).__name__
        self.losses = 0  # timers removed or fired
        self._single = array("q")  # the fields of changes by single calls
        self._journal: list[tuple[int, TimerJournal]] = []  # the number of rows; columns may be scalars

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs; all changes must have been saved."""
        return [self.losses, self.heap._head()]

    @classmethod
    def attach(cls, kind: int, one_timer_per_key: bool, memory: Memory, head: list[Any]) -> JournalledTimers:
        """Return the timers that `head` describes; O(1)."""
        timers = cls(kind, one_timer_per_key)
        timers.losses, heap = head
        timers.heap = type(timers.heap)._attach(memory, heap)
        return timers

    def push(self, timestamp: int, key_hash: int, namespace: int) -> bool:
        """Push one timer, like the heap's ``push``."""
        pushed = self.heap.push(timestamp, key_hash, namespace)
        self._single.extend((PUSH, timestamp, key_hash, namespace))
        return pushed

    def remove(self, timestamp: int, key_hash: int, namespace: int) -> bool:
        """Remove one timer; with one timer per key, only if it has that timestamp."""
        if isinstance(self.heap, TimerHeap):
            removed = self.heap.remove(timestamp, key_hash, namespace)
        else:
            removed = self.heap.timestamp_of(key_hash, namespace) == timestamp
            if removed:
                self.heap.remove(key_hash, namespace)
        if removed:
            self.losses += 1
            self._single.extend((REMOVE, timestamp, key_hash, namespace))
        return removed

    def push_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        """Push many timers, like the heap's ``push_many``."""
        pushed = self.heap.push_many(timestamps, key_hashes, namespaces)
        self._record(PUSH, len(pushed), timestamps, key_hashes, namespaces)
        return pushed

    def remove_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        """Remove timers, like the heap's ``remove_many``; with one timer per key, `timestamps` is ignored."""
        if isinstance(self.heap, TimerHeap):
            removed = self.heap.remove_many(timestamps, key_hashes, namespaces)
        else:
            removed = self.heap.remove_many(key_hashes, namespaces)
        self.losses += int(np.count_nonzero(removed))
        self._record(REMOVE, len(removed), timestamps, key_hashes, namespaces)
        return removed

    def pop_due(self, watermark: int, limit: int | None = None) -> TimerBatch:
        """Pop due timers, like the heap's ``pop_due``."""
        due = self.heap.pop_due(watermark, limit)
        self.losses += len(due)
        if len(due) and len(due) == limit:  # more may be due
            self._record(REMOVE, len(due), due.timestamps, due.key_hashes, due.namespaces)
        elif len(due):
            self._record(POP_DUE, 1, watermark, 0, 0)
        return due

    def remove_keys(self, key_hashes: npt.ArrayLike) -> int:
        """Remove all timers of keys, like the heap's ``remove_keys``."""
        heap = self.heap
        rows = np.flatnonzero(np.isin(heap.key_hashes, key_hashes))
        gone = in_order(heap.timestamps[rows], heap.key_hashes[rows], heap.namespaces[rows])
        removed = heap.remove_keys(key_hashes)
        if removed:
            self.losses += removed
            self._record(REMOVE, removed, *gone)
        return removed

    def _record(
        self, op: int, n: int, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> None:
        self._gather()
        columns = (np.array(column, np.int64) for column in (timestamps, key_hashes, namespaces))
        self._journal.append((n, TimerJournal(np.array(op, np.int8), *columns)))

    def _gather(self) -> None:
        if self._single:
            ops, *columns = np.array(self._single).reshape(-1, 4).T
            self._journal.append((len(ops), TimerJournal(ops.astype(np.int8), *columns)))
            self._single = array("q")

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
        """Return the journal since the last call, or None if it is empty."""
        self._gather()
        if not self._journal:
            return None
        records = [[c if c.ndim else np.full(n, c) for c in columns] for n, columns in self._journal]
        self._journal = []
        (columns,) = records if len(records) == 1 else [map(np.concatenate, zip(*records, strict=True))]
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

    def reserve(self, times: int) -> None:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        self.heap.reserve(times * len(self.heap))

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Merge batches of `changes`."""
        return self._merged(TimerJournal.of(pa.concat_batches(batches))).to_arrow()

    def _merged(self, journal: TimerJournal) -> TimerJournal:
        return net_effect(journal, isinstance(self.heap, KeyTimerHeap)).journal()

    def __len__(self) -> int:
        """Return the number of timers."""
        return len(self.heap)


class JournalledQueue:
    """`JournalledTimers` as the queue of a timer service: keys are key ids, the namespace is None.

    Implements `timerheap.timer.KeyedTimerQueue`.
    """

    def __init__(self, timers: JournalledTimers) -> None:
        assert isinstance(timers.heap, TimerHeap)
        self._timers = timers
        self._heap = timers.heap
        self._of_keys = TimersOfKeys(timers.heap)

    def add(self, timer: tuple[int, int, None], /) -> bool:
        """See `KeyedTimerQueue.add`."""
        timestamp, key_id, _ = timer
        head = self._heap.peek()
        pushed = self._timers.push(timestamp, key_id, 0)
        self._of_keys.push(timestamp, key_id)
        return pushed and (head is None or timestamp < head.timestamp)

    def remove(self, timer: tuple[int, int, None], /) -> bool:
        """See `KeyedTimerQueue.remove`."""
        timestamp, key_id, _ = timer
        head = self._heap.peek()
        return self._timers.remove(timestamp, key_id, 0) and head == (timestamp, key_id, 0)

    def peek(self) -> InternalTimer[int, None] | None:
        """See `KeyedTimerQueue.peek`."""
        head = self._heap.peek()
        return None if head is None else InternalTimer(head.timestamp, head.key_hash, None)

    def poll(self) -> InternalTimer[int, None] | None:
        """See `KeyedTimerQueue.poll`."""
        head = self.peek()
        if head is not None:
            self._timers.remove(head.timestamp, head.key, 0)
        return head

    def add_many(self, timers: Iterable[tuple[int, int, None]], /) -> None:
        """See `KeyedTimerQueue.add_many`."""
        rows = [(timestamp, key_id) for timestamp, key_id, _ in timers]
        if rows:
            timestamps, key_ids = zip(*rows, strict=True)
            self._timers.push_many(timestamps, key_ids, 0)
            for row in rows:
                self._of_keys.push(*row)

    def poll_many(self, time: int, limit: int | None = None) -> list[InternalTimer[int, None]]:
        """See `KeyedTimerQueue.poll_many`."""
        due = self._timers.pop_due(time, limit)
        return [InternalTimer(timestamp, key_id, None) for timestamp, key_id, _ in due]

    def remove_keys(self, keys: Iterable[int], /) -> int:
        """See `KeyedTimerQueue.remove_keys`."""
        ids = [int64("key", key) for key in keys]
        if len(ids) != 1:
            return self._timers.remove_keys(ids)
        removed = self._timers.remove_many(self._of_keys.timestamps(ids[0]), ids[0], 0)
        return int(np.count_nonzero(removed))

    def timers_of_key(self, key: int, /) -> list[InternalTimer[int, None]]:
        """See `KeyedTimerQueue.timers_of_key`."""
        return [InternalTimer(timestamp, key, None) for timestamp in self._of_keys.timestamps(key)]

    def get_subset_for_key_group(self, key_group: int, /) -> list[InternalTimer[int, None]]:
        """See `KeyedTimerQueue.get_subset_for_key_group`; a queue holds one key group, so returns all."""
        return list(self)

    def __iter__(self) -> Iterator[InternalTimer[int, None]]:
        """See `KeyedTimerQueue.__iter__`."""
        return iter([InternalTimer(timestamp, key_id, None) for timestamp, key_id, _ in self._heap])

    def __contains__(self, timer: tuple[int, int, None], /) -> bool:
        """See `KeyedTimerQueue.__contains__`."""
        timestamp, key_id, _ = timer
        return (timestamp, key_id, 0) in self._heap

    def __len__(self) -> int:
        return len(self._heap)
