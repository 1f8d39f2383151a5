"""Processing-time timers on Spark fire once, not too early, and survive a restart."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import timerheap.spark
from timerheap import MAX_WATERMARK, KeyedProcessFunction, TimeDomain, WatermarkStrategy

pytestmark = pytest.mark.spark


class Alarm(KeyedProcessFunction):
    """Each row sets a timer in `wait` ms and some that never fire; an even timer sets one more."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        timers.register_processing_time_timer(now + value.wait)
        timers.register_processing_time_timer(MAX_WATERMARK)
        timers.register_processing_time_timer(now + 1)
        timers.delete_processing_time_timer(now + 1)
        timers.register_event_time_timer(now)
        yield "row", value.k, now, now

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.time_domain() == TimeDomain.PROCESSING_TIME
        now = ctx.timer_service().current_processing_time()
        assert now > timestamp
        if timestamp % 2 == 0:
            ctx.timer_service().register_processing_time_timer(
                timestamp + 1
            )  # already passed, or about to pass
        yield "timer", ctx.get_current_key(), timestamp, now


def test_timers_fire_once_and_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    waits = {"none": 0, "short": 400, "long": 6_000}
    later = {"later": 0}  # after a clean stop Spark runs no micro-batch before the next row
    schema = pa.schema([("k", pa.string()), ("wait", pa.int64())])

    def write(folder: Path, waits: dict[str, int]) -> None:
        streams.write_batches(folder, [[{"k": k, "wait": wait} for k, wait in waits.items()]], schema)

    write(tmp_path / "input", waits)
    output = "kind string, k string, at bigint, now bigint"
    df = streams.read_stream(spark, tmp_path / "input")
    result = timerheap.spark.process(df, "k", Alarm(), output, processing_time=True, max_parallelism=2)

    def expected(found: list[Any]) -> list[Any]:
        due = [(k, at + (waits | later)[k]) for kind, k, at, _ in found if kind == "row"]
        return sorted([*due, *((k, at + 1) for k, at in due if at % 2 == 0)])

    def fired(found: list[Any]) -> list[Any]:
        return sorted((k, at) for kind, k, at, _ in found if kind == "timer")

    def short_is_over(found: list[Any]) -> bool:
        return "short" in [k for k, _ in fired(found)]

    def all_is_over(found: list[Any]) -> bool:
        return "later" in [k for _, k, *_ in found] and len(fired(found)) >= len(expected(found))

    streams.run_until(result, short_is_over, tmp_path)
    write(tmp_path / "input", later)
    found = streams.run_until(result, all_is_over, tmp_path)
    assert fired(found) == expected(found)
    assert len([kind for kind, *_ in found if kind == "row"]) == len(waits | later)


class Silence(KeyedProcessFunction):
    """Reports each key half a second of event time after its row, with the time of the micro-batch."""

    def process_element(self, value: Row, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + 500)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


def test_the_last_timers_of_a_source_that_stops_fire_by_the_wall_clock(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    first = time.time_ns() // 1_000_000
    rows = [{"k": k, "at": first + n} for n, k in enumerate("abc")]
    streams.write_batches(tmp_path / "input", [rows], schema)
    result = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input"),
        "k",
        Silence(),
        "k string, at bigint, now bigint",
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps().with_wall_clock(after=3_000, lag=200),
        max_parallelism=4,
    )
    query = (
        result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="1 second")
        .start(str(tmp_path / "sink"), format="parquet")
    )
    deadline = time.monotonic() + streams.PATIENCE
    try:
        while not (late := _since_quiet(query, tmp_path / "checkpoint", first)):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        query.stop()
    found = streams.sink(spark, tmp_path)
    assert [(k, at) for k, at, _ in found] == [(row["k"], row["at"] + 500) for row in rows]
    assert {now for *_, now in found} == {late[0]}, "the first that is quiet for long enough"


