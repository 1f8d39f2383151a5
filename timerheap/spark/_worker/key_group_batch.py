"""One key group in one micro-batch: its rows, then the watermark, then the clock."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._query import Query
from timerheap.spark._worker.broadcast_runner import BroadcastRunner
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import lateness

__all__ = ["run_key_group"]

_log = logging.getLogger("timerheap")


def run_key_group(
    query: Query,
    runner: Runner,
    group: KeyGroup,
    rows: HashedRows | None,
    now: int | None,
    watermark: int,
    output: ResultBuffer,
    broadcast: pa.Table | None = None,
) -> None:
    """Run one key group in one micro-batch: rows, then the watermark, then the clock.

    Rows that go to every key group come first.
    """
    before = group.watermark
    runner.begin(group, now, output)
    if broadcast is not None:
        assert isinstance(runner, BroadcastRunner)
        runner.broadcast(broadcast)
    admitted = _admit(query, group, rows, output) if rows is not None else None
    group.watermark = watermark
    if query.order == "event_time":
        if admitted is not None:
            group.rows.append(admitted)
        runner.replay(*group.rows.release(watermark), watermark)
    else:
        if admitted is not None:
            runner.process(admitted, watermark)
        if query.event_time is not None or watermark > before:
            runner.advance(watermark)
    if now is not None:
        runner.advance_clock(now)


def _admit(query: Query, group: KeyGroup, rows: HashedRows, output: ResultBuffer) -> KeyedRows:
    """Return the rows that are not late."""
    batch, hashes, timestamps = rows.rows, rows.hashes, rows.timestamps
    timed = query.event_time in query.schema.names
    if timed and query.windows is None:  # in windows a row is late when its slice is over
        late = timestamps <= group.watermark
        group.late_rows += int(np.count_nonzero(late))
        if late.any() and query.late != "process":
            _drop_late(query, group, batch.filter(pa.array(late)), timestamps[late], output)
            batch, hashes, timestamps = batch.filter(pa.array(~late)), hashes[~late], timestamps[~late]
    ids, places = group.keys.locate(hashes, [batch.column(name) for name in query.key])
    return KeyedRows(batch, ids, timestamps, places)


def _drop_late(
    query: Query, group: KeyGroup, late: pa.RecordBatch, timestamps: np.ndarray, output: ResultBuffer
) -> None:
    if query.late_row is not None:
        late_by = lateness(group.watermark, timestamps)
        output.late(late.select(list(query.late_columns)), late_by)
    else:
        _log.warning(
            "dropped %d rows behind the watermark (%d so far in this key group)",
            len(timestamps),
            group.late_rows,
        )
