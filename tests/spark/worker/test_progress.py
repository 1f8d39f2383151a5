"""Tests the metrics in the progress of a query: what they count, and that nothing else changes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from streams import read_stream, rows, write_batches

import timerheap.spark
from timerheap import DistributionResult, KeyedProcessFunction, WatermarkStrategy
from timerheap.metrics import Metrics
from timerheap.spark import Progress, progress
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.stored.manifest import Manifest, Run, Segment, Standing
from timerheap.spark._worker.partition import GroupwisePartition
from timerheap.spark._worker.task_metrics import TASK_METRICS, TaskMetrics
from timerheap.spark._worker.work import Task
from timerheap.timer import MIN_WATERMARK

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
OUTPUT = "k string not null, at bigint"
PATIENCE = 120  # seconds until a test gives up waiting


class Reminder(KeyedProcessFunction):
    """Each row sets a timer 1,000 ms later, which is emitted; the first attempt of a key "fails" fails."""

    def process_element(self, value: Row, ctx: Any) -> None:
        task = TaskContext.get()
        assert task is not None
        if value.k == "fails" and not task.attemptNumber():
            raise RuntimeError("the first attempt fails")
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class Alarm(KeyedProcessFunction):
    """Each row sets a timer at the time of the micro-batch."""

    def process_element(self, value: Row, ctx: Any) -> None:
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


def remind(df: DataFrame, name: str | None = None) -> DataFrame:
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(99)
    return timerheap.spark.process(df, "k", Reminder(), OUTPUT, "at", watermark=watermark, name=name)


def run(result: DataFrame, work: Path) -> tuple[StreamingQuery, list[tuple[str, int]]]:
    """Run a query to its end; return it, and what a foreachBatch has received."""
    found: list[Any] = []
    query = (
        result.writeStream.foreachBatch(lambda df, _: found.extend(rows(df)))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query, found


@pytest.mark.spark
def test_the_progress_of_each_micro_batch_has_the_metrics(spark: SparkSession, tmp_path: Path) -> None:
    batches = [
        [("a", 1000), ("b", 1100), ("fails", 1050)],
        [("a", 2300), ("b", 900), ("c", 950)],  # two are late
        [("c", 2350)],
    ]
    tables = [[dict(zip(SCHEMA.names, row, strict=True)) for row in batch] for batch in batches]
    write_batches(tmp_path / "in", tables, SCHEMA)
    query, found = run(remind(read_stream(spark, tmp_path / "in")), tmp_path)
    assert found == [("a", 2000), ("b", 2100), ("fails", 2050)]
    first, second, third = (batch.observedMetrics["timerheap"].metrics for batch in query.recentProgress)
    now = third.pop("clock_lag") + 2250
    assert abs(now / 1000 - time.time()) < 3600
    moved = third.pop("groups_handed_over"), third.pop("groups_loaded")
    assert 0 <= sum(moved) <= 16
    nbytes, largest = third.pop("state_bytes"), third.pop("largest_group_bytes")
    assert 0 < largest < nbytes
    assert third == {
        "watermark": 2250,
        "newest_event_time": 2350,
        "event_time_lag": 100,
        "pending_event_time_timers": 0,
        "pending_processing_time_timers": 0,
        "next_event_time_timer": None,
        "next_processing_time_timer": None,
        "fired_timers": 0,
        "late_rows": 0,
        "dropped_rows": 0,
        "null_time_rows": 0,
        "ahead_rows": 0,
        "out_of_order_rows": 0,
        "settled_keys": 0,
        "settled_bytes": 0,
        "returned_keys": 0,
        "keys": third["keys"],
        "groups": third["max_parallelism"],
        "max_parallelism": third["max_parallelism"],
        "buffered_rows": 2,
    }
    assert (first["pending_event_time_timers"], first["next_event_time_timer"]) == (1, 2000)
    assert (first["keys"], first["buffered_rows"], first["fired_timers"]) == (3, 2, 0)
    assert (second["late_rows"], second["dropped_rows"], second["fired_timers"]) == (2, 2, 3)
    last = progress(query)
    assert isinstance(last, Progress)
    assert (last.batch_id, last.watermark, last.buffered_rows, last.state_bytes) == (2, 2250, 2, nbytes)


class Counting(KeyedProcessFunction):
    """Counts rows, and those of each key, whose counters are made as the keys come."""

    def open(self, runtime_context: Any) -> None:
        self.metrics = runtime_context.get_metrics_group()
        self.rows = self.metrics.counter("rows")

    def process_element(self, value: Row, ctx: Any) -> Iterator[tuple[str, int]]:
        self.rows.inc()
        self.metrics.add_group('of "key"', value.k).meter("rows").mark_event()
        self.metrics.distribution("at").update(value.at)
        yield value.k, value.at


@pytest.mark.promises(
    "PyFlink", "different", "RuntimeContext.get_metrics_group", note="must be called in `open`"
)
@pytest.mark.spark
def test_the_counters_of_a_function_are_among_the_metrics(spark: SparkSession, tmp_path: Path) -> None:
    keys = ["a", "b", "c", "d", "e, f"]  # in both partitions
    tables = [[{"k": key, "at": at} for key in keys for at in times] for times in ([5, -7], [9])]
    write_batches(tmp_path / "in", tables, SCHEMA)
    df = read_stream(spark, tmp_path / "in")
    query, _ = run(timerheap.spark.process(df, "k", Counting(), OUTPUT), tmp_path)

    first, last = (batch.observedMetrics["timerheap"] for batch in query.recentProgress)
    assert first.counters == {"rows": 10} | {f'of "key".{key}.rows': 2 for key in keys}
    assert first.distributions == {"at": {"count": 10, "sum": -10, "min": -7, "max": 5}}
    assert last.counters == {"rows": 5} | {f'of "key".{key}.rows': 1 for key in keys}
    found = progress(query)
    assert found is not None
    assert found.counters == last.counters
    assert found.distributions == {"at": DistributionResult(5, 45, 9, 9)}
    assert found.distributions["at"].mean == 9
    assert found.late_rows == 0


@pytest.mark.spark
def test_operators_behind_each_other_have_metrics_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    tables = [[{"k": "a", "at": at} for at in times] for times in ([0, 5000], [9000])]
    write_batches(tmp_path / "in", tables, SCHEMA)
    query, found = run(remind(remind(read_stream(spark, tmp_path / "in"))), tmp_path)
    assert found == [("a", 2000), ("a", 7000)]  # the second follows the first
    one, two = progress(query), progress(query, "timerheap_2")
    assert one is not None
    assert two is not None
    assert (one.fired_timers, one.buffered_rows) == (1, 1)
    assert (two.fired_timers, two.buffered_rows, two.watermark) == (1, 0, 8801)


@pytest.mark.spark
def test_the_only_operator_of_a_query_is_found_without_its_name(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", [[{"k": "a", "at": 1000}], [{"k": "a", "at": 2300}]], SCHEMA)
    query, _ = run(remind(read_stream(spark, tmp_path / "in"), name="reminders"), tmp_path)
    found = progress(query)
    assert found is not None
    assert (found.watermark, found.fired_timers) == (2200, 1)
    assert found == progress(query, "reminders")


@pytest.mark.spark
def test_operators_side_by_side_have_the_metrics_of_their_names(spark: SparkSession, tmp_path: Path) -> None:
    for name, times in ("left", [0, 5000]), ("right", [0, 1000, 9000]), ("others", [0]):
        write_batches(tmp_path / name, [[{"k": "a", "at": at} for at in times]], SCHEMA)
    left, right = (remind(read_stream(spark, tmp_path / name), name) for name in ("left", "right"))
    others = [remind(read_stream(spark, tmp_path / "others")) for _ in range(2)]
    left, right = left.where("at > 0"), right.select("k", "at")
    query, found = run(left.union(right).union(right).union(others[0]).union(others[1]), tmp_path)
    assert found == [*3 * [("a", 1000)], *2 * [("a", 2000)]]
    one, two = progress(query, "left"), progress(query, "right")
    assert one is not None
    assert two is not None
    assert (one.fired_timers, one.watermark) == (1, 4900)
    assert (two.fired_timers, two.watermark) == (2, 8900)
    assert query.recentProgress[0].observedMetrics.keys() == {"left", "right", "timerheap"}
    with pytest.raises(ValueError, match=r"got 'timerheap', which several operators of the query have; give"):
        progress(query)


@pytest.mark.spark
def test_joined_operators_have_the_metrics_of_their_names(spark: SparkSession, tmp_path: Path) -> None:
    results = {}
    for name, times in ("left", [0, 5000]), ("right", [0, 1000, 9000]):
        write_batches(tmp_path / name, [[{"k": "a", "at": at} for at in times]], SCHEMA)
        results[name] = remind(read_stream(spark, tmp_path / name), name).withColumnRenamed("at", name)
    query, found = run(results["left"].join(results["right"], "k"), tmp_path)
    assert found == [("a", 1000, 1000), ("a", 1000, 2000)]
    metrics = [progress(query, name) for name in results]
    assert [one and one.fired_timers for one in metrics] == [1, 2]


@pytest.mark.spark
def test_pending_timers_are_known_while_no_rows_come(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", [[{"k": k, "at": 0} for k in "abc"]], SCHEMA)
    df = read_stream(spark, tmp_path / "in")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True)
    query = (
        result.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    end = time.monotonic() + PATIENCE
    while len(query.recentProgress) < 3 and time.monotonic() < end:
        time.sleep(0.1)
    query.stop()
    batches = [batch.observedMetrics["timerheap"].metrics for batch in query.recentProgress[:3]]
    assert [metrics["pending_processing_time_timers"] for metrics in batches] == [3, 0, 0]
    assert [metrics["fired_timers"] for metrics in batches] == [0, 3, 0]


def stub(*batches: dict[str, Any] | None) -> StreamingQuery:
    """A query with these values of the operator, None for a trigger without a micro-batch."""
    query = Mock(spec=StreamingQuery)
    query._jsq = Mock()
    query._jsq.streamingQuery().logicalPlan().toString.return_value = "CollectMetrics timerheap, []"
    blank: dict[str, Any] = dict.fromkeys(metric.name for metric in TASK_METRICS)
    query.recentProgress = [
        Mock(
            batchId=number,
            durationMs={} if values is None else {"addBatch": 1},
            observedMetrics={} if values is None else {"timerheap": Row(metrics=values and blank | values)},
        )
        for number, values in enumerate(batches)
    ]
    return query


def test_progress_is_none_before_the_first_micro_batch() -> None:
    assert progress(stub()) is None
    assert progress(stub(None)) is None
    assert progress(stub({})) is None  # the operator had no rows


def test_progress_keeps_what_the_last_micro_batch_does_not_tell() -> None:
    held = {"keys": 3, "buffered_rows": 2, "watermark": 5, "clock_lag": 10, "fired_timers": 7}
    some = {"keys": 1, "buffered_rows": 0, "groups": 1, "max_parallelism": 2, "channel a": 4}
    found = progress(stub({**held, "groups": 2, "max_parallelism": 2, "channel b": 3}, some, {}, None))
    assert found is not None
    assert (found.batch_id, found.keys, found.buffered_rows, found.watermark) == (2, 3, 2, 5)
    assert (found.fired_timers, found.late_rows, found.next_event_time_timer) == (0, 0, None)
    assert found.channel_watermarks == {"a": 4}  # the other is idle


def test_arguments_of_progress_are_checked() -> None:
    with pytest.raises(TypeError, match=r"query must be a .*StreamingQuery, got 'q'"):
        progress("q")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="operator must be a str"):
        progress(stub(), 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 'timerheap_2'; the query observes 'timerheap'"):
        progress(stub({}), "timerheap_2")


def test_numbers_of_groups_are_combined_and_start_anew() -> None:
    def taken(metrics: TaskMetrics) -> dict[str, int]:
        (text,) = metrics.take().to_pylist()
        merged = json.loads(text).values()
        return {name: value for values in merged for name, value in values.items() if value is not None}

    metrics = TaskMetrics()
    run = Run(1, segments=[Segment(1, 70, 2, 0), Segment(2, 30, 1, 0)])
    metrics.add_group(Manifest(4, standing=Standing(2, 0, 3, 1, next_event_time_timer=8), runs=[run]))
    metrics.add_group(Manifest(4, standing=Standing(1, 1, 1, 0, 5, 9)))
    metrics.add(watermark=None, max_parallelism=4, late_rows=0)
    metrics.add_totals(fired_timers=5)
    metrics.add_times(MIN_WATERMARK, MIN_WATERMARK, now=50)
    metrics.add_times(MIN_WATERMARK, 30, now=50)
    metrics.add_times(20, 30, now=50)
    assert taken(metrics) == {
        "watermark": 20,
        "newest_event_time": 30,
        "event_time_lag": 10,
        "clock_lag": 30,
        "pending_event_time_timers": 3,
        "pending_processing_time_timers": 1,
        "next_event_time_timer": 5,
        "next_processing_time_timer": 9,
        "keys": 4,
        "buffered_rows": 1,
        "state_bytes": 100,
        "largest_group_bytes": 100,
        "groups": 2,
        "max_parallelism": 4,
        "fired_timers": 5,
        "late_rows": 0,
    }
    metrics.add_totals(fired_timers=7)
    assert taken(metrics) == {"fired_timers": 2}


def test_metrics_of_a_function_that_the_driver_does_not_know_raise() -> None:
    runner = Mock(metrics=Metrics())
    store, groups, mail, times = (Mock() for _ in range(4))
    query = Mock(has_metrics=False, channels=(), outputs=(pa.schema([]), []))
    task = Task(query, Placement(1, 4), store, groups, mail, None, times, False)
    batch = GroupwisePartition(task, runner)
    with pytest.raises(RuntimeError, match=r"get_metrics_group\(\) must be called in open\(\), also on the"):
        next(batch._frames())


def test_the_manifest_tells_what_the_group_holds() -> None:
    times = Standing(300, 1, 2, 70_000, -5, 2**62)
    for standing in (Standing(), times, Standing(0, 1, 1, 0, None, 0)):
        assert Manifest.from_bytes(Manifest(4, standing=standing).to_bytes()).standing == standing
