"""Spark repartitions a checkpoint, and the query goes on exactly where it was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streams
from anything import DELAY, cut, delayed, expected, make_rows, process, write
from processors import SCHEMA, Commands, on_both, random_batches
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn,
    pytest.mark.skipif(not hasattr(SparkSession, "_streamingCheckpointManager"), reason="not in this Spark"),
]


def repartition(spark: SparkSession, work: Path, partitions: int) -> None:
    spark._streamingCheckpointManager.repartition(str(work / "checkpoint"), partitions)


def emitted(work: Path) -> list[tuple[Any, ...]]:
    """All rows in the files of the sink, sorted; the sink's log lacks the micro-batch that repartitions."""
    return sorted((tuple(row.values()) for row in pq.read_table(work / "sink").to_pylist()), key=repr)


class Echo(KeyedProcessFunction):
    """Emits the key of each row."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str]]:
        yield (ctx.get_current_key(),)


def test_a_function_goes_on_in_more_and_in_fewer_partitions(spark: SparkSession, tmp_path: Path) -> None:
    batches = cut(delayed(6, make_rows(6, 240)), 3)
    folder = tmp_path / "input"

    def run(max_parallelism: int | None = None) -> None:
        df = streams.read_stream(spark, folder)
        streams.run(process(df, "event_time", max_parallelism=max_parallelism), tmp_path)

    for batch, partitions in zip(batches, (4, 2, None), strict=True):
        write(folder, [batch])
        run()
        if partitions is not None:
            repartition(spark, tmp_path, partitions)
    assert emitted(tmp_path) == expected(batches, "event_time")
    write(folder, batches[:1])
    with pytest.raises(StreamingQueryException, match="pass max_parallelism=4, or go on with its state"):
        run(32)


def test_many_channels_go_on_in_more_and_in_fewer_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Only one key group of each task writes what they have seen, and another one may have to read it."""
    channels = ["slow", *(f"c{n}" for n in range(200))]

    def rows(at: int, some: list[str]) -> list[dict[str, Any]]:
        return [{"key": f"{name} {at}", "channel": name, "at": at + n} for n, name in enumerate(some)]

    def run() -> None:
        found = timerheap.spark.process(
            streams.read_stream(spark, folder),
            "key",
            Echo(),
            "key string",
            timerheap.spark.EventTime("at", channel="channel"),
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            late="emit",
        )
        streams.run(streams.with_late(found), tmp_path)

    batches = [rows(1_000, channels), rows(2_000, channels[1:]), rows(1_500, ["slow"]), rows(3_000, channels)]
    folder, schema = tmp_path / "input", pa.schema({"key": "string", "channel": "string", "at": "int64"})
    for start, stop, partitions in ((0, 1, 4), (1, 3, 1), (3, 4, None)):
        streams.write_batches(folder, batches[start:stop], schema)
        run()
        if partitions is not None:
            repartition(spark, tmp_path, partitions)
    passed = [(row["key"],) for row in itertools.chain(*batches) if row["at"] < 3_000]
    assert [row[:1] for row in emitted(tmp_path)] == sorted(passed)
    assert {row[1:] for row in emitted(tmp_path)} == {(None, None)}, "no row is late"


def test_windows_that_spark_slices_go_on_in_more_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Their key groups are woken up by timers of Spark's, which move with the state."""
    batches = cut(delayed(7, make_rows(7, 200)), 2)
    folder = write(tmp_path / "input", batches[:1])

    def counts(df: DataFrame) -> DataFrame:
        at = df.withColumn("time", F.timestamp_millis("at"))
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)  # no row is late
        hops = timerheap.spark.hop(at, "time", slide=20, size=100, watermark=strategy)
        return hops.groupBy("city", "line").agg(F.count("*").alias("rows"))

    streams.run(counts(streams.read_stream(spark, folder)), tmp_path)
    repartition(spark, tmp_path, 4)
    write(folder, batches[1:])
    streams.run(counts(streams.read_stream(spark, folder)), tmp_path)
    streams.run(counts(streams.read_stream(spark, folder)), tmp_path / "undisturbed")
    assert emitted(tmp_path) == emitted(tmp_path / "undisturbed")


def test_a_processor_goes_on_after_a_restart_in_more_partitions_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = random_batches(seed=3, batches=3)
    for start, stop in ((0, 2), (2, 3)):
        streams.write_batches(tmp_path / "input", batches[start:stop], SCHEMA)
        df = streams.read_stream(spark, tmp_path / "input").withWatermark("at", "2 seconds")
        streams.run(on_both(df, Commands("rows"), "rows", "EventTime"), tmp_path)
        if stop == 2:
            repartition(spark, tmp_path, 4)
    found = {by: [row[:2] for row in emitted(tmp_path) if row[2] == by] for by in ("spark", "timerheap")}
    assert found["timerheap"] == found["spark"]
    assert sum(what.startswith("timer ") for _, what in found["spark"]) > 1
