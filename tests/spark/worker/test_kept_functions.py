"""A worker keeps key groups between micro-batches, but no function, nor what it has made in ``open``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest
from processor_stage import Stage
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType
from streams import configured, read_stream, run, sink, write_batches

import timerheap.spark
from timerheap import (
    AggregateFunction,
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark._processors.processor_states import DeclaredState
from timerheap.testing import ProcessTester

pytestmark = pytest.mark.spark

SEEN = ValueStateDescriptor("seen", Types.LONG())
KEPT = ValueStateDescriptor("kept", Types.LONG())
KEPT.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(9)).build())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
RESULT = "k string, n bigint"


class Model:
    """What a function makes in ``open``."""


def alive() -> int:
    """Return how many models of this process are not yet freed."""
    gc.collect()
    return len(models())


def models() -> WeakSet[Model]:
    found: WeakSet[Model] = vars(sys).setdefault("timerheap_test_models", WeakSet())
    return found


class Makes:
    """Makes a model, and refers to itself, as functions often do."""

    def open(self, _: Any) -> None:
        self.model, self.itself = Model(), self
        models().add(self.model)


class ByRow(Makes, KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        most = ReducingStateDescriptor("most", lambda a, b: max(self.itself and a, b), "bigint")
        self.most = runtime_context.get_reducing_state(most)
        self.seen = runtime_context.get_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update(value.at)
        self.most.add(value.at)
        ctx.timer_service().register_event_time_timer(value.at + 1)
        yield value.k, alive()


class ByBatch(Makes, BatchProcessFunction):
    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.seen = runtime_context.get_state(SEEN)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        self.seen.update_many(ctx.ids, pa.array(ctx.timestamps))
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 1)
        yield pa.record_batch([batch.column("k"), [alive()] * len(batch)], names=["k", "n"])

    def on_timers(self, due: Any, ctx: Any) -> None:
        pass


class Expires(ByRow):
    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.kept = runtime_context.get_state(KEPT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.kept.update(value.at)
        return super().process_element(value, ctx)


class OfTwo(ByRow, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.process_element(value, ctx)

    process_element2 = process_element1


class ByRules(Makes, KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).get(value.k)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, value.at)


class Processor(Makes, StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.open(None)
        self.seen = handle.getValueState("seen", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.seen.update((len(list(rows)),))
        yield Row(k=key[0], n=alive())

    def close(self) -> None:
        pass


class Counts(Makes, AggregateFunction):
    """Opens itself in each micro-batch: an aggregate of windows has no ``open``."""

    def create_accumulator(self) -> int:
        if not hasattr(self, "model"):
            self.open(None)
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def merge(self, acc_a: int, acc_b: int) -> int:
        return max(acc_a, acc_b)

    def get_result(self, accumulator: int) -> int:
        return alive()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("function", [ByRow, ByBatch, Expires, OfTwo, ByRules])
def test_a_key_group_refers_to_no_function(function: Callable[[], Any]) -> None:
    of_rules: Any = {"rules_schema": "k string, at bigint"} if function is ByRules else {}
    tester = ProcessTester(
        function(), "k", "k string, at bigint", RESULT, "at", processing_time=True, **of_rules
    )
    if of_rules:
        tester.push_rules([("a", 1)])
    tester.push([("a", 1), ("b", 2), ("b", 20)])
    tester.advance_watermark(10)
    tester.close()
    assert alive() == 1
    group = tester._group
    del tester
    assert alive() == 0
    assert len(group.rows) or of_rules


def test_the_key_group_of_a_processor_refers_to_no_function() -> None:
    rows = StructType().add("k", "string").add("at", "long")
    seen = DeclaredState("value", (StructType().add("n", "long"),), None)
    stage = Stage(
        Processor, rows, StructType().add("k", "string").add("n", "long"), "ProcessingTime", seen=seen
    )
    assert stage.batch([("a", 1)], 5) == stage.batch([("a", 2)], 6) == [("a", 1)]
    group = stage.group
    del stage
    assert alive() == 0
    assert len(group.keys) == 1


OPTIONS: dict[str, Any] = {"watermark": "0 seconds", "max_parallelism": 8}


def by_row(df: DataFrame) -> DataFrame:
    return timerheap.spark.process(df, "k", ByRow(), RESULT, "at", **OPTIONS)


def by_batch(df: DataFrame) -> DataFrame:
    return timerheap.spark.process(df, "k", ByBatch(), RESULT, "at", **OPTIONS)


def processor(df: DataFrame) -> DataFrame:
    return timerheap.spark.transform_with_state(
        df, "k", Processor(), RESULT, "append", "none", max_parallelism=8
    )


def windows(df: DataFrame) -> DataFrame:
    counts = timerheap.spark.udaf(Counts(), "at", returns="bigint", accumulator="bigint", name="n")
    counted = (
        timerheap.spark.tumble(df, "at", size=10, watermark="0 seconds", max_parallelism=8)
        .groupBy("k")
        .agg(counts)
    )
    return counted.select("k", "n")


@pytest.mark.parametrize(("query", "most"), [(by_row, 1), (by_batch, 1), (processor, 1), (windows, 2)])
def test_a_worker_has_one_opened_function(
    spark: SparkSession, tmp_path: Path, query: Callable[[DataFrame], DataFrame], most: int
) -> None:
    """A worker keeps one copy of the windows and their aggregates, beside that of the present task."""
    rows = [[{"k": f"k{i}", "at": 20 * batch + i} for i in range(24)] for batch in range(3)]
    write_batches(tmp_path / "in", rows, pa.schema([("k", pa.string()), ("at", pa.int64())]))
    with configured(spark, shuffle_partitions=4):
        run(query(read_stream(spark, tmp_path / "in")), tmp_path)
    found = sink(spark, tmp_path)
    assert len(found) >= 24
    assert max(row[-1] for row in found) <= most
