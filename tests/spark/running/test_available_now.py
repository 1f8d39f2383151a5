"""Scheduled runs of queries with a clock read all rows, fire what is due, also without rows, and end."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import MIN_WATERMARK, KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import _available_now
from timerheap.spark._worker.driver_mail import DRAINED

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
OUTPUT = "k string, at bigint, now bigint"
AFTER, LAG, WAIT, HOUR = 2_000, 100, 500, 3_600_000
CLOCK = WatermarkStrategy.for_monotonous_timestamps().with_wall_clock(after=AFTER, lag=LAG)


class Silence(KeyedProcessFunction):
    """Reports each row after `WAIT` ms of event time, with the time of the micro-batch."""

    def process_element(self, value: Row, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + WAIT)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


class Alarm(KeyedProcessFunction):
    """Each row sets a timer that is due immediately and one that is due after `AFTER` ms."""

    def process_element(self, value: Row, ctx: Any) -> None:
        timers = ctx.timer_service()
        for wait in (0, AFTER):
            timers.register_processing_time_timer(timers.current_processing_time() + wait)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


def now() -> int:
    return time.time_ns() // 1_000_000


def micro_batches(checkpoint: Path) -> dict[int, tuple[int, bool]]:
    """Return the time of each micro-batch, and whether its offsets are those of the one before it."""
    files = sorted((int(file.name), file) for file in (checkpoint / "offsets").glob("[0-9]*"))
    lines = {batch: file.read_text().splitlines() for batch, file in files}
    return {
        batch: (json.loads(text[1])["batchTimestampMs"], batch > 0 and text[2:] == lines[batch - 1][2:])
        for batch, text in lines.items()
    }


def fired(batches: list[tuple[int, int, list[dict[str, Any]], bool]]) -> list[tuple[str, int, int]]:
    """Compute what `Silence` yields, with a watermark for each key, in micro-batches.

    Each is the number of its run, its time, its rows, and whether all rows had been read before it.
    """
    arrived: dict[str, int] = {}
    marks: dict[str, int] = defaultdict(lambda: MIN_WATERMARK)
    begun: dict[int, int] = {}
    watermark, pending, found = MIN_WATERMARK, set(), []
    for run, at, rows, all_read in batches:
        begun.setdefault(run, at)
        for row in rows:
            arrived[row["k"]], marks[row["k"]] = at, max(marks[row["k"]], row["at"] - 1)
            pending.add((row["at"] + WAIT, row["k"]))
        for key, last in arrived.items():
            if at - (last if all_read else max(last, begun[run])) >= AFTER:
                marks[key] = max(marks[key], at - LAG)
        watermark = max(watermark, min(marks.values()))
        due = sorted(timer for timer in pending if timer[0] <= watermark)
        pending.difference_update(due)
        found += [(key, timestamp, at) for timestamp, key in due]
    return sorted(found)


def test_runs_with_and_without_rows_fire_what_the_clock_makes_due(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    written: list[list[dict[str, Any]]] = []

    def write(*files: str) -> None:
        batches = [[{"k": key, "at": now() + n} for key in keys] for n, keys in enumerate(files)]
        streams.write_batches(tmp_path / "input", batches, SCHEMA)
        written.extend(batches)

    write("ab", "b")
    result = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input"),
        "k",
        Silence(),
        OUTPUT,
        event_time=timerheap.spark.EventTime("at", channel="k"),
        watermark=CLOCK,
        max_parallelism=4,
    )
    writer = result.writeStream.option("checkpointLocation", str(checkpoint)).format("parquet")
    batches: list[tuple[int, int, list[dict[str, Any]], bool]] = []
    deadline = time.monotonic() + streams.PATIENCE
    run = 0
    while run < 3 or len(streams.sink(spark, tmp_path)) < sum(map(len, written)):
        query = timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
        assert not query.isActive
        known = micro_batches(checkpoint)
        for batch in range(len(batches), len(known)):
            at, empty = known[batch]
            rows = [] if empty else written[sum(bool(rows) for _, _, rows, _ in batches)]
            batches.append((run, at, rows, empty))
        assert batches[-1][3], "the last micro-batch of a run has no rows"
        run += 1
        if run == 1:
            write("b", "b")  # a is silent
        assert time.monotonic() < deadline
    assert [len(rows) for _, _, rows, _ in batches if rows] == [2, 1, 1, 1]
    assert [number for number, *_, empty in batches if empty] == list(range(run)), "one for each run"
    assert streams.sink(spark, tmp_path) == fired(batches)


def test_processing_time_timers_fire_once_in_a_foreach_batch_that_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": key, "at": 0}] for key in "ab"], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    found: dict[int, list[tuple[Any, ...]]] = {}
    failures = {1, 2}

    def collect(df: DataFrame, batch: int) -> None:
        if batch in failures:
            failures.remove(batch)
            raise RuntimeError("the sink is away")
        assert batch not in found
        found[batch] = [tuple(row) for row in df.collect()]

    writer = result.writeStream.foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):  # in the second micro-batch with rows, and in the one without
        with pytest.raises(StreamingQueryException, match="the sink is away"):
            timerheap.spark.run_available_now(writer)
    assert list(found) == [0, 1]
    deadline = time.monotonic() + streams.PATIENCE
    while sum(map(len, found.values())) < 4:
        timerheap.spark.run_available_now(writer)
        assert time.monotonic() < deadline
    times = [at for at, _ in micro_batches(tmp_path / "checkpoint").values()]
    due = [(key, times[batch] + wait) for batch, key in enumerate("ab") for wait in (0, AFTER)]
    first = {at: next(n for n, time in enumerate(times) if time > at) for _, at in due}
    wanted = sorted((first[at], key, at, times[first[at]]) for key, at in due)
    assert sorted((batch, *row) for batch, rows in found.items() for row in rows) == wanted
    assert spark.conf.get(DRAINED, None) is None


def test_a_query_that_is_started_anew_fires_its_timers_without_a_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=1)
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))  # a clean stop
    query = timerheap.spark.start(writer.trigger(processingTime="1 second"), str(tmp_path / "sink"))
    deadline = time.monotonic() + streams.PATIENCE
    try:
        while len(streams.sink(spark, tmp_path)) < 2:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        again = timerheap.spark.start(writer, str(tmp_path / "sink"))  # Spark stops the first
        assert query.exception() is None
        again.stop()
    finally:
        query.stop()
    times = [at for at, _ in micro_batches(tmp_path / "checkpoint").values()]
    due = [times[0], times[0] + AFTER]
    wanted = [("a", at, next(time for time in times if time > at)) for at in due]
    assert streams.sink(spark, tmp_path) == wanted


def test_a_clock_that_is_set_back_fires_each_timer_once_when_it_has_caught_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
    with monkeypatch.context() as patch:  # the clock is an hour fast
        last = _available_now._Log._last
        patch.setattr(_available_now._Log, "_last", lambda *log: (*last(*log)[:3], now() + HOUR))
        timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
    streams.write_batches(tmp_path / "input", [[{"k": "b", "at": 0}]], SCHEMA)
    deadline = time.monotonic() + streams.PATIENCE
    while len(streams.sink(spark, tmp_path)) < 4:
        timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
        assert time.monotonic() < deadline
    times = [at for at, _ in micro_batches(tmp_path / "checkpoint").values()]
    assert times[2] - times[3] > HOUR // 2, "set back"
    due = [(key, batch, times[batch] + wait) for key, batch in (("a", 0), ("b", 3)) for wait in (0, AFTER)]
    wanted = [(key, at, next(later for later in times[batch:] if later > at)) for key, batch, at in due]
    assert streams.sink(spark, tmp_path) == wanted


def test_spark_sees_what_the_clock_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"k": key, "at": now() - 60_000} for key in "ab"]
    streams.write_batches(tmp_path / "input", [rows], SCHEMA)
    result = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input").withColumn("at", F.timestamp_millis("at")),
        "k",
        Rounded(),
        "second timestamp",
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps().with_wall_clock(after=1, lag=0),
        max_parallelism=2,
    )
    counts = result.withWatermark("second", "0 seconds").groupBy(F.window("second", "1 second")).count()
    writer = counts.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
    (found,) = spark.read.parquet(str(tmp_path / "sink")).select("count").collect()
    assert found == (2,)


class Rounded(KeyedProcessFunction):
    """Yields a second half a minute after each row, and one ten seconds later."""

    def process_element(self, value: Row, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 30_000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 40_000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield (datetime.fromtimestamp(timestamp // 1000, UTC),)


def test_a_query_without_a_clock_runs_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}], [{"k": "a", "at": 1_000}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Rounded(), "second timestamp", "at", watermark="0 seconds")
    query = timerheap.spark.run_available_now(result.writeStream.format("noop"))
    assert [progress.numInputRows for progress in query.recentProgress] == [1, 1]


def test_a_run_of_an_empty_source_does_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    df = spark.readStream.schema("k string, at bigint").parquet(str(tmp_path / "input"))
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True)
    writer = result.writeStream.format("noop")
    with pytest.raises(ValueError, match="writer must have the option checkpointLocation"):
        timerheap.spark.run_available_now(writer)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint [1]"))
    timerheap.spark.run_available_now(writer)
    assert not list(tmp_path.glob("checkpoint*/offsets/*"))


def test_invalid_arguments_raise(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match=r"writer must be a DataStreamWriter, such as df\.writeStream"):
        timerheap.spark.run_available_now(spark.range(1))  # type: ignore[arg-type]
    writer = spark.readStream.format("rate").load().writeStream
    with pytest.raises(ValueError, match="table must be None if there is a path, got 't' and '/p'"):
        timerheap.spark.run_available_now(writer, "/p", table="t")
