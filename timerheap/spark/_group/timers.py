"""A key group's timers and their names: a native heap whose changes are journalled for the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._key_timers import Names, after
from timerheap._native._core import KeyTimerHeap, NamedTimerHeap, TimerChanges, TimerHeap, row_order
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._group.stored.kinds import TIMER_NAMES
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.streamed import Streamed
from timerheap.spark._settling.records import Timers
from timerheap.spark._settling.settled_parts import SettledTimers
from timerheap.timer import TimerBatch

PUSH, REMOVE, POP_DUE = 0, 1, 2  # of the last only the timestamp counts, which is the watermark
SCHEMA = pa.schema(
    [("op", pa.int8()), ("timestamp", pa.int64()), ("key_hash", pa.int64()), ("namespace", pa.int64())]
)

_MANY_RUNS = 16  # of operations of one kind, from which on a replay merges them first
_FEW = 64  # changes that are copied one by one: for so few, keeping their columns takes longer


def timers_in_order(
    timestamps: np.ndarray, key_hashes: np.ndarray, namespaces: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return timers by timestamp, in an order that depends on them alone: three arrays, shape (n,)."""
    order = row_order(timestamps, key_hashes, namespaces)
    return timestamps[order], key_hashes[order], namespaces[order]


class TimerJournal(NamedTuple):
    """Operations in order, as columns of shape (n,): `SCHEMA` as arrays."""

    ops: np.ndarray
    timestamps: np.ndarray
    key_hashes: np.ndarray
    namespaces: np.ndarray

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> TimerJournal:
        """Return the columns of a batch of `SCHEMA`."""
        return cls(*(column.to_numpy() for column in batch.columns))

    def take(self, rows: np.ndarray | slice) -> TimerJournal:
        """Return the rows of these numbers, of a mask or of a slice."""
        return TimerJournal(*(column[rows] for column in self))

    def to_arrow(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(column) for column in self], schema=SCHEMA)


def net_effect(journal: TimerJournal, named: np.ndarray) -> TimerJournal:
    """Return the shortest journal with the effect of another; `named` is which rows' timers move; O(n)."""
    # It pops up to a watermark, then removes and pushes different timers. Only the last operation on a timer
    # counts, and a timer that is popped after its push is gone. An older timer of its name may have had
    # another timestamp, so a named timer that is popped becomes a removal; else the pop at the start removes
    # the older ones of all that the journal popped.
    pops = journal.ops == POP_DUE
    popped = np.flatnonzero(pops)
    highest = np.where(pops, journal.timestamps, np.iinfo(np.int64).min)
    highest = np.maximum.accumulate(highest[::-1])[::-1]  # of the pops from each row on
    fired = (journal.timestamps <= highest) & (np.arange(len(pops)) < popped.max(initial=-1))
    rows, fired, named = journal.take(~pops), fired[~pops], named[~pops]
    last = _last_of_each(rows, named)
    rows, fired, named = rows.take(last), fired[last], named[last]
    pushed = rows.ops == PUSH
    removed = ~pushed | (named & fired)
    if len(popped):
        removed &= named | (rows.timestamps > highest[0])
    removals = rows.take(removed)
    removals.ops[:] = REMOVE
    parts = [removals, rows.take(pushed & ~fired)]
    if len(popped):
        nothing = np.zeros(1, np.int64)
        parts.insert(0, TimerJournal(np.array([POP_DUE], np.int8), highest[:1], nothing, nothing))
    return TimerJournal(*map(np.concatenate, zip(*parts, strict=True)))


def _last_of_each(journal: TimerJournal, named: np.ndarray) -> np.ndarray:
    """Return the rows of the last operation on each timer; a heap is used as an exact index."""
    key = journal.key_hashes, journal.namespaces
    rows = np.arange(len(journal.ops))
    last = KeyTimerHeap()
    last.push_many(rows, *key)
    if named.all():
        return np.sort(last.timestamps)
    number, _ = last.timestamps_of(*key)  # of the key and the namespace
    last = KeyTimerHeap()
    last.push_many(rows, np.where(named, 0, journal.timestamps), number)
    return np.sort(last.timestamps)


