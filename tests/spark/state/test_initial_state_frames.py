"""A query starts from state that is built from DataFrames."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from anything import cut, delayed, expected, make_rows, process, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import InitialState

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

BATCHES = cut(delayed(8, make_rows(8, 240)), 3)


@pytest.fixture(scope="module")
def old(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has read the first two batches."""
    work = tmp_path_factory.mktemp("old")
    streams.run(process(streams.read_stream(spark, write(work / "input", BATCHES[:2])), "event_time"), work)
    return work


def tables(spark: SparkSession, work: Path) -> dict[str, Any]:
    """The arguments of `InitialState` that a checkpoint gives."""
    state = timerheap.spark.read_checkpoint(spark, work / "checkpoint")
    return {
        "states": {name: state.state(name) for name in state.states},
        "timers": state.timers(),
        "buffered_rows": state.buffered_rows(),
        "watermarks": state.watermarks(),
    }


@pytest.mark.parametrize("max_parallelism", [4, 6])
def test_tables_of_a_checkpoint_go_on_as_their_query_would(
    spark: SparkSession, old: Path, tmp_path: Path, max_parallelism: int
) -> None:
    df = streams.read_stream(spark, write(tmp_path / "input", BATCHES[2:]))
    given = tables(spark, old)
    assert given["buffered_rows"].count()
    assert given["timers"].count()
    initial = InitialState(**given)
    streams.run(process(df, "event_time", max_parallelism=max_parallelism, initial_state=initial), tmp_path)
    both = streams.sink(spark, old) + streams.sink(spark, tmp_path)
    assert sorted(both, key=repr) == expected(BATCHES, "event_time")


def test_a_table_that_does_not_fit_raises_before_the_query_starts(spark: SparkSession, old: Path) -> None:
    df = streams.read_stream(spark, old / "input")
    count = timerheap.spark.read_checkpoint(spark, old / "checkpoint").state("count")
    text = count.withColumn("value", F.col("value").cast("string"))
    for states, message in (
        ({"counts": count}, "states must have the names of the query's states, .*got 'counts'"),
        ({"count": text}, r"states\['count'\] must have a column 'value' of type bigint, .*got string"),
        ({"count": count.drop("line")}, r"states\['count'\] must have a column 'line', got the columns"),
    ):
        with pytest.raises(ValueError, match=message):
            process(df, "event_time", initial_state=InitialState(states=states))


def run_once(result: DataFrame, work: Path) -> None:
    """Run one micro-batch of a query, which has a clock."""
    query = result.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    query.trigger(once=True).start(str(work / "sink"), format="parquet").awaitTermination()


