"""What a part of a key group does, so that it is saved and loaded."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from timerheap.spark._memory.streamed import Streamed


class LoadedPart(Protocol):
    """A part of a group that is built by replaying its snapshot and changes in order."""

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `changes`, `snapshot` or `merge`; raise an error if it is of another part.

        A load calls this for each chunk, so it must not copy the part.
        """

    def reserve(self, times: float) -> None:
        """Make room for `times` the present contents; a load calls it after the first of several chunks."""


class CheckpointedPart(LoadedPart, Protocol):
    """A part of a group that is saved incrementally."""

    kind: int  # of its chunks
    name: str  # of the user state; for other parts a description that a restart must match
    schema: pa.Schema  # of its chunks
    id_column: int  # the number of the column with key ids; users name columns, too

    def changes(self) -> pa.RecordBatch | None:
        """Return the changes since the last call, or None if there are none; offsets may have 64 bits."""

    def snapshot(self) -> pa.RecordBatch | Streamed:
        """Return the whole part; offsets may have 64 bits."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one batch whose replay has the effect of replaying these; the part does not change.

        Batches have 64-bit offsets, and may be pieces of what `changes`, `snapshot` or `merge` returned.
        There may be older ones, so what removes something must stay.
        """

    def __len__(self) -> int:
        """Return the number of entries, from which the size of a snapshot is estimated."""
