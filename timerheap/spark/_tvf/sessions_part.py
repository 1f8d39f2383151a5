"""What a key group has of sessions, which leave memory with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import TimerHeap
from timerheap.spark._arrow import wide, widen_column
from timerheap.spark._columns import KEY_HASH
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._settling.settled_parts import SettledPart, SettledTimers
from timerheap.spark._settling.settling_parts import OwnSettling, SettlingKind
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import WindowsPart
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.session import SessionWindowAggregate


class SessionEnds:
    """The timers of sessions in memory."""

    def __init__(self, windows: SessionWindowAggregate) -> None:
        self._windows = windows
        self.settled: SettledTimers | None = None

    @property
    def heap(self) -> TimerHeap:
        return self._windows.timers

    def __len__(self) -> int:
        return len(self.heap)


class SessionsPart(WindowsPart):
    """Sessions; those of a key are a list in its record, of what a chunk has of them but the key."""

    windows: SessionWindowAggregate

    def __init__(self, spec: WindowSpec, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> None:
        super().__init__(spec, memory, head)
        self._fields = [field for field in self.schema if field.name != KEY_HASH]
        self.record_type = wide(pa.list_(pa.struct(self._fields)))
        self.timers = SessionEnds(self.windows)
        self.settled: SettledPart | None = None

    @property
    def settling(self) -> OwnSettling:
        ends = SettlingKind(self.windows.assigner.is_event_time, self.timers, of_contents=True)
        return OwnSettling({"sessions": self}, {"ends of sessions": ends})

    # The methods of `timerheap.spark._settling.settling_parts.SettlingContents`:

    def entries(self, ids: np.ndarray) -> np.ndarray:
        return self.windows.counts(ids)

    def in_table(self, ids: np.ndarray) -> pa.Array:
        sessions = self.windows.snapshot()[self.windows.rows_of(ids)]
        columns = dict(zip(self.schema.names, self.columns.to_arrow(sessions), strict=True))
        parts = [widen_column(columns[field.name]) for field in self._fields]
        entries = pa.StructArray.from_arrays(parts, fields=list(self.record_type.value_type))
        counts = self.windows.counts(ids)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]))
        return pa.LargeListArray.from_arrays(offsets, entries, self.record_type, mask=pa.array(counts == 0))

    def take_out(self, ids: np.ndarray) -> None:
        self.windows.set_aside(ids)
        self.log(self.batch(self.windows.snapshot()[:0], ids))

    def put_back(self, ids: np.ndarray, contents: pa.Array) -> None:
        sessions = self._sessions(ids, contents)
        self.windows.put_back(sessions)
        self.log(self.batch(sessions, ids[:0]))

    def hot_bytes(self) -> float:
        return self.windows.snapshot().nbytes

    def _sessions(self, ids: np.ndarray, contents: pa.Array) -> Partials:
        """Return the sessions of keys, whose contents are not null."""
        entries, counts = contents.flatten(), np.asarray(contents.value_lengths())
        columns = {KEY_HASH: pa.array(np.repeat(ids, counts))}
        for field, column in zip(self._fields, entries.flatten(), strict=True):
            columns[field.name] = column.cast(field.type)
        rows = [columns[name] for name in self.schema.names]
        return self.columns.from_arrow(pa.RecordBatch.from_arrays(rows, schema=self.schema))

    # What has settled is in these, too:

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        count, due = super().pending(event_time)
        is_mine = event_time == self.windows.assigner.is_event_time
        if self.settled is not None and self.timers.settled is not None and is_mine:
            count, other = count + self.settled.entries(), self.timers.settled.first()
            due = min((time for time in (due, other) if time is not None), default=None)
        return count, due

    def snapshot(self) -> pa.RecordBatch:
        found = None if self.settled is None else self.settled.items()
        if found is None:
            return super().snapshot()
        parts = [self.windows.snapshot(), self._sessions(*found)]
        return self.batch(self.windows.sorted_sessions(parts), np.empty(0, np.int64))

    def __len__(self) -> int:
        return super().__len__() + (0 if self.settled is None else self.settled.entries())
