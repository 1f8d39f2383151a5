"""Restarts window queries with other windows or aggregates: an error, before anything is mixed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = pytest.mark.spark

SECOND = 1_000
SCHEMA = pa.schema(
    [("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("w", pa.int64())]
)
Query = Callable[[DataFrame], DataFrame]


def tumble(*aggregates: Column, **options: Any) -> Query:
    given: dict[str, Any] = {"size": 10 * SECOND, "watermark": "1 second"} | options
    return lambda df: timerheap.spark.tumble(df, "at", **given).groupBy("k").agg(*aggregates)


def hop(*aggregates: Column) -> Query:
    given: dict[str, Any] = {"slide": 5 * SECOND, "size": 10 * SECOND, "watermark": "1 second"}
    return lambda df: timerheap.spark.hop(df, "at", **given).groupBy("k").agg(*aggregates)


def session(gap: int) -> Query:
    return lambda df: (
        timerheap.spark.session(df, "at", gap, watermark="1 second").groupBy("k").agg(F.sum("v"))
    )


CHANGES: dict[str, tuple[Callable[[], Query], Callable[[], Query]]] = {
    "function": (lambda: tumble(F.min("v").alias("m")), lambda: tumble(F.max("v").alias("m"))),
    "input": (lambda: tumble(F.sum("v").alias("m")), lambda: tumble(F.sum("w").alias("m"))),
    "size": (lambda: tumble(F.sum("v")), lambda: tumble(F.sum("v"), size=20 * SECOND)),
    "gap": (lambda: session(10 * SECOND), lambda: session(3 * SECOND // 2)),
    "function of slices": (lambda: hop(F.min("v").alias("m")), lambda: hop(F.max("v").alias("m"))),
    "input of slices": (lambda: hop(F.sum("v").alias("m")), lambda: hop(F.sum("w").alias("m"))),
}


def row(second: int) -> dict[str, Any]:
    return {"k": "a", "at": dt.datetime.fromtimestamp(second, dt.UTC), "v": second, "w": second * 100}


def run(spark: SparkSession, query: Query, work: Path) -> None:
    streams.run(query(streams.read_stream(spark, work / "input")), work)


@pytest.mark.parametrize("change", CHANGES)
def test_another_query_on_a_checkpoint_is_an_error(change: str, spark: SparkSession, tmp_path: Path) -> None:
    before, after = (make() for make in CHANGES[change])
    streams.write_batches(tmp_path / "input", [[row(1), row(2)]], SCHEMA)
    run(spark, before, tmp_path)
    streams.write_batches(tmp_path / "input", [[row(3), row(60)], [row(120)]], SCHEMA)
    with pytest.raises(StreamingQueryException, match="the checkpoint has the windows"):
        run(spark, after, tmp_path)
    run(spark, before, tmp_path)
    ended = "window_end < timestamp_seconds(119)"
    wanted = before(spark.read.parquet(str(tmp_path / "input"))).where(ended)
    assert streams.sink(spark, tmp_path) == streams.rows(wanted)


def test_another_name_of_a_result_is_no_other_query(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", [[row(1), row(2)]], SCHEMA)
    run(spark, tumble(F.sum("v").alias("one")), tmp_path)
    streams.write_batches(tmp_path / "input", [[row(60)], [row(61)]], SCHEMA)
    run(spark, tumble(F.sum("v").alias("two")), tmp_path)
    results = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "sink"))
    assert [result.two for result in results.where("two > 0").collect()] == [3]


def test_late_rows_can_be_asked_for_later(spark: SparkSession, tmp_path: Path) -> None:
    """Then whole rows are sent instead of slices, while the state stays the same."""
    streams.write_batches(tmp_path / "input", [[row(1), row(2)]], SCHEMA)
    run(spark, tumble(F.sum("v").alias("sum")), tmp_path)
    streams.write_batches(tmp_path / "input", [[row(3), row(60)], [row(4)]], SCHEMA)
    emitting = tumble(F.sum("v").alias("sum"), late="emit")
    run(spark, lambda df: streams.with_late(emitting(df)), tmp_path)
    results = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "sink"))
    assert [result["sum"] for result in results.where("sum is not null").collect()] == [6]
    assert [result.late_row.v for result in results.where("late_row is not null").collect()] == [4]
