"""A query starts from the state of another one, with another number of key groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streams
from anything import Anything, cut, delayed, expected, make_rows, process, write
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import Types, ValueStateDescriptor

pytestmark = pytest.mark.spark

BATCHES = cut(delayed(8, make_rows(8, 240)), 5)


class CountsText(Anything):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has read the first three batches."""
    work = tmp_path_factory.mktemp("old")
    streams.run(process(streams.read_stream(spark, write(work / "input", BATCHES[:3])), "event_time"), work)
    return work


def test_it_goes_on_where_the_other_query_has_stopped(spark: SparkSession, old: Path, tmp_path: Path) -> None:
    df = streams.read_stream(spark, write(tmp_path / "input", BATCHES[3:]))
    state = timerheap.spark.read_checkpoint(spark, old / "checkpoint")
    assert state.max_parallelism == 4
    streams.run(process(df, "event_time", max_parallelism=6, initial_state=state), tmp_path)
    both = streams.sink(spark, old) + streams.sink(spark, tmp_path)
    assert sorted(both, key=repr) == expected(BATCHES, "event_time")


def test_a_checkpoint_without_state_of_timerheap_raises(
    spark: SparkSession, old: Path, tmp_path: Path
) -> None:
    def counted(df: DataFrame) -> DataFrame:
        return df.groupBy("city").count()

    with pytest.raises(ValueError, match=r"checkpoint must be the checkpoint location of .*nothing'"):
        timerheap.spark.read_checkpoint(spark, tmp_path / "nothing")
    foreign = counted(streams.read_stream(spark, old / "input")).writeStream.outputMode("complete")
    query = foreign.format("noop").option("checkpointLocation", str(tmp_path / "foreign"))
    query.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(ValueError, match=r"checkpoint must be the checkpoint location of .*foreign'"):
        timerheap.spark.read_checkpoint(spark, tmp_path / "foreign")


def test_state_that_does_not_fit_raises_before_the_query_starts(spark: SparkSession, old: Path) -> None:
    state = timerheap.spark.read_checkpoint(spark, str(old / "checkpoint"))
    df = streams.read_stream(spark, old / "input")
    with pytest.raises(ValueError, match="state 'count' is a value state of int64, not a value"):
        process(df, "event_time", CountsText(), initial_state=state)
    with pytest.raises(ValueError, match=r"key must have the types of the checkpoint's keys, .*got"):
        process(df.withColumn("line", df.line.cast("string")), "event_time", initial_state=state)
    with pytest.raises(ValueError, match="initial_state must be None for a batch DataFrame, got that of"):
        process(spark.read.parquet(str(old / "input")), "event_time", initial_state=state)
    with pytest.raises(TypeError, match=r"initial_state must be what timerheap\.spark\.read_checkpoint"):
        process(df, "event_time", initial_state=str(old))
    with pytest.raises(TypeError, match="checkpoint must be a str or a path, got None"):
        timerheap.spark.read_checkpoint(spark, None)  # type: ignore[arg-type]
