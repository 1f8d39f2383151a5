"""The sessions of a key group: accumulators by key and session, kept in the checkpoint by the key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap.spark._group.chunks import SLICES
from timerheap.spark._group.window_slices import KEY_HASH, PartialColumns, WindowSpec
from timerheap.tvf import Partials, SessionUnsliceAssigner, SessionWindowAggregate

__all__ = ["SessionsPart"]

_START = "__timerheap_session_start"


class SessionsPart:
    """A `SessionWindowAggregate` whose sessions are saved as they change; beside `SlicesPart`.

    A key that has changed is written with all its sessions, behind a row without a start that says: forget
    what it had.

    Parameters
    ----------
    spec : WindowSpec
        Of sessions.
    """

    kind = SLICES

    def __init__(self, spec: WindowSpec) -> None:
        assert isinstance(spec.assigner, SessionUnsliceAssigner)
        self.name = spec.name
        self.windows = SessionWindowAggregate(
            spec.assigner.interval, spec.aggregates, spec.assigner.zone.name
        )
        self.columns = PartialColumns(spec)
        self.losses = 0  # keys without a session any more
        self.schema = self.columns.schema.append(pa.field(_START, pa.int64()))
        self._starts = np.empty(0, np.int64)  # while chunks are replayed
        self._stored = self.windows.aggregation.empty()

    def ids(self) -> np.ndarray:
        """Give the ids of the keys that have something here."""
        return self.windows.snapshot()[1].key_ids

    def loaded(self, watermark: int) -> None:
        """All chunks have been replayed; the watermark was this."""
        self.windows.restore(self._starts, self._stored, watermark)

    # What the checkpoint sees (see `timerheap.spark._group.checkpoint.CheckpointedPart`).

    def changes(self) -> pa.RecordBatch | None:
        """Give the sessions of the keys of which any has changed since the last call."""
        starts, sessions, keys = self.windows.changes()
        self.losses += len(np.setdiff1d(keys, sessions.key_ids))
        return self._batch(starts, sessions, keys) if len(keys) else None

    def snapshot(self) -> pa.RecordBatch:
        """Give all sessions."""
        return self._batch(*self.windows.snapshot(), np.empty(0, np.int64))

    def replay(self, batch: pa.RecordBatch) -> None:
        """Take back what `changes` or `snapshot` gave."""
        if batch.schema != self.schema:
            raise ValueError(
                f"a chunk of sessions has the columns {batch.schema}, not {self.schema}; go back to "
                "the old aggregates, or start a new checkpoint"
            )
        starts = batch.column(_START)
        forgotten = batch.filter(starts.is_null()).column(KEY_HASH).to_numpy()
        kept = ~np.isin(self._stored.key_ids, forgotten)
        rows = self.columns.from_arrow(batch.filter(starts.is_valid()))
        self._starts = np.concatenate([self._starts[kept], starts.drop_null().to_numpy()])
        self._stored = self.windows.aggregation.concatenate([self._stored[kept], rows])

    def nbytes(self) -> int:
        """Give the size of a snapshot, roughly."""
        return self.windows.snapshot()[1].nbytes

    def _batch(self, starts: np.ndarray, sessions: Partials, forgotten: np.ndarray) -> pa.RecordBatch:
        marks = [pa.nulls(len(forgotten), field.type) for field in self.schema]
        marks[0] = pa.array(forgotten)
        columns = [*self.columns.to_arrow(sessions), pa.array(starts)]
        both = [pa.concat_arrays(pair) for pair in zip(marks, columns, strict=True)]
        return pa.RecordBatch.from_arrays(both, schema=self.schema)
