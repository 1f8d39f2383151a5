"""Processing-time timers on Spark: they fire, once and not too early, and outlive a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import Row, SparkSession

import timerheap.spark
from timerheap import MAX_WATERMARK, KeyedProcessFunction, TimeDomain

pytestmark = pytest.mark.spark

PATIENCE = 120  # seconds until something that must happen is given up


class Alarm(KeyedProcessFunction):
    """A row sets a timer `wait` ms from now, and some that never fire; an even timer sets one more."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        timers.register_processing_time_timer(now + value.wait)
        timers.register_processing_time_timer(MAX_WATERMARK)
        timers.register_processing_time_timer(now + 1)
        timers.delete_processing_time_timer(now + 1)
        timers.register_event_time_timer(now)
        yield "row", value.k, now, now

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() == TimeDomain.PROCESSING_TIME
        now = ctx.timer_service().current_processing_time()
        assert now > timestamp
        if timestamp % 2 == 0:
            ctx.timer_service().register_processing_time_timer(timestamp + 1)  # passed by now, or soon
        yield "timer", ctx.get_current_key(), timestamp, now


def test_timers_fire_and_outlive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    waits = {"none": 0, "short": 400, "long": 6_000}
    later = {"later": 0}  # after a clean stop Spark runs no batch until a row comes
    schema = pa.schema([("k", pa.string()), ("wait", pa.int64())])

    def write(folder: Path, waits: dict[str, int]) -> None:
        streams.write_batches(folder, [[{"k": k, "wait": wait} for k, wait in waits.items()]], schema)

    write(tmp_path / "input", waits)
    output = "kind string, k string, at bigint, now bigint"
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), output, processing_time=True, max_parallelism=2)

    def rows() -> list[Any]:
        return streams.sink(spark, tmp_path) if (tmp_path / "sink" / "_spark_metadata" / "0").exists() else []

    def run_until(enough: Callable[[list[Any]], bool]) -> None:
        writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="100 milliseconds").start(
            str(tmp_path / "sink"), format="parquet"
        )
        deadline = time.monotonic() + PATIENCE
        try:
            while not enough(rows()):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, rows()
                time.sleep(0.2)
        finally:
            query.stop()

    def expected() -> list[Any]:
        due = [(k, at + (waits | later)[k]) for kind, k, at, _ in rows() if kind == "row"]
        return sorted([*due, *((k, at + 1) for k, at in due if at % 2 == 0)])

    def fired() -> list[Any]:
        return sorted((k, at) for kind, k, at, _ in rows() if kind == "timer")

    run_until(lambda found: any(kind == "timer" and k == "short" for kind, k, *_ in found))
    write(tmp_path / "input", later)
    run_until(lambda found: "later" in [k for _, k, *_ in found] and len(fired()) >= len(expected()))
    assert fired() == expected()
    assert len([kind for kind, *_ in rows() if kind == "row"]) == len(waits | later)
