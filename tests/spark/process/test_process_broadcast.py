"""`process_broadcast`: rules reach every key group, and their state is in the checkpoint of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_keys import longs_with
from pyspark.sql import Row, SparkSession
from streams import read_stream, write_batches

import timerheap.spark
from timerheap import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import process_broadcast
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.split import restore, split
from timerheap.spark._group.state_names import BROADCAST_ID
from timerheap.spark._query import nullable_arrow_schema
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.testing import PendingTimer, ProcessTester
from timerheap.testing.inputs import Inputs, checked_input, columns_type, spark_xxhash64
from timerheap.testing.process_tester import load_group, save_group

READINGS = "sensor string, room string, degrees bigint, at bigint"
LIMITS = "room string, limit bigint"
LIMIT = MapStateDescriptor("limits", Types.STRING(), Types.LONG())
COUNT = ValueStateDescriptor("limits", Types.LONG())  # of the same name, and by key
UNKNOWN = OutputTag("unknown", Types.STRING())
OUTPUT = "sensor string, what string, n bigint"
ASCENDING = WatermarkStrategy.for_monotonous_timestamps()


class TooWarm(KeyedBroadcastProcessFunction):
    """Yields readings above the limit of their room, and their number 10 ms after each.

    A limit of 0 removes the room, and one of -1 forgets all counts.
    """

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Row, ctx: Any) -> Iterable[Any]:
        limits = ctx.get_broadcast_state(LIMIT)
        assert not hasattr(limits, "put")
        if value.room not in limits:
            ctx.output(UNKNOWN, value.sensor)
        elif value.degrees > limits.get(value.room):
            self.count.update((self.count.value() or 0) + 1)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
            yield value.sensor, "warm", value.degrees

    def process_broadcast_element(self, value: Row, ctx: Any) -> None:
        limits = ctx.get_broadcast_state(LIMIT)
        if value.limit == 0:
            limits.remove(value.room)
        elif value.limit == -1:
            ctx.apply_to_keyed_state(COUNT, lambda key, count: count.clear())
        else:
            limits[value.room] = value.limit

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        assert not ctx.get_broadcast_state(LIMIT).is_empty()
        yield ctx.get_current_key(), "counted", self.count.value()


class Group:
    """One key group of a query, run by hand, and restored from its bytes before each micro-batch."""

    def __init__(self) -> None:
        self.inputs = Inputs()
        self.inputs.add(*checked_input("readings", READINGS, "sensor", "at", None))
        self.saved: bytes | None = None

    def run(
        self, readings: list[tuple[Any, ...]], limits: list[tuple[Any, ...]], watermark: int
    ) -> tuple[list[tuple[Any, ...]], list[str]]:
        """Return the results and the side output of a micro-batch."""
        query = self.query = self.inputs.query(
            TooWarm(),
            columns_type("output_schema", OUTPUT),
            order="event_time",
            max_parallelism=4,
            side_outputs=(UNKNOWN,),
            broadcast=columns_type("rules", LIMITS),
        )
        group = KeyGroup(query.layout) if self.saved is None else load_group(query, 4, self.saved)[0]
        runner = query.work.runner(query, Placement(1, 4))
        runner.open()
        output = ResultBuffer(*query.outputs)
        rules = None
        if limits:
            columns = zip(*limits, strict=True)
            rules = pa.Table.from_arrays([*map(pa.array, columns)], schema=query_schema(LIMITS))
        run_key_group(
            MicroBatch(query, runner, None, output),
            group,
            self.inputs.hashed(0, readings, query),
            watermark,
            rules,
        )
        assert not group.notices()
        self.saved = save_group(group, 4, None)
        rows = output.table().to_pylist()
        results = [tuple(row.values())[:3] for row in rows if row["side_output"] is None]
        return results, [row["side_output"]["unknown"] for row in rows if row["side_output"] is not None]


def query_schema(columns: str) -> pa.Schema:
    return nullable_arrow_schema(columns_type("rules", columns))


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "KeyedBroadcastProcessFunction.process_element",
    "KeyedBroadcastProcessFunction.process_broadcast_element",
    "KeyedBroadcastProcessFunction.on_timer",
    "BroadcastState",
    "ReadOnlyBroadcastState",
)
@pytest.mark.promises(
    "PyFlink",
    "added",
    "KeyedBroadcastProcessFunction.Context.apply_to_keyed_state",
    note="as in Flink's Java API",
)
def test_rules_come_first_and_their_state_is_restored() -> None:
    group = Group()
    assert group.run([("a", "hall", 20, 0)], [("hall", 19), ("attic", 30)], -1) == ([], [])  # the row waits
    assert group.run([("a", "attic", 20, 5)], [], 4) == ([("a", "warm", 20)], [])
    late = [("b", "hall", 9, 20)]
    assert group.run(late, [("hall", 25), ("attic", 0)], 19) == ([("a", "counted", 1)], ["a"])
    assert group.run([("a", "hall", 26, 30), ("b", "hall", 25, 30)], [("hall", -1)], 29) == ([], [])
    assert group.run([], [], 50) == ([("a", "warm", 26), ("a", "counted", 1)], [])


@pytest.mark.spark
def test_rules_reach_all_key_groups_and_outlive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    sensors = [f"s{n}" for n in range(12)]  # in many key groups, in both partitions
    schemas = {"readings": query_schema(READINGS), "limits": query_schema(LIMITS)}
    found = []
    for readings, limits in [
        ([], [("hall", 19)]),
        ([(sensor, "hall", 20, 0) for sensor in sensors], []),
    ]:
        for name, values in (("readings", readings), ("limits", limits)):
            rows = [dict(zip(schemas[name].names, value, strict=True)) for value in values]
            write_batches(tmp_path / name, [rows], schemas[name])
        warm = process_broadcast(
            read_stream(spark, tmp_path / "readings"),
            read_stream(spark, tmp_path / "limits"),
            "sensor",
            TooWarm(),
            OUTPUT,
            "at",
            watermark=ASCENDING,
            order="arrival",
        )
        query = warm.writeStream.foreachBatch(lambda df, _: found.extend(map(tuple, df.collect())))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        state = timerheap.spark.read_checkpoint(spark, tmp_path / "checkpoint")
        rules = state.state("broadcast:limits").collect()
        assert sorted(row.key_group for row in rules) == list(range(state.max_parallelism))
        assert [row.value for row in rules] == [{"hall": 19}] * len(rules)
        assert state.groups().agg({"keys": "sum"}).first() == (len(sensors) if readings else 0,)
    assert sorted(found) == sorted((sensor, "warm", 20) for sensor in sensors)
    assert all(row.sensor is None for row in rules)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_broadcast_state_reaches_all_key_groups_of_another_max_parallelism(groups: int) -> None:
    group = Group()
    group.run([(f"s{n}", "hall", 20, 0) for n in range(20)], [("hall", 19)], 5)
    assert group.saved is not None
    loaded, _ = load_group(group.query, 4, group.saved)
    for first in (True, False):
        parts = dict(split(loaded, groups, first))
        assert parts.keys() <= set(range(groups))
        keys = 0
        for contents in parts.values():
            restored = KeyGroup(group.query.layout)
            restore(restored, contents)
            keys += len(restored.keys)
            assert bool(len(restored.states.get("broadcast:limits", []))) == first
        assert keys == 20
        assert len(parts) == groups or not first


class Limits(KeyedBroadcastProcessFunction):
    """Yields the limit of a room."""

    def process_element(self, value: Row, ctx: Any) -> Iterable[Any]:
        yield value.k, ctx.get_broadcast_state(LIMIT).get(value.room)

    def process_broadcast_element(self, value: Row, ctx: Any) -> None:
        ctx.get_broadcast_state(LIMIT).put(value.room, value.limit)


@pytest.mark.parametrize("rules_first", [True, False])
def test_a_key_may_have_the_id_of_broadcast_state(rules_first: bool) -> None:
    (key,) = longs_with(np.array([BROADCAST_ID])).tolist()
    assert spark_xxhash64([pa.array([key])]) == BROADCAST_ID
    output = "k bigint, n bigint"
    columns = "k bigint, room string, at bigint"
    test = ProcessTester(Limits(), "k", columns, output, "at", rules_schema=LIMITS, order="arrival")
    if not rules_first:
        assert test.push([(key, "hall", 0)]) == [(key, None)]
    for limit in (19, 20):
        test.push_rules([("hall", limit)])
        assert test.push([(key, "hall", 0)]) == [(key, limit)]
        test.restore(test.snapshot())
    assert test.broadcast_state("limits") == {"hall": 20}


def test_a_keyed_state_with_the_name_of_a_broadcast_state_is_refused() -> None:
    class Named(TooWarm):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("broadcast:limits", Types.LONG()))

    with pytest.raises(ValueError, match="a keyed state's name must not start with 'broadcast:', got 'bro"):
        ProcessTester(Named(), "sensor", READINGS, OUTPUT, "at", rules_schema=LIMITS)


@pytest.mark.spark
def test_wrong_arguments_raise(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "sensor string, at long")
    with pytest.raises(ValueError, match="rules must be a batch like df, got a stream"):
        process_broadcast(df, spark.readStream.format("rate").load(), "sensor", TooWarm(), OUTPUT)
    with pytest.raises(TypeError, match="function must be a KeyedBroadcastProcessFunction, got <"):
        process_broadcast(df, df, "sensor", object(), OUTPUT)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rules must be a pyspark\.sql\.DataFrame, got 5"):
        process_broadcast(df, 5, "sensor", TooWarm(), OUTPUT)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function must be a KeyedProcessFunction or BatchProcessFunction"):
        timerheap.spark.process(df, "sensor", TooWarm(), OUTPUT)  # type: ignore[arg-type]


def made(**options: Any) -> ProcessTester:
    arguments = {"rules_schema": LIMITS, "side_outputs": [UNKNOWN], **options}
    return ProcessTester(TooWarm(), "sensor", READINGS, OUTPUT, "at", **arguments)


def test_a_tester_pushes_rules_and_shows_their_state() -> None:
    test = made()
    assert test.broadcast_state("limits") == {}
    test.push([("a", "hall", 20, 0), ("b", "cellar", 9, 1)])
    assert test.push_rules([{"room": "hall", "limit": 19}, ("attic", 30)]) == []
    assert test.advance_watermark(5) == [Row(sensor="a", what="warm", n=20)]
    assert test.side_output(UNKNOWN) == ["b"]
    assert test.broadcast_state("limits") == {"hall": 19, "attic": 30}
    with pytest.raises(ValueError, match=r"name must be one of .* so far, \['limits'\], got 'limit'"):
        test.broadcast_state("limit")
    assert test.state("limits") == {"a": 1}
    assert test.timers() == [PendingTimer("a", 10)]

    snapshot = test.snapshot()
    test.push_rules([("attic", 0), ("", -1)])
    assert (test.broadcast_state("limits"), test.state("limits")) == ({"hall": 19}, {})
    test.restore(snapshot)
    assert test.broadcast_state("limits") == {"hall": 19, "attic": 30}
    with pytest.raises(ValueError, match=r"so far, \['limits'\], got 'broadcast:limits'"):
        test.broadcast_state("broadcast:limits")
    assert isinstance(test.function, TooWarm)
    assert test.finish() == [Row(sensor="a", what="counted", n=1)]


class Speaks(TooWarm):
    """Yields its rules, and their number so far by the clock."""

    def process_broadcast_element(self, value: Row, ctx: Any) -> Iterable[Any]:
        super().process_broadcast_element(value, ctx)
        yield value.room, f"at {ctx.current_processing_time()}", len(list(ctx.get_broadcast_state(LIMIT)))


def test_a_tester_returns_what_rules_yield() -> None:
    test = ProcessTester(
        Speaks(), "sensor", READINGS, OUTPUT, "at", rules_schema=LIMITS, order="arrival", processing_time=True
    )
    test.advance_clock(7)
    assert test.push_rules([("hall", 1), ("attic", 2)]) == [("hall", "at 7", 1), ("attic", "at 7", 2)]
    assert test.push([("a", "hall", 2, 0)]) == [("a", "warm", 2)]


class Echo(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Iterable[Any]:
        yield value.sensor, "", 0


def test_a_tester_refuses_rules_that_do_not_fit() -> None:
    test = made()
    with pytest.raises(ValueError, match=r"rows must be dicts, tuples or Rows with the columns \['room', 'l"):
        test.push_rules([("hall", 19), ("attic",)])
    assert test.broadcast_state("limits") == {}
    with pytest.raises(TypeError, match="name must be a str, got 5"):
        test.broadcast_state(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"name must be one of \['limits'\], got 'broadcast:limits'"):
        test.state("broadcast:limits")
    with pytest.raises(TypeError, match=r"rules_schema must be a DDL string such as .*, got None"):
        made(rules_schema=None)
    with pytest.raises(ValueError, match="rules_schema needs a KeyedBroadcastProcessFunction"):
        ProcessTester(Echo(), "sensor", READINGS, OUTPUT, "at", rules_schema=LIMITS)
    keyed = ProcessTester(Echo(), "sensor", READINGS, OUTPUT, "at")
    for call in (lambda: keyed.push_rules([]), lambda: keyed.broadcast_state("limits")):
        with pytest.raises(ValueError, match="function must be a KeyedBroadcastProcessFunction to have"):
            call()
