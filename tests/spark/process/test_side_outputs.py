"""Side outputs and late rows are found behind what a user has made of the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, OutputTag, Types, WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

ODD = OutputTag("odd", Types.ROW_NAMED(["k", "at"], [Types.STRING(), Types.LONG()]))
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


class Even(KeyedProcessFunction):
    """Yields rows with an even time, and sends the others to a side output."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (ODD, (value.k, value.at)) if value.at % 2 else (value.k, value.at)


def even(df: DataFrame, **options: Any) -> DataFrame:
    settings = {"watermark": MONOTONOUS, "max_parallelism": 2, **options}
    return timerheap.spark.process(df, "k", Even(), "k string, at bigint", "at", **settings)


BEHIND: dict[str, Callable[[DataFrame], DataFrame]] = {
    "nothing": lambda df: df,
    "where": lambda df: df.where("at > 2"),
    "select": lambda df: df.select(F.col("at").alias("k")),
    "withColumn": lambda df: df.withColumn("side_output_of", F.lit(1)).where("at > 2").drop("k"),
    "alias": lambda df: df.alias("evens").where("evens.at > 2"),
    "with_side_outputs": timerheap.spark.with_side_outputs,
}


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1), ("a", 2), ("b", 3), ("b", 4)], "k string, at bigint")


@pytest.mark.parametrize("behind", BEHIND)
def test_what_is_behind_the_results_does_not_change_side_outputs(behind: str, df: DataFrame) -> None:
    odd = timerheap.spark.side_output(BEHIND[behind](even(df)), ODD)
    assert streams.rows(odd) == [("a", 1), ("b", 3)]


@pytest.mark.in_turn(5)
def test_late_rows_of_a_stream_are_found_too(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[{"k": "a", "at": 10}], [{"k": "a", "at": 8}, {"k": "b", "at": 5}], [{"k": "a", "at": 20}]]
    streams.write_batches(tmp_path / "input", batches, SCHEMA)

    def late(df: DataFrame) -> DataFrame:
        found = [
            timerheap.spark.late_rows(behind(even(df, late="emit"))).select("*", F.lit(name).alias("behind"))
            for name, behind in BEHIND.items()
        ]
        return reduce(DataFrame.unionAll, found)

    found = streams.stream(spark, late, tmp_path / "input", tmp_path)
    assert found == sorted((*row, name) for name in BEHIND for row in [("a", 8, 2), ("b", 5, 5)])


def test_one_query_writes_results_side_outputs_and_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[{"k": "a", "at": 10}, {"k": "a", "at": 11}], [{"k": "a", "at": 8}, {"k": "a", "at": 20}]]
    streams.write_batches(tmp_path / "input", [*batches, [{"k": "a", "at": 30}]], SCHEMA)
    found: dict[str, list[Any]] = {"results": [], "odd": [], "late": []}

    def write(batch: DataFrame, batch_id: int) -> None:
        found["results"] += streams.rows(batch.where("side_output IS NULL").drop("side_output"))
        found["odd"] += streams.rows(timerheap.spark.side_output(batch, ODD))
        found["late"] += streams.rows(timerheap.spark.late_rows(batch))

    result = even(streams.read_stream(spark, tmp_path / "input"), late="emit")
    outputs = timerheap.spark.with_side_outputs(result.where("at > 0"))
    writer = outputs.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).foreachBatch(write).start().awaitTermination()
    assert found == {"results": [("a", 10), ("a", 20)], "odd": [("a", 11)], "late": [("a", 8, 3)]}


def test_results_that_were_combined_have_no_side_outputs(df: DataFrame) -> None:
    result = even(df)
    combined = {
        "Union": result.union(result),
        "Join": result.alias("a").join(result.alias("b"), "k"),
        "Aggregate": result.groupBy("k").count(),
        "FlatMapGroupsInArrow": timerheap.spark.process(
            result, "k", Even(), "k string, at bigint", "at", watermark=MONOTONOUS, side_outputs=[]
        ),
    }
    for node, one in combined.items():
        with pytest.raises(ValueError, match=rf"df must be what a function .* which comes from {node}"):
            timerheap.spark.side_output(one, ODD)
    with pytest.raises(ValueError, match="which comes from LogicalRDD"):
        timerheap.spark.late_rows(df)


def test_an_output_that_the_operator_does_not_have_raises(df: DataFrame) -> None:
    with pytest.raises(
        ValueError, match=r"tag must be one of the function's side outputs, \['odd'\], got 'x'"
    ):
        timerheap.spark.side_output(even(df), OutputTag("x", "bigint"))
    with pytest.raises(ValueError, match='df must be the result of an operator with late="emit", got'):
        timerheap.spark.late_rows(even(df))
    with pytest.raises(ValueError, match="side_outputs must not have the id 'late_rows' with late=\"emit\""):
        even(df, late="emit", side_outputs=[OutputTag("late_rows", "bigint")])
    with pytest.raises(TypeError, match="tag must be an OutputTag, got 'odd'"):
        timerheap.spark.side_output(even(df), "odd")  # type: ignore[arg-type]
