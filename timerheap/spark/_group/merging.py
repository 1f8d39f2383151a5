"""Merging the batches of several saves into one, for parts that are checkpointed row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._native._heap import IdIndex

__all__ = ["last_rows", "latest_versions", "with_version"]


def last_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the last row for each value of the first column, which is int64; O(rows), without sorting."""
    rows = pa.concat_batches(batches)
    ids, numbers = rows.column(0).to_numpy(), np.arange(rows.num_rows)
    last = IdIndex()
    if last.put_many(ids, numbers).all():
        return rows
    return rows.filter(pa.array(last.find_many(ids)[0] == numbers))


def latest_versions(batches: list[pa.RecordBatch], group: str, version: str) -> pa.RecordBatch:
    """Return the rows that later batches have not deleted, after the deletions.

    Parameters
    ----------
    batches : list of pyarrow.RecordBatch
        In each, the rows without a `version` delete the rows of earlier batches with the same `group`, which
        is int64.
    group, version : str
        Names of columns.
    """
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
