"""State of queries by the processing time is read as tables, mended, and a new query starts from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark import InitialState, read_checkpoint, start_from
from timerheap.windows import ProcessingTimeSessionWindows, ProcessWindowFunction

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
LONG = 100_000 * 24 * 3_600_000  # longer than a test, and than the time since 1970


class Sum(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield (sum(row.n for row in elements),)


def windows(df: DataFrame) -> DataFrame:
    cut = timerheap.spark.tumble(df, None, LONG, max_parallelism=4, name="windows")
    counts = cut.groupBy("k").agg(F.count("*").alias("rows"), F.sum("n").alias("n"))
    return counts.select("k", F.col("n"))


def sessions(df: DataFrame) -> DataFrame:
    gap = ProcessingTimeSessionWindows.with_gap(LONG)
    found = timerheap.spark.window_operator(
        df, "k", gap, Sum(), "n bigint", processing_time=True, max_parallelism=4, name="sessions"
    )
    return found.select("k", "n")


def both(df: DataFrame) -> DataFrame:
    return windows(df).union(sessions(df))


def run(df: DataFrame, checkpoint: Path) -> list[Any]:
    found: list[Any] = []
    writer = df.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.foreachBatch(lambda batch, _: found.extend(tuple(row) for row in batch.collect()))
    timerheap.spark.run_available_now(writer)
    return sorted(found)


@pytest.mark.in_turn(5)
def test_windows_by_the_clock_go_on_from_mended_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Open ones take more rows; one whose end is now behind the clock is over in the first micro-batch."""
    first = [{"k": key, "n": n} for key, n in (("a", 1), ("b", 2), ("a", 3), ("c", 4))]
    streams.write_batches(tmp_path / "in", [first], SCHEMA)
    assert run(both(streams.read_stream(spark, tmp_path / "in")), tmp_path / "1") == []

    cut, merged = (read_checkpoint(spark, tmp_path / "1", name) for name in ("windows", "sessions"))
    before = F.timestamp_add("MILLISECOND", F.lit(-LONG), "slice_end")
    mended = (
        cut.windows()
        .where("k <> 'c'")
        .withColumns(
            {
                "slice_end": F.when(F.col("k") == "a", before).otherwise(F.col("slice_end")),
                "low_1": F.when(F.col("k") == "b", 100).otherwise(F.col("low_1")),
            }
        )
    )
    of_sessions = {name: merged.state(name).where("k <> 'c'") for name in merged.states}
    starts = {
        "windows": InitialState(windows=mended, watermarks=cut.watermarks()),
        "sessions": InitialState(states=of_sessions, timers=merged.timers().where("k <> 'c'")),
    }
    then = [{"k": key, "n": n} for key, n in (("a", 10), ("b", 20), ("c", 30))]
    streams.write_batches(tmp_path / "more", [then], SCHEMA)
    result = start_from(spark, starts, lambda: both(streams.read_stream(spark, tmp_path / "more")))
    assert run(result, tmp_path / "2") == [("a", 4)]

    cut, merged = (read_checkpoint(spark, tmp_path / "2", name) for name in ("windows", "sessions"))
    assert sorted((row.k, row.low_1) for row in cut.windows().collect()) == [("a", 10), ("b", 120), ("c", 30)]
    elements = merged.state("window.elements").select("k", F.explode("value").alias("where", "row"))
    assert sorted((row.k, row.row.n) for row in elements.collect()) == [
        ("a", 1), ("a", 3), ("a", 10), ("b", 2), ("b", 20), ("c", 30),
    ]  # fmt: skip
    assert sorted(row.k for row in merged.timers().collect()) == ["a", "b", "c"], "one for each session"
