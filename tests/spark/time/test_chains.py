"""Operators behind each other: the second follows the watermark of the first, in the same micro-batch."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.watermarks.generators import BoundedOutOfOrdernessWatermarks

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
ALERTS = "k string, shop string, at bigint"


class Alarm(KeyedProcessFunction):
    """A row sets a timer in 5 s, whose result has the timer's time."""

    def process_element(self, value: Row, ctx: Any) -> None:
        if not value.k.startswith("quiet"):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), "shop", timestamp


class Passed(KeyedProcessFunction):
    """Passes rows on, with the watermark that they see."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value.k, value.shop, value.at


def alerts(df: DataFrame, watermark: Any = 1_000, **options: Any) -> DataFrame:
    return timerheap.spark.process(
        df, "k", Alarm(), ALERTS, "at", watermark=watermark, max_parallelism=2, **options
    )


def passed(df: DataFrame, watermark: Any = None, **options: Any) -> DataFrame:
    return timerheap.spark.process(
        df, "shop", Passed(), ALERTS, "at", watermark=watermark, max_parallelism=2, **options
    )


def written(folder: Path, *batches: list[tuple[str, int]]) -> Path:
    rows = [[{"k": k, "at": at} for k, at in batch] for batch in batches]
    streams.write_batches(folder, rows, SCHEMA)
    return folder


def test_the_second_follows_in_the_same_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The alert of a rare row reaches the sink as soon as the first operator has passed its time."""
    folder = written(
        tmp_path / "input",
        [("a", 0)],
        [("quiet", 7_000)],
        [("quiet", 9_000), ("b", 9_500)],
        [("quiet", 17_000)],
    )
    found = streams.batches(passed(alerts(streams.read_stream(spark, folder))), tmp_path)
    assert [rows for rows in found if rows] == [[("a", "shop", 5_000)], [("b", "shop", 14_500)]]
    assert found[1] == [("a", "shop", 5_000)]


BETWEEN = {
    "where": lambda df: df.where("at >= 0"),
    "select": lambda df: df.select("k", F.lit("shop").alias("shop"), "at"),
    "withColumn": lambda df: df.withColumn("shop", F.upper("k")).withColumn("shop", F.lit("shop")),
    "explode": lambda df: df.withColumn("one", F.explode(F.array(F.lit(1)))).drop("one"),
    "mapInArrow": lambda df: df.mapInArrow(lambda batches: batches, df.schema),
    "alias": lambda df: df.alias("alerts").select("alerts.*"),
    "coalesce": lambda df: df.coalesce(1),
    "static": lambda df: df.join(
        F.broadcast(df.sparkSession.createDataFrame([("shop",)], "shop string")), "shop"
    ).select("k", "shop", "at"),
    "with": lambda df: df.sparkSession.sql("WITH t AS (SELECT * FROM {df}) SELECT * FROM t", df=df),
    "watermark": lambda df: (
        df.withColumn("at", F.timestamp_millis("at"))
        .withWatermark("at", "0 seconds")
        .withColumn("at", F.unix_millis("at"))
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_spark_does_between_keeps_the_watermark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)], [("quiet", 8_000)])
    df = BETWEEN[name](alerts(streams.read_stream(spark, folder)))
    assert streams.batches(passed(df), tmp_path)[1] == [("a", "shop", 5_000)]


def test_of_two_operators_the_slower_counts(spark: SparkSession, tmp_path: Path) -> None:
    """Of a union, also of one operator that has had no row yet: it may still emit anything."""
    fast = written(tmp_path / "fast", [("a", 0)], [("quiet", 7_000)], [("quiet", 30_000)])
    slow = written(tmp_path / "slow", [("b", 0)], [("quiet", 3_000)], [("quiet", 20_000)])
    none = written(tmp_path / "none", [])
    one, two, three = (alerts(streams.read_stream(spark, each)) for each in (fast, slow, none))
    found = streams.batches(passed(one.union(two)), tmp_path / "two")
    assert [sorted(rows) for rows in found] == [[], [], [("a", "shop", 5_000), ("b", "shop", 5_000)]]
    assert not any(streams.batches(passed(one.union(three)), tmp_path / "three"))


def test_a_source_beside_an_operator_has_a_watermark_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    fast = written(tmp_path / "fast", [("a", 0)], [("quiet", 7_000)], [("quiet", 30_000)])
    slow = written(tmp_path / "slow", [("b", 0)], [("b", 3_000)], [("b", 20_000)])
    rows = streams.read_stream(spark, slow).select("k", F.lit("shop").alias("shop"), "at")
    both = alerts(streams.read_stream(spark, fast)).union(rows)
    with pytest.raises(TypeError, match="watermark must be a WatermarkStrategy, got None"):
        passed(both)
    found = streams.batches(passed(both, 1_000), tmp_path)
    assert [sorted(rows) for rows in found] == [
        [],
        [("b", "shop", 0)],
        [("a", "shop", 5_000), ("b", "shop", 3_000)],
    ]


def test_a_delay_is_a_distance_from_the_first(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)], [("quiet", 11_000)])
    found = streams.batches(passed(alerts(streams.read_stream(spark, folder)), "4 seconds"), tmp_path)
    assert found == [[], [], [("a", "shop", 5_000)]]


def test_three_operators(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)])
    second = passed(alerts(streams.read_stream(spark, folder)))
    windows = timerheap.spark.tumble(second, "at", "1 second").groupBy("shop").count()
    query = windows.select(F.unix_millis("window_end").alias("end"), "count")
    folder = written(tmp_path / "input", [("quiet", 7_200)])
    found = streams.batches(query, tmp_path)
    assert found == [[], [(6_000, 1)], []]


