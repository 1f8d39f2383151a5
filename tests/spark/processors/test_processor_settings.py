"""Spark's settings for the DataFrames of a stateful processor, with their defaults and set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
import streams
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark import transform_with_state_in_pandas

pytestmark = pytest.mark.spark

SAFELY = "spark.sql.execution.pandas.convertToArrowArraySafely"
KEEP_INTS = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"


class Yielding(StatefulProcessor):
    """Yields a frame for each key."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame(self.columns)

    def close(self) -> None:
        pass


class Dtypes(Yielding):
    """Yields the dtypes of its frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield pd.DataFrame({"dtypes": [" ".join(map(str, frame.dtypes[1:]))]})


def collect(spark: SparkSession, processor: StatefulProcessor, schema: str) -> list[Row]:
    df = spark.createDataFrame([("a", 1, 2), ("a", None, 3)], "k string, n int, m int").coalesce(1)
    return transform_with_state_in_pandas(df, "k", processor, schema, "Append", "None").collect()


@pytest.mark.promises("StatefulProcessor", "supported", "the setting convertToArrowArraySafely")
def test_a_result_that_does_not_fit_its_column_is_an_error_by_default(spark: SparkSession) -> None:
    processor = Yielding(n=[2**40 + 7], m=[1.9])
    spark.conf.unset(SAFELY)
    with pytest.raises(PythonException, match=rf"PySparkValueError: .*`{SAFELY}`"):
        collect(spark, processor, "n int, m int")
    with streams.configured(spark, execution_pandas_convertToArrowArraySafely="false"):
        assert collect(spark, processor, "n int, m int") == [Row(n=7, m=1)]


@pytest.mark.promises("StatefulProcessor", "supported", "the setting assignColumnsByName")
def test_columns_of_results_are_found_by_position_if_spark_is_set_so(spark: SparkSession) -> None:
    processor = Yielding(y=[1], x=[2])
    assert collect(spark, processor, "x int, y int") == [Row(x=2, y=1)]
    with streams.configured(spark, legacy_execution_pandas_groupedMap_assignColumnsByName="false"):
        assert collect(spark, processor, "x int, y int") == [Row(x=1, y=2)]


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "the setting preferIntExtensionDtype",
    note="has no effect: ints are int64, or floats beside nulls; Spark 4.2 and later keeps their width, even "
    "beside NA",
)
def test_ints_beside_nulls_are_floats_whatever_is_preferred(spark: SparkSession) -> None:
    spark.conf.set(KEEP_INTS, "true")
    try:
        assert collect(spark, Dtypes(), "dtypes string") == [Row(dtypes="float64 int64")]
    finally:
        spark.conf.unset(KEEP_INTS)
