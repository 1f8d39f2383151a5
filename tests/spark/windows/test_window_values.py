"""Values that windows must aggregate as Spark does."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 1, 1)


def results(df: DataFrame, *aggregates: Column) -> list[tuple[Any, ...]]:
    windows = timerheap.spark.tumble(df, "at", size="10 seconds", watermark="1 second")
    return [row[3:] for row in streams.rows(windows.groupBy().agg(*aggregates))]


def test_moments_of_large_integers_are_those_of_floats(spark: SparkSession) -> None:
    df = spark.createDataFrame([(START, 2**53 + 1), (START, 1)], "at timestamp, v bigint")
    wanted = df.groupBy().agg(F.avg("v"), F.stddev_pop("v"))
    assert results(df, F.avg("v"), F.stddev_pop("v")) == streams.rows(wanted)


def test_a_null_constant_is_not_counted(spark: SparkSession) -> None:
    df = spark.createDataFrame([(START,), (START,)], "at timestamp")
    counts = [F.count(F.lit(None)), F.count(F.expr("NULL")).alias("text"), F.count(F.lit(5))]
    assert results(df, *counts) == [(0, 0, 2)]


def test_sessions_are_cut_to_milliseconds(spark: SparkSession) -> None:
    later = START + dt.timedelta(seconds=1, microseconds=900)
    df = spark.createDataFrame([(START + dt.timedelta(microseconds=500),), (later,)], "at timestamp")
    sessions = timerheap.spark.session(df, "at", "1 second", watermark="1 second")
    (row,) = sessions.groupBy().agg(F.max("at").alias("last")).collect()
    assert (row.window_start, row.window_end) == (START, START + dt.timedelta(seconds=2))
    assert row["last"] == later  # the rows themselves keep their microseconds


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("amount", r"sum\(amount\) must fit into int64, got 9223372036854775808"),
        ("price", r"sum\(price\) must"),
    ],
)
def test_an_overflow_names_the_aggregate(column: str, message: str, spark: SparkSession) -> None:
    big = [(START, 2**63 - 1, Decimal(9) * 10**37), (START, 1, Decimal(9) * 10**37)]
    df = spark.createDataFrame(big, "at timestamp, amount bigint, price decimal(38,0)").coalesce(1)
    with pytest.raises(Exception, match=message):
        results(df, F.sum(column).alias("total"))


def test_slices_whose_sum_overflows_are_an_error(spark: SparkSession) -> None:
    rows = [(START + dt.timedelta(seconds=n), Decimal(9) * 10**37) for n in (0, 5)]
    df = spark.createDataFrame(rows, "at timestamp, price decimal(38,0)")
    hop = timerheap.spark.hop(df, "at", slide=5_000, size=10_000, watermark="1 second").groupBy()
    with pytest.raises(Exception, match=r"the result 'sum\(price\)'"):
        hop.agg(F.sum("price")).collect()


@pytest.mark.parametrize(
    "expression",
    [
        "SUM(TRUNCATE(v, 1))",
        "COUNT(CAST(v AS TIME))",
        "MAX(TIME '10:00:00')",
        "MAX(ARRAY_JOIN(ARRAY_SLICE(v, 2, 3), ','))",
        "MAX(TO_CHAR(v, '9.9'))",
    ],
)
def test_an_expression_that_sqlglot_would_change_raises(expression: str, spark: SparkSession) -> None:
    query = f"SELECT {expression} FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY))"
    with pytest.raises(ValueError, match="is not supported; compute it in a view"):
        timerheap.spark.sql(spark, f"{query} GROUP BY window_start, window_end")


def test_a_top_n_keeps_windows_apart_where_clocks_go_forward(spark: SparkSession) -> None:
    midnight = int(dt.datetime(2024, 3, 10, 5, tzinfo=dt.UTC).timestamp() * 1000)  # in New York
    rows = [(midnight + minutes * 60_000, minutes) for minutes in (30, 90, 132)]
    df = spark.createDataFrame(rows, "ms bigint, v int").select(F.timestamp_millis("ms").alias("ts"), "v")
    df.createOrReplaceTempView("forward")
    counts = (
        "SELECT window_start, window_end, SUM(v) AS s FROM TABLE(CUMULATE(TABLE forward, DESCRIPTOR(ts), "
        "INTERVAL '1' HOUR, INTERVAL '4' HOUR)) GROUP BY window_start, window_end"
    )
    ranks = "ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY s DESC) AS n"
    top = f"SELECT * FROM (SELECT *, {ranks} FROM ({counts})) WHERE n <= 1"
    wanted = timerheap.spark.sql(spark, counts, time_zone="America/New_York").withColumn("n", F.lit(1))
    found = timerheap.spark.sql(spark, top, time_zone="America/New_York")
    assert streams.rows(found) == streams.rows(wanted)
    assert len(streams.rows(found.select("window_end").distinct())) == 4


ROWS = "FROM TABLE(TUMBLE(TABLE timed, DESCRIPTOR(ts), INTERVAL '1' HOUR))"
NULL_TIMES = {
    "rows": f"SELECT v {ROWS} WHERE {{where}}",
    "ranks": "SELECT v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY v) "
    f"AS n {ROWS} WHERE {{where}}) WHERE n < 3",
    "aggregates": f"SELECT SUM(v) {ROWS} WHERE {{where}} GROUP BY window_start, window_end",
    "over": "SELECT SUM(v) OVER (ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM timed "
    "WHERE {where}",
}


@pytest.mark.parametrize(("name", "streaming"), [*((name, False) for name in NULL_TIMES), ("ranks", True)])
def test_a_null_time_is_an_error_unless_where_drops_the_row(
    name: str, streaming: bool, spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    rows = [{"ts": START.replace(tzinfo=dt.UTC), "v": 1}, {"ts": None, "v": 2}]
    end = {"ts": START.replace(year=2025, tzinfo=dt.UTC), "v": 0}
    streams.write_batches(tmp_path / "input", [[*rows, end]], schema)
    df = (
        streams.read_stream(spark, tmp_path / "input")
        if streaming
        else spark.read.parquet(str(tmp_path / "input"))
    )
    df.createOrReplaceTempView("timed")

    def values(where: str) -> list[Any]:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(0).with_max_ahead("1 day")
        text = NULL_TIMES[name].format(where=where)
        result = timerheap.spark.sql(spark, text, strategy, max_parallelism=1)
        if not streaming:
            return streams.rows(result)
        return [row for rows in streams.batches(result, tmp_path / where) for row in rows]

    assert (1,) in values("ts IS NOT NULL")
    with pytest.raises(Exception, match=r"time must not be null, got .* with null in column 'ts'"):
        values("v < 3")
