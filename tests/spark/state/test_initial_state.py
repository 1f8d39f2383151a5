"""A query starts from the state of another one, with another number of key groups."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from anything import Anything, cut, delayed, expected, make_rows, process, write
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

BATCHES = cut(delayed(8, make_rows(8, 240)), 3)


class CountsText(Anything):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.STRING()))


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has read the first two batches."""
    work = tmp_path_factory.mktemp("old")
    streams.run(process(streams.read_stream(spark, write(work / "input", BATCHES[:2])), "event_time"), work)
    return work


def test_it_goes_on_where_the_other_query_has_stopped(spark: SparkSession, old: Path, tmp_path: Path) -> None:
    df = streams.read_stream(spark, write(tmp_path / "input", BATCHES[2:]))
    state = timerheap.spark.read_checkpoint(spark, old / "checkpoint")
    assert state.max_parallelism == 4
    streams.run(process(df, "event_time", max_parallelism=6, initial_state=state), tmp_path)
    both = streams.sink(spark, old) + streams.sink(spark, tmp_path)
    assert sorted(both, key=repr) == expected(BATCHES, "event_time")


def test_a_checkpoint_without_state_of_timerheap_raises(
    spark: SparkSession, old: Path, tmp_path: Path
) -> None:
    def counted(df: DataFrame) -> DataFrame:
        return df.groupBy("city").count()

    with pytest.raises(ValueError, match=r"checkpoint must be the checkpoint location of .*nothing'"):
        timerheap.spark.read_checkpoint(spark, tmp_path / "nothing")
    foreign = counted(streams.read_stream(spark, old / "input")).writeStream.outputMode("complete")
    query = foreign.format("noop").option("checkpointLocation", str(tmp_path / "foreign"))
    query.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(ValueError, match=r"checkpoint must be the checkpoint location of .*foreign'"):
        timerheap.spark.read_checkpoint(spark, tmp_path / "foreign")


def test_state_that_does_not_fit_raises_before_the_query_starts(spark: SparkSession, old: Path) -> None:
    state = timerheap.spark.read_checkpoint(spark, str(old / "checkpoint"))
    df = streams.read_stream(spark, old / "input")
    with pytest.raises(ValueError, match="state 'count' must stay a value state of int64, got a value"):
        process(df, "event_time", CountsText(), initial_state=state)
    with pytest.raises(ValueError, match=r"key must have the types of the checkpoint's keys, .*got"):
        process(df.withColumn("line", df.line.cast("string")), "event_time", initial_state=state)
    with pytest.raises(ValueError, match="initial_state must be None for a batch DataFrame, got that of"):
        process(spark.read.parquet(str(old / "input")), "event_time", initial_state=state)
    with pytest.raises(TypeError, match=r"initial_state must be what timerheap\.spark\.read_checkpoint"):
        process(df, "event_time", initial_state=str(old))
    with pytest.raises(TypeError, match="checkpoint must be a str or a path, got None"):
        timerheap.spark.read_checkpoint(spark, None)  # type: ignore[arg-type]


