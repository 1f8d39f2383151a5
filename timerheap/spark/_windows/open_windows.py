"""The open windows of a key group as a part of its checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from timerheap._native._core import TimerHeap
from timerheap.spark._arrow import widen
from timerheap.spark._columns import KEY_HASH, SESSION_START, SLICE_END
from timerheap.spark._group.memory import PROCESS, Block, Memory
from timerheap.spark._stored_windows import WINDOWS, latest_versions, with_version
from timerheap.spark._windows.partial_aggregates import PartialColumns, WindowSpec
from timerheap.timer import MIN_WATERMARK
from timerheap.tvf.partials import Partials
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SessionUnsliceAssigner, SliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate

_SLACK = 64 << 10


class BatchLog:
    """The changes of a part in a `Memory`, for a part whose own structures are Python objects.

    The log is at most about twice as large as the part. In the memory of a process it stays empty, since
    nobody can attach it there.
    """

    def __init__(
        self, schema: pa.Schema, memory: Memory = PROCESS, head: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._schema = schema
        self._memory = memory
        # The blocks, with the number of bytes in use.
        self._blocks: list[tuple[Block, int]] = [(memory.attach(at, size), size) for at, size in head]
        self._nbytes = sum(size for _, size in self._blocks)

    def append(self, changes: pa.RecordBatch, nbytes: int, snapshot: Callable[[], pa.RecordBatch]) -> None:
        """Append changes, or replace the log by a snapshot if it would outgrow twice `nbytes`."""
        if self._memory is PROCESS:
            return
        data = changes.serialize()
        if self._nbytes + data.size > 2 * nbytes + _SLACK:
            self.replace(snapshot)
        else:
            self._add(data)

    def replace(self, snapshot: Callable[[], pa.RecordBatch]) -> None:
        """Replace the log by a snapshot."""
        if self._memory is not PROCESS:
            data = snapshot().serialize()
            self.clear()
            self._add(data)

    def _add(self, data: pa.Buffer) -> None:
        block = self._memory.allocate(data.size)
        block.bytes[: data.size] = np.frombuffer(data, np.uint8)
        self._blocks.append((block, data.size))
        self._nbytes += data.size

    def clear(self) -> None:
        for block, _ in self._blocks:
            self._memory.release(block)
        self._blocks, self._nbytes = [], 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, valid until the next change; raise ValueError for other bytes."""
        for block, size in self._blocks:
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(block.bytes[:size]), self._schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as e:
                raise ValueError(f"a block must hold a record batch: {e}") from e
            yield batch

    def head(self) -> list[tuple[int, int]]:
        return [(block.at, size) for block, size in self._blocks]


