"""The journal of a key group's timers: its rows in a checkpoint, and what they come to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap._native._heap import KeyTimerHeap, row_order

__all__ = ["POP_DUE", "PUSH", "REMOVE", "SCHEMA", "NetEffect", "TimerJournal", "in_order", "net_effect"]

PUSH, REMOVE, POP_DUE = 0, 1, 2  # of the last only the timestamp counts, which is the watermark
SCHEMA = pa.schema(
    [("op", pa.int8()), ("timestamp", pa.int64()), ("key_hash", pa.int64()), ("namespace", pa.int64())]
)


def in_order(
    timestamps: np.ndarray, key_hashes: np.ndarray, namespaces: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return timers by timestamp, in an order that depends on them alone: three arrays, shape (n,)."""
    order = row_order(timestamps, key_hashes, namespaces)
    return timestamps[order], key_hashes[order], namespaces[order]


class TimerJournal(NamedTuple):
    """Operations in order, in columns of shape (n,): `SCHEMA` as arrays."""

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
        """Return the columns as a batch of `SCHEMA`."""
        return pa.RecordBatch.from_arrays([pa.array(column) for column in self], schema=SCHEMA)


class NetEffect(NamedTuple):
    """What a journal comes to: pops up to a watermark, then removals and pushes of different timers.

    Parameters
    ----------
    watermark : int or None
        None: pops nothing.
    removals, pushes : TimerJournal
    """

    watermark: int | None
    removals: TimerJournal
    pushes: TimerJournal

    def journal(self) -> TimerJournal:
        """Return a journal with this effect, and no shorter one has it."""
        parts = [self.removals, self.pushes]
        if self.watermark is not None:
            columns = (np.array([value], np.int64) for value in (self.watermark, 0, 0))
            parts.insert(0, TimerJournal(np.array([POP_DUE], np.int8), *columns))
        return TimerJournal(*map(np.concatenate, zip(*parts, strict=True)))


def net_effect(journal: TimerJournal, one_timer_per_key: bool) -> NetEffect:
    """Return what a journal comes to, for timers of either identity; O(n).

    Only the last operation on a timer counts, and a timer that is popped after its push is gone. With one
    timer per key an older one may have had another timestamp, so the timer popped becomes a removal; else the
    pop at the start removes the older ones of all that the journal popped.
    """
    pops = journal.ops == POP_DUE
    rows = journal
    watermark = None
    fired = np.zeros(0, bool)
    if pops.any():
        watermark = int(journal.timestamps[pops].max())
        highest = np.where(pops, journal.timestamps, np.iinfo(np.int64).min)  # in later pops
        highest = np.maximum.accumulate(highest[::-1])[::-1]
        last_pop = np.flatnonzero(pops)[-1]
        fired = (journal.timestamps <= highest) & (np.arange(len(pops)) < last_pop)
        rows, fired = journal.take(~pops), fired[~pops]
    last = _last_of_each(rows, one_timer_per_key)
    rows, fired = rows.take(last), fired[last] if watermark is not None else np.zeros(len(last), bool)
    pushed = rows.ops == PUSH
    removed = ~pushed
    if one_timer_per_key:
        removed |= fired
    elif watermark is not None:
        removed &= rows.timestamps > watermark
    removals = rows.take(removed)
    removals.ops[:] = REMOVE
    return NetEffect(watermark, removals, rows.take(pushed & ~fired))


def _last_of_each(journal: TimerJournal, one_timer_per_key: bool) -> np.ndarray:
    """Return the rows of the last operation on each timer; a heap is used as an exact index."""
    key = journal.key_hashes, journal.namespaces
    rows = np.arange(len(journal.ops))
    last = KeyTimerHeap()
    last.push_many(rows, *key)
    if one_timer_per_key:
        return np.sort(last.timestamps)
    number, _ = last.timestamps_of(*key)  # of the key and the namespace
    last = KeyTimerHeap()
    last.push_many(rows, journal.timestamps, number)
    return np.sort(last.timestamps)
