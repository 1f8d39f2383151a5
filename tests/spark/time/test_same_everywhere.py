"""One suite of functions gives the same on `ProcessTester`, on a batch DataFrame and on a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from anything import DELAY, OUTPUT, Anything, cut, delayed, make_rows, write
from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.testing import ProcessTester

pytestmark = pytest.mark.spark

SCHEMA = "city string, line bigint, at bigint, op bigint, arg bigint"
COUNTED = "line bigint, n bigint, at bigint"
BATCHES = cut(delayed(5, make_rows(5, 90, ties="Bern")), 2)
KEY = ["city", "line"]


class Counts(BatchProcessFunction):
    """Counts the rows of each line in columns, and yields the count when a timer fires."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ids, counts = np.unique(ctx.ids, return_counts=True)
        before = np.asarray(self.n.values(ids).fill_null(0))
        self.n.update_many(ids, before + counts)
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 30)

    def on_timers(self, due: Any, ctx: Any) -> Iterable[pa.RecordBatch]:
        line = ctx.keys(due.ids).column("line")
        columns = [line, self.n.values(due.ids), pa.array(due.timestamps)]
        yield pa.RecordBatch.from_arrays(columns, ["line", "n", "at"])


class Sides(KeyedCoProcessFunction):
    """Tells the rows of two inputs apart, and yields the lead of the left when a timer fires."""

    def open(self, runtime_context: Any) -> None:
        self.lead = runtime_context.get_state(ValueStateDescriptor("lead", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.lead.update((self.lead.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.at + 40)

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.lead.update((self.lead.value() or 0) - 1)
        yield value.line, self.lead.value(), -value.at

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), self.lead.value(), timestamp


def is_left(row: Row) -> bool:
    return row.op % 2 == 0


CASES: dict[str, tuple[Callable[[], Any], Any, str, str | None]] = {
    "rows": (Anything, KEY, OUTPUT, None),
    "rows in arrival order": (Anything, KEY, OUTPUT, "arrival"),
    "columns": (Counts, "line", COUNTED, None),
    "two inputs": (Sides, "line", COUNTED, None),
}


def on_harness(case: str, batches: Sequence[Sequence[Row]], ends: bool) -> list[tuple[Any, ...]]:
    """What the function yields on the harness, sorted."""
    function, key, output, order = CASES[case]
    found: list[Row] = []
    with ProcessTester(function(), key, SCHEMA, output, "at", order=order) as tester:
        seen = [0, 0]  # of each input; event time is the lower one
        for rows in batches:
            sides = [rows, rows]
            if case == "two inputs":
                sides = [list(filter(is_left, rows)), [row for row in rows if not is_left(row)]]
                found += tester.push_right(sides[1])
            found += tester.push(sides[0])
            seen = [max(so_far, *(row.at for row in side)) for so_far, side in zip(seen, sides, strict=True)]
            found += [] if ends else tester.advance_watermark(min(seen) - DELAY - 1)
        found += tester.finish() if ends else []
    return sorted(map(tuple, found), key=repr)


def spark_result(case: str, df: DataFrame) -> DataFrame:
    function, key, output, order = CASES[case]
    options: dict[str, Any] = {
        "watermark": WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        "order": order,
        "max_parallelism": 3,
    }
    if case == "two inputs":
        left, right = df.where("op % 2 = 0"), df.where("op % 2 <> 0")
        return timerheap.spark.process_two(left, right, key, function(), output, "at", **options)
    return timerheap.spark.process(df, key, function(), output, "at", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("same"), BATCHES)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][-1] != "arrival"])
def test_a_function_yields_the_same_on_the_harness_and_on_a_batch(
    case: str, spark: SparkSession, folder: Path
) -> None:
    found = streams.rows(spark_result(case, spark.read.parquet(str(folder))))
    assert found == on_harness(case, BATCHES, ends=True)
    assert found


@pytest.mark.parametrize("case", CASES)
def test_a_function_yields_the_same_on_the_harness_and_on_a_stream(
    case: str, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    found = streams.stream(spark, lambda df: spark_result(case, df), folder, tmp_path)
    assert found == on_harness(case, BATCHES, ends=False)
    assert found
