"""Compares whole outputs of a BatchProcessFunction on Spark with the same rules for single timers."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BatchProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark._group.timers import TimerNames

pytestmark = pytest.mark.spark

DELAY = 40
SCHEMA = pa.schema(
    [("k", pa.string()), ("j", pa.int64()), ("at", pa.int64()), ("op", pa.int64()), ("arg", pa.int64())]
)
OUTPUT = """kind string, k string, j bigint, at bigint, ns bigint, watermark bigint,
    n bigint, seen string, new boolean"""
NAMES = [field.split()[0] for field in OUTPUT.split(",")]


TIMERS = [None, *sorted(("again", "once"), key=TimerNames().new)]  # names in firing order


class Rounds(BatchProcessFunction):
    """Registers timers for op 0 and 1, deletes for op 2; due timers register, delete and count."""

    def open(self, runtime_context: Any) -> None:
        self.fired = runtime_context.get_state(ValueStateDescriptor("fired", "bigint"))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", "bigint"))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", "bigint", "int"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        timers, ids = ctx.timer_service(), ctx.ids
        assert batch.schema.names == SCHEMA.names
        assert ctx.keys(ids).equals(batch.select(["k", "j"]))
        at, op, arg = (batch.column(name).to_numpy() for name in ("at", "op", "arg"))
        assert ctx.timestamps.tolist() == at.tolist()
        new = np.zeros(len(ids), bool)
        deletes = op == 2
        new[op == 0] = timers.register_event_time_timers(ids[op == 0], (at + arg)[op == 0])
        new[op == 1] = timers.register_event_time_timers(ids[op == 1], (at + arg)[op == 1], name=TIMERS[1])
        new[deletes] = timers.delete_event_time_timers(ids[deletes], (at - arg)[deletes])
        zeros = np.zeros(len(ids), np.int64)
        assert type(timers.current_watermark()) is int
        assert timers.current_watermark() == min(ctx.watermarks.tolist())
        seen = pa.nulls(len(ids), pa.string())
        columns = [
            pa.array(["row"] * len(ids)),
            *batch.columns[:2],
            at,
            zeros,
            ctx.watermarks,
            zeros,
            seen,
            new,
        ]
        yield pa.record_batch([pa.array(column) for column in columns], names=NAMES)

    def on_timers(self, due: Any, ctx: Any) -> Any:
        timers, ids, times = ctx.timer_service(), due.ids, due.timestamps
        numbers = np.array([TIMERS.index(name) for name in due.names], np.int64)
        timers_due = list(zip(times.tolist(), ids.tolist(), numbers.tolist(), strict=True))
        assert timers_due == sorted(timers_due)
        assert len(timers_due) == len(due)
        assert ctx.time_domain() == TimeDomain.EVENT_TIME
        assert ctx.ids.tolist() == ids.tolist()
        assert ctx.timestamps.tolist() == times.tolist()
        distinct, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        known = self.fired.values(distinct)
        fired = known.fill_null(0).to_numpy() + counts
        self.fired.update_many(distinct, pa.array(fired))
        seen = []
        for id_, at in zip(ids.tolist(), times.tolist(), strict=True):
            ctx.set_current_key(id_)
            self.log.add(at)
            self.times.put(at, (self.times.get(at) or 0) + 1)
            seen.append(f"{list(self.log)[-3:]} {sorted(self.times.items())[-2:]}")
            if at % 13 == 0:
                self.log.clear()
                self.times.clear()
        for number, _name in enumerate(TIMERS[:-1]):
            some = (times % 3 == 0) & (numbers == number)
            again = timers.register_event_time_timers(ids[some], times[some] + 1, name=TIMERS[number + 1])
            assert again.dtype == bool
        timers.delete_event_time_timers(ids[times % 5 == 0], times[times % 5 == 0] + 2)
        timers.delete_event_time_timers(ids[times % 7 == 0], name=TIMERS[1])
        self.fired.update_many(ids[times % 17 == 0], pa.nulls(int((times % 17 == 0).sum()), pa.int64()))
        assert type(timers.current_watermark()) is int
        assert timers.current_watermark() == min(ctx.watermarks.tolist())
        keys = ctx.keys(ids)
        columns = [
            pa.array(["timer"] * len(ids)),
            *keys.columns,
            times,
            numbers,
            ctx.watermarks,
            fired[inverse],
            seen,
        ]
        yield pa.record_batch([pa.array(c) for c in [*columns, [False] * len(ids)]], names=NAMES)


class Expected:
    """Compute the output of the function, timer by timer; in arrival order in rounds for each key."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.timers: dict[Any, int] = {}  # identity -> timestamp
        self.fired: dict[Any, int] = {}
        self.log: dict[Any, list[int]] = {}
        self.times: dict[Any, dict[int, int]] = {}
        self.waiting: list[dict[str, Any]] = []
        self.newest = self.watermark = MIN_WATERMARK
        self.output: list[tuple[Any, ...]] = []

    def run(self, batches: Iterable[list[dict[str, Any]]], ends: bool = False) -> list[tuple[Any, ...]]:
        for batch in batches:
            self.newest = max([self.newest, *(row["at"] for row in batch)])
            watermark = MAX_WATERMARK if ends else max(self.watermark, self.newest - DELAY - 1)
            if self.order == "event_time":
                self.waiting += [row for row in batch if row["at"] > self.watermark]
                for at in sorted({row["at"] for row in self.waiting if row["at"] <= watermark}):
                    self.step_to(at - 1)
                    self.take([row for row in self.waiting if row["at"] == at])
                self.waiting = [row for row in self.waiting if row["at"] > watermark]
                self.step_to(watermark)
            else:
                self.take(batch)
                self.watermark = watermark
                self.fire()
        return sorted(self.output, key=repr)

    def step_to(self, watermark: int) -> None:
        while (due := min(self.timers.values(), default=MAX_WATERMARK)) <= watermark and self.timers:
            self.watermark = max(self.watermark, due)
            self.fire()
        self.watermark = max(self.watermark, watermark)

    def push(self, key: Any, at: int, namespace: int) -> bool:
        identity = (key, namespace) if namespace else (key, namespace, at)
        new = identity not in self.timers
        self.timers[identity] = at
        return new

    def remove(self, key: Any, at: int) -> bool:
        return self.timers.pop((key, 0, at), None) is not None

    def take(self, rows: list[dict[str, Any]]) -> None:
        moved = {}
        for n, row in enumerate(rows):
            if row["op"] < 2:
                moved[n] = self.push((row["k"], row["j"]), row["at"] + row["arg"], row["op"])
        for n, row in enumerate(rows):
            if row["op"] == 2:
                moved[n] = self.remove((row["k"], row["j"]), row["at"] - row["arg"])
            self.output.append(
                ("row", row["k"], row["j"], row["at"], 0, self.watermark, 0, None, moved.get(n, False))
            )

    def fire(self) -> None:
        while due := sorted(
            ((at, identity) for identity, at in self.timers.items() if at <= self.watermark),
            key=lambda timer: (timer[0], repr(timer[1])),
        ):
            if self.order == "event_time":  # a call has each key at most once
                due = [timer for n, timer in enumerate(due) if timer[1][0] not in {t[1][0] for t in due[:n]}]
            for _, identity in due:
                del self.timers[identity]
            counts: dict[Any, int] = {}
            for _, (key, *_rest) in due:
                counts[key] = counts.get(key, 0) + 1
            for key, count in counts.items():
                self.fired[key] = self.fired.get(key, 0) + count
            for at, (key, namespace, *_rest) in due:
                log, times = self.log.setdefault(key, []), self.times.setdefault(key, {})
                log.append(at)
                times[at] = times.get(at, 0) + 1
                seen = f"{log[-3:]} {sorted(times.items())[-2:]}"
                self.output.append(
                    ("timer", *key, at, namespace, self.watermark, self.fired[key], seen, False)
                )
                if at % 13 == 0:
                    del self.log[key], self.times[key]
            for at, (key, namespace, *_rest) in due:
                if at % 3 == 0:
                    self.push(key, at + 1, namespace + 1)
            for at, (key, *_rest) in due:
                if at % 5 == 0:
                    self.remove(key, at + 2)
            for at, (key, *_rest) in due:
                if at % 7 == 0:
                    self.timers.pop((key, 1), None)
            for at, (key, *_rest) in due:
                if at % 17 == 0:
                    self.fired.pop(key, None)


