"""What Spark's own tests do with stateful processors yields the same on both implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streams
from processor_tour import INITIAL, KEY, SCHEMA, Chunks, First, Newest, Tour, on_both, readings
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_faults import NEEDS_LIMIT_WITH_INITIAL_STATE

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

BATCHES = [
    readings(("0", 123, 20), ("0", 46, 21), ("1", 146, 20), ("1", 346, 22)),
    readings(("0", 123, 4), ("0", 223, 30), ("0", 323, 31), ("1", None, 32), ("1", 6, 33), ("3", 12, 34)),
    readings(("0", 123, 2), ("1", 6, 23), ("1", 6, 41), ("4", None, 24)),
]


def marked(results: dict[str, tuple[DataFrame, DataFrame]]) -> DataFrame:
    """Return all results as JSON text, with their names and implementations."""
    parts = [
        df.select(F.lit(name).alias("name"), F.lit(by).alias("by"), F.to_json(F.struct("*")).alias("what"))
        for name, both in results.items()
        for by, df in zip(("spark", "timerheap"), both, strict=True)
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part)
    return whole


def run(df: DataFrame, work: Path) -> list[dict[tuple[str, str], list[str]]]:
    """Run a query over all there is; return the texts of each micro-batch by name and implementation."""
    found = []
    for batch in streams.batches(df, work):
        texts: dict[tuple[str, str], list[str]] = {}
        for name, by, what in batch:
            texts.setdefault((name, by), []).append(what)
        found.append({of: sorted(some) for of, some in texts.items()})
    return found


def expect_equal(batches: list[dict[tuple[str, str], list[str]]]) -> None:
    for texts in batches:
        for name in {name for name, _ in texts}:
            assert texts.get((name, "timerheap")) == texts.get((name, "spark")), name


@pytest.mark.parametrize(("style", "version"), [("rows", 1), ("frames", 2)])
def test_states_timers_and_initial_state_do_the_same_as_in_spark(
    spark: SparkSession, tmp_path: Path, style: Any, version: int
) -> None:
    streams.write_batches(tmp_path / "input", BATCHES, SCHEMA)
    first = spark.createDataFrame(
        [(789, "0", "site 0"), (987, "3", "site 3"), (5, "3", "site 3"), (1, "9", "site 9")], INITIAL
    )
    initial = first.withColumn("degrees", F.col("degrees") + 1).groupBy(*KEY)
    settings = {
        "streaming_noDataMicroBatches_enabled": False,
        "streaming_stateStore_checkpointFormatVersion": version,
    }
    with streams.configured(spark, **settings):
        df = streams.read_stream(spark, tmp_path / "input").withWatermark("at", "10 seconds")
        results = {
            "states": on_both(df, KEY, Tour(style), Tour.OUTPUT, "None"),
            "timed": on_both(df, KEY, Tour(style, 31_536_000_000), Tour.OUTPUT, "processingTime", initial),
        }
        found = run(marked(results), tmp_path)
    expect_equal(found)
    assert len(found) == 3
    assert [len(texts["timed", "spark"]) for texts in found] == [5, 4, 4]


@pytest.mark.parametrize("style", ["rows", "frames"])
def test_event_time_and_what_follows_do_the_same_as_in_spark(
    spark: SparkSession, tmp_path: Path, style: Any
) -> None:
    streams.write_batches(tmp_path / "input", BATCHES, SCHEMA)
    with streams.configured(spark, streaming_noDataMicroBatches_enabled=False):
        df = streams.read_stream(spark, tmp_path / "input").withWatermark("at", "10 seconds")
        first = on_both(df, ["id"], First(style), First.OUTPUT, "eventTime", event_time="first")
        results = {
            "timers": on_both(df, ["id"], Newest(style), Newest.OUTPUT, "eventtime"),
            "by time": tuple(df.groupBy("first").count() for df in first),
            "by both": tuple(df.groupBy("first", "id").count() for df in first),
        }
        found = run(marked(results), tmp_path)
    expect_equal(found)
    assert len(found) == 3
    assert [len(texts["timers", "spark"]) for texts in found] == [4, 6, 4]


@pytest.mark.parametrize(
    ("name", "limit", "sizes"),
    [
        ("execution_arrow_maxBytesPerBatch", 2, "[1, 1] "),
        ("execution_arrow_maxRecordsPerBatch", 1, "[1, 1] "),
        pytest.param(
            "execution_arrow_maxRecordsPerBatch",
            -1,
            "[2] ",
            marks=pytest.mark.skipif(NEEDS_LIMIT_WITH_INITIAL_STATE, reason="Spark's own operator fails"),
        ),
    ],
)
def test_frames_have_the_rows_that_sparks_settings_allow(
    spark: SparkSession, name: str, limit: int, sizes: str
) -> None:
    df = spark.createDataFrame([("0", 1), ("0", 2), ("1", 3), ("1", 4)], "id string, degrees int")
    initial = spark.createDataFrame([(789, "0"), (987, "3")], "degrees int, id string").groupBy("id")
    settings = {name: limit, "execution_pythonUDF_pandas_intToDecimalCoercionEnabled": True}
    with streams.configured(spark, **settings):
        both = on_both(df, ["id"], Chunks("frames"), Chunks.OUTPUT, "None", initial)
        theirs, ours = (sorted(map(repr, result.collect())) for result in both)
    assert ours == theirs
    assert all(sizes in row for row in ours)


def test_an_int_is_no_decimal_unless_sparks_setting_allows_it(spark: SparkSession) -> None:
    df = spark.createDataFrame([("0", 1)], "id string, degrees int")
    for result in on_both(df, ["id"], Chunks("frames"), Chunks.OUTPUT, "None"):
        with pytest.raises(PythonException, match=r"Failed to convert the value|Cannot convert"):
            result.collect()
