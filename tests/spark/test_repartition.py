"""Spark repartitions a checkpoint, and the query goes on exactly where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import streams
from anything import DELAY, cut, delayed, expected, make_rows, process, write
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = pytest.mark.spark


def repartition(spark: SparkSession, work: Path, partitions: int) -> None:
    spark._streamingCheckpointManager.repartition(str(work / "checkpoint"), partitions)


def emitted(work: Path) -> list[tuple[Any, ...]]:
    """All rows in the files of the sink, sorted; the sink's log lacks the micro-batch that repartitions."""
    return sorted((tuple(row.values()) for row in pq.read_table(work / "sink").to_pylist()), key=repr)


def test_a_function_goes_on_in_more_and_in_fewer_partitions(spark: SparkSession, tmp_path: Path) -> None:
    batches = cut(delayed(6, make_rows(6, 240)), 6)
    folder = tmp_path / "input"

    def run(max_parallelism: int | None = None) -> None:
        df = streams.read_stream(spark, folder)
        streams.run(process(df, "event_time", max_parallelism=max_parallelism), tmp_path)

    for start, partitions in ((0, 4), (2, 2), (4, None)):
        write(folder, batches[start : start + 2])
        run()
        if partitions is not None:
            repartition(spark, tmp_path, partitions)
    assert emitted(tmp_path) == expected(batches, "event_time")
    write(folder, batches[:1])
    with pytest.raises(StreamingQueryException, match="pass max_parallelism=16, or start a new checkpoint"):
        run(32)


def test_windows_that_spark_slices_go_on_in_more_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Their key groups are woken up by timers of Spark's, which move with the state."""
    batches = cut(delayed(7, make_rows(7, 200)), 4)
    folder = write(tmp_path / "input", batches[:2])

    def counts(df: DataFrame) -> DataFrame:
        at = df.withColumn("time", F.timestamp_millis("at"))
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)  # no row is late
        hops = timerheap.spark.hop(at, "time", 20, 100, watermark=strategy)
        return hops.group_by("city", "line").agg(F.count("*").alias("rows"))

    streams.run(counts(streams.read_stream(spark, folder)), tmp_path)
    repartition(spark, tmp_path, 4)
    write(folder, batches[2:3])
    streams.run(counts(streams.read_stream(spark, folder)), tmp_path)
    streams.run(counts(streams.read_stream(spark, folder)), tmp_path / "undisturbed")
    assert emitted(tmp_path) == emitted(tmp_path / "undisturbed")