def due_keys(heap: TimerHeap | KeyTimerHeap, time: int, limit: int) -> np.ndarray:
    """Return the key ids of the timers up to `time`, or of the first `limit`, as they fire one by one."""
    rows = heap._due_rows(time)
    times, ids = heap.timestamps[rows], heap.key_hashes[rows]
    if len(rows) > limit:  # timers of one timestamp fire in the order of their keys
        last = np.partition(times, limit - 1)[limit - 1]
        before, among = np.flatnonzero(times < last), np.flatnonzero(times == last)
        left = limit - len(before)
        first = np.concatenate([before, among[np.argpartition(ids[among], left - 1)[:left]]])
        times, ids = times[first], ids[first]
    ordered: np.ndarray = ids[row_order(times, ids, ids)]
    return ordered


class JournalledTimers:
    """A `NamedTimerHeap` that records its changes since the last save.

    `single`, a `TimerChanges`, receives changes of few timers. Unless `named`, no timer moves, whatever its
    namespace.
    """

    schema = SCHEMA
    name = "timers"
    id_column = 2
    _losses: int

    def __init__(
        self, kind: int, memory: Memory = PROCESS, head: Sequence[Any] = (), *, named: bool = True
    ) -> None:
        self.kind = kind
        self.named = named
        class_ = NamedTimerHeap if named else TimerHeap
        self._losses, heap = head or (0, None)
        self.heap: TimerHeap = class_() if heap is None else class_._attach(memory, heap)
        if heap is None:
            self.heap._lend(memory)
        self.settled: SettledTimers | None = None  # the timers that are not in the heap
        self.single = TimerChanges()
        self._journal: list[tuple[int, TimerJournal]] = []  # the number of rows; columns may be scalars

    def head(self) -> list[Any]:
        return [self.count_losses(), self.heap._head()]

    def count_losses(self) -> int:
        """Return how many timers have been removed or have fired, except those that a key has moved."""
        self._gather()
        return self._losses

    def push_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        pushed = self.heap.push_many(timestamps, key_hashes, namespaces)
        if len(pushed) <= _FEW:
            self.single.push_many(timestamps, key_hashes, namespaces)
        else:
            self._record(PUSH, len(pushed), timestamps, key_hashes, namespaces)
        return pushed

    def pending(self) -> tuple[int, int | None]:
        """Return the number of timers and when the next is due; O(1)."""
        head = self.heap.peek()
        due = None if head is None else head.timestamp
        if self.settled is not None and (other := self.settled.first()) is not None:
            due = other if due is None else min(due, other)
        return len(self), due

    def remove_many(
        self, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> np.ndarray:
        removed = self.heap.remove_many(timestamps, key_hashes, namespaces)
        self._losses += int(np.count_nonzero(removed))
        self._record(REMOVE, len(removed), timestamps, key_hashes, namespaces)
        return removed

    def pop_due(self, watermark: int, limit: int | None = None) -> TimerBatch:
        due = self.heap.pop_due(watermark, limit)
        self._losses += len(due)
        if len(due) and len(due) == limit:  # more may be due
            self._record(REMOVE, len(due), due.timestamps, due.key_hashes, due.namespaces)
        elif len(due):
            self._record(POP_DUE, 1, watermark, 0, 0)
        return due

    def take_many(self, timestamps: np.ndarray, key_hashes: np.ndarray, namespaces: np.ndarray) -> np.ndarray:
        """Remove timers to fire them, and return a bool array that is True where there was one."""
        # Nothing is recorded: call `taken` when all timers up to a watermark have been taken.
        assert isinstance(self.heap, NamedTimerHeap)
        live = self.heap.take_many(timestamps, key_hashes, namespaces)
        self._losses += int(np.count_nonzero(live))
        return live

    def take(self, timestamp: int, key_hash: int, namespace: int) -> bool:
        """Do the same for one timer, in a fraction of the time."""
        assert isinstance(self.heap, NamedTimerHeap)
        live = self.heap.take(timestamp, key_hash, namespace)
        self._losses += live
        return live

    def taken(self, watermark: int) -> None:
        """Record that all timers up to `watermark` have been taken."""
        self._record(POP_DUE, 1, watermark, 0, 0)

    def _record(
        self, op: int, n: int, timestamps: npt.ArrayLike, key_hashes: npt.ArrayLike, namespaces: npt.ArrayLike
    ) -> None:
        self._gather()
        columns = (_as_int64(column) for column in (timestamps, key_hashes, namespaces))
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
        self._append(changes[(changes[:, 1] > until) | (changes[:, 3] != 0)])  # a name's may have been later
        self._append(np.array([[POP_DUE, until, 0, 0]]))
        heap = self.heap
        if len(left := heap._due_rows(until)):  # registered for a time that was over: the pop is not for them
            columns = (column[left] for column in (heap.timestamps, heap.key_hashes, heap.namespaces))
            self._append(np.column_stack([np.full(len(left), PUSH), *timers_in_order(*columns)]))

    def _append(self, changes: np.ndarray) -> None:
        if len(changes):
            ops, *columns = changes.T
            self._journal.append((len(changes), TimerJournal(ops.astype(np.int8), *columns)))

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`:

    def changes(self) -> pa.RecordBatch | None:
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

    def snapshot(self) -> pa.RecordBatch | Streamed:
        heap, settled = self.heap, self.settled
        columns = heap.timestamps, heap.key_hashes, heap.namespaces
        if settled is not None:
            size = len(self) * sum(field.type.bit_width for field in SCHEMA) // 8
            return Streamed(len(self), lambda: map(_pushes, settled.in_order(columns)), size)
        return _pushes(timers_in_order(*columns))

    def replay(self, batch: pa.RecordBatch) -> None:
        if batch.schema != SCHEMA or any(column.null_count for column in batch.columns):
            raise DamagedCheckpointError(
                f"a chunk of kind {self.kind} must have the columns {SCHEMA} without nulls, got "
                f"{batch.schema}"
            )
        journal = TimerJournal.of(batch)
        unknown = journal.ops[(journal.ops < PUSH) | (journal.ops > POP_DUE)]
        if len(unknown):
            raise DamagedCheckpointError(
                f"a chunk of kind {self.kind} has the unknown operation {unknown[0]}"
            )
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
        else:
            self.heap.remove_many(timestamps, key_hashes, namespaces)

    def reserve(self, times: float) -> None:
        self.heap.reserve(ceil(times * len(self.heap)))

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return self._merged(TimerJournal.of(pa.concat_batches(batches))).to_arrow()

    def _merged(self, journal: TimerJournal) -> TimerJournal:
        return net_effect(journal, (journal.namespaces != 0) & self.named)

    def __len__(self) -> int:
        return len(self.heap) + (0 if self.settled is None else len(self.settled))


def _pushes(timers: Timers) -> pa.RecordBatch:
    return TimerJournal(np.full(len(timers[0]), PUSH, np.int8), *timers).to_arrow()


def _as_int64(column: npt.ArrayLike) -> np.ndarray:
    """Return a column as int64: itself if nobody can change it, else a copy."""
    if isinstance(column, np.ndarray) and column.base is None and not column.flags.writeable:
        return np.asarray(column, np.int64)
    return np.array(column, np.int64)


class TimerNames(Names):
    """The names of a key group's timers, and their namespaces.

    table: all names by namespace; None if there are none
    """

    table: StateTable | None

    def __init__(self, memory: Memory = PROCESS, head: Sequence[Any] | None = None) -> None:
        super().__init__()
        self._memory = memory
        self.table = None if head is None else self._new_table(head)

    def _new_table(self, head: Sequence[Any] = ()) -> StateTable:
        return StateTable(TIMER_NAMES, "", pa.string(), self._memory, head)

    def part(self) -> StateTable:
        if self.table is None:
            self.table = self._new_table()
        return self.table

    def new_many(self, names: pa.Array) -> np.ndarray:
        """Do the same for n names; the namespace of null is 0: int64, shape (n,)."""
        encoded = names.dictionary_encode(null_encoding="encode")
        distinct = [0 if name is None else self.new(name) for name in encoded.dictionary.to_pylist()]
        of_names: np.ndarray = np.array(distinct, np.int64)[encoded.indices.to_numpy()]
        return of_names

    def names(self, namespaces: np.ndarray) -> np.ndarray:
        """Return the names of n namespaces, None for 0: an array of objects, shape (n,)."""
        distinct, number = np.unique(namespaces, return_inverse=True)
        return np.array([*map(self.name, distinct.tolist()), None], object)[number]

    def retain(self, namespaces: list[np.ndarray]) -> None:
        """Drop the names whose namespaces are in none of the arrays, unless another one comes after it."""
        if self.table is not None:
            for dead in np.setdiff1d(self.table.ids(), np.concatenate(namespaces))[::-1].tolist():
                if self.name(after(dead)) is None:
                    self.known.pop(self.table.load(dead), None)
                    self.table.store(dead, None)
