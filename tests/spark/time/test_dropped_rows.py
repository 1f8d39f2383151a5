"""Tests what the driver's log says of late rows that are dropped: an example, their channels, what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime
from timerheap.spark._worker import driver_mail

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("store", pa.int32()), ("at", pa.int64())])
NOW = 1_700_000_000_000  # 2023-11-14T22:13:20
STRATEGY = WatermarkStrategy.for_monotonous_timestamps()


class PassOn(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value.k, value.at


@pytest.fixture
def logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Run a query on micro-batches, and return what the log says of dropped rows."""
    monkeypatch.setattr(driver_mail, "_PAUSE", -1.0)  # each time

    def run(query: Callable[[Any], Any], *batches: list[tuple[str, int, int]]) -> list[str]:
        rows = [[dict(zip(SCHEMA.names, row, strict=True)) for row in batch] for batch in batches]
        streams.write_batches(tmp_path / "input", rows, SCHEMA)
        df = query(streams.read_stream(spark, tmp_path / "input"))
        progress = streams.run(df, tmp_path)
        metrics = [batch.observedMetrics["timerheap"].metrics for batch in progress]
        messages = [message for message in caplog.messages if "dropped" in message]
        dropped = sum(each.get("dropped_rows") or 0 for each in metrics)
        assert f"dropped {dropped} rows so far" in messages[-1]
        return messages

    return run


def passed_on(df: Any, channel: Any = None, **options: Any) -> Any:
    return timerheap.spark.process(
        df,
        "k",
        PassOn(),
        "k string, at bigint",
        EventTime("at", channel=channel),
        watermark=STRATEGY,
        max_parallelism=4,
        **options,
    )


@pytest.mark.parametrize("channel", [None, "store", "computed"])
@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_seconds_for_milliseconds_are_named(logged: Any, channel: Any, order: str) -> None:
    seconds, by = NOW // 1000, channel
    if channel == "computed":
        by = F.expr("concat('store ', store)")
    messages = logged(
        lambda df: passed_on(df, by, order=order, late="drop"),
        [("a", 1, NOW), ("a", 2, NOW)],
        [("b\n", 3, seconds + 5), ("b", 3, seconds + 5), ("c", 1, NOW - 5)],
    )
    text = messages[-1]
    assert " at 1970-01-20T16:13:20.005Z, late by 19656 days" in text
    assert r"k='b\n'" in text or "k='b'" in text
    assert "are these seconds?" in text
    assert "more delay" not in text
    if channel is None:
        assert "by channel" not in text
    else:
        name = "3" if channel == "store" else "store 3"
        assert text.endswith(f"; by channel: {name!r} 2, {name.replace('3', '1')!r} 1")


def test_the_latest_row_is_the_example(logged: Any) -> None:
    messages = logged(
        passed_on,
        [("a", 1, NOW)],
        [("a", 1, NOW - 3_000), ("a", 1, NOW - 3_725_001), ("a", 1, NOW - 2)],
    )
    assert (
        "such as k='a', at 2023-11-14T21:11:14.999Z, late by 1:02:05; give the watermark more" in messages[-1]
    )
    assert "EventTime(channel=...)" in messages[-1]


def test_only_more_delay_is_advised_with_channels(logged: Any) -> None:
    messages = logged(lambda df: passed_on(df, "store"), [("a", 1, NOW), ("b", 2, NOW)], [("b", 2, NOW - 20)])
    assert "late by 20 ms; give the watermark more delay, or have" in messages[-1]
    assert "EventTime(channel=...)" not in messages[-1]


def windows(df: Any) -> Any:
    time = EventTime("at", channel="store")
    cut = timerheap.spark.tumble(df, time, "1 minute", watermark=STRATEGY, max_parallelism=4)
    return cut.groupBy("k").agg(F.count("*").alias("n"))


def sessions(df: Any) -> Any:
    time = EventTime("at", channel="store")
    cut = timerheap.spark.session(df, time, "1 minute", watermark=STRATEGY, max_parallelism=4)
    return cut.groupBy("k").agg(F.count("*").alias("n"))


def over(df: Any) -> Any:
    text = "SELECT k, LAG(at) OVER (PARTITION BY k ORDER BY ts) AS before FROM t"
    df.withColumn("ts", F.timestamp_millis("at")).createOrReplaceTempView("t")
    return timerheap.spark.sql(df.sparkSession, text, STRATEGY, channel="store", max_parallelism=4)


def joined(df: Any) -> Any:
    return timerheap.spark.join_asof(
        df, df.select("k", "at", F.lit(1).alias("v")), "k", EventTime("at"), watermark=STRATEGY
    )


@pytest.mark.parametrize(
    ("query", "example"),
    [
        (windows, "k='a', before 1970-01-20T16:14:00.000Z, late by "),
        (sessions, "k='a', at 1970-01-20T16:13:20.000Z, late by "),
        (over, "k='a', at 1970-01-20T16:13:20.000Z, late by "),
        (joined, "k='a', at 1970-01-20T16:13:20.000Z, late by "),
    ],
)
def test_each_operator_names_a_row(logged: Any, query: Any, example: str) -> None:
    late = [("a", 1, NOW // 1000)]
    messages = logged(
        query, [("a", 1, NOW), ("b", 2, NOW)], [("a", 1, NOW + 90_000), ("b", 2, NOW + 90_000)], late
    )
    assert example in messages[-1]
    assert "are these seconds?" in messages[-1]
    if query in (sessions, over):
        assert messages[-1].endswith("; by channel: '1' 1")


def test_where_all_times_are_of_1970_both_reasons_are_named(logged: Any) -> None:
    messages = logged(passed_on, [("a", 1, 9_000)], [("a", 1, 2_000)])
    assert "late by 0:00:07; are these seconds?" in messages[-1]
    assert "if not, give the watermark more delay" in messages[-1]