class WindowsPart(ABC):
    """Windows whose accumulators are checkpointed in groups: by slice, or by key.

    A changed group is written in full, after a row without a version, which deletes what was written of the
    group before. `memory` has the timers, and a log of the changes, from which another process rebuilds the
    windows.
    """

    kind = WINDOWS
    id_column = 0
    windows: GlobalWindowAggregate | SessionWindowAggregate
    _losses: int
    _group: ClassVar[str]  # the column with the group of an accumulator
    _version: ClassVar[str]  # a column that is null only in rows that delete
    _more: ClassVar[list[pa.Field]] = []  # columns after those of `PartialColumns`

    def __init__(self, spec: WindowSpec, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        self._losses, watermark, log, timers = head or (0, MIN_WATERMARK, (), None)
        self.name = spec.name
        self.columns = PartialColumns(spec)
        self.schema = pa.schema([*self.columns.schema, *self._more])
        self._replayed: list[pa.RecordBatch] = []
        self._log = BatchLog(self.schema, memory, log)
        self.windows = self._new_windows(spec)
        if timers is None:
            self.windows.timers._lend(memory)
            return
        for batch in self._log:  # O(size)
            self.replay(batch)
        self._restore(self._stored(), watermark, TimerHeap._attach(memory, timers))

    def head(self) -> list[Any]:
        return [self._losses, self.windows.watermark, self._log.head(), self.windows.timers._head()]

    def loaded(self, watermark: int) -> None:
        """Restore the windows at the stored watermark, after all chunks have been replayed."""
        self._restore(self._stored(), watermark)
        self._log.replace(self.snapshot)

    def _stored(self) -> pa.RecordBatch:
        """Return the rows of all accumulators that were replayed."""
        batches, self._replayed = self._replayed, []
        if not batches:
            return pa.RecordBatch.from_pylist([], self.schema)
        return with_version(self.merge(batches), self._version)

    def count_losses(self) -> int:
        """Return the number of slices that were removed, or of keys that lost their last session."""
        return self._losses

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        """Return the number of timers of a time domain, and when the next is due."""
        if self.windows.assigner.is_event_time != event_time:
            return 0, None
        return len(self.windows.timers), self.windows.next_timer()

    def misfit(self, stored: str) -> ValueError:
        """Return the error for a checkpoint that has other windows."""
        return ValueError(
            f"the checkpoint has the windows {stored}, and the query has {self.name}; keep the "
            "windows and their aggregates as they were, or start a new checkpoint"
        )

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have accumulators."""
        return self._partials().key_ids

    @staticmethod
    @abstractmethod
    def _new_windows(spec: WindowSpec) -> GlobalWindowAggregate | SessionWindowAggregate:
        """Return windows without accumulators."""

    @abstractmethod
    def _partials(self) -> Partials:
        """Return all accumulators; O(1)."""

    @abstractmethod
    def _all(self) -> list[pa.Array]:
        """Return all accumulators as the columns of `schema`."""

    @abstractmethod
    def _changed(self) -> tuple[list[pa.Array], np.ndarray] | None:
        """Return the groups that have changed or are gone since the last call, or None; count the losses.

        Before the groups stand their accumulators, as the columns of `schema`.
        """

    @abstractmethod
    def _restore(self, rows: pa.RecordBatch, watermark: int, timers: TimerHeap | None = None) -> None:
        """Restore the windows from the columns of `_all`, with the timers that were attached, if any."""

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        """Return the groups that have changed or are gone since the last call."""
        changed = self._changed()
        if changed is None:
            return None
        changes = self._batch(*changed)
        self._log.append(changes, self._partials().nbytes, self.snapshot)
        return changes

    def snapshot(self) -> pa.RecordBatch:
        return self._batch(self._all(), np.empty(0, np.int64))

    def replay(self, batch: pa.RecordBatch) -> None:
        """See `CheckpointedPart`; `loaded` restores what was replayed."""
        if batch.schema != self.schema:
            raise ValueError(
                f"the checkpoint's windows must have the columns {self.schema}, got {batch.schema}; "
                "use the aggregates that the checkpoint was written with, or start a new checkpoint"
            )
        self._replayed.append(widen(batch))

    def reserve(self, times: float) -> None:  # noqa: B027
        """Do nothing: chunks are kept until `loaded`."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return latest_versions(batches, self._group, self._version)

    def __len__(self) -> int:
        return len(self._partials())

    def _batch(self, columns: list[pa.Array], deleted: np.ndarray) -> pa.RecordBatch:
        deletions = [pa.nulls(len(deleted), field.type) for field in self.schema]
        deletions[self.schema.get_field_index(self._group)] = pa.array(deleted)
        both = [pa.concat_arrays(pair) for pair in zip(deletions, columns, strict=True)]
        return pa.RecordBatch.from_arrays(both, schema=self.schema)


class SlicesPart(WindowsPart):
    """A `GlobalWindowAggregate` that checkpoints the slices that have changed; see `WindowsPart`."""

    windows: GlobalWindowAggregate
    _group, _version = SLICE_END, KEY_HASH

    @staticmethod
    def _new_windows(spec: WindowSpec) -> GlobalWindowAggregate:
        assert isinstance(spec.assigner, SliceAssigner)
        return GlobalWindowAggregate(spec.assigner, spec.aggregates)

    def _partials(self) -> Partials:
        return self.windows.snapshot()

    def _all(self) -> list[pa.Array]:
        return self.columns.to_arrow(self.windows.snapshot())

    def _changed(self) -> tuple[list[pa.Array], np.ndarray] | None:
        slices, gone = self.windows.changes()
        self._losses += len(gone)
        ends = np.append(np.unique(slices.slice_ends), gone)
        return (self.columns.to_arrow(slices), ends) if len(ends) else None

    def _restore(self, rows: pa.RecordBatch, watermark: int, timers: TimerHeap | None = None) -> None:
        self.windows.restore(self.columns.from_arrow(rows), watermark, timers=timers)


class SessionsPart(WindowsPart):
    """A `SessionWindowAggregate` that checkpoints the sessions of changed keys; see `WindowsPart`."""

    windows: SessionWindowAggregate
    _group, _version = KEY_HASH, SESSION_START
    _more: ClassVar[list[pa.Field]] = [pa.field(SESSION_START, pa.int64())]

    @staticmethod
    def _new_windows(spec: WindowSpec) -> SessionWindowAggregate:
        assert isinstance(spec.assigner, SessionUnsliceAssigner)
        return SessionWindowAggregate(spec.assigner.interval, spec.aggregates, spec.assigner.zone.name)

    def _partials(self) -> Partials:
        return self.windows.snapshot()[1]

    def _all(self) -> list[pa.Array]:
        return self._columns(*self.windows.snapshot())

    def _changed(self) -> tuple[list[pa.Array], np.ndarray] | None:
        starts, sessions, keys = self.windows.changes()
        self._losses += len(np.setdiff1d(keys, sessions.key_ids))
        return (self._columns(starts, sessions), keys) if len(keys) else None

    def _columns(self, starts: np.ndarray, sessions: Partials) -> list[pa.Array]:
        return [*self.columns.to_arrow(sessions), pa.array(starts)]

    def _restore(self, rows: pa.RecordBatch, watermark: int, timers: TimerHeap | None = None) -> None:
        starts, sessions = rows.column(SESSION_START).to_numpy(), self.columns.from_arrow(rows)
        self.windows.restore(starts, sessions, watermark, timers=timers)
