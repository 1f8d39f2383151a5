"""Micro-batches as files, queries run to their ends, sinks read back."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import timerheap.spark

Transform = Callable[[DataFrame], DataFrame]
PATIENCE = 120  # seconds until a test gives up waiting


def write_batches(
    folder: Path, batches: Iterable[pa.Table | Sequence[dict[str, Any]]], schema: pa.Schema
) -> None:
    """Add one Parquet file for each micro-batch; Spark takes the oldest file first."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, len(list(folder.glob("*.parquet")))):
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_pylist(list(batch), schema)
        draft = folder / f".{number:05}.parquet"
        pq.write_table(table, draft)
        os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
        draft.rename(folder / f"{number:05}.parquet")


def read_stream(spark: SparkSession, folder: Path, files: int = 1) -> DataFrame:
    """Read a folder of `write_batches`, so many files a micro-batch; its first file gives the schema."""
    reader = spark.readStream.schema(schema_of(folder / "00000.parquet"))
    return reader.option("maxFilesPerTrigger", files).parquet(str(folder))


def schema_of(file: Path) -> StructType:
    """Return the schema that Spark infers from a Parquet file, for which it would run a job."""
    schema = pq.read_schema(file)
    of_spark = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if of_spark is not None:
        return StructType.fromJson(json.loads(of_spark))
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def with_late(result: DataFrame) -> DataFrame:
    """Return results, and late rows, in which the last columns, ``late_by`` and ``late_row``, are set."""
    outputs = timerheap.spark.with_side_outputs(result)
    late, names = F.col("side_output.late_rows"), timerheap.spark.late_rows(result).columns[:-1]
    row = F.when(late.isNotNull(), F.struct(*(late[name].alias(name) for name in names)))
    return outputs.select("*", late["late_by"].alias("late_by"), row.alias("late_row")).drop("side_output")


def run(result: DataFrame, work: Path) -> list[StreamingQueryProgress]:
    """Run a streaming query over all there is, into `work`/sink; give the progress of each micro-batch."""
    query = (
        result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "sink"), format="parquet")
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query.recentProgress


def batches(result: DataFrame, work: Path) -> list[list[tuple[Any, ...]]]:
    """Run a streaming query over all there is; return the rows of each micro-batch."""
    found: dict[int, list[tuple[Any, ...]]] = {}

    def collect(df: DataFrame, batch: int) -> None:
        found[batch] = [tuple(row) for row in df.collect()]

    query = (
        result.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return [rows for _, rows in sorted(found.items())]


@contextmanager
def started(result: DataFrame, work: Path) -> Iterator[StreamingQuery]:
    """Run a streaming query into `work`/sink until the end of the block."""
    writer = result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.start(str(work / "sink"), format="parquet")
    try:
        yield query
    finally:
        query.stop()


def run_until(
    result: DataFrame, enough: Callable[[list[tuple[Any, ...]]], bool], work: Path
) -> list[tuple[Any, ...]]:
    """Run a streaming query that follows the clock into `work`/sink, until it has written enough.

    There is at most one micro-batch a second, and what it has written is read once.
    """
    writer = result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(processingTime="1 second").start(str(work / "sink"), format="parquet")
    deadline, seen = time.monotonic() + PATIENCE, -1
    written: list[tuple[Any, ...]] = []
    try:
        while True:
            batches = len(list((work / "sink" / "_spark_metadata").glob("[0-9]*")))
            if batches > seen:
                reader = result.sparkSession.read.schema(result.schema)
                written, seen = rows(reader.parquet(str(work / "sink"))) if batches else [], batches
                if enough(written):
                    return written
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, written
            time.sleep(0.1)
    finally:
        query.stop()


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, sorted; by way of Arrow, so that times do not depend on the machine's zone."""
    table = df.toArrow()
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def sink(spark: SparkSession, work: Path) -> list[tuple[Any, ...]]:
    """What a query of `run` has written, sorted."""
    # A query may be writing the newest.
    file = min((work / "sink").glob("*.parquet"), key=lambda file: file.stat().st_mtime)
    return rows(spark.read.schema(schema_of(file)).parquet(str(work / "sink")))


def stream(
    spark: SparkSession, transform: Transform, folder: Path, work: Path, files: int = 1
) -> list[tuple[Any, ...]]:
    """Run `transform` as a streaming query over `folder`, and give what it has written, sorted."""
    run(transform(read_stream(spark, folder, files)), work)
    return sink(spark, work)


def configured(spark: SparkSession, **settings: Any) -> AbstractContextManager[None]:
    """Set ``spark.sql.<name>`` for a while; underscores in names stand for dots."""
    return with_settings(
        spark, {"spark.sql." + name.replace("_", "."): value for name, value in settings.items()}
    )


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, Any]) -> Iterator[None]:
    """Set settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)
