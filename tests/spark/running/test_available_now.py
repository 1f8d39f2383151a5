"""Scheduled runs of queries with a clock read all rows, fire what is due, also without rows, and end."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import timerheap.spark
from timerheap import MIN_WATERMARK, KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import _available_now
from timerheap.spark._compat import execution_of
from timerheap.spark._worker.driver_mail import DRAINED

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
OUTPUT = "k string, at bigint, now bigint"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
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


def test_a_test_moves_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": now()}]], SCHEMA)
    result = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input"),
        "k",
        Silence(),
        OUTPUT,
        "at",
        watermark=WatermarkStrategy.for_monotonous_timestamps().with_wall_clock(after=HOUR, lag=0),
        max_parallelism=2,
    )
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
    assert streams.sink(spark, tmp_path) == []
    later = datetime.now(UTC) + timedelta(hours=2)
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"), now=later)
    ((key, _, at),) = streams.sink(spark, tmp_path)
    assert (key, at) == ("a", int(later.timestamp() * 1000))
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))  # the clock has been set back
    assert len(streams.sink(spark, tmp_path)) == 1
    with pytest.raises(ValueError, match="now must be at least the present time"):
        timerheap.spark.run_available_now(writer, str(tmp_path / "sink"), now=1)
    plain = spark.readStream.format("rate").load().writeStream.format("noop")
    with pytest.raises(ValueError, match="now must be left out for a query without a clock"):
        timerheap.spark.run_available_now(plain, now=later)


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


def test_other_queries_inherit_no_settings_of_a_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread starts a query while Spark starts that of the run."""
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
    start, others = DataStreamWriter.start, []
    found: list[tuple[str | None, str | None]] = []

    def start_another(started: DataStreamWriter, *arguments: Any, **options: Any) -> Any:
        found.append((spark.conf.get(NO_DATA), spark.conf.get(DRAINED, None)))
        with ThreadPoolExecutor(1) as other:
            others.append(other.submit(start, df.writeStream.format("noop")).result())
        query = start(started, *arguments, **options)
        conf = execution_of(query).sparkSessionForStream().conf()
        assert conf.get(NO_DATA) == "false"
        assert conf.contains(DRAINED)
        return query

    monkeypatch.setattr(DataStreamWriter, "start", start_another)
    try:
        timerheap.spark.run_available_now(writer)
        assert found == [("true", None)] * len(found)
        for other in others:
            conf = execution_of(other).sparkSessionForStream().conf()
            assert conf.get(NO_DATA) == "true"
            assert not conf.contains(DRAINED)
    finally:
        for other in others:
            other.stop()
    assert len(others) >= 2, "the run has started its query twice"


def test_a_second_run_names_the_first_one_which_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    begun, may_end = threading.Event(), threading.Event()

    def slow(rows: DataFrame, batch: int) -> None:
        rows.collect()
        begun.set()
        assert may_end.wait(streams.PATIENCE)

    checkpoint = tmp_path / "prüfung [1] %41"
    option = "checkpointLocation", str(checkpoint)
    writer, second = (result.writeStream.option(*option).foreachBatch(slow) for _ in range(2))
    with ThreadPoolExecutor(1, "nightly") as thread:
        first = thread.submit(timerheap.spark.run_available_now, writer)
        assert begun.wait(streams.PATIENCE)
        wanted = rf"that of a query that does not run, got .*{re.escape(checkpoint.name)}', which another run"
        for run in (timerheap.spark.run_available_now, timerheap.spark.start):
            with pytest.raises(RuntimeError, match=rf"{wanted} has, one of thread 'nightly_0' since"):
                run(second)
        may_end.set()
        assert not first.result(streams.PATIENCE).isActive
    assert [empty for _, empty in micro_batches(checkpoint).values()] == [False, True]
    query = timerheap.spark.start(second)
    try:
        with pytest.raises(RuntimeError, match=rf"{wanted} has, run {query.runId}; wait until"):
            timerheap.spark.run_available_now(writer)
        assert query.isActive
    finally:
        query.stop()


def test_a_micro_batch_that_another_driver_has_planned_is_kept_and_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
    write, other = _available_now._Log._write, tmp_path / "checkpoint" / "offsets" / "1"

    def write_second(log: Any, file: str, text: str) -> Any:
        other.write_text("of another driver")
        return write(log, file, text)

    monkeypatch.setattr(_available_now._Log, "_write", write_second)
    with pytest.raises(RuntimeError, match="another run has, one that has planned micro-batch 1 meanwhile"):
        timerheap.spark.run_available_now(writer)
    assert other.read_text() == "of another driver"
    assert not list(other.parent.glob("*.tmp"))


def test_of_many_plans_at_once_one_is_written_whole(tmp_path: Path) -> None:
    texts = [str(number) * 100_000 for number in range(10)]
    for round_ in range(10):
        path = tmp_path / str(round_)
        with ThreadPoolExecutor(len(texts)) as pool:
            wrote = list(pool.map(lambda text, path=path: _available_now._publish(str(path), text), texts))
        assert sum(wrote) == 1
        assert path.read_text() == texts[wrote.index(True)]
    assert len(list(tmp_path.iterdir())) == 10, "no drafts are left"


def test_none_is_planned_behind_a_micro_batch_that_has_not_finished(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As after a stop of the query in the middle of a run."""
    streams.write_batches(tmp_path / "input", [[{"k": "a", "at": 0}]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), OUTPUT, processing_time=True, max_parallelism=2)
    checkpoint = tmp_path / "checkpoint"
    writer = result.writeStream.option("checkpointLocation", str(checkpoint)).format("noop")
    timerheap.spark.run_available_now(writer)
    offsets = sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*"))
    (checkpoint / "commits" / offsets[-1]).unlink()
    log = _available_now._Log(spark, str(checkpoint))
    assert log.pending() == {"spark.timerheap.drained": offsets[-1]}
    assert log.plan(drained=True) is None
    assert sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*")) == offsets


def test_invalid_arguments_raise(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match=r"writer must be a DataStreamWriter, such as df\.writeStream"):
        timerheap.spark.run_available_now(spark.range(1))  # type: ignore[arg-type]
    writer = spark.readStream.format("rate").load().writeStream
    with pytest.raises(ValueError, match="table must be None if there is a path, got 't' and '/p'"):
        timerheap.spark.run_available_now(writer, "/p", table="t")
