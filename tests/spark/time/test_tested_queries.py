"""A `QueryTester` gives what the same query gives on Spark, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from labels import UNNAMED, Label
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types
from timerheap.spark import EventTime, RightInput
from timerheap.testing import QueryTester
from timerheap.windows import AggregateFunction, TumblingEventTimeWindows

pytestmark = pytest.mark.spark

READINGS = pa.schema([("k", pa.string()), ("line", pa.int64()), ("at", pa.int64())])
NAMES = pa.schema([("k", pa.string()), ("at", pa.int64()), ("name", pa.string())])


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60, name="silent")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


class Newest(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return max(accumulator, value.at)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return max(acc_a, acc_b)


def labelled(api: Any, readings: Any, names: Any) -> Any:
    """Build the first operator on Spark, or for a test: the functions have the same arguments."""
    return api.process_two(
        readings,
        RightInput(names, event_time="at", watermark="100 milliseconds"),
        key="k",
        function=Label(),
        output_schema="k string, at bigint",
        event_time=EventTime("at", channel="line"),
        watermark="300 milliseconds",
        max_parallelism=2,
    )


def silent(api: Any, rows: Any) -> Any:
    return api.process(rows, "k", Silent(), "k string, silent_at bigint", "at", max_parallelism=2)


def windows(api: Any, rows: Any) -> Any:
    return api.window_operator(
        rows,
        "k",
        TumblingEventTimeWindows.of(1_000),
        Newest(),
        "newest bigint",
        "at",
        accumulator_type=Types.LONG(),
        max_parallelism=2,
    )


def made(seed: int) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return rows for eight micro-batches, out of order, some of them late."""
    rng, found = np.random.default_rng(seed), []
    for number in range(8):
        times = (number * 500 + rng.integers(-650, 650, 24)).tolist()
        keys, lines = rng.integers(0, 9, 24).tolist(), rng.integers(0, 2, 24).tolist()
        rows = list(zip(times, keys, lines, strict=True))
        readings = [{"k": f"k{key}", "line": line, "at": at} for at, key, line in rows[:18]]
        names = [{"k": f"k{key}", "at": at, "name": f"n{at % 3}"} for at, key, _ in rows[18:]]
        found.append((readings, names))
    return found


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("of_side", [False, True], ids=["results", "side output"])
@pytest.mark.parametrize("behind", [silent, windows])
def test_each_micro_batch_has_the_results_of_spark(
    spark: SparkSession, tmp_path: Path, behind: Callable[[Any, Any], Any], of_side: bool
) -> None:
    batches = made(1)
    query = QueryTester()
    sources = [
        query.source("k string, line bigint, at bigint"),
        query.source("k string, at bigint, name string"),
    ]
    first = labelled(query, *sources)
    last = behind(query, first.side_output(UNNAMED) if of_side else first)
    expected = []
    for rows in batches:
        query.push(dict(zip(sources, rows, strict=True)))
        expected.append(sorted(map(tuple, last.take())))

    folders = tmp_path / "readings", tmp_path / "names"
    for folder, schema, rows in zip(folders, (READINGS, NAMES), zip(*batches, strict=True), strict=True):
        streams.write_batches(folder, rows, schema)
    on_spark = labelled(timerheap.spark, *(streams.read_stream(spark, folder) for folder in folders))
    rows = timerheap.spark.side_output(on_spark, UNNAMED) if of_side else on_spark
    found = streams.batches(behind(timerheap.spark, rows), tmp_path)
    assert [sorted(rows) for rows in found] == expected
    assert sum(map(len, expected)) > 3
    assert first.tester.late_row_count > 0