def make_batches(seed: int, count: int, batches: int) -> list[list[dict[str, Any]]]:
    """Return rows up to DELAY out of order; no key has two rows of one event time."""
    draw = random.Random(seed)
    rows = {}
    for _ in range(count):
        row = {
            "k": draw.choice(["a", "b", None]),
            "j": draw.choice([0, 1, None]),
            "at": draw.randrange(0, count),
        }
        row |= {"op": draw.randrange(3), "arg": draw.randrange(60)}
        rows[row["k"], row["j"], row["at"]] = row
    ordered = sorted(rows.values(), key=lambda row: row["at"] + draw.randrange(DELAY))
    size = -(-len(ordered) // batches)
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def process(df: DataFrame, function: BatchProcessFunction, order: str) -> DataFrame:
    return timerheap.spark.process(
        df,
        key=["k", "j"],
        function=function,
        output_schema=OUTPUT,
        event_time="at",
        order=order,
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=4,
    )


@pytest.mark.parametrize("order", ["arrival", "event_time"])
@pytest.mark.promises(
    "PyFlink",
    "added",
    "BatchProcessFunction.process_batch",
    "BatchProcessFunction.on_timers",
    "BatchProcessFunction.Context.timer_service",
    "BatchProcessFunction.Context.time_domain",
    "BatchProcessFunction.Context.watermarks",
    "BatchTimerService.current_watermark",
    "BatchTimerService.register_event_time_timers",
    "BatchTimerService.delete_event_time_timers",
    "DueTimers.timestamps",
    "DueTimers.ids",
    "DueTimers.names",
)
def test_a_stream_gives_the_expected_output(order: str, spark: SparkSession, tmp_path: Path) -> None:
    batches = make_batches(5, 400, 6)
    streams.write_batches(tmp_path / "input", batches, SCHEMA)
    yielded = streams.stream(spark, lambda df: process(df, Rounds(), order), tmp_path / "input", tmp_path)
    expected = Expected(order).run(batches)
    assert yielded == expected
    assert {row[4] for row in expected if row[0] == "timer"} >= {0, 1, 2}, "there are cascades"


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_a_batch_gives_the_expected_output(order: str, spark: SparkSession, tmp_path: Path) -> None:
    batches = make_batches(6, 400, 1)
    streams.write_batches(tmp_path / "input", batches, SCHEMA)
    yielded = streams.rows(process(spark.read.parquet(str(tmp_path / "input")), Rounds(), order))
    assert yielded == Expected(order).run(batches, ends=True)


class Untimed(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        assert ctx.timestamps is None
        assert ctx.timer_service().current_watermark() == MIN_WATERMARK
        ctx.timer_service().register_event_time_timers(ctx.ids, np.arange(len(ctx.ids)))
        yield batch.append_column("fired", pa.array([False] * len(batch)))

    def on_timers(self, due: Any, ctx: Any) -> Any:
        assert ctx.timer_service().current_watermark() == MAX_WATERMARK
        keys = ctx.keys(due.ids)
        yield pa.table({"k": keys.column("k"), "fired": pa.array([True] * len(due))})


def test_without_event_time_only_the_end_of_the_input_fires(spark: SparkSession) -> None:
    df = spark.range(10).selectExpr("id % 3 as k").coalesce(1)
    yielded = timerheap.spark.process(df, "k", Untimed(), "k bigint, fired boolean", max_parallelism=1)
    keys = [n % 3 for n in range(10)]
    assert streams.rows(yielded) == sorted((k, fired) for k in keys for fired in (False, True))


class Echo(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        return [batch.slice(0, 1), batch.slice(1)]


def test_many_results_and_late_rows_of_several_key_groups_arrive_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    n = 30_000
    input_ = pa.table({"k": np.arange(n) % 20_000, "at": np.arange(n)})
    streams.write_batches(tmp_path / "input", [input_, input_], input_.schema)
    yielded = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input"),
        key="k",
        function=Echo(),
        output_schema="k bigint, at bigint",
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        order="arrival",
        late="emit",
    )
    first, second = streams.run(streams.with_late(yielded), tmp_path)
    written = streams.sink(spark, tmp_path)
    rows = list(zip(*(column.to_pylist() for column in input_.columns), strict=True))
    late = sorted((n - 1 - at, (k, at)) for k, at in rows[:-1])
    assert sorted((k, at) for k, at, by, _ in written if by is None) == sorted([*rows, rows[-1]])
    assert sorted((by, tuple(row.values())) for _, _, by, row in written if by is not None) == late
    metrics = [batch.observedMetrics["timerheap"].metrics for batch in (first, second)]
    assert [values["late_rows"] for values in metrics] == [0, n - 1]
