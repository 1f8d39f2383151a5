"""What a feature can say of its input: no event time, hidden columns of its own, two sources in one input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap.errors import ArgumentError
from timerheap.spark._columns import INPUT
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input


def test_an_input_can_have_no_event_time(spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    assert Input.checked(Columns("df", df), "value").event_time == "timestamp"
    source = Input.checked(Columns("df", df), "value", timed=False)
    assert (source.event_time, source.strategy._delay, source.ties) == (None, None, ())
    for given in ({"event_time": "timestamp"}, {"watermark": "1 second"}, {"late": "emit"}):
        with pytest.raises(ArgumentError, match=r"event_time must"):
            Input.checked(Columns("df", df), "value", timed=False, **given)


def test_an_input_has_hidden_columns_of_the_feature_alone(spark: SparkSession) -> None:
    df = spark.range(1).select("id", F.lit(1).alias(INPUT))
    with pytest.raises(ValueError, match=f"df must have unique column names .*, got '{INPUT}'"):
        Input.checked(Columns("df", df), "id", timed=False)
    source = Input.checked(Columns("df", df), "id", timed=False, hidden={INPUT})
    assert (source.rows.names, source.df.columns) == (["id"], ["id", INPUT])


ROWS = pa.record_batch({"k": ["a", "b"], "at": [5, 7], INPUT: pa.array([0, 1], pa.int8())})


@pytest.mark.parametrize("inputs", [1, 2])
def test_rows_of_two_sources_share_a_watermark_if_they_are_one_input(inputs: int) -> None:
    *_, observed = Packer("k", "at", 1, inputs=inputs)(iter([ROWS]))
    seen = pa.ipc.open_stream(observed["blob"][0].as_py()).read_all().select(["input", "max_timestamp"])
    assert [tuple(row.values()) for row in seen.to_pylist()] == (
        [(0, 7)] if inputs == 1 else [(0, 5), (1, 7)]
    )


def test_a_row_without_time_of_the_second_of_two_sources_is_told_of_as_the_one_input() -> None:
    rows = ROWS.set_column(1, "at", pa.array([5, None], pa.int64()))
    column: Any = SimpleNamespace(argument="event_time", column="at", df="df")
    packer = Packer("k", "at", 1, times=(column,))
    with pytest.raises(
        ValueError, match="event_time must not be null, got 1 of 2 rows with null in column 'at'"
    ):
        list(packer(iter([rows])))
