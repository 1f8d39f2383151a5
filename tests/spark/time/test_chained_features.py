"""Each feature behind an operator follows its watermark, and so does an operator behind each feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import timerheap.spark
from timerheap import IntervalJoin, KeyedProcessFunction, WatermarkStrategy
from timerheap.windows import ProcessWindowFunction, TumblingEventTimeWindows

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
ROWS = "k string, at timestamp"


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class Rare(KeyedProcessFunction):
    """Passes on the rows whose key does not begin with "quiet"; most rows only advance the watermark."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        if not value.k.startswith("quiet"):
            yield value.k, value.at


def rare(df: DataFrame) -> DataFrame:
    return timerheap.spark.process(df, "k", Rare(), ROWS, "at", watermark="1 second", max_parallelism=2)


def streamed(spark: SparkSession, folder: Path, *batches: list[tuple[str, float]]) -> DataFrame:
    rows = [[{"k": k, "at": at(seconds)} for k, seconds in batch] for batch in batches]
    streams.write_batches(folder, rows, SCHEMA)
    return streams.read_stream(spark, folder)


class Count(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield (len(list(elements)),)


class Late(StatefulProcessor):
    """Sets a timer at each row's time, and yields rows and timers with the watermark."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000))
            yield Row(k=f"row {key[0]}", at=row.at)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=f"timer {key[0]}", at=datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000))

    def close(self) -> None:
        pass


def in_sql(query: str) -> Callable[[DataFrame], DataFrame]:
    def run(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("rare")
        return timerheap.spark.sql(df.sparkSession, query, max_parallelism=2)

    return run


def processed(df: DataFrame) -> DataFrame:
    df = df.withWatermark("at", "0 seconds")
    return timerheap.spark.transform_with_state(
        df, "k", Late(), ROWS, "Append", "EventTime", max_parallelism=2
    )


# What a second operator makes of the row ("a", 10 s) of the first, as soon as that is at 19.999 s, and not
# before. The next row of the first comes when all is over.
SECONDS: dict[str, tuple[Callable[[DataFrame], DataFrame], Any]] = {
    "tumble": (
        lambda df: timerheap.spark.tumble(df, "at", "5 seconds").groupBy("k").count().select("k", "count"),
        ("a", 1),
    ),
    "session": (
        lambda df: timerheap.spark.session(df, "at", "5 seconds").groupBy("k").count().select("k", "count"),
        ("a", 1),
    ),
    "window_operator": (
        lambda df: timerheap.spark.window_operator(
            df, "k", TumblingEventTimeWindows.of(5_000), Count(), "n long", "at", max_parallelism=2
        ).select("k", "n"),
        ("a", 1),
    ),
    "drop_duplicates": (
        lambda df: timerheap.spark.drop_duplicates(df, "k", "at").select("k", F.lit(1)),
        ("a", 1),
    ),
    "sql windows": (
        in_sql("SELECT k, COUNT(*) n FROM TABLE(TUMBLE(TABLE rare, DESCRIPTOR(at), INTERVAL '5' SECOND)) "
               "GROUP BY k, window_start, window_end"),
        ("a", 1),
    ),
    "sql over": (in_sql("SELECT k, COUNT(*) OVER (PARTITION BY k ORDER BY at) n FROM rare"), ("a", 1)),
    "sql first row": (
        in_sql("SELECT k, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) n FROM rare) "
               "WHERE n = 1"),
        ("a", 1),
    ),
    "sql pattern": (
        in_sql("SELECT k, n FROM rare MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES COUNT(A.k) n "
               "PATTERN (A) DEFINE A AS A.k = 'a')"),
        ("a", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SECONDS)
def test_a_feature_behind_an_operator_follows_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    second, wanted = SECONDS[name]
    df = streamed(spark, tmp_path / "input", [("a", 10)], [("quiet", 21)], [("b", 99), ("quiet", 99)])
    found = streams.batches(second(rare(df)), tmp_path)
    assert [[], [wanted]] == found[:2]


def test_a_processor_behind_an_operator_follows_it(spark: SparkSession, tmp_path: Path) -> None:
    """Its timers fire as soon as the first operator has passed them, and no row of that is late."""
    df = streamed(spark, tmp_path / "input", [("a", 10)], [("quiet", 21)], [("b", 22), ("quiet", 24)])
    found = streams.batches(processed(rare(df)), tmp_path)
    assert found[:2] == [
        [],
        [("row a", at(10).replace(tzinfo=None)), ("timer a", at(10).replace(tzinfo=None))],
    ]
    assert [k for k, _ in found[2]] == ["row b", "timer b"]


def test_an_operator_behind_a_processor_follows_it(spark: SparkSession, tmp_path: Path) -> None:
    """A processor has Spark's watermark, which is a micro-batch behind the rows."""
    df = streamed(spark, tmp_path / "input", [("a", 10)], [("b", 21)], [("b", 22)])
    counts = timerheap.spark.tumble(processed(df), "at", "5 seconds").groupBy("k").count()
    found = streams.batches(counts.select("k", "count"), tmp_path)
    assert sorted(row for rows in found for row in rows)[:2] == [("row a", 1), ("timer a", 1)]


@pytest.mark.parametrize("first", ["left", "right", "both"])
def test_an_asof_join_of_results(spark: SparkSession, tmp_path: Path, first: str) -> None:
    """Flink's testEventTimeTemporalJoinWithDeduplicateFirstView: versions are the first rows of each key."""
    orders = streamed(spark, tmp_path / "orders", [("a", 12)], [("quiet", 30)])
    rates = streamed(spark, tmp_path / "rates", [("a", 10), ("a", 11)], [("quiet", 40)])
    if first != "left":
        rates = timerheap.spark.drop_duplicates(rates, "k", "at", watermark="1 second").where("k = 'a'")
    if first != "right":
        orders = rare(orders)
    joined = timerheap.spark.join_asof(
        orders,
        rates,
        "k",
        "at",
        watermark=None if first == "both" else "1 second",
        max_parallelism=2,
    )
    joined = joined.where("k = 'a'").select("k", F.unix_seconds("at"), F.unix_seconds("at_right"))
    found = streams.batches(joined, tmp_path)
    assert [row for rows in found for row in rows] == [("a", 12, 10 if first != "left" else 11)]


def test_a_temporal_join_of_first_rows_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    streamed(spark, tmp_path / "orders", [("a", 12)], [("quiet", 30)]).createOrReplaceTempView("orders")
    streamed(spark, tmp_path / "rates", [("a", 10), ("a", 11)], [("quiet", 40)]).createOrReplaceTempView(
        "rates"
    )
    watermark = {"orders": "at - INTERVAL '1' SECOND", "rates": "at - INTERVAL '1' SECOND"}
    first = timerheap.spark.sql(
        spark,
        "SELECT k, at FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) n FROM rates) "
        "WHERE n = 1",
        watermark,
    )
    first.where("k = 'a'").createOrReplaceTempView("first_rates")
    joined = timerheap.spark.sql(
        spark,
        "SELECT o.k, r.at FROM orders o JOIN first_rates FOR SYSTEM_TIME AS OF o.at AS r ON o.k = r.k",
        {"orders": watermark["orders"]},
    )
    found = streams.batches(joined.select("k", F.unix_seconds("at")), tmp_path)
    assert [row for rows in found for row in rows] == [("a", 10)]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_pairs_of_an_interval_join_are_not_late(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """A pair may have the time of its older row, and a miss has that of its row."""
    left = streamed(spark, tmp_path / "left", [("a", 10)], [("b", 20)], [("quiet", 40)])
    right = streamed(spark, tmp_path / "right", [("quiet", 11)], [("a", 18)], [("quiet", 40)])
    schema = "struct<k:string,at:timestamp>"
    join = IntervalJoin(
        0, 10_000, lambda one, other: (one.k, one.at), how=how, left_type=schema, right_type=schema
    )
    pairs = timerheap.spark.process_two(left, right, "k", join, ROWS, "at", watermark="1 second")
    counts = timerheap.spark.tumble(pairs, "at", "1 second").groupBy("k").count().select("k", "count")
    streamed(spark, tmp_path / "left", [("quiet", 60)])
    streamed(spark, tmp_path / "right", [("quiet", 60)])
    found = streams.batches(counts, tmp_path)
    found = [row for rows in found for row in rows if row[0] != "quiet"]
    assert sorted(found) == ([("a", 1)] if how == "inner" else [("a", 1), ("b", 1)])


def test_rows_that_wait_for_lead_are_not_late(spark: SparkSession, tmp_path: Path) -> None:
    streamed(spark, tmp_path / "input", [("a", 10)], [("a", 14)], [("quiet", 60)]).createOrReplaceTempView(
        "t"
    )
    query = "SELECT k, at, LEAD(at) OVER (PARTITION BY k ORDER BY at) following FROM t"
    watermark = "at - INTERVAL '1' SECOND"
    led = timerheap.spark.sql(spark, query, watermark, lead_within="5 seconds").where("k = 'a'")
    counts = timerheap.spark.tumble(led, "at", "1 second").groupBy("k").count().select("count")
    found = streams.batches(counts, tmp_path)
    assert [row for rows in found for row in rows] == [(1,), (1,)]


def test_late_rows_have_a_time_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """They are behind the watermark of the operator, so they do not follow it."""
    df = streamed(spark, tmp_path / "input", [("a", 60)], [("a", 10)], [("a", 11)], [("a", 30)])
    result = timerheap.spark.process(df, "k", Rare(), ROWS, "at", watermark="1 second", late="emit")
    late = timerheap.spark.late_rows(result)
    counts = timerheap.spark.tumble(late, "at", "1 second", watermark="0 seconds").groupBy("k").count()
    found = streams.batches(counts.select(F.unix_seconds("window_end")), tmp_path)
    assert [row for rows in found for row in rows] == [(11,), (12,)]


def test_an_operator_without_event_time_is_not_followed(spark: SparkSession, tmp_path: Path) -> None:
    df = streamed(spark, tmp_path / "input", [("a", 10)], [("b", 21)])
    first = timerheap.spark.process(df, "k", Rare(), ROWS, max_parallelism=2)
    with pytest.raises(TypeError, match="watermark must be a WatermarkStrategy, got None"):
        timerheap.spark.tumble(first, "at", "5 seconds").groupBy("k").count()
    counts = timerheap.spark.tumble(first, "at", "5 seconds", watermark="1 second").groupBy("k").count()
    assert streams.batches(counts.select("k", "count"), tmp_path) == [[], [("a", 1)]]


def test_a_run_of_all_there_is(spark: SparkSession, tmp_path: Path) -> None:
    """In its last micro-batch the first operator follows the clock, and so does the second."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_wall_clock(1, "1 second")
    df = streamed(spark, tmp_path / "input", [("a", 10)], [("quiet", 11)])
    first = timerheap.spark.process(df, "k", Rare(), ROWS, "at", watermark=strategy, max_parallelism=2)
    counts = timerheap.spark.tumble(first, "at", "5 seconds").groupBy("k").count().select("k", "count")
    found: list[Any] = []
    for _ in range(2):
        writer = counts.writeStream.foreachBatch(lambda df, batch: found.extend(df.collect()))
        timerheap.spark.run_available_now(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert [tuple(row) for row in found] == [("a", 1)]