def _since_quiet(query: StreamingQuery, checkpoint: Path, first: int) -> list[int]:
    """Return the times of the micro-batches after 3 seconds without a row, when the timers are due."""
    rows = {progress.batchId: progress.numInputRows for progress in query.recentProgress}
    times = {}
    for batch in rows:
        with suppress(FileNotFoundError):  # a report that nothing is to be done has the next number
            _, metadata, *_ = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
            times[batch] = json.loads(metadata)["batchTimestampMs"]
    arrivals = [at for batch, at in times.items() if rows[batch]]
    return sorted(at for at in times.values() if arrivals and at >= max(arrivals[0] + 3_000, first + 702))


def test_a_micro_batch_that_is_repeated_follows_the_clock_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A sink that knows the numbers of micro-batches has each result once."""
    rows, schema = [{"k": k, "at": 1_000} for k in "abc"], pa.schema([("k", pa.string()), ("at", pa.int64())])
    streams.write_batches(tmp_path / "input", [rows], schema)
    result = timerheap.spark.process(
        streams.read_stream(spark, tmp_path / "input"),
        "k",
        Silence(),
        "k string, at bigint, now bigint",
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps().with_wall_clock(after=2_000, lag=200),
        max_parallelism=2,
    )
    written: list[tuple[int, list[tuple[Any, ...]]]] = []

    def write(batch: DataFrame, number: int) -> None:
        written.append((number, streams.rows(batch)))
        if written[-1][1] and sum(bool(found) for _, found in written) < 3:
            raise RuntimeError("after the write")

    writer = result.writeStream.foreachBatch(write).trigger(processingTime="500 milliseconds")
    writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="after the write"):
            timerheap.spark.start(writer).awaitTermination(streams.PATIENCE)
    query = timerheap.spark.start(writer)
    try:
        deadline = time.monotonic() + streams.PATIENCE
        while len(query.recentProgress) < 3 or written[-1][1]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()
    results = [(number, found) for number, found in written if found]
    assert len(results) == 3
    assert results == results[:1] * 3
    assert [k for k, *_ in results[0][1]] == ["a", "b", "c"]


class Echo(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield (value.k,)


@pytest.fixture
def heard() -> Iterator[SimpleQueue[logging.LogRecord]]:
    """Return the records of timerheap's log on the driver."""
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(records)
    logging.getLogger("timerheap").addHandler(handler)
    yield records
    logging.getLogger("timerheap").removeHandler(handler)


@pytest.mark.parametrize("clock", ["processing_time", "with_idleness"])
def test_available_now_warns_with_a_clock(
    clock: str, spark: SparkSession, tmp_path: Path, heard: SimpleQueue[logging.LogRecord]
) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    streams.write_batches(tmp_path / "input", [[{"k": k, "at": 5}] for k in "ab"], schema)
    df = streams.read_stream(spark, tmp_path / "input")
    idle = WatermarkStrategy.for_monotonous_timestamps().with_idleness(1_000)
    options: dict[str, Any] = {"processing_time": True}
    if clock == "with_idleness":
        options = {"event_time": "at", "watermark": idle, "order": "arrival"}
    result = timerheap.spark.process(df, "k", Echo(), "k string", max_parallelism=1, **options)

    def start(name: str) -> StreamingQuery:
        writer = result.writeStream.option("checkpointLocation", str(tmp_path / name / "checkpoint"))
        return writer.trigger(availableNow=True).start(str(tmp_path / name / "sink"), format="parquet")

    with streams.configured(spark, streaming_noDataMicroBatches_enabled=False):
        ending = start("ending")
    assert ending.awaitTermination(streams.PATIENCE)
    assert streams.sink(spark, tmp_path / "ending") == [("a",), ("b",)]
    must = "must be started with timerheap.spark.run_available_now(writer), got trigger(availableNow=True)"
    assert heard.get(timeout=streams.PATIENCE).getMessage().startswith(f"query {ending.id} {must}")

    endless = start("endless")
    try:
        said = heard.get(timeout=streams.PATIENCE).getMessage()
    finally:
        endless.stop()
    assert said.startswith(f"query {endless.id} {must}")
    assert heard.empty(), "once"
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "right")).format("noop")
    timerheap.spark.run_available_now(writer)
    assert heard.empty()
