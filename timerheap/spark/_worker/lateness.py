"""Which rows are late, and what becomes of them: they are counted, returned, dropped, or processed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.dropped_rows import DroppedRows
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.timer import lateness


def is_late(timestamps: np.ndarray, watermark: int) -> np.ndarray:
    """Return which rows are late, shape (n,): those at the watermark or behind it."""
    return timestamps <= watermark


def admit(batch: MicroBatch, group: KeyGroup, rows: KeyedRows) -> KeyedRows:
    """Return the rows that are not late, with the places of their keys in the group."""
    query, runner = batch.query, batch.runner
    if query.event_time in query.schema.names and not runner.decides_lateness:
        late = is_late(rows.timestamps, group.watermark)
        if late.any():
            found = rows.where(late)
            late_by = lateness(group.watermark, found.timestamps)
            set_aside(query, runner.dropped, group, found, late_by, batch.output)
            if query.late != "process":
                rows = rows.where(~late)
    ids, places = group.keys.locate(rows.ids, [rows.rows.column(name) for name in query.key])
    channels = rows.channels if runner.decides_lateness else None
    return KeyedRows(rows.rows, ids, rows.timestamps, places, channels)


def timely(
    rows: KeyedRows, order: np.ndarray, watermark: int, aside: Callable[[KeyedRows, np.ndarray], None]
) -> np.ndarray:
    """Return which of these positions have rows that are not late.

    aside: takes the late rows, and by how many ms each is late
    """
    late = is_late(rows.timestamps[order], watermark)
    if late.any():
        found = rows.take(order[late])
        aside(found, lateness(watermark, found.timestamps))
        order = order[~late]
    return order


def set_aside(
    query: Query,
    dropped: DroppedRows | None,
    group: KeyGroup,
    rows: KeyedRows,
    late_by: np.ndarray,
    output: ResultBuffer,
    returned: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> None:
    """Count late rows; return them if the query does that, or add them to those that were dropped.

    returned: what late rows are returned as, if not with the `late_columns` of the query
    """
    group.late_rows += len(rows)
    if not len(rows) or query.late == "process":
        return
    if query.late_row is not None:
        late = rows.rows.select(list(query.late_columns)) if returned is None else returned(rows.rows)
        output.late(late, late_by)
    elif dropped is not None:
        dropped.add(group, rows, late_by, rows.timestamps)
