"""The event times of a micro-batch: the number of rows and the largest event time of each channel."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

__all__ = ["OBSERVED", "merged"]

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock."""

_MERGED = ["input", "channel", "max_timestamp_max", "count_sum"]


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    grouped = (
        pa.concat_tables([OBSERVED.empty_table(), *tables])
        .group_by(["input", "channel"], use_threads=False)
        .aggregate([("max_timestamp", "max"), ("count", "sum")])
    )
    table = grouped.select(_MERGED).rename_columns(OBSERVED.names)
    return table.sort_by([("input", "ascending"), ("channel", "ascending")])
