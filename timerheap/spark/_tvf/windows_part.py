"""What a key group has of windows: their accumulators and timers, live and in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import TimerHeap
from timerheap.errors import ArgumentValueError, CheckpointMismatchError
from timerheap.spark._arrow import widen
from timerheap.spark._columns import KEY_HASH, SESSION_START, SLICE_END
from timerheap.spark._memory.blocks import PROCESS, Block, Memory
from timerheap.spark._settling.settling_parts import OwnSettling
from timerheap.spark._stored_windows import WINDOWS, latest_versions, with_version
from timerheap.spark._tvf.sliced_rows import PartialColumns, WindowSpec
from timerheap.timer import MIN_WATERMARK
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import SliceAssigner
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
        """Yield the batches, valid until the next change; raise an error for other bytes."""
        for block, size in self._blocks:
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(block.bytes[:size]), self._schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as e:
                raise ValueError(f"a block must hold a record batch: {e}") from e
            yield batch

    def head(self) -> list[tuple[int, int]]:
        return [(block.at, size) for block, size in self._blocks]


class WindowsPart:
    """Windows whose accumulators are checkpointed in groups: slices, or the sessions of a key.

    A changed group is written in full, after a row without a version, which deletes what was written of the
    group before. `memory` has the timers, and a log of the changes, from which another process rebuilds the
    windows.
    """

    kind = WINDOWS
    id_column = 0
    windows: GlobalWindowAggregate | SessionWindowAggregate
    _losses: int

    def __init__(self, spec: WindowSpec, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        self._losses, watermark, log, timers = head or (0, MIN_WATERMARK, (), None)
        self.name = spec.name
        self.columns = PartialColumns(spec)
        self.schema = self.columns.schema
        self._replayed: list[pa.RecordBatch] = []
        self._log = BatchLog(self.schema, memory, log)
        # The columns with the group of an accumulator, and one that is null only in rows that delete.
        if isinstance(spec.assigner, SliceAssigner):
            self._group, self._version = SLICE_END, KEY_HASH
            self.windows = GlobalWindowAggregate(spec.assigner, spec.aggregates, folds=spec.folds)
        else:
            self._group, self._version = KEY_HASH, SESSION_START
            gap, zone = spec.assigner.interval, spec.assigner.zone.name
            self.windows = SessionWindowAggregate(gap, spec.aggregates, zone)
        if timers is None:
            self.windows.timers._lend(memory)
            return
        for batch in self._log:  # O(size)
            self.replay(batch)
        self._restore(watermark, TimerHeap._attach(memory, timers))

    @property
    def settling(self) -> OwnSettling | None:
        # A slice is saved with all of its keys; early results and corrections need the windows of all.
        return None

    def head(self) -> list[Any]:
        return [self._losses, self.windows.watermark, self._log.head(), self.windows.timers._head()]

    def loaded(self, watermark: int) -> None:
        """Restore the windows at the stored watermark, after all chunks have been replayed."""
        self._restore(watermark)
        self._expect_bounds()
        self._log.replace(self._in_memory)

    def _restore(self, watermark: int, timers: TimerHeap | None = None) -> None:
        """Restore the windows from the rows that were replayed, with timers that were attached, if any."""
        batches, self._replayed = self._replayed, []
        rows = pa.RecordBatch.from_pylist([], self.schema)
        if batches:
            rows = with_version(self.merge(batches), self._version)
        self.windows.restore(self.columns.from_arrow(rows), watermark, timers)

    def _expect_bounds(self) -> None:
        """Raise ArgumentValueError if windows, which users' tables may have, are none of these."""
        held, windows = self.windows.snapshot(), self.windows
        ends = held.slice_ends
        if isinstance(windows, GlobalWindowAggregate):
            wrong = (ends - windows.assigner.offset) % windows.assigner.interval != 0
        else:
            assert held.starts is not None
            wrong = ends - held.starts < windows.assigner.interval
            same = held.key_ids[1:] == held.key_ids[:-1]  # sorted, and then by start
            wrong[1:] |= same & (held.starts[1:] <= ends[:-1])
        if wrong.any():
            raise ArgumentValueError(
                f"windows must have bounds that {self.name} can have, got {np.count_nonzero(wrong)} of "
                f"{len(wrong)} others; correct them, or leave these rows out"
            )

    def count_losses(self) -> int:
        return self._losses

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        if self.windows.assigner.is_event_time != event_time:
            return 0, None
        return len(self.windows.timers), self.windows.next_timer()

    def misfit(self, stored: str) -> ValueError:
        return CheckpointMismatchError(
            f"the checkpoint has the windows {stored}, and the query has {self.name}; keep the "
            "windows and their aggregates as they were, or start a new checkpoint without the windows that "
            "are open in this one"
        )

    def ids(self) -> np.ndarray:
        return self.windows.snapshot().key_ids

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        changed, gone = self.windows.changes()
        self._losses += len(gone)
        groups = changed.slice_ends if self._group == SLICE_END else changed.key_ids
        groups = np.append(np.unique(groups), gone)
        if not len(groups):
            return None
        changes = self.batch(changed, groups)
        self.log(changes)
        return changes

    def log(self, changes: pa.RecordBatch) -> None:
        """Have other processes know of changes of what is in memory."""
        self._log.append(changes, self.windows.snapshot().nbytes, self._in_memory)

    def _in_memory(self) -> pa.RecordBatch:
        return self.batch(self.windows.snapshot(), np.empty(0, np.int64))

    def snapshot(self) -> pa.RecordBatch:
        return self._in_memory()

    def replay(self, batch: pa.RecordBatch) -> None:
        if batch.schema != self.schema:
            raise CheckpointMismatchError(
                f"the checkpoint's windows must have the columns {self.schema}, got {batch.schema}; "
                "use the aggregates that the checkpoint was written with, or start a new checkpoint"
            )
        self._replayed.append(widen(batch))

    def reserve(self, times: float) -> None:
        """Do nothing: chunks are kept until `loaded`."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return latest_versions(batches, self._group, self._version)

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, partials: Partials, deleted: np.ndarray) -> pa.RecordBatch:
        """Return accumulators as rows of chunks, after those that delete groups."""
        columns = self.columns.to_arrow(partials)
        deletions = [pa.nulls(len(deleted), field.type) for field in self.schema]
        deletions[self.schema.get_field_index(self._group)] = pa.array(deleted)
        both = [pa.concat_arrays(pair) for pair in zip(deletions, columns, strict=True)]
        return pa.RecordBatch.from_arrays(both, schema=self.schema)
