"""The times of tables in Flink SQL, and their watermarks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from timerheap.spark._columns import WINDOW_COLUMNS
from timerheap.spark._plan.named_columns import spark_delay, strategy_of
from timerheap.spark._sql.rank_functions import PROCTIME
from timerheap.spark._windows.window_runner import WINDOW_BOUND
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator, WatermarkStrategy

if TYPE_CHECKING:
    from timerheap.spark._sql.parser import Over, Table, Windowing


class _Behind(WatermarkGenerator):
    """Emits the largest time minus a delay, as Flink's SQL does; strategies emit 1 ms less."""

    def __init__(self, delay: int) -> None:
        self._delay = delay

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        return max(max_timestamp, MIN_WATERMARK + self._delay) - self._delay


def _behind(delay: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_generator(partial(_Behind, delay))._with("_delay", delay - 1)


def time_of_table(
    df: DataFrame, wanted: Windowing | Table | Over, watermark: object, processing_time: str | None
) -> tuple[str | None, object]:
    """Return the event-time column, None for processing time, and the watermark strategy."""
    table, time = ".".join(wanted.table), wanted.time
    strategy = watermark.get(table) if isinstance(watermark, Mapping) else watermark
    if time in (processing_time, PROCTIME):
        if not df.isStreaming:
            raise ValueError(
                f"query: {time} is processing time, which table {table}, a batch, does not have; pass a "
                "stream, or name an event-time column"
            )
        return None, None if time == PROCTIME else strategy
    if time not in df.columns:
        if processing_time is None and strategy is None and df.isStreaming:
            return None, None
        raise ValueError(
            f"query: the time must be a column of table {table}, got {time}; the columns are {df.columns}. "
            f"For processing time pass a stream, no watermark for the table, and processing_time={time!r}"
        )
    if isinstance(strategy, str):  # "ts - INTERVAL '5' SECOND", perhaps after WATERMARK FOR ts AS
        name = f"`?{re.escape(time)}`?"
        strategy = re.sub(rf"(?is)^\s*(watermark\s+for\s+{name}\s+as\s+)?{name}\s*(-|$)", "", strategy)
        strategy = strategy.strip() or timedelta()
    made = strategy_of("watermark", strategy)
    if made is not strategy:
        strategy = _behind(made._delay)
    if strategy is None and df.schema[time].metadata.get(WINDOW_BOUND) == WINDOW_COLUMNS[2]:
        strategy = _behind(0)  # since all results of one window time arrive together
    if strategy is None:
        delay = spark_delay(df, time)
        if delay is None and df.isStreaming:
            given = f"one for {list(watermark)}" if isinstance(watermark, Mapping) else "None"
            raise TypeError(
                f"watermark must be a WatermarkStrategy for the streaming table {table}, got {given}; pass "
                "one such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), or "
                f"\"{time} - INTERVAL '5' SECOND\", like Flink's WATERMARK FOR"
            )
        strategy = _behind(delay or 0)
    return time, strategy
