"""The accumulators of windows as a checkpoint has them, which windows write and `read_checkpoint` reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._native._core import IdIndex

WINDOWS = 22
"""The kind of their chunks; see `timerheap.spark._group.stored.kinds.OWN`."""

UNSHOWN = 48
"""The kind of chunks with accumulators of rows that windows do not show yet."""


def latest_versions(batches: list[pa.RecordBatch], group: str, version: str) -> pa.RecordBatch:
    """Return the rows that later batches have not deleted, after the deletions."""
    # In each batch, the rows without a `version` delete the rows of earlier batches with the same `group`,
    # which is int64. Both are names of columns.
    kept: list[pa.RecordBatch] = []
    deleted = IdIndex()
    for batch in reversed(batches):
        deletions = batch.column(version).is_null()
        rows = with_version(batch, version)
        if len(deleted):
            rows = rows.filter(pa.array(~deleted.find_many(rows.column(group).to_numpy())[1]))
        kept.append(rows)
        deleted.put_many(batch.column(group).filter(deletions).to_numpy(), 0)
    gone, schema = np.sort(deleted.ids()), batches[0].schema
    columns = [pa.array(gone) if f.name == group else pa.nulls(len(gone), f.type) for f in schema]
    return pa.concat_batches([pa.RecordBatch.from_arrays(columns, schema=schema), *reversed(kept)])


def with_version(batch: pa.RecordBatch, version: str) -> pa.RecordBatch:
    """Return the rows that have a version; without a copy if the others come first, as they usually do."""
    column = batch.column(version)
    nulls = column.null_count
    if column.slice(0, nulls).null_count == nulls:
        return batch.slice(nulls)
    return batch.filter(column.is_valid())
