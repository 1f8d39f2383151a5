"""Wrong calls in a function, and results that do not fit, raise errors that say what would be right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from messages import say
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.testing import ProcessTester

pytestmark = pytest.mark.spark


class Rows(KeyedProcessFunction):
    """Calls `act` with its context and its row."""

    def __init__(self, act: Callable[[Any, Any, Any], Any], states: dict[str, Any] | None = None) -> None:
        self.act = act
        self.descriptors = states or {}

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def process_element(self, value: Row, ctx: Any) -> Any:
        return self.act(self.runtime_context, value, ctx)


class Columns(BatchProcessFunction):
    def __init__(self, act: Callable[[Any, Any, Any], Any]) -> None:
        self.act = act

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        return self.act(self.runtime_context, batch, ctx)


class Endless(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, 7)

    def on_timers(self, due: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(due.ids, due.timestamps)


def value_state(runtime_context: Any, type_: Any) -> Any:
    return runtime_context.get_state(ValueStateDescriptor("last", type_))


def list_state(runtime_context: Any) -> Any:
    return runtime_context.get_list_state(ListStateDescriptor("log", "string"))


def map_state(runtime_context: Any) -> Any:
    return runtime_context.get_map_state(MapStateDescriptor("book", "string", "int"))


def both(runtime_context: Any) -> None:
    value_state(runtime_context, "bigint")
    runtime_context.get_map_state(MapStateDescriptor("last", "string", "int"))


def batch_of(*columns: pa.Array, names: tuple[str, ...] = ("k", "n")) -> list[pa.RecordBatch]:
    return [pa.record_batch(list(columns), names=names)]


ONE, TEXT = pa.array([1]), pa.array(["a"])
RUNS: dict[str, tuple[Any, str]] = {
    "narrow row": (
        Rows(lambda rc, row, ctx: [("a",)]),
        say(
            r"process_element yielded \('a',\), which does not fit output_schema \(k string, n int64\)",
            "yield a tuple or Row of 2 values, or a dict with these names",
        ),
    ),
    "strange name": (
        Rows(lambda rc, row, ctx: [{"k": "a", "m": 5}]),
        r"process_element yielded \{'k': 'a', 'm': 5\}",
    ),
    "text for a number": (
        Rows(lambda rc, row, ctx: [("a", "5")]),
        r"column 'n': '5' \(str\) does not fit int64",
    ),
    "great number": (
        Rows(lambda rc, row, ctx: [("a", 2**63)]),
        r"column 'n': 9223372036854775808 \(int\) does not",
    ),
    "missing value": (
        Rows(lambda rc, row, ctx: [(None, 5)]),
        "None in column 'k', which output_schema says is not null",
    ),
    "row for a batch": (
        Columns(lambda rc, batch, ctx: [("a", 5)]),
        "process_batch yielded a tuple; yield a pyarrow.Rec",
    ),
    "strange column": (
        Columns(lambda rc, batch, ctx: batch_of(TEXT, ONE, names=("k", "m"))),
        say(r"process_batch yielded the columns \['k', 'm'\]", r"output_schema has \['k', 'n'\]"),
    ),
    "number column as text": (
        Columns(lambda rc, batch, ctx: batch_of(ONE, ONE)),
        "column 'k' as int64, which does not",
    ),
    "text column": (
        Columns(lambda rc, batch, ctx: batch_of(TEXT, TEXT)),
        "yielded column 'n' as string, which does not",
    ),
    "null in a column": (
        Columns(lambda rc, batch, ctx: batch_of(pa.array([None]), ONE)),
        "null in column 'k', which out",
    ),
    "float in a state": (
        Rows(lambda rc, row, ctx: value_state(rc, "bigint").update(2.5)),
        r"state 'last': 2\.5 \(float\) does not fit int64",
    ),
    "None in a list": (
        Rows(lambda rc, row, ctx: list_state(rc).add(None)),
        "state 'log': an element of a list state must not be None",
    ),
    "None as a key": (
        Rows(lambda rc, row, ctx: map_state(rc).put(None, 5)),
        "state 'book': a key of a map state must not be None",
    ),
    "column in a state": (
        Columns(lambda rc, batch, ctx: value_state(rc, "int").update_many(ctx.ids[:1], ["a"])),
        say("values must fit int32, the type of state 'last': "),
    ),
    "short column in a state": (
        Columns(lambda rc, batch, ctx: value_state(rc, "int").update_many(ctx.ids[:1], [1, 2])),
        "values must have one value for each of the 1 ids of state 'last', got 2",
    ),
    "one name, two states": (
        Rows(lambda rc, row, ctx: both(rc)),
        say(
            "state 'last' is already in use as a value state of int64",
            "cannot also be a map state of map<string, int32>",
        ),
    ),
    "strange type": (
        Rows(lambda rc, row, ctx: value_state(rc, "long long")),
        "state 'last': the type must be one that timerheap can store, got 'long long'",
    ),
    "no type": (
        Rows(lambda rc, row, ctx: value_state(rc, int)),
        "state 'last': the type must be one of Types",
    ),
    "reducing state": (
        Rows(lambda rc, row, ctx: rc.get_reducing_state(None)),
        "must be a ReducingStateDescriptor, got None",
    ),
    "aggregating state": (
        Rows(lambda rc, row, ctx: rc.get_aggregating_state(0)),
        "must be an AggregatingStateDescriptor, got 0",
    ),
    "descriptor": (
        Rows(lambda rc, row, ctx: rc.get_state("last")),
        "state_descriptor must be a ValueStateDescriptor, got 'last'",
    ),
    "clock": (
        Rows(lambda rc, row, ctx: ctx.timer_service().register_processing_time_timer(5)),
        r"processing_time must be True .* timers need process\(\.\.\., processing_time=True\)",
    ),
    "clock of columns": (
        Columns(lambda rc, batch, ctx: ctx.timer_service().register_processing_time_timers(ctx.ids, 5)),
        r"processing-time timers need process\(\.\.\., processing_time=True\)",
    ),
    "float as timestamp": (
        Rows(lambda rc, row, ctx: ctx.timer_service().register_event_time_timer(2.5)),
        r"timestamp.*2\.5.*float",
    ),
    "floats as timestamps": (
        Columns(lambda rc, batch, ctx: ctx.timer_service().register_event_time_timers(ctx.ids, 2.5)),
        "timestamps",
    ),
    "deleting without timestamps": (
        Columns(lambda rc, batch, ctx: ctx.timer_service().delete_event_time_timers(ctx.ids)),
        "timestamps must be those of the timers to delete, got None",
    ),
    "nobody's id": (
        Columns(lambda rc, batch, ctx: ctx.keys(np.array([5]))),
        "ids must be ids of live keys, got 5",
    ),
    "endless": (
        Endless(),
        say(
            "Endless must not register timers without end, got the timer at 7 of key {'k': 'x'}",
            "a timer that repeats must ask ctx.input_has_ended.. first",
        ),
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_an_invalid_call_in_a_function_raises(case: str) -> None:
    function, message = RUNS[case]
    test = ProcessTester(function, "k", "k string, at timestamp", "k string not null, n bigint", "at")
    test.push([("x", datetime.fromtimestamp(1, UTC))])
    with pytest.raises((KeyError, RuntimeError, TypeError, ValueError), match=message):
        test.finish()


@pytest.mark.parametrize("case", ["narrow row", "row for a batch"])
def test_an_invalid_call_in_a_function_fails_the_query(case: str, spark: SparkSession) -> None:
    function, message = RUNS[case]
    df = spark.range(1).selectExpr("'x' k", "timestamp_millis(1000) at").coalesce(1)
    failing = timerheap.spark.process(
        df,
        "k",
        function,
        "k string not null, n bigint",
        "at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        max_parallelism=2,
    )
    with streams.configured(spark, shuffle_partitions=1), pytest.raises(PythonException, match=message):
        failing.collect()


class Fails(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield self.divided(value.n)

    def divided(self, n: int) -> int:
        return n // (n - n)


class FailsInColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        yield divided(1)


class FailsAsProcessor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield divided(1)


def divided(n: int) -> int:
    return n // (n - n)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("work", "where"),
    [
        (Fails(), "in process_element, key 'x', timestamp 1000"),
        (FailsInColumns(), "in process_batch, 1 keys"),
        (FailsAsProcessor(), "in handleInputRows, key ('x',)"),
    ],
)
def test_an_error_shows_its_message_key_and_timestamp_and_then_the_users_lines_alone(
    spark: SparkSession, tmp_path: Path, work: Any, where: str, stream: bool
) -> None:
    streams.write_batches(tmp_path / "in", [[{"k": "x", "at": 1000, "n": 1}]], pa.schema(
        [("k", pa.string()), ("at", pa.int64()), ("n", pa.int64())]
    ))  # fmt: skip
    df = streams.read_stream(spark, tmp_path / "in") if stream else spark.read.parquet(str(tmp_path / "in"))
    if isinstance(work, StatefulProcessor):
        result = timerheap.spark.transform_with_state(df, "k", work, "n long", "append", "None")
    else:
        result = timerheap.spark.process(
            df, "k", work, "n long", "at", watermark="0 seconds", order="arrival"
        )
    with pytest.raises((PythonException, StreamingQueryException)) as failure:
        streams.run(result, tmp_path) if stream else result.collect()
    shown = str(failure.value)
    shown = shown[shown.index("timerheap.errors.FunctionError: ") :]
    first, second, third, *rest = shown.splitlines()
    assert first == "timerheap.errors.FunctionError: ZeroDivisionError: integer division or modulo by zero"
    assert (second, third) == (where, "Traceback (most recent call last):")
    trace = rest[: rest.index("ZeroDivisionError: integer division or modulo by zero")]
    assert [line for line in trace if line.startswith("  File")]
    assert all(__file__ in line for line in trace if line.startswith("  File")), trace
    assert "return n // (n - n)" in map(str.strip, trace)
