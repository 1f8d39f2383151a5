"""A processor moves from Spark's operator to timerheap's, with its state and its timers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import streams
from processors import OUTPUT, SCHEMA, Commands, random_batches
from pyspark.sql import SparkSession

from timerheap.spark import InitialState, transform_with_state

pytestmark = pytest.mark.spark


def shown(batches: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """What micro-batches with results have yielded, sorted, without the processing time."""
    found = [
        sorted(((k, re.sub(r"^\(-?\d+, ", "(", what)) for k, what in rows), key=repr) for rows in batches
    ]
    return [rows for rows in found if rows]


def test_a_moved_processor_goes_on_as_one_that_was_never_moved(spark: SparkSession, tmp_path: Path) -> None:
    batches = random_batches(seed=1, batches=6)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"

    def unmoved() -> list[list[tuple[Any, ...]]]:
        df = streams.read_stream(spark, theirs / "in").withWatermark("at", "2 seconds")
        grouped = df.groupBy("k")
        return streams.batches(
            grouped.transformWithState(Commands("rows"), OUTPUT, "Append", "EventTime"), theirs
        )

    streams.write_batches(theirs / "in", batches[:3], SCHEMA)
    assert shown(unmoved())
    initial = InitialState.from_spark(spark, theirs / "checkpoint")
    assert set(initial.states) == {"value", "list", "map", "gone"}
    streams.write_batches(ours / "in", batches[3:], SCHEMA)
    df = streams.read_stream(spark, ours / "in").withWatermark("at", "2 seconds")
    moved = streams.batches(
        transform_with_state(df, "k", Commands("rows"), OUTPUT, "Append", "EventTime", initial_state=initial),
        ours,
    )
    streams.write_batches(theirs / "in", batches[3:], SCHEMA)
    found, wanted = shown(moved), shown(unmoved())
    assert any("timer " in what for rows in wanted for _, what in rows)
    assert found == wanted
