"""One key group in one micro-batch: in which order its rows, the watermark and the clock reach the runner."""

from __future__ import annotations

import pyarrow as pa

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._worker.lateness import admit
from timerheap.spark._worker.runner import MicroBatch


def run_key_group(
    batch: MicroBatch,
    group: KeyGroup,
    rows: KeyedRows | None,
    watermark: int | None,
    broadcast: pa.Table | None = None,
) -> None:
    """Run one key group in one micro-batch: `broadcast` rows, its rows, the watermark, then the clock.

    watermark: None if it does not advance, so that no timer of event time fires, as in Flink, not even one
        that was registered for the past

    Nothing has changed after a SettledLost.
    """
    runner, now = batch.runner, batch.now
    group.settling.begin(
        None if rows is None else rows.ids, group.watermark if watermark is None else watermark, now
    )
    runner.begin(group, now, batch.output)
    if broadcast is not None:
        runner.broadcast(broadcast)
    admitted = None if rows is None else admit(batch, group, rows)
    advances = watermark is not None
    if watermark is None:
        watermark = group.watermark
    group.watermark = watermark
    if batch.query.order == "event_time":
        if admitted is not None:
            group.rows.append(admitted)
        if advances or (admitted is not None and runner.decides_lateness):
            runner.replay(*group.rows.release(watermark, in_order=not runner.any_order), watermark)
    else:
        if admitted is not None:
            runner.process(admitted, watermark)
        if advances:
            runner.advance(watermark)
    if now is not None:
        runner.advance_clock(now)