class Everything(KeyedProcessFunction):
    """States of each kind, one with a time to live, and timers of both domains, with names and without."""

    def open(self, runtime_context: Any) -> None:
        expiring = ValueStateDescriptor("last", Types.LONG())
        expiring.enable_time_to_live(StateTtlConfig.new_builder(10**15).build())
        self.last = runtime_context.get_state(expiring)
        self.total = runtime_context.get_reducing_state(
            ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
        )
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.by = runtime_context.get_map_state(MapStateDescriptor("by", Types.LONG(), Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + 7)
        timers.register_event_time_timer(value.at + 20, name="silent")
        timers.register_processing_time_timer(10**15, name="far")
        before = self.last.value()
        self.last.update(value.at)
        self.total.add(value.at)
        self.seen.add(value.at)
        self.by.put(value.at % 3, f"n{value.at}")
        yield self.row(ctx, f"row after {before}")

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self.row(ctx, f"{ctx.timer_name()} at {timestamp}")

    def row(self, ctx: Any, what: str) -> tuple[Any, ...]:
        held = self.last.value(), self.total.get(), list(self.seen), sorted(self.by.items())
        return ctx.get_current_key(), repr((what, ctx.timer_service().current_watermark(), *held))


class LastInColumns(BatchProcessFunction):
    """A value and a named timer, in columns."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 20, name="silent")
        before = self.last.values(ctx.ids)
        self.last.update_many(ctx.ids, batch.column("at"))
        yield self.rows(batch.column("k"), before, ctx.timestamps)

    def on_timers(self, due: Any, ctx: Any) -> Any:
        yield self.rows(ctx.keys(due.ids).column("k"), self.last.values(due.ids), due.names)

    def rows(self, keys: pa.Array, values: pa.Array, whats: Any) -> pa.RecordBatch:
        what = [f"{value} {what}" for value, what in zip(values.to_pylist(), whats.tolist(), strict=True)]
        return pa.record_batch([keys, pa.array(what)], names=["k", "what"])


@pytest.mark.parametrize("function", [Everything, LastInColumns])
@pytest.mark.usefixtures("one_partition")
def test_a_query_from_tables_equals_one_that_was_never_stopped(
    spark: SparkSession, tmp_path: Path, function: type[Any]
) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    rows = [{"k": "abcd"[at * at % 7 % 4], "at": at} for at in range(90)]

    def run(folder: Path, work: Path, **options: Any) -> None:
        result = timerheap.spark.process(
            streams.read_stream(spark, folder),
            "k",
            function(),
            "k string, what string",
            event_time="at",
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
            processing_time=function is Everything,
            **options,
        )
        run_once(result, work)

    parts = [rows[:60], rows[60:]]
    for number, part in enumerate(parts):
        streams.write_batches(tmp_path / f"in-{number}", [part], schema)
        streams.write_batches(tmp_path / "in", [part], schema)
        run(tmp_path / "in", tmp_path / "steady")
        if number == 0:
            run(tmp_path / "in-0", tmp_path / "old")
    initial = InitialState(**tables(spark, tmp_path / "old"))
    run(tmp_path / "in-1", tmp_path / "new", initial_state=initial, max_parallelism=8)
    both = streams.sink(spark, tmp_path / "old") + streams.sink(spark, tmp_path / "new")
    assert sorted(both) == sorted(streams.sink(spark, tmp_path / "steady"))
    left = [
        timerheap.spark.read_checkpoint(spark, tmp_path / name / "checkpoint") for name in ("steady", "new")
    ]
    pending = [sorted(map(tuple, state.timers().drop("key_group").collect()), key=repr) for state in left]
    assert pending[0] == pending[1]
    assert {timer[4] for timer in pending[0]} >= {"silent"}


def test_a_corrected_table_begins_a_query(spark: SparkSession, tmp_path: Path) -> None:
    def run(initial: InitialState | None) -> None:
        result = timerheap.spark.process(
            streams.read_stream(spark, tmp_path / "in"),
            "k",
            LastInColumns(),
            "k string, what string",
            event_time="at",
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            initial_state=initial,
        )
        streams.run(result, tmp_path)

    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    streams.write_batches(tmp_path / "in", [[{"k": "a", "at": 5}, {"k": "b", "at": 6}]], schema)
    values = spark.createDataFrame([("a", 100), ("c", 300)], "k string, value long")
    due = spark.createDataFrame(
        [("c", 7, "event_time", "silent")], "k string, epoch_ms long, time_domain string, name string"
    )
    run(InitialState(states={"last": values}, timers=due, watermarks=4))
    assert streams.sink(spark, tmp_path) == [("a", "100 5")]
    streams.write_batches(tmp_path / "in", [[{"k": "a", "at": 50}]], schema)
    run(None)
    found = [("a", "100 5"), ("a", "5 silent"), ("b", "6 silent"), ("b", "None 6"), ("c", "300 silent")]
    assert streams.sink(spark, tmp_path) == found


NAMES = ["name", "VALUE", "timerheap_value", "at", "epoch_ms", "timestamp", "time_domain", "key", "KEY_GROUP"]
NAMES += ["event_time", "a.b", "window_start", "namespace", "label", "left"]


class One(Everything):
    def row(self, ctx: Any, what: str) -> tuple[Any, ...]:
        return (what,)


class Two(KeyedCoProcessFunction):
    """Does the same with each of two inputs."""

    open, row, on_timer = One.open, One.row, One.on_timer
    process_element1 = process_element2 = One.process_element


@pytest.mark.parametrize("inputs", [1, 2])
@pytest.mark.usefixtures("one_partition")
def test_key_columns_may_have_the_names_of_columns_of_the_tables(
    spark: SparkSession, tmp_path: Path, inputs: int
) -> None:
    others = pa.schema([("lower(x)", pa.string()), ("x", pa.string())])
    schema = pa.schema([*((name, pa.int64()) for name in NAMES), *others])
    rows = [
        dict.fromkeys(NAMES, at % 3) | {"at": at, "lower(x)": "own", "x": "XYZ"[at % 3]} for at in range(20)
    ]
    streams.write_batches(tmp_path / "in", [rows], schema)
    streams.write_batches(tmp_path / "none", [[]], schema)
    options = {
        "event_time": "at",
        "watermark": "5 milliseconds",
        "processing_time": True,
        "max_parallelism": 3,
    }

    def state_of(source: str, work: Path, **more: Any) -> dict[str, Any]:
        df, keys = streams.read_stream(spark, tmp_path / source), [*NAMES, F.lower("x")]
        if inputs == 1:
            result = timerheap.spark.process(df, keys, One(), "what string", **options, **more)
        else:
            result = timerheap.spark.process_two(df, df, keys, Two(), "what string", **options, **more)
        run_once(result, work)
        return tables(spark, work)

    before = state_of("in", tmp_path / "old")
    keys = [*NAMES, "lower(x)"]
    assert before["states"]["last"].columns == [*keys, "timerheap_timerheap_value", "timerheap_key_group"]
    own = ["timerheap_timestamp", "timerheap_epoch_ms", "timerheap_time_domain", "timerheap_name"]
    assert before["timers"].columns == [*keys, *own, "timerheap_key_group"]
    after = state_of("none", tmp_path / "new", initial_state=InitialState(**before))
    found = []
    for each in (before, after):
        frames = {"timers": each["timers"], "rows": each["buffered_rows"], **each["states"]}
        texts = [
            df.select(F.lit(name), F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
            for name, df in frames.items()
        ]
        found.append(sorted(map(tuple, reduce(DataFrame.union, texts).collect())))
    assert found[0] == found[1]
    assert {name for name, _ in found[0]} == {"timers", "rows", "last", "total", "seen", "by"}
    timers = [json.loads(text) for name, text in found[0] if name == "timers"]
    assert {timer["timerheap_name"] for timer in timers} == {"silent", "far", None}
