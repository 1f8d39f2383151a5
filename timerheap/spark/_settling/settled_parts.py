"""What each part of a group has among the keys that have settled, and the contents of both as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import row_order
from timerheap.spark._memory.id_table import IdTable
from timerheap.spark._memory.streamed import Streamed
from timerheap.spark._settling.records import Timers
from timerheap.spark._settling.settled import Settled

_ROWS = 1 << 16  # of a table that are in a batch
_TIMERS = 1 << 16  # that are put in order at a time

MakeBatch = Callable[[np.ndarray, pa.Array], pa.RecordBatch]
"""Makes a batch of ids and their values."""


class SettledPart:
    """What a part of a group has among the keys that have settled."""

    def __init__(self, settled: Settled, bring: Callable[[np.ndarray], None], number: int = -1) -> None:
        self._settled, self._number = settled, number
        self.bring = bring  # back the keys that have settled of these ids

    def stream(self, table: IdTable, batch: MakeBatch) -> Streamed:
        """Return what has settled, with what is in a table, in the order of ids; neither may change."""
        return Streamed(len(self) + len(table), partial(self._batches, table, batch))

    def _batches(self, table: IdTable, batch: MakeBatch) -> Iterator[pa.RecordBatch]:
        hot, done = np.sort(table.ids()), 0
        for part in self._settled.parts():
            values = part.keys if self._number < 0 else part.values[self._number]
            ids, values = part.ids[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
            first, stop = np.searchsorted(hot, part.ids[[0, -1]]).tolist()
            yield from _of_table(table, hot[done:first], batch)
            if first < stop:
                values = pa.concat_arrays([table.get(hot[first:stop]), values])
                ids = np.concatenate([hot[first:stop], ids])
                order = np.argsort(ids)
                ids, values = ids[order], values.take(pa.array(order))
            yield batch(ids, values)
            done = stop
        yield from _of_table(table, hot[done:], batch)

    def items(self) -> tuple[np.ndarray, pa.Array] | None:
        """Return the ids of keys, and the keys, or the values of the state of this number; None for none."""
        if not len(self):
            return None
        ids, columns = [], []
        for part in self._settled.parts():
            values = part.keys if self._number < 0 else part.values[self._number]
            ids.append(part.ids[values.is_valid().to_numpy(zero_copy_only=False)])
            columns.append(values.drop_null())
        return np.concatenate(ids), pa.concat_arrays(columns)

    def __len__(self) -> int:
        return len(self._settled) if self._number < 0 else self._settled.values(self._number)[0]

    def entries(self) -> int:
        """Return how many entries the contents have, of a state of lists."""
        return self._settled.values(self._number)[1]


class SettledTimers:
    """The timers of a kind that have settled with their keys."""

    def __init__(self, settled: Settled, kind: int) -> None:
        self._settled, self._kind = settled, kind

    def in_order(self, others: Timers) -> Iterator[Timers]:
        """Yield all timers, with others, by timestamp, id and namespace, some of them at a time.

        Records are in the order of ids. So their timers are sorted into spans of time first, in a scratch
        file, or in memory where there is no room for it.
        """
        sample = self._settled.some_times(self._kind)
        count = len(self) // _TIMERS
        bounds = np.unique(sample[len(sample) * np.arange(1, count + 1) // (count + 1)])
        with ExitStack() as stack:
            read: Callable[[Any], bytes]
            try:
                scratch = stack.enter_context(self._settled.scratch())
                spans, read = self._in_spans(bounds, scratch.write), scratch.read
            except OSError:
                spans, read = self._in_spans(bounds, bytes), bytes
            for number, (left, pieces) in enumerate(
                zip(_cut_at(_in_time(others), bounds), spans, strict=True)
            ):
                found = (np.frombuffer(read(piece), np.int64).reshape(3, -1) for piece in pieces)
                if number % 2:  # of one timestamp: pieces follow each other in the order of ids
                    for piece in found:
                        stop = int(np.searchsorted(left[1], piece[1, -1]))
                        yield _as_timers(_in_time(np.concatenate([left[:, :stop], piece], axis=1)))
                        left = left[:, stop:]
                    yield _as_timers(left)
                else:
                    yield _as_timers(_in_time(np.concatenate([left, *found], axis=1)))

    def _in_spans(self, bounds: np.ndarray, write: Callable[[bytes], Any]) -> list[list[Any]]:
        """Write the timers between times and at each of them, and return what `write` has returned."""
        spans: list[list[Any]] = [[] for _ in range(2 * len(bounds) + 1)]
        for part in self._settled.parts():
            for span, piece in zip(spans, _cut_at(_in_time(part.timers[self._kind]), bounds), strict=True):
                if piece.size:
                    span.append(write(piece.tobytes()))
        return spans

    def namespaces(self) -> np.ndarray:
        """Return their namespaces, and maybe those of other kinds."""
        return self._settled.namespaces()

    def first(self) -> int | None:
        """Return the earliest timestamp."""
        return self._settled.first(self._kind)

    def __len__(self) -> int:
        return self._settled.count(self._kind)


def _of_table(table: IdTable, ids: np.ndarray, batch: MakeBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(ids), _ROWS):
        some = ids[start : start + _ROWS]
        yield batch(some, table.get(some))


def _in_time(timers: Timers | np.ndarray) -> np.ndarray:
    """Return timers by timestamp, id and namespace: shape (3, n)."""
    columns = np.stack([*timers])
    return columns[:, row_order(*columns)]


def _as_timers(timers: np.ndarray) -> Timers:
    return timers[0], timers[1], timers[2]


def _cut_at(timers: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
    """Return the timers before the first of m times, at it, between it and the second, and so on: 2 m + 1."""
    ends = [np.searchsorted(timers[0], bounds, side) for side in ("left", "right")]
    cuts = [0, *np.column_stack(ends).ravel().tolist(), timers.shape[1]]
    return [timers[:, start:stop] for start, stop in pairwise(cuts)]
