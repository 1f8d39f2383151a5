"""Checkpoints in places that Spark's reader of states cannot open, and copies in other places."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from processors import OUTPUT, Commands, random_batches
from processors import SCHEMA as COMMANDS
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import InitialState, read_checkpoint
from timerheap.spark._compat import state_path

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
KEYS = [f"k{n}" for n in range(9)]
STRANGE = "a space, 5%, %20, #1, [x], {y}, a?b*, ü, ☃, +&=;'"


class Count(KeyedProcessFunction):
    """Counts the rows of a key."""

    type: Any = Types.LONG()

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", self.type))

    def process_element(self, value: Any, ctx: Any) -> Any:
        count = (self.last.value() or 0) + 1
        self.last.update(count)
        yield ctx.get_current_key(), count


def run(
    spark: SparkSession,
    work: Path,
    checkpoint: Path,
    function: KeyedProcessFunction | None = None,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """Add a row of each key to the input in `work`, and return what a query gives for its new rows."""
    streams.write_batches(work / "in", [[{"k": key, "at": 1_000} for key in KEYS]], SCHEMA)
    df = streams.read_stream(spark, work / "in", files=100)
    options = {"max_parallelism": 2} | options
    result = timerheap.spark.process(df, "k", function or Count(), "k string, n bigint", **options)
    found: list[tuple[Any, ...]] = []

    def collect(rows: Any, _: int) -> None:
        found.extend(tuple(row) for row in rows.collect())

    writer = result.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return sorted(found)


def counted(n: int) -> list[tuple[str, int]]:
    return [(key, n) for key in KEYS]


def close_stores(spark: SparkSession) -> None:
    """Have the next micro-batch load its state from the checkpoint."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


# ---- Places


def test_a_checkpoint_may_have_any_local_path(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / STRANGE / "checkpoint"
    assert run(spark, tmp_path, checkpoint) == counted(1)
    close_stores(spark)
    assert run(spark, tmp_path, checkpoint) == counted(2)
    assert [path.name for path in tmp_path.iterdir() if path.name != "in"] == [STRANGE]
    state = read_checkpoint(spark, checkpoint)
    assert streams.rows(state.state("last").select("k", "value")) == counted(2)
    assert streams.rows(
        read_checkpoint(spark, checkpoint, batch_id=0).state("last").select("k", "value")
    ) == counted(1)
    shutil.rmtree(tmp_path / "in")
    assert run(spark, tmp_path, tmp_path / "again ", initial_state=state) == counted(3)


def test_a_checkpoint_of_spark_may_have_any_local_path(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", random_batches(seed=1, batches=1), COMMANDS)
    df = streams.read_stream(spark, tmp_path / "in").withWatermark("at", "2 seconds")
    commands = df.groupBy("k").transformWithState(Commands("rows"), OUTPUT, "Append", "EventTime")
    for name in ("plain", STRANGE):
        streams.run(commands, tmp_path / name)
    tables = [InitialState.from_spark(spark, tmp_path / name / "checkpoint") for name in ("plain", STRANGE)]
    assert tables[0].states.keys() == tables[1].states.keys() != set()
    for name in tables[0].states:
        plain, strange = (sorted(map(repr, each.states[name].collect())) for each in tables)
        assert plain == strange
    assert tables[0].watermarks == tables[1].watermarks is not None


def test_a_remote_path_that_spark_cannot_open_is_refused(spark: SparkSession) -> None:
    assert state_path(spark, "hdfs://localhost/checkpoints/one") == "hdfs://localhost/checkpoints/one"
    with pytest.raises(
        ValueError, match="checkpoint must have a path without characters that a URI escapes, got 'h"
    ):
        state_path(spark, "hdfs://localhost/checkpoints/one two")


# ---- Copies


def moved(copy: Path, original: Path) -> None:
    """Put the path of a copy in place of the original's, as the page on checkpoints does."""
    for metadata in copy.glob("state/*/_metadata/v2/[0-9]*"):
        metadata.write_text(metadata.read_text().replace(f"{original}/", f"{copy}/"))
    for checksum in copy.glob("state/*/_metadata/v2/.*.crc"):
        checksum.unlink()


def test_a_copy_goes_on_in_another_place(spark: SparkSession, tmp_path: Path) -> None:
    """By itself as long as the original is there, and after its path has been replaced without it."""
    original, backup = tmp_path / "original", tmp_path / "backup"
    assert run(spark, tmp_path, original) == counted(1)
    shutil.copytree(original, backup)
    assert run(spark, tmp_path, original) == counted(2), "which the copy does not know"
    close_stores(spark)
    shutil.copytree(backup, tmp_path / "beside")
    assert run(spark, tmp_path, tmp_path / "beside") == sorted(counted(2) + counted(3))

    original.rename(tmp_path / "gone")
    close_stores(spark)
    shutil.copytree(backup, tmp_path / "alone")
    with pytest.raises(StreamingQueryException, match=r"original/state/0/_stateSchema/.* does not exist"):
        run(spark, tmp_path, tmp_path / "alone")
    with pytest.raises(ValueError, match="checkpoint must be where its query has written it"):
        read_checkpoint(spark, backup)
    moved(backup, original)
    state = read_checkpoint(spark, backup)
    assert streams.rows(state.state("last").select("k", "value")) == counted(1)
    rows = run(spark, tmp_path, backup)
    assert [n for _, n in rows] == [2, 3, 4, 5] * len(KEYS)
    close_stores(spark)
    assert run(spark, tmp_path, backup) == counted(6)


def test_a_new_query_starts_from_a_copy_in_another_place(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, tmp_path / "original")
    run(spark, tmp_path, tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "backup")
    (tmp_path / "original").rename(tmp_path / "gone")
    close_stores(spark)
    moved(tmp_path / "backup", tmp_path / "original")
    shutil.rmtree(tmp_path / "in")  # the other query has read it
    state = read_checkpoint(spark, tmp_path / "backup")
    assert run(spark, tmp_path, tmp_path / "new", initial_state=state, max_parallelism=3) == counted(3)
    close_stores(spark)
    assert run(spark, tmp_path, tmp_path / "new", max_parallelism=3) == counted(4)


def test_a_query_goes_back_to_a_backup(spark: SparkSession, tmp_path: Path) -> None:
    """In its place; a live key group of the later state is not used."""
    checkpoint = tmp_path / "checkpoint"
    assert run(spark, tmp_path, checkpoint) == counted(1)
    shutil.copytree(checkpoint, tmp_path / "backup")
    assert run(spark, tmp_path, checkpoint) == counted(2)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    close_stores(spark)
    assert run(spark, tmp_path, checkpoint) == sorted(counted(2) + counted(3))
