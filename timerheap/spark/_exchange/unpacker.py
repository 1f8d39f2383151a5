"""Packed rows taken apart again by key group, in a task behind the exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows, event_millis, narrow
from timerheap.spark._columns import CHANNEL
from timerheap.spark._exchange.codec import frame_rows, key_hashes
from timerheap.spark._exchange.observed_times import merged
from timerheap.spark._exchange.packed import OBSERVATION
from timerheap.spark._query import Query


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The rows of one frame."""

    rows: KeyedRows
    key_groups: list[int]  # in the order of their rows
    counts: list[int]  # the number of rows of each


def unpack(query: Query, packed: Iterable[tuple[int, bytes]]) -> tuple[list[Part], pa.Table]:
    """Return a partition's rows in input order, in parts, and the event times that tasks have observed."""
    parts, seen = [], []
    for sequence, blob in sorted(packed, key=lambda pair: int(pair[0])):
        if sequence == OBSERVATION:
            seen.append(pa.ipc.open_stream(blob).read_all())
        elif sequence > OBSERVATION:
            batch, key_groups, counts = frame_rows(blob)
            parts.append(Part(_fitted(query, batch), key_groups.tolist(), counts.tolist()))
    return parts, merged(seen)


def _fitted(query: Query, batch: pa.RecordBatch) -> KeyedRows:
    rows = narrow(batch.select(query.schema.names), query.schema)
    timestamps = np.zeros(batch.num_rows, np.int64)
    if query.event_time in rows.schema.names:
        timestamps = event_millis(rows.column(query.event_time))
    channels = batch.column(CHANNEL) if CHANNEL in batch.schema.names else None
    return KeyedRows(rows, key_hashes(batch, query.key[0]), timestamps, channels=channels)


def packed_pairs(packed: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Return the sequences and blobs of rows of `PACKED`."""
    return zip(*(packed.column(name).to_pylist() for name in ("sequence", "blob")), strict=True)


def unpacked_rows(query: Query, packed: pa.Table) -> KeyedRows | None:
    """Return the rows of a partition of a batch DataFrame, None if it has none."""
    parts, _ = unpack(query, packed_pairs(packed))
    return KeyedRows.concatenated([part.rows for part in parts]) if parts else None


def by_key_group(parts: list[Part]) -> dict[int, KeyedRows]:
    """Return the rows of each key group that has some."""
    found: dict[int, list[KeyedRows]] = {}
    for part in parts:
        start = 0
        for key_group, count in zip(part.key_groups, part.counts, strict=True):
            found.setdefault(key_group, []).append(part.rows.slice(start, start + count))
            start += count
    return {key_group: KeyedRows.concatenated(slices) for key_group, slices in found.items()}
