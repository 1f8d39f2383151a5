"""The sessions of a key group: accumulators by key and session, checkpointed key by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._group.batch_log import BatchLog
from timerheap.spark._group.chunks import SLICES
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.merging import latest_versions, with_version
from timerheap.spark._group.offsets import widen
from timerheap.spark._group.window_slices import KEY_HASH, PartialColumns, WindowSpec
from timerheap.tvf import Partials, SessionUnsliceAssigner, SessionWindowAggregate

__all__ = ["SessionsPart"]

_START = "__timerheap_session_start"


class SessionsPart:
    """A `SessionWindowAggregate` that checkpoints the sessions of the keys that have changed.

    All sessions of a changed key are written, after a row without a start, which deletes their previous
    versions. `SlicesPart` does the same for slices.

    Parameters
    ----------
    spec : WindowSpec
        The windows, whose assigner is a `SessionUnsliceAssigner`, and their aggregates.
    memory : Memory
        Where the changes are logged, from which another process rebuilds the windows.
    """

    kind = SLICES

    def __init__(self, spec: WindowSpec, memory: Memory = PROCESS) -> None:
        assert isinstance(spec.assigner, SessionUnsliceAssigner)
        self.name = spec.name
        self.windows = SessionWindowAggregate(
            spec.assigner.interval, spec.aggregates, spec.assigner.zone.name
        )
        self.columns = PartialColumns(spec)
        self.losses = 0  # the number of keys that have lost their last session
        self.schema = self.columns.schema.append(pa.field(_START, pa.int64()))
        self._replayed: list[pa.RecordBatch] = []
        self._log = BatchLog(self.schema, memory)

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs; all changes must have been saved."""
        return [self.losses, self.windows.watermark, self._log.head()]

    @classmethod
    def attach(cls, spec: WindowSpec, memory: Memory, head: list[Any]) -> SessionsPart:
        """Return the part that `head` describes; O(size)."""
        part = cls(spec)
        part.losses, watermark, log = head
        part._log = BatchLog.attach(part.schema, memory, log)
        for batch in part._log:
            part.replay(batch)
        part._restore(watermark)
        return part

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have sessions."""
        return self.windows.snapshot()[1].key_ids

    def loaded(self, watermark: int) -> None:
        """Restore the sessions at the stored watermark, after all chunks have been replayed."""
        self._restore(watermark)
        self._log.replace(self.snapshot)

    def _restore(self, watermark: int) -> None:
        starts, stored = np.empty(0, np.int64), self.windows.aggregation.empty()
        if self._replayed:
            rows = latest_versions(self._replayed, KEY_HASH, _START)
            rows = with_version(rows, _START)
            starts, stored = rows.column(_START).to_numpy(), self.columns.from_arrow(rows)
        self._replayed = []
        self.windows.restore(starts, stored, watermark)

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        """Return all sessions of the keys whose sessions have changed since the last call."""
        starts, sessions, keys = self.windows.changes()
        self.losses += len(np.setdiff1d(keys, sessions.key_ids))
        if not len(keys):
            return None
        changes = self._batch(starts, sessions, keys)
        self._log.append(changes, self.nbytes(), self.snapshot)
        return changes

    def snapshot(self) -> pa.RecordBatch:
        """Return all sessions."""
        return self._batch(*self.windows.snapshot(), np.empty(0, np.int64))

    def replay(self, batch: pa.RecordBatch) -> None:
        """See `CheckpointedPart`; `loaded` restores what was replayed."""
        if batch.schema != self.schema:
            raise ValueError(
                f"the checkpoint's sessions must have the columns {self.schema}, got {batch.schema}; "
                "use the aggregates that the checkpoint was written with, or start a new checkpoint"
            )
        self._replayed.append(widen(batch))

    def reserve(self, times: int) -> None:
        """Do nothing: chunks are kept until `loaded`."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """See `CheckpointedPart`."""
        return latest_versions(batches, KEY_HASH, _START)

    def nbytes(self) -> int:
        """Return the approximate size of a snapshot in bytes."""
        return self.windows.snapshot()[1].nbytes

    def __len__(self) -> int:
        return len(self.windows.snapshot()[1])

    def _batch(self, starts: np.ndarray, sessions: Partials, deleted: np.ndarray) -> pa.RecordBatch:
        deletions = [pa.nulls(len(deleted), field.type) for field in self.schema]
        deletions[0] = pa.array(deleted)
        columns = [*self.columns.to_arrow(sessions), pa.array(starts)]
        both = [pa.concat_arrays(pair) for pair in zip(deletions, columns, strict=True)]
        return pa.RecordBatch.from_arrays(both, schema=self.schema)
