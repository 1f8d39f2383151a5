"""The order of the rows of MATCH_RECOGNIZE: by microseconds, then by further columns, then by all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(micros: int) -> datetime:
    return START + timedelta(microseconds=micros)


def found(spark: SparkSession, df: DataFrame, clause: str, **options: Any) -> list[tuple[Any, ...]]:
    df.createOrReplaceTempView("t")
    query = f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clause})"
    return [tuple(row) for row in timerheap.spark.sql(spark, query, **options).collect()]


A_B = "MEASURES A.v AS x, B.v AS y PATTERN (A B) DEFINE A AS v = 'a', B AS v = 'b'"
SECOND = "MEASURES A.v AS x, B.v AS y PATTERN (A B) WITHIN INTERVAL '1' SECOND"


def test_rows_of_one_millisecond_are_in_the_order_of_their_times(spark: SparkSession) -> None:
    rows = [("k", at(200), "b"), ("k", at(100), "a"), ("j", at(-100), "b"), ("j", at(-200), "a")]
    df = spark.createDataFrame(rows, "k string, ts timestamp, v string")
    assert sorted(found(spark, df, A_B)) == [("j", "a", "b"), ("k", "a", "b")]
    ntz = df.selectExpr("k", "CAST(ts AS timestamp_ntz) AS ts", "v")
    assert sorted(found(spark, ntz, A_B)) == [("j", "a", "b"), ("k", "a", "b")]
    shown = ", v MEASURES COUNT(*) AS n ALL ROWS PER MATCH PATTERN (A+)"
    times = [row[1] for row in found(spark, df.where("k = 'k'"), shown)]
    assert [time.microsecond for time in times] == [100, 200]


@pytest.mark.parametrize(("micros", "pairs"), [(999_600, 1), (1_000_000, 0), (1_000_100, 0)])
def test_within_counts_microseconds(spark: SparkSession, micros: int, pairs: int) -> None:
    for first in (0, 400, 999):
        rows = [("k", at(first), "a"), ("k", at(first + micros), "b")]
        df = spark.createDataFrame(rows, "k string, ts timestamp, v string")
        assert len(found(spark, df, SECOND)) == pairs, first


def test_microseconds_are_kept_between_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The first row of a pair waits in the state, and time ends it at its own microsecond."""
    batches = [
        [("k", at(900), "a"), ("j", at(300), "a"), ("z", at(50_000), "z")],
        [("k", at(1_000_800), "b"), ("j", at(1_000_400), "b"), ("z", at(2_000_000), "z")],
        [("z", at(9_000_000), "z")],
    ]
    schema = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.string())])
    tables = [[dict(zip(schema.names, row, strict=True)) for row in rows] for rows in batches]
    streams.write_batches(tmp_path / "in", tables, schema)
    streams.read_stream(spark, tmp_path / "in").createOrReplaceTempView("t")
    query = f"SELECT k, x, y FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {SECOND})"
    result = timerheap.spark.sql(spark, query, watermark="0 seconds").where("k <> 'z'")
    assert [row for rows in streams.batches(result, tmp_path) for row in rows] == [("k", "a", "b")]


@pytest.mark.parametrize(
    "define", ["A AS v = 2, B AS v = 1", "B AS v = 1, A AS v = 2", "A AS z = 1, B AS z = 2"]
)
def test_rows_of_one_time_are_in_the_order_of_all_columns(spark: SparkSession, define: str) -> None:
    """Not in that of the expressions of the query."""
    df = spark.createDataFrame(
        [("k", at(0), 2, 1), ("k", at(0), 1, 2)], "k string, ts timestamp, z int, v int"
    )
    measures = "MEASURES A.v AS x, COUNT(*) AS n PATTERN (A B)"
    assert found(spark, df, f"{measures} DEFINE {define}") == [("k", 2, 2)]
    assert found(spark, df, f", v {measures} DEFINE A AS v = 1, B AS v = 2") == [("k", 1, 2)]
