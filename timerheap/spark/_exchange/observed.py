"""What a micro-batch has seen of time: each channel's rows, and their largest event time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

__all__ = ["OBSERVED", "merged"]

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""A row for each channel of each input. A null channel is the one over all of an input; a null max_timestamp
says that all its rows were too far ahead of the clock to count."""

_MERGED = ["input", "channel", "max_timestamp_max", "count_sum"]


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Put together what batches or tasks have seen: each channel once, in one order everywhere. O(rows)."""
    grouped = (
        pa.concat_tables([OBSERVED.empty_table(), *tables])
        .group_by(["input", "channel"], use_threads=False)
        .aggregate([("max_timestamp", "max"), ("count", "sum")])
    )
    table = grouped.select(_MERGED).rename_columns(OBSERVED.names)
    return table.sort_by([("input", "ascending"), ("channel", "ascending")])
