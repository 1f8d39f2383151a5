"""A query starts from state that is built from DataFrames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streams
from anything import cut, delayed, expected, make_rows, process, write
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark import InitialState

pytestmark = pytest.mark.spark

BATCHES = cut(delayed(8, make_rows(8, 240)), 5)


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has read the first three batches."""
    work = tmp_path_factory.mktemp("old")
    streams.run(process(streams.read_stream(spark, write(work / "input", BATCHES[:3])), "event_time"), work)
    return work


def tables(spark: SparkSession, work: Path) -> dict[str, Any]:
    """The arguments of `InitialState` that a checkpoint gives."""
    state = timerheap.spark.read_checkpoint(spark, work / "checkpoint")
    return {
        "states": {name: state.state(name) for name in state.states},
        "timers": state.timers(),
        "buffered_rows": state.buffered_rows(),
        "watermarks": state.watermarks(),
    }


@pytest.mark.parametrize("max_parallelism", [4, 6])
def test_tables_of_a_checkpoint_go_on_as_their_query_would(
    spark: SparkSession, old: Path, tmp_path: Path, max_parallelism: int
) -> None:
    df = streams.read_stream(spark, write(tmp_path / "input", BATCHES[3:]))
    given = tables(spark, old)
    assert given["buffered_rows"].count()
    assert given["timers"].count()
    initial = InitialState(**given)
    streams.run(process(df, "event_time", max_parallelism=max_parallelism, initial_state=initial), tmp_path)
    both = streams.sink(spark, old) + streams.sink(spark, tmp_path)
    assert sorted(both, key=repr) == expected(BATCHES, "event_time")


def test_a_table_that_does_not_fit_raises_before_the_query_starts(spark: SparkSession, old: Path) -> None:
    df = streams.read_stream(spark, old / "input")
    count = timerheap.spark.read_checkpoint(spark, old / "checkpoint").state("count")
    text = count.withColumn("value", F.col("value").cast("string"))
    for states, message in (
        ({"counts": count}, "states must have the names of the function's states, .*got 'counts'"),
        ({"count": text}, r"states\['count'\] must have a column 'value' of type bigint, .*got string"),
        ({"count": count.drop("line")}, r"states\['count'\] must have a column 'line', got the columns"),
    ):
        with pytest.raises(ValueError, match=message):
            process(df, "event_time", initial_state=InitialState(states=states))
