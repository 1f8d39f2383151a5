"""Several queries over one DataFrame, which share its plan in Spark's driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from streams import read_stream, run, write_batches

import timerheap.spark
from timerheap import KeyedProcessFunction

pytestmark = pytest.mark.spark


class Echo(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (value.k,)


def variables(df: DataFrame) -> dict[str, str]:
    """Return the variables that a function in the plan of a DataFrame has for its workers."""
    node: Any = df._jdf.queryExecution().analyzed()  # type: ignore[operator]
    while not node.getClass().getSimpleName().startswith("TransformWithState"):
        node = node.children().apply(0)
    return dict(node.functionExpr().func().envVars())


def test_spark_replaces_the_variables_of_a_function_and_adds_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    # The map is written with the tasks of one query while Spark sets it for the first micro-batch of another.
    write_batches(tmp_path / "rows", [[{"k": "a"}]], pa.schema([("k", pa.string())]))
    result = timerheap.spark.process(read_stream(spark, tmp_path / "rows"), "k", Echo(), "k string")
    before = variables(result)
    run(result, tmp_path / "work")
    after = variables(result)
    assert after != before
    assert set(after) == set(before)
    assert "SPARK_BUFFER_SIZE" not in spark.sparkContext.environment