def test_the_order_of_arrival_follows_too(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)])
    df = alerts(streams.read_stream(spark, folder), order="arrival")
    assert streams.batches(passed(df, order="arrival"), tmp_path)[1] == [("a", "shop", 5_000)]


def test_clocks_of_the_second_have_no_effect(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the first follows the clock, the second is never ahead of what the first still emits."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    strategy = strategy.with_wall_clock(after="3 seconds", lag="1 second")
    now = time.time_ns() // 1_000_000
    folder = written(tmp_path / "input", [("a", now)], [("quiet", now + 1)])
    first = alerts(streams.read_stream(spark, folder, files=2), strategy)
    with caplog.at_level(logging.WARNING, "timerheap"):
        second = passed(first, strategy)
    assert (
        "watermark: with_wall_clock has no effect, since df has the results of another operator"
        in caplog.text
    )
    found = streams.run_until(second, len, tmp_path)
    assert found == [("a", "shop", now + 5_000)]


def test_a_quiet_second_operator_drops_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of the first are a minute old; the second has been quiet for longer than its `after`."""
    now = time.time_ns() // 1_000_000
    folder = written(tmp_path / "input", [("b", now - 70_000), ("quiet", now - 60_000)])
    written(folder, [("a", now - 60_000)])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    first = alerts(
        streams.read_stream(spark, folder), strategy.with_wall_clock(after="1 hour", lag="1 second")
    )
    second = passed(first, strategy.with_wall_clock(after="1 second", lag="1 second"))
    found: list[Any] = []
    writer = second.writeStream.foreachBatch(lambda df, batch: found.append(df.collect()))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="500 milliseconds").start()
    try:
        wait_for(lambda: len(found) > 10)  # by then the second would have followed the clock
        written(folder, [("quiet", now - 50_000)])
        wait_for(lambda: len(list(filter(None, found))) > 1)
    finally:
        query.stop()
    assert [row.at - now for rows in found for row in rows] == [-65_000, -55_000]


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + streams.PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_behind_an_exchange_it_is_said(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)], [("b", 20_000)], [("quiet", 40_000)])
    df = alerts(streams.read_stream(spark, folder)).repartition(2)
    with pytest.raises(TypeError, match="watermark must be a WatermarkStrategy, got None"):
        passed(df)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(0)
    with pytest.raises(ValueError, match=r"behind Spark's Repartition.*leave out with_wall_clock"):
        passed(df, strategy.with_wall_clock(1, 1))
    with pytest.raises(ValueError, match="leave out with_idleness"):
        passed(df, strategy.with_idleness(1))
    with caplog.at_level(logging.WARNING, "timerheap"):
        second = passed(df, strategy)
    assert "come to df through Spark's Repartition: watermark alone advances the watermark" in caplog.text
    assert streams.batches(second, tmp_path)[-1] == [("a", "shop", 5_000)]


def test_a_join_that_is_not_broadcast_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path / "input", [("a", 0)])
    shops = spark.createDataFrame([("shop",)], "shop string").hint("merge")
    df = alerts(streams.read_stream(spark, folder)).join(shops, "shop").select("k", "shop", "at")
    with pytest.raises(Exception, match="got rows of a task without such an operator; have the other side"):
        streams.batches(passed(df), tmp_path)


def test_a_strategy_that_does_not_follow_is_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    df = alerts(streams.read_stream(spark, written(tmp_path / "input", [("a", 0)])))
    strategy = WatermarkStrategy.for_generator(lambda: BoundedOutOfOrdernessWatermarks(5))
    with caplog.at_level(logging.WARNING, "timerheap"):
        passed(df, strategy)
    assert "does not follow the operator whose results df has" in caplog.text
    with pytest.raises(ValueError, match='order must be "arrival"'):
        passed(df, WatermarkStrategy.no_watermarks())


def test_a_batch_needs_no_watermark(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 0), ("quiet", 7_000)], "k string, at long")
    assert [tuple(row) for row in passed(alerts(df)).collect()] == [("a", "shop", 5_000)]


def test_operators_in_micro_batches_come_last(spark: SparkSession, tmp_path: Path) -> None:
    df = alerts(streams.read_stream(spark, written(tmp_path / "input", [("a", 0)])))
    with pytest.raises(ValueError, match="got those of an operator in micro-batches"):
        passed(timerheap.spark.in_real_time(df))


class Fails:
    """Fails once, when all rows of the operator before it have come, and it has left its watermark."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        batch, partition = task.getLocalProperty("streaming.sql.batchId"), task.partitionId()
        if batch == "1" and partition == 0 and not os.path.exists(self.marker):
            Path(self.marker).touch()
            raise RuntimeError("fails once")


def test_a_repeated_task_has_a_watermark_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    folder = written(tmp_path / "input", [("a", 0)], [("quiet", 7_000)], [("quiet", 9_000)])
    first = alerts(streams.read_stream(spark, folder))
    second = passed(first.mapInArrow(Fails(tmp_path / "failed").__call__, first.schema))
    assert streams.batches(second, tmp_path) == [[], [("a", "shop", 5_000)], []]
    assert (tmp_path / "failed").exists()


def test_a_restart_continues_with_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    folder, found = written(tmp_path / "input", [("a", 0)]), []
    for at in (7_000, 9_000):
        found += streams.batches(passed(alerts(streams.read_stream(spark, folder))), tmp_path)
        written(folder, [("quiet", at)])
    found += streams.batches(passed(alerts(streams.read_stream(spark, folder))), tmp_path)
    assert [row for rows in found for row in rows] == [("a", "shop", 5_000)]
    rows = timerheap.spark.read_checkpoint(spark, str(tmp_path / "checkpoint"), 0).watermarks().collect()
    assert [(row.input, row.holds) for row in rows] == [("operators", True)]