class Counts(KeyedProcessFunction):
    """Counts the rows of a key, and yields what the row says beside the count."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        if value[2] % 2:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield ctx.get_current_key(), ctx.timestamp(), self.count.value(), *value[2:]

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, self.count.value(), *[None] * 6


def test_buffered_rows_may_have_columns_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """A third of the rows are buffered when the query stops; columns have names that timerheap has used."""
    names = ("id", "key_hash", "__id", "__timestamp", "timestamp", "namespace")
    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), *((name, pa.int64()) for name in names)])
    rows = [(f"u{n % 90}", 10 * n, n, -n, n * 7, n * 8, n * 9, n - 3) for n in range(600)]
    files = [
        [dict(zip(schema.names, row, strict=True)) for row in rows[at : at + 150]]
        for at in (0, 150, 300, 450)
    ]
    delay = WatermarkStrategy.for_bounded_out_of_orderness(1_000)
    result = "user string, at long, n long, a long, b long, c long, d long, e long, f long"

    def run(work: Path, batches: list[Any], **options: Any) -> list[tuple[Any, ...]]:
        streams.write_batches(work / "in", batches, schema)
        df = streams.read_stream(spark, work / "in", files=4)
        options = {"max_parallelism": 8, "watermark": delay} | options
        streams.run(timerheap.spark.process(df, "user", Counts(), result, "at", **options), work)
        return streams.sink(spark, work)

    first = run(tmp_path / "work", files[:2])
    state = timerheap.spark.read_checkpoint(spark, tmp_path / "work" / "checkpoint")
    assert state.buffered_rows().count() > 90
    again = run(tmp_path / "again", files[2:], max_parallelism=12, initial_state=state)
    restarted = run(tmp_path / "work", files[2:])
    assert restarted == run(tmp_path / "whole", files)
    assert sorted([*first, *again], key=repr) == restarted


class Remembers(KeyedProcessFunction):
    """Has two states whose order depends on `first`; the rows of a key are kept for 100 ms of event time."""

    def __init__(self, *states: str) -> None:
        self.states = states

    def open(self, runtime_context: Any) -> None:
        self.kept = []
        for name in self.states:
            descriptor = ValueStateDescriptor(name, Types.LONG())
            event_time = StateTtlConfig.TtlTimeCharacteristic.EventTime
            ttl = StateTtlConfig.new_builder(Time.milliseconds(100)).set_ttl_time_characteristic(event_time)
            descriptor.enable_time_to_live(ttl.build())
            self.kept.append(runtime_context.get_state(descriptor))

    def process_element(self, value: Row, ctx: Any) -> Any:
        for state in self.kept:
            state.update(value.at)
        return []


@pytest.mark.usefixtures("one_partition")
def test_state_is_purged_when_its_time_is_over_although_states_have_changed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In a query from the state of another, after a state was dropped, after one was left out for a run."""
    schema = pa.schema([("user", pa.string()), ("at", pa.int64())])
    monotonous = WatermarkStrategy.for_monotonous_timestamps()

    def read(work: Path) -> dict[str, set[str]]:
        state = timerheap.spark.read_checkpoint(spark, work / "checkpoint")
        tables = (state.state(name).select("user", F.lit(name).alias("name")) for name in state.states)
        found: dict[str, set[str]] = {name: set() for name in state.states}
        for user, name in reduce(DataFrame.union, tables).collect():
            found[name].add(user)
        return found

    def run(work: Path, rows: list[tuple[str, int]], function: Remembers, **options: Any) -> None:
        streams.write_batches(work / "in", [[{"user": user, "at": at} for user, at in rows]], schema)
        df = streams.read_stream(spark, work / "in")
        options = {"max_parallelism": 2} | options
        result = timerheap.spark.process(
            df, "user", function, "user string", "at", watermark=monotonous, **options
        )
        streams.run(result, work)

    work, again, left_out = tmp_path / "work", tmp_path / "again", tmp_path / "left-out"
    both = {f"u{n}" for n in range(20)}
    first = [*((user, 0) for user in sorted(both)), ("last", 50)]
    run(work, first, Remembers("a", "b"))
    assert read(work) == {"a": both, "b": both}, "the row at the watermark is buffered"

    state = timerheap.spark.read_checkpoint(spark, work / "checkpoint")
    moved = {"state_changes": {"a": None}, "initial_state": state, "max_parallelism": 3}
    run(again, [("x", 60)], Remembers("b"), **moved)
    run(again, [("y", 500)], Remembers("b"), max_parallelism=3)
    assert read(again) == {"b": set()}

    run(work, [("x", 60)], Remembers("b", "c"), state_changes={"a": None})
    run(work, [("y", 500)], Remembers("b", "c"))
    assert read(work) == {"b": set(), "c": set()}

    run(left_out, first, Remembers("a", "b"))
    run(left_out, [("x", 500)], Remembers("b"))
    assert read(left_out)["a"] == both, "nobody knows when they expire"
    run(left_out, [("y", 501)], Remembers("a", "b"))
    assert read(left_out) == {"a": {"x"}, "b": {"x"}}
