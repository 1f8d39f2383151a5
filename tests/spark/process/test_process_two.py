"""Compares `process_two` with the operator without Spark, and interval joins with all pairs of rows."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import MAX_WATERMARK, KeyedCoProcessFunction, ValueStateDescriptor, WatermarkStrategy
from timerheap.flink import StreamRecord
from timerheap.flink.operators import KeyedCoProcessOperator
from timerheap.interval_join import IntervalJoin
from timerheap.spark import EventTime, RightInput

pytestmark = pytest.mark.spark

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(40)
ORDERS = pa.schema([("customer", pa.string()), ("item", pa.int64()), ("at", pa.int64())])
VISITS = pa.schema([("who", pa.string()), ("page", pa.string()), ("seen", pa.int64())])
OUTPUT = "kind string, key string, at bigint, left_rows bigint, right_rows bigint"


class Meet(KeyedCoProcessFunction):
    """Counts the rows of both sides; each side sets timers and may delete those of the other."""

    def open(self, runtime_context: Any) -> None:
        self.counts = runtime_context.get_state(
            ValueStateDescriptor("counts", "struct<left bigint, right bigint>")
        )

    def _count(self, left: int, right: int) -> tuple[int, int]:
        before = self.counts.value()
        counts = (left, right) if before is None else (before["left"] + left, before["right"] + right)
        self.counts.update({"left": counts[0], "right": counts[1]})
        return counts

    def process_element1(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value["at"] + value["item"])
        yield "left", ctx.get_current_key(), ctx.timestamp(), *self._count(1, 0)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().delete_event_time_timer(value["seen"] + len(value["page"]))
        ctx.timer_service().register_event_time_timer(value["seen"] + 1)
        yield "right", ctx.get_current_key(), ctx.timestamp(), *self._count(0, 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key(), timestamp, *self._count(0, 0)


def make(seed: int, count: int) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    """Return micro-batches of both sides; the right side is 300 ms behind the left."""
    draw = random.Random(seed)
    left, right = [], []
    for start in range(0, 1_000, 250):
        moments = [draw.randrange(start, start + 250) for _ in range(count)]
        left.append(
            [
                {"customer": draw.choice(["a", "b", None]), "item": draw.randrange(60), "at": t}
                for t in moments
            ]
        )
        right.append(
            [
                {"who": draw.choice(["a", "d", None]), "page": "p" * draw.randrange(9), "seen": t - 300}
                for t in moments
            ]
        )
    return left, right


def streamed(spark: SparkSession, work: Path, function: Any, output: str, **options: Any) -> list[Any]:
    left = streams.read_stream(spark, work / "left")
    right = streams.read_stream(spark, work / "right")
    result = joined(left, right, function, output, **options)
    streams.run(streams.with_late(result) if options.get("late") else result, work)
    return streams.sink(spark, work)


def joined(left: Any, right: Any, function: Any, output: str, **options: Any) -> Any:
    settings: dict[str, Any] = {"watermark": STRATEGY, "max_parallelism": 3, **options}
    return timerheap.spark.process_two(
        left, RightInput(right, key="who", event_time="seen"), "customer", function, output, "at", **settings
    )


def test_results_equal_those_of_the_operator_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    left, right = make(1, 30)
    streams.write_batches(tmp_path / "left", left, ORDERS)
    streams.write_batches(tmp_path / "right", right, VISITS)
    found = streamed(spark, tmp_path, Meet(), OUTPUT, order="arrival")

    nobody = "nobody"  # Flink allows no null keys
    operator = KeyedCoProcessOperator(
        Meet(), lambda row: row["customer"] or nobody, lambda row: row["who"] or nobody
    )
    with operator:
        records = []
        for ours, theirs in zip(left, right, strict=True):
            for row in ours:
                records += operator.process_element1(row, row["at"])
            for row in theirs:
                records += operator.process_element2(row, row["seen"])
            records += operator.process_watermark1(max(row["at"] for row in ours) - 41)
            records += operator.process_watermark2(max(row["seen"] for row in theirs) - 41)
    values = [
        tuple(None if part == nobody else part for part in record.value)
        for record in records
        if isinstance(record, StreamRecord)
    ]
    counts_at_the_time = sorted(values, key=repr)
    # Spark determines the order of the sides in a micro-batch, so rows may see the other side differently.
    assert [row[:3] for row in found] == [row[:3] for row in counts_at_the_time]
    assert [row for row in found if row[0] == "timer"] == [
        row for row in counts_at_the_time if row[0] == "timer"
    ]


PAIRS = IntervalJoin(
    -20,
    30,
    lambda order, visit: (order["item"], order["at"], visit["page"], visit["seen"]),
    left_type="struct<customer string, item bigint, at bigint>",
    right_type="struct<who string, page string, seen bigint>",
)
PAIRS_OUTPUT = "item bigint, at bigint, page string, seen bigint"


def pairs(left: Any, right: Any, end: int) -> list[Any]:
    """Return the pairs of `PAIRS` up to a watermark, sorted."""
    found = [
        (order["item"], order["at"], visit["page"], visit["seen"])
        for order in chain(*left)
        for visit in chain(*right)
        if order["customer"] == visit["who"] and -20 <= visit["seen"] - order["at"] <= 30
        if max(order["at"], visit["seen"]) <= end
    ]
    assert len(found) > 20
    return sorted(found, key=repr)


def end_of(right: Any) -> int:
    """Return the last watermark, which is that of the right side."""
    return max(row["seen"] for batch in right for row in batch) - 41


@pytest.mark.parametrize("order", ["event_time", None, "batch"])
@pytest.mark.promises(
    "PyFlink",
    "different",
    "IntervalJoin",
    note="pass it to `process_two`, in place of `a.interval_join(b).between(...)`",
)
def test_the_interval_join_finds_every_pair_once(
    order: str | None, spark: SparkSession, tmp_path: Path
) -> None:
    """Pairs are joined on arrival, or in event-time order once the watermark has passed both rows."""
    left, right = make(2, 25)
    streams.write_batches(tmp_path / "left", left, ORDERS)
    streams.write_batches(tmp_path / "right", right, VISITS)
    if order != "batch":
        found = streamed(spark, tmp_path, PAIRS, PAIRS_OUTPUT, order=order)
    else:
        files = [spark.read.parquet(str(tmp_path / side)) for side in ("left", "right")]
        found = streams.rows(joined(*files, PAIRS, PAIRS_OUTPUT))
    assert found == pairs(left, right, end_of(right) if order == "event_time" else MAX_WATERMARK)


def test_an_outer_interval_join_equals_that_of_spark_and_on_a_stream_its_misses_follow_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    left, right = make(2, 25)
    streams.write_batches(tmp_path / "left", left, ORDERS)
    streams.write_batches(tmp_path / "right", right, VISITS)
    orders, visits = (spark.read.parquet(str(tmp_path / side)) for side in ("left", "right"))
    on = orders["customer"].eqNullSafe(visits["who"]) & (visits["seen"] - orders["at"]).between(-20, 30)
    result: Any = {}
    for how in ("left", "right", "full"):
        join = IntervalJoin(
            "-20 milliseconds",
            "30 milliseconds",
            lambda order, visit: (
                *((order["item"], order["at"]) if order else (None, None)),
                *((visit["page"], visit["seen"]) if visit else (None, None)),
            ),
            how=how,
            left_type=orders.schema,
            right_type=visits.schema,
        )
        result[how] = streams.rows(joined(orders, visits, join, PAIRS_OUTPUT))
        theirs = orders.join(visits, on, how).select("item", "at", "page", "seen")
        assert result[how] == streams.rows(theirs)
    end = end_of(right)
    assert streamed(spark, tmp_path, join, PAIRS_OUTPUT) == [
        (item, at, page, seen)
        for item, at, page, seen in result["full"]
        if not ((seen is None and at + 30 > end) or (at is None and seen + 20 > end))
    ]


def test_a_query_goes_on_from_the_state_of_another_one(spark: SparkSession, tmp_path: Path) -> None:
    left, right = make(4, 25)
    old, new = tmp_path / "old", tmp_path / "new"
    for work, batches in ((old, slice(0, 2)), (new, slice(2, None))):
        streams.write_batches(work / "left", left[batches], ORDERS)
        streams.write_batches(work / "right", right[batches], VISITS)
    options: dict[str, Any] = {"order": "event_time"}
    before = streamed(spark, old, PAIRS, PAIRS_OUTPUT, **options)
    state = timerheap.spark.read_checkpoint(spark, old / "checkpoint")
    options |= {"initial_state": state, "max_parallelism": 5}
    after = streamed(spark, new, PAIRS, PAIRS_OUTPUT, **options)
    assert before
    assert sorted(before + after, key=repr) == pairs(left, right, end_of(right))


def test_late_rows_are_returned_with_their_side(spark: SparkSession, tmp_path: Path) -> None:
    left, right = make(3, 5)
    left.append([{"customer": "a", "item": 1, "at": 10}, {"customer": "a", "item": 1, "at": -(2**63)}])
    right.append([{"who": "b", "page": "", "seen": 11}])
    streams.write_batches(tmp_path / "left", left, ORDERS)
    streams.write_batches(tmp_path / "right", right, VISITS)
    found = streamed(spark, tmp_path, Meet(), OUTPUT, late="emit")
    watermark = max(row["seen"] for batch in right for row in batch) - 41
    assert [row[-2:] for row in found if row[-2] is not None] == [
        (watermark + 1 - 11, {"left": None, "right": {"who": "b", "page": "", "seen": 11}}),
        (watermark + 1 - 10, {"left": {"customer": "a", "item": 1, "at": 10}, "right": None}),
        (2**63 - 1, {"left": {"customer": "a", "item": 1, "at": -(2**63)}, "right": None}),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "page"}, "right.key must be of type bigint like column 'item' of left, got 'page'"),
        (
            {"key": ["who", "page"]},
            r"right.key must have as many columns as key, .* got \['who', 'page'\]",
        ),
        ({"key": "nope"}, "right.key must name one column, got 'nope'"),
        (
            {"event_time": "day"},
            "right.event_time must be of type bigint like column 'at' of left, got 'day' of type timestamp",
        ),
        ({"watermark": 5.5}, "right.watermark must be a WatermarkStrategy, got 5.5"),
        ({"event_time": EventTime("seen", channel="nope")}, "right.channel must name one column, got 'nope'"),
    ],
)
def test_an_invalid_argument_raises(options: dict[str, Any], message: str, spark: SparkSession) -> None:
    left = spark.createDataFrame([("a", 1, 1)], "customer string, item bigint, at bigint")
    right = spark.createDataFrame([("a", "", 1)], "who string, page string, seen bigint")
    right = right.withColumn("day", F.timestamp_millis("seen"))
    key = "item" if options.get("key") == "page" else "customer"
    other = RightInput(right, **{"key": "who", "event_time": "seen", **options})
    with pytest.raises((TypeError, ValueError), match=message):
        timerheap.spark.process_two(left, other, key, Meet(), OUTPUT, "at", watermark=STRATEGY)
