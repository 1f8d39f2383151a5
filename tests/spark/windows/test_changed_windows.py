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

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SECOND = 1_000
SCHEMA = pa.schema(
    [("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("w", pa.int64())]
)
Query = Callable[[DataFrame], DataFrame]


def tumble(*aggregates: Column, **options: Any) -> Query:
    given: dict[str, Any] = {"size": 10 * SECOND, "watermark": "1 second"} | options
    return lambda df: timerheap.spark.tumble(df, "at", **given).groupBy("k").agg(*aggregates)


def hop(*aggregates: Column, size: int = 10 * SECOND) -> Query:
    given: dict[str, Any] = {"slide": 5 * SECOND, "size": size, "watermark": "1 second"}
    return lambda df: timerheap.spark.hop(df, "at", **given).groupBy("k").agg(*aggregates)


def session(gap: int) -> Query:
    return lambda df: (
        timerheap.spark.session(df, "at", gap, watermark="1 second").groupBy("k").agg(F.sum("v"))
    )


def row(second: int) -> dict[str, Any]:
    return {"k": "a", "at": dt.datetime.fromtimestamp(second, dt.UTC), "v": second, "w": second * 100}


def run(spark: SparkSession, query: Query, work: Path) -> None:
    streams.run(query(streams.read_stream(spark, work / "input")), work)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("kind", ["slices", "sessions"])
def test_another_query_on_a_checkpoint_is_an_error(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Another function, input, size or gap, or other windows; then the first query loses nothing."""
    changed: list[Query]
    if kind == "slices":
        smallest = F.min("v").alias("m")
        before = hop(smallest)
        changed = [hop(F.max("v").alias("m")), hop(F.min("w").alias("m")), hop(smallest, size=15 * SECOND)]
        changed.append(tumble(smallest))
    else:
        before, changed = session(10 * SECOND), [session(3 * SECOND // 2)]
    streams.write_batches(tmp_path / "input", [[row(1), row(2)]], SCHEMA)
    run(spark, before, tmp_path)
    streams.write_batches(tmp_path / "input", [[row(3), row(60)], [row(120)]], SCHEMA)
    for after in changed:
        with pytest.raises(StreamingQueryException, match="the checkpoint has the windows"):
            run(spark, after, tmp_path)
    run(spark, before, tmp_path)
    ended = "window_end < timestamp_seconds(119)"
    wanted = before(spark.read.parquet(str(tmp_path / "input"))).where(ended)
    assert streams.sink(spark, tmp_path) == streams.rows(wanted)


def test_names_of_results_and_late_rows_are_no_other_query(spark: SparkSession, tmp_path: Path) -> None:
    """If late rows are asked for later, whole rows are sent instead of slices; the state stays the same."""
    streams.write_batches(tmp_path / "input", [[row(1), row(2)]], SCHEMA)
    run(spark, tumble(F.sum("v").alias("one")), tmp_path)
    streams.write_batches(tmp_path / "input", [[row(3), row(60)], [row(4)]], SCHEMA)
    emitting = tumble(F.sum("v").alias("two"), late="emit")
    run(spark, lambda df: streams.with_late(emitting(df)), tmp_path)
    results = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "sink"))
    found = results.select("one", "two", "late_row.v").collect()
    assert sorted((tuple(result) for result in found), key=repr) == [(None, 6, None), (None, None, 4)]
