"""`tie_break` orders the rows of one key and timestamp, in a test, a batch and a stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import EventTime, RightInput
from timerheap.testing import ProcessTester

SCHEMA, OUTPUT = "k string, what string, seq bigint, at bigint", "k string, seen string"
SEEN = ValueStateDescriptor("seen", Types.STRING())
ROWS = [
    ("a", "created", 7, 1_000),
    ("a", "cancelled", 8, 1_000),
    ("a", "paid", None, 1_000),
    ("a", "booked", 8, 1_000),
    ("b", "created", 1, 1_000),
    ("a", "asked", 9, 900),
]
IN_ORDER = {"a": "asked created booked cancelled paid", "b": "created"}  # by seq, then by what
BY_COLUMNS = {"a": "asked booked cancelled created paid", "b": "created"}
START, MICROS = datetime(2026, 1, 1, tzinfo=UTC), timedelta(microseconds=200)
LAST = ("z", "the end", 0, 100_000)


class Sees:
    """Yields what a key has seen when a timer ends it."""

    seen: Any

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(SEEN)

    def add(self, what: str, ctx: Any) -> None:
        self.seen.update(" ".join(filter(None, [self.seen.value(), what])))
        ctx.timer_service().register_event_time_timer(50_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.seen.value()


class Seen(Sees, KeyedProcessFunction):
    """Sees the rows of one input."""

    def process_element(self, value: Any, ctx: Any) -> None:
        self.add(value.what, ctx)


class SeenOfTwo(Sees, KeyedCoProcessFunction):
    """The same for two inputs; rows of the right are in capitals."""

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.add(value.what, ctx)

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.add(value.what.upper(), ctx)


class SeenWithRules(Sees, KeyedBroadcastProcessFunction):
    """The same with rules."""

    def process_element(self, value: Any, ctx: Any) -> None:
        self.add(value.what, ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        pass


class SeenInColumns(BatchProcessFunction):
    """Yields the rows as they come."""

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        yield batch.select(["k", "what"]).rename_columns(["k", "seen"])

    def on_timers(self, due: Any, ctx: Any) -> None:
        pass


def made(function: Any, **options: Any) -> ProcessTester:
    options["event_time"] = EventTime("at", tie_break=options.pop("tie_break", None))
    return ProcessTester(function, "k", SCHEMA, OUTPUT, **options)


def test_rows_of_one_key_and_time_are_in_the_order_of_their_columns_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tester = made(Seen())
    tester.push(sorted(ROWS[:2]))
    assert not caplog.messages
    tester.push(ROWS[2:])
    tester.push(ROWS[2:])
    (hint,) = caplog.messages
    assert "come in the order of their columns, as on Spark, and not as pushed" in hint
    tester = made(Seen())
    tester.push(ROWS)
    assert dict(tester.finish()) == BY_COLUMNS


@pytest.mark.parametrize("tie_break", ["seq", ["seq"], ["seq", "what"]])
def test_a_tie_break_orders_rows_of_one_key_and_time(tie_break: Any) -> None:
    for rows in (ROWS, ROWS[::-1]):
        tester = made(Seen(), tie_break=tie_break)
        tester.push(rows[:3])  # the others come in another micro-batch
        tester.restore(tester.snapshot())
        tester.push(rows[3:])
        assert dict(tester.finish()) == IN_ORDER


def test_rows_in_columns_are_in_the_order_of_a_tie_break() -> None:
    tester = made(SeenInColumns(), tie_break="seq")
    tester.push(ROWS)
    assert [row.seen for row in tester.finish() if row.k == "a"] == IN_ORDER["a"].split()


def test_the_left_input_comes_first_unless_a_tie_break_says_otherwise() -> None:
    found = []
    options: dict[str, Any]
    for options in (
        {},
        {"tie_break": "seq"},
        {"tie_break": "seq", "right": "rank"},
        {"tie_break": ["seq", "what"], "right": ["rank", "what"]},
    ):
        right = options.pop("right", None)
        time = None if right is None else EventTime("at", tie_break=right)
        tester = made(
            SeenOfTwo(), right_schema=RightInput(f"{SCHEMA}, rank bigint", event_time=time), **options
        )
        tester.push_right([("a", "x", 1, 1_000, 5), ("a", "b", 2, 1_000, 1)])
        tester.push([("a", "r", 1, 1_000), ("a", "l", 2, 1_000)])
        found.append(dict(tester.finish())["a"])
    assert found == ["l r B X", "r X l B", "r B l X", "B r l X"]


def test_a_tie_break_that_cannot_be_used_raises() -> None:
    with pytest.raises(ValueError, match=r'tie_break must be left out with order="arrival", .* got .*seq'):
        made(Seen(), tie_break="seq", order="arrival")
    with pytest.raises(ValueError, match="tie_break must name one column, got 'x', which names none"):
        made(Seen(), tie_break="x")
    with pytest.raises(TypeError, match="tie_break must be a column name or a list of column names, got 3"):
        made(Seen(), tie_break=3)
    right = RightInput(SCHEMA, event_time=EventTime("at", tie_break="what"))
    with pytest.raises(ValueError, match=r"right\.tie_break must be of type bigint like column 'seq'"):
        made(SeenOfTwo(), tie_break="seq", right_schema=right)


def on_spark(df: DataFrame, function: Any = None, **options: Any) -> DataFrame:
    options = {"watermark": WatermarkStrategy.for_monotonous_timestamps(), "max_parallelism": 2, **options}
    time = EventTime("at", tie_break=options.pop("tie_break", None))
    return timerheap.spark.process(df, "k", function or Seen(), OUTPUT, time, **options)


@pytest.mark.spark
def test_a_tie_break_orders_rows_of_a_batch(spark: SparkSession) -> None:
    df = spark.createDataFrame(ROWS, SCHEMA).repartition(3)
    assert dict(streams.rows(on_spark(df, tie_break="seq"))) == IN_ORDER
    assert dict(streams.rows(on_spark(df))) == BY_COLUMNS
    rules = spark.createDataFrame([(1,)], "x int")
    found = timerheap.spark.process_broadcast(
        df,
        rules,
        "k",
        SeenWithRules(),
        OUTPUT,
        EventTime("at", tie_break=[df.seq, "what"]),
        watermark="0 seconds",
    )
    assert dict(streams.rows(found)) == IN_ORDER


@pytest.mark.spark
def test_an_expression_orders_rows_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("what", pa.string()), ("seq", pa.int64()), ("at", pa.int64())])
    parts = [[dict(zip(schema.names, row, strict=True)) for row in rows] for rows in (ROWS[:3], ROWS[3:])]
    for part in parts:  # the watermark passes them all in the third micro-batch
        part[:] = [row | {"at": 1_000} for row in part]
    streams.write_batches(tmp_path / "in", [*parts, [dict(zip(schema.names, LAST, strict=True))]], schema)
    found = streams.stream(
        spark, lambda df: on_spark(df, tie_break=-F.coalesce("seq", F.lit(0))), tmp_path / "in", tmp_path
    )
    assert dict(found)["a"] == "asked booked cancelled created paid"


@pytest.mark.spark
def test_a_tie_break_orders_rows_of_two_inputs(spark: SparkSession) -> None:
    left = spark.createDataFrame([("a", "r", 1, 1_000), ("a", "l", 2, 1_000)], SCHEMA)
    right = spark.createDataFrame([("a", "x", 2, 1_000), ("a", "b", 1, 1_000)], SCHEMA)
    options: dict[str, Any] = {"watermark": "0 seconds", "max_parallelism": 2}
    found = []
    last, first = EventTime("at", tie_break=F.lit(1)), EventTime("at", tie_break=F.lit(0))
    for time, two in (
        ("at", right),
        (last, RightInput(right, event_time=first)),
        (EventTime("at", tie_break="seq"), right),
    ):
        result = timerheap.spark.process_two(left, two, "k", SeenOfTwo(), OUTPUT, time, **options)
        found += [seen for _, seen in streams.rows(result)]
    assert found == ["l r B X", "B X l r", "r B l X"]
    with pytest.raises(ValueError, match=r"right\.tie_break must have as many columns as tie_break"):
        timerheap.spark.process_two(
            left,
            RightInput(right, event_time=EventTime("at", tie_break=["k", "at"])),
            "k",
            SeenOfTwo(),
            OUTPUT,
            EventTime("at", tie_break="seq"),
            **options,
        )


def test_rows_of_one_millisecond_come_in_the_order_of_their_microseconds() -> None:
    """Before any tie break; timers are in ms."""
    schema = "k string, what string, seq bigint, at timestamp"
    rows = [("a", "first", 2, START + timedelta(microseconds=100)), ("a", "second", 1, START + MICROS)]
    for time in ("at", EventTime("at", tie_break="seq")):
        for pushed in (rows, rows[::-1]):
            test = ProcessTester(Seen(), "k", schema, OUTPUT, event_time=time)
            test.push(pushed)
            assert [row.seen for row in test.finish()] == ["first second"]


def test_both_inputs_are_in_the_order_of_their_microseconds() -> None:
    schema = "k string, what string, seq bigint, at timestamp"
    right = RightInput(schema, event_time="at")
    test = ProcessTester(SeenOfTwo(), "k", schema, OUTPUT, event_time="at", right_schema=right)
    test.push([("a", "second", 1, START + MICROS)])
    test.push_right([("a", "first", 2, START + timedelta(microseconds=100))])
    assert [row.seen for row in test.finish()] == ["FIRST second"]
