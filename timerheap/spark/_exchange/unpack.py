"""The other end of the exchange: the rows of a shuffle partition, by key group, and the event times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.frames import rows_of
from timerheap.spark._exchange.observed import merged
from timerheap.spark._exchange.pack import OBSERVATION, event_millis, key_hashes
from timerheap.spark._group.offsets import concatenated, narrow_column
from timerheap.spark._query import Query

__all__ = ["HashedRows", "Part", "by_key_group", "unpack"]


@dataclass(frozen=True, slots=True, eq=False)
class HashedRows:
    """Rows with the hashes of their keys and their event times.

    Parameters
    ----------
    rows : pyarrow.RecordBatch, n rows
        By the `schema` of the query; with 64-bit offsets if they need them.
    hashes : ndarray of int64, shape (n,)
    timestamps : ndarray of int64, shape (n,)
        Epoch ms; zeros in a query without event time.
    """

    rows: pa.RecordBatch
    hashes: np.ndarray
    timestamps: np.ndarray

    def slice(self, start: int, stop: int) -> HashedRows:
        """Return the rows from `start` up to but not including `stop`, without copying."""
        rows = self.rows.slice(start, stop - start)
        return HashedRows(rows, self.hashes[start:stop], self.timestamps[start:stop])

    @staticmethod
    def concatenated(parts: list[HashedRows]) -> HashedRows:
        """Return the rows of all parts, one or more."""
        if len(parts) == 1:
            return parts[0]
        return HashedRows(
            concatenated([part.rows for part in parts]),
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one frame.

    Parameters
    ----------
    rows : HashedRows
    key_groups, counts : list of int
        The key groups in the order of their rows, and the number of rows of each.
    """

    rows: HashedRows
    key_groups: list[int]
    counts: list[int]


def unpack(query: Query, packed: Iterable[tuple[int, bytes]]) -> tuple[list[Part], pa.Table]:
    """Return a partition's rows in input order, in parts, and the event times that all tasks have observed.

    Parameters
    ----------
    query : Query
    packed : iterable of (sequence, blob)
        Output of the pack stage, in any order.
    """
    parts, seen = [], []
    for sequence, blob in sorted(packed, key=lambda pair: int(pair[0])):
        if sequence == OBSERVATION:
            seen.append(pa.ipc.open_stream(blob).read_all())
        elif sequence > OBSERVATION:
            batch, key_groups, counts = rows_of(blob)
            parts.append(Part(_fitted(query, batch), key_groups.tolist(), counts.tolist()))
    return parts, merged(seen)


def _fitted(query: Query, batch: pa.RecordBatch) -> HashedRows:
    columns = [narrow_column(batch.column(field.name), field.type) for field in query.schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=query.schema)
    timestamps = np.zeros(batch.num_rows, np.int64)
    if query.event_time in rows.schema.names:
        timestamps = event_millis(rows.column(query.event_time))
    return HashedRows(rows, key_hashes(batch, query.key[0]), timestamps)


def by_key_group(parts: list[Part]) -> dict[int, HashedRows]:
    """Return the rows of each key group that has some."""
    found: dict[int, list[HashedRows]] = {}
    for part in parts:
        start = 0
        for key_group, count in zip(part.key_groups, part.counts, strict=True):
            found.setdefault(key_group, []).append(part.rows.slice(start, start + count))
            start += count
    return {key_group: HashedRows.concatenated(slices) for key_group, slices in found.items()}
