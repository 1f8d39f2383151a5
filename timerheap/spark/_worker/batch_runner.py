"""Runs a BatchProcessFunction on key groups: rows and timers as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._native._heap import wave_order
from timerheap._returned import records
from timerheap.functions import BatchProcessFunction, BatchTimerService
from timerheap.metrics import Metrics
from timerheap.output_tag import is_tagged
from timerheap.spark._group.journalled_timers import JournalledTimers
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.offsets import fitting, narrow
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._group.staged_timers import StagedTimers
from timerheap.spark._query import Query, shown_name
from timerheap.spark._worker.group_state import BatchGroupRuntimeContext
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.row_context import no_processing_time
from timerheap.spark._worker.rows_ahead import RowsAhead
from timerheap.spark._worker.waves import fire_before, fire_rest
from timerheap.time import TimeDomain
from timerheap.timer import Timer, TimerBatch

__all__ = ["BatchRunner"]

_ROUNDS = 1_000_000


class _TimerService(BatchTimerService):
    def __init__(self, group: KeyGroup, watermark: int, now: int | None) -> None:
        self._group = group
        self.watermark = watermark
        self.watermarks: np.ndarray | None = None  # of each row or timer, in event-time order
        self.staged: StagedTimers | None = None  # while rows are processed in event-time order
        self._now = now

    def current_watermark(self) -> int:
        return self.watermark if self.watermarks is None else int(self.watermarks.min())

    def current_processing_time(self) -> int:
        return no_processing_time() if self._now is None else self._now

    def register_event_time_timers(
        self, key_hashes: npt.ArrayLike, timestamps: npt.ArrayLike, namespaces: npt.ArrayLike = 0
    ) -> np.ndarray:
        self._group.keys.expect(key_hashes)
        new = self._group.event_timers.push_many(timestamps, key_hashes, namespaces)
        if self.staged is not None:
            self.staged.register(timestamps, key_hashes, namespaces, new)
        return new

    def delete_event_time_timers(
        self,
        key_hashes: npt.ArrayLike,
        timestamps: npt.ArrayLike | None = None,
        namespaces: npt.ArrayLike = 0,
    ) -> np.ndarray:
        deleted = self._delete(self._group.event_timers, key_hashes, timestamps, namespaces)
        if self.staged is not None and timestamps is not None:
            self.staged.delete(timestamps, key_hashes, namespaces, deleted)
        return deleted

    def register_processing_time_timers(
        self, key_hashes: npt.ArrayLike, timestamps: npt.ArrayLike, namespaces: npt.ArrayLike = 0
    ) -> np.ndarray:
        self.current_processing_time()
        self._group.keys.expect(key_hashes)
        return self._group.processing_timers.push_many(timestamps, key_hashes, namespaces)

    def delete_processing_time_timers(
        self,
        key_hashes: npt.ArrayLike,
        timestamps: npt.ArrayLike | None = None,
        namespaces: npt.ArrayLike = 0,
    ) -> np.ndarray:
        self.current_processing_time()
        return self._delete(self._group.processing_timers, key_hashes, timestamps, namespaces)

    def _delete(
        self,
        timers: JournalledTimers,
        key_hashes: npt.ArrayLike,
        timestamps: npt.ArrayLike | None,
        namespaces: npt.ArrayLike,
    ) -> np.ndarray:
        if self._group.layout.one_timer_per_key != (timestamps is None):
            raise TypeError(
                "timestamps must be left out with one_timer_per_key, which deletes a key's timer at any "
                f"timestamp, got {timestamps!r}"
                if timestamps is not None
                else "timestamps must be those of the timers to delete, got None; only functions with "
                "one_timer_per_key leave them out"
            )
        return timers.remove_many(0 if timestamps is None else timestamps, key_hashes, namespaces)


class _CurrentKey:
    """The key that a batch function has chosen; reading it before is an error."""

    _id: int | None = None

    def forget(self) -> None:
        """Forget the key at the start of a call; the next key group has other keys."""
        self._id = None

    @property
    def current_key(self) -> int:
        """Id of the key."""
        if self._id is None:
            raise RuntimeError(
                "no key is current; call ctx.set_current_key(key_hash) first, in each call that uses the "
                "state of single keys"
            )
        return self._id

    @current_key.setter
    def current_key(self, id_: int) -> None:
        self._id = id_


class _Context(BatchProcessFunction.Context):
    def __init__(self, keys: _CurrentKey) -> None:
        self.key_hashes = np.empty(0, np.int64)
        self.timestamps: np.ndarray | None = None
        self.timers: _TimerService
        self.domain = TimeDomain.EVENT_TIME
        self._keys = keys

    def begin(self, group: KeyGroup, timers: _TimerService) -> None:
        """Begin a key group."""
        self._group, self.timers = group, timers
        self._one: int | None = None  # the id of `_key`, since a key with many timers is asked for many times
        self._key: pa.RecordBatch

    @property
    def watermarks(self) -> np.ndarray:
        watermarks = self.timers.watermarks
        return np.full(len(self.key_hashes), self.timers.watermark) if watermarks is None else watermarks

    def keys(self, key_hashes: npt.ArrayLike) -> pa.RecordBatch:
        ids = np.asarray(key_hashes, np.int64)
        one = ids.item() if ids.shape == (1,) else None
        if one is None or one != self._one:
            keys = self._group.keys.keys(ids)
            keys = keys.rename_columns([shown_name(name) for name in keys.schema.names])
            if one is None:
                return keys
            self._one, self._key = one, keys
        return self._key

    def set_current_key(self, key_hash: int) -> None:
        self._group.keys.expect(key_hash)
        self._keys.current_key = int(key_hash)

    def timer_service(self) -> BatchTimerService:
        return self.timers

    def time_domain(self) -> TimeDomain:
        return self.domain


class BatchRunner:
    """Runs one copy of a function; see `timerheap.spark._worker.runner.Runner`.

    Parameters
    ----------
    function : BatchProcessFunction
    query : Query
    max_parallelism : int
    """

    def __init__(self, function: BatchProcessFunction, query: Query, max_parallelism: int) -> None:
        self._function = function
        self._timed = query.event_time is not None
        self._schema = pa.schema([query.schema.field(name) for name in query.seen_rows.names])
        self.rows_ahead = RowsAhead()
        self.fired_timers = 0
        self._current = _CurrentKey()
        self._states = BatchGroupRuntimeContext(self._current, max_parallelism)
        self._context = _Context(self._current)

    @property
    def metrics(self) -> Metrics | None:
        """The metrics of the function, None if it has none."""
        return self._states.metrics

    def open(self) -> None:
        """Open the function."""
        self._function.open(self._states)

    def close(self) -> None:
        """Close the function."""
        self._function.close()

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        """Begin a key group."""
        self._group = group
        self._output = output
        self._tables = self._states.bind(group)
        self._timers = _TimerService(group, group.watermark, now)
        self._context.begin(group, self._timers)

    def replay(self, waiting: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Process rows in event-time order, in waves of at most one row or timer of each key."""
        timers = self._timers
        group = self._group
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
        fire_rest(staged, self._fire_wave)
        staged.end()
        timers.staged = timers.watermarks = None
        timers.watermark = max(watermark, timers.watermark)

    def _fire_wave(self, numbers: np.ndarray, due: TimerBatch) -> None:
        staged = self._timers.staged
        assert staged is not None
        staged.begin_call(due.key_hashes, numbers)
        self._timers.watermarks = watermarks = staged.watermarks[numbers]
        if staged.stalled > _ROUNDS:
            raise self._endless(due[0], int(watermarks[0]))
        self._on_timers(due, TimeDomain.EVENT_TIME)

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
        self._context.timestamps = timestamps if self._timed else None
        self._emit(self._function.process_batch, rows)

    def advance(self, watermark: int) -> None:
        """Advance the watermark, and fire event-time timers."""
        self._timers.watermark = watermark
        self._fire(self._group.event_timers, watermark, TimeDomain.EVENT_TIME)

    def advance_clock(self, now: int) -> None:
        """Fire processing-time timers; those of time t fire when the clock shows t + 1."""
        self._fire(self._group.processing_timers, now - 1, TimeDomain.PROCESSING_TIME)

    def _fire(self, timers: JournalledTimers, time: int, domain: TimeDomain) -> None:
        for _ in range(_ROUNDS):
            due = timers.pop_due(time)
            if not len(due):
                return
            self._on_timers(due, domain)
        head = timers.heap.peek()
        assert head is not None
        raise self._endless(head, time)

    def _endless(self, timer: Timer, watermark: int) -> RuntimeError:
        key = self._group.keys.keys(np.array([timer.key_hash])).to_pylist()[0]
        return RuntimeError(
            f"on_timers has registered timers that were already due {_ROUNDS:,} times in a row, last for key "
            f"{key} at timestamp {timer.timestamp}; register timers after the watermark ({watermark})"
        )

    def _on_timers(self, due: TimerBatch, domain: TimeDomain) -> None:
        self.fired_timers += len(due)
        self._begin_call(due.key_hashes)
        self._context.timestamps = due.timestamps
        self._context.domain = domain
        self._emit(self._function.on_timers, due)

    def _begin_call(self, ids: np.ndarray) -> None:
        ids.setflags(write=False)
        self._current.forget()
        for table in self._tables:
            table.announce(ids)
        self._context.key_hashes = self._group.keys.at_hand = ids

    def _emit(self, method: Callable[[Any, Any], object], columns: object) -> None:
        """Call a method of the function with rows or timers, and emit what it returns."""
        source = method.__name__
        try:
            for batch in records(source, method(columns, self._context)):
                self._output.batch(_detached(batch), source)
        except Exception as e:
            e.add_note(f"timerheap: in {source}, {len(self._context.key_hashes):,} keys")
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
