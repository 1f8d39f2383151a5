"""A processor moves from Spark's operator to timerheap's, with its state and its timers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import streams
from processors import OUTPUT, SCHEMA, Commands, Style, random_batches
from pyspark.sql import SparkSession

from timerheap.spark import InitialState, transform_with_state, transform_with_state_in_pandas

pytestmark = pytest.mark.spark


def shown(batches: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """What micro-batches with results have yielded, sorted, without the processing time."""
    found = [
        sorted(((k, re.sub(r"^\(-?\d+, ", "(", what)) for k, what in rows), key=repr) for rows in batches
    ]
    return [rows for rows in found if rows]


@pytest.mark.parametrize(
    ("style", "mode", "ttl"),
    [("rows", "EventTime", None), ("frames", "EventTime", None), ("rows", "ProcessingTime", 3_600_000)],
)
def test_a_moved_processor_goes_on_as_one_that_was_never_moved(
    spark: SparkSession, tmp_path: Path, style: Style, mode: str, ttl: int | None
) -> None:
    processor = Commands(style, ttl)
    batches = random_batches(seed=1, batches=6)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"

    def unmoved() -> list[list[tuple[Any, ...]]]:
        df = streams.read_stream(spark, theirs / "in").withWatermark("at", "2 seconds")
        grouped = df.groupBy("k")
        theirs_of = grouped.transformWithState if style == "rows" else grouped.transformWithStateInPandas
        return streams.batches(theirs_of(processor, OUTPUT, "Append", mode), theirs)

    streams.write_batches(theirs / "in", batches[:3], SCHEMA)
    assert shown(unmoved())
    initial = InitialState.from_spark(spark, theirs / "checkpoint")
    assert set(initial.states) == {"value", "list", "map", "gone"}
    streams.write_batches(ours / "in", batches[3:], SCHEMA)
    df = streams.read_stream(spark, ours / "in").withWatermark("at", "2 seconds")
    ours_of = transform_with_state if style == "rows" else transform_with_state_in_pandas
    moved = streams.batches(ours_of(df, "k", processor, OUTPUT, "Append", mode, initial_state=initial), ours)
    streams.write_batches(theirs / "in", batches[3:], SCHEMA)
    found, wanted = shown(moved), shown(unmoved())
    assert any("timer " in what for rows in wanted for _, what in rows)
    assert found == wanted
