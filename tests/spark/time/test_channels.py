"""Tests watermarks by channel, idleness, rows too far ahead and late rows, with `process` on Spark."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import carriers
import pyarrow as pa
import pytest
import streams
from flights import read_flights
from pyspark.sql import Row, SparkSession

import timerheap.spark
from timerheap import MIN_WATERMARK, KeyedProcessFunction, WatermarkStrategy
from timerheap.spark._worker import driver_mail
from timerheap.watermarks import WatermarkGenerator

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

DELAY = 10
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)
SCHEMA = pa.schema([("k", pa.string()), ("channel", pa.int32()), ("at", pa.int64())])


class Echo(KeyedProcessFunction):
    """Yields each row with the current watermark, and one timer per row at the row's time."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value.at)
        yield "row", value.k, value.at, ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


OUTPUT = "kind string, k string, at bigint, watermark bigint"


def rows(*triples: tuple[str, int | None, int]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, triple, strict=True)) for triple in triples]


def echoed(df: Any, channel: str | None = None, null: str = "error", **options: Any) -> Any:
    settings: dict[str, Any] = {"watermark": STRATEGY, "max_parallelism": 3, **options}
    time = timerheap.spark.EventTime("at", channel=channel, null=null)
    return timerheap.spark.process(df, "k", Echo(), OUTPUT, time, **settings)


def batches() -> Iterator[list[dict[str, Any]]]:
    """Return rows of two ordered channels; channel 2 is 1,000 ms behind channel 1."""
    for start in range(1_000, 3_000, 500):
        yield rows(
            *(("ab"[t % 2], 1, t) for t in range(start, start + 500, 7)),
            *(("ab"[t % 2], 2, t) for t in range(start - 1_000, start - 500, 7)),
        )


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_a_slow_channel_loses_no_rows(order: str, spark: SparkSession, tmp_path: Path) -> None:
    parts = list(batches())
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    found = streams.stream(
        spark,
        lambda df: streams.with_late(echoed(df, channel="channel", late="emit", order=order)),
        tmp_path / "input",
        tmp_path,
    )
    assert all(row[-1] is row[-2] is None for row in found)
    last = max(row["at"] for part in parts for row in part if row["channel"] == 2) - DELAY - 1
    came = sorted((row["k"], row["at"]) for part in parts for row in part)
    passed = [(k, at) for k, at in came if order == "arrival" or at <= last]
    assert sorted((k, at) for kind, k, at, *_ in found if kind == "row") == passed
    due = sorted({(k, at) for k, at in came if at <= last})
    assert sorted((k, at) for kind, k, at, *_ in found if kind == "timer") == due
    marks = timerheap.spark.read_checkpoint(spark, tmp_path / "checkpoint").watermarks()
    held = marks.where("holds").selectExpr("channel", "behind_ms", "unix_millis(query_watermark)").collect()
    assert [tuple(row) for row in held] == [("2", 1_000, last)]


def test_many_channels_are_explained(spark: SparkSession, tmp_path: Path) -> None:
    parts = [rows(*(("a", channel, 1_000 + channel) for channel in range(100)))]  # a clock in its own chunk
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    streams.stream(spark, lambda df: echoed(df, channel="channel"), tmp_path / "input", tmp_path)
    marks = timerheap.spark.read_checkpoint(spark, tmp_path / "checkpoint").watermarks().collect()
    assert sorted(int(mark.channel) for mark in marks) == list(range(100))
    assert [mark.channel for mark in marks if mark.holds] == ["0"]


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_late_rows_are_returned_and_counted(order: str, spark: SparkSession, tmp_path: Path) -> None:
    parts = list(batches())
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    found = streams.stream(
        spark,
        lambda df: streams.with_late(echoed(df, late="emit", order=order)),
        tmp_path / "input",
        tmp_path,
    )
    watermark, late, passed = -(2**63), [], []
    for part in parts:
        for row in part:
            at = row["at"]
            late += [(watermark + 1 - at, row)] if at <= watermark else []
            passed += [at] if at > watermark else []
        watermark = max(watermark, max(row["at"] for row in part) - DELAY - 1)
    assert late
    out = [(row[-2], row[-1]) for row in found if row[-2] is not None]
    assert sorted(out, key=repr) == sorted(late, key=repr)
    assert all(row[:-2] == (None,) * 4 for row in found if row[-2] is not None)
    through = sorted(at for kind, _, at, *_ in found if kind == "row")
    assert through == sorted(at for at in passed if order == "arrival" or at <= watermark)


def test_dropped_rows_are_logged_once_a_minute(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_mail, "_PAUSE", float("inf"))
    streams.write_batches(tmp_path / "input", batches(), SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    progress = streams.run(echoed(df, max_parallelism=8), tmp_path)
    dropped = [batch.observedMetrics["timerheap"].metrics["dropped_rows"] for batch in progress]
    (logged,) = [message for message in caplog.messages if "dropped" in message]
    assert len([count for count in dropped if count]) > 1
    what = r"query \S+: dropped (\d+) rows so far that came behind the watermark of column 'at', which is at"
    found = re.match(what, logged)
    assert found is not None, logged
    assert 0 < int(found[1]) <= next(filter(None, dropped)), "those of the first task"
    assert "channel=" in logged


def test_changing_the_channel_keeps_the_watermark(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The channel is set, changed and removed on one checkpoint; no timer is lost."""
    for number, channel in enumerate([None, "channel", "k", None]):
        start = 1_000 * (1 + number)
        streams.write_batches(tmp_path / "input", [rows(("a", 1, start), ("b", 2, start + 500))], SCHEMA)
        df = streams.read_stream(spark, tmp_path / "input")
        streams.run(echoed(df, channel=channel, late="emit"), tmp_path)
    fired = [row[1:3] for row in streams.sink(spark, tmp_path) if row[0] == "timer"]
    assert sorted(at for _, at in fired) == [1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000]
    warned = [record.getMessage() for record in caplog.records if "the checkpoint's" in record.getMessage()]
    made = "over all rows", "by column 'channel'", "by column 'k'", "over all rows"
    assert warned == [
        f"channel: the checkpoint's watermark was made {was}, and the query's is made {now}; it continues "
        "without the old channels"
        for was, now in pairwise(made)
    ], "each once, on the driver"


def test_the_example_of_carriers_loses_no_rows_by_channel(spark: SparkSession, tmp_path: Path) -> None:
    reports, batches = carriers.reports(read_flights()).query("origin == 'LGA'"), 10
    carriers.write_reports(reports, tmp_path / "reports", batches)
    with streams.configured(spark, shuffle_partitions=1):  # quicker
        lost = carriers.lost_rows(spark, tmp_path)

    quickest, expected = reports["departed"].min(), 0
    for number in range(batches):
        rows = slice(len(reports) * number // batches, len(reports) * (number + 1) // batches)
        part = reports["departed"].iloc[rows]
        expected += int((part < quickest).sum())
        quickest = max(quickest, part.max())
    assert lost["one watermark over all"] == expected > 1_000
    assert lost["Spark's withWatermark"] > 100
    assert lost['channel="carrier"'] == 0


@pytest.mark.promises("PyFlink", "added", "WatermarkStrategy.with_max_ahead")
def test_rows_too_far_ahead_are_kept_and_do_not_advance_the_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    ahead = 253_402_300_799_000  # the last second of the year 9999
    parts = [rows(("a", 1, 1_000), ("b", 2, ahead)), rows(("a", 1, 900), ("a", 1, 2_000))]
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    guarded = STRATEGY.with_max_ahead(60_000)
    df = streams.read_stream(spark, tmp_path / "input")
    df = streams.with_late(echoed(df, order="arrival", watermark=guarded, late="emit"))
    progress = streams.run(df, tmp_path)
    counted = [batch.observedMetrics["timerheap"].metrics["ahead_rows"] for batch in progress]
    assert counted == [1, 0]
    found = streams.sink(spark, tmp_path)
    assert [row[:3] for row in found if row[0] is not None] == [
        ("row", "a", 1_000),
        ("row", "a", 2_000),
        ("row", "b", ahead),
        ("timer", "a", 1_000),
    ]
    assert [row[-2] for row in found if row[0] is None] == [1_000 - DELAY - 900]
    batch = spark.read.parquet(str(tmp_path / "input"))
    one, two = (echoed(batch.where(f"k = '{key}'"), watermark=guarded) for key in "ab")
    assert one.unionAll(two).where("kind = 'row'").count() == 4, "two operators have one limit each"


def test_a_row_of_the_year_9999_drops_no_other_and_is_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = 253_402_300_799_000
    parts = [rows(("a", 1, 1_000)), rows(("b", 2, ahead), ("a", 1, 1_500)), rows(("a", 1, 2_000))]
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    streams.run(echoed(df, channel="channel"), tmp_path)
    assert [row[:3] for row in streams.sink(spark, tmp_path) if row[0] == "row"] == [
        ("row", "a", 1_000),
        ("row", "a", 1_500),
    ]
    (logged,) = [message for message in caplog.messages if "ahead of the clock" in message]
    assert "a row of channel '2' at 9999-12-31T23:59:59.000Z, which does not advance the watermark" in logged
    assert "with_max_ahead()" in logged


def test_rows_without_an_event_time_are_dropped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    none = [{"k": "b", "channel": 2, "at": None}]
    parts = [[*none, *rows(("a", 1, 1_000)), *none], none, rows(("a", 1, 2_000), ("b", 1, 3_000))]
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    progress = streams.run(echoed(df, channel="channel", null="drop"), tmp_path)
    counted = [batch.observedMetrics["timerheap"].metrics["null_time_rows"] for batch in progress]
    assert counted == [2, 1, 0]
    found = [row[:3] for row in streams.sink(spark, tmp_path) if row[0] == "row"]
    assert found == [("row", "a", 1_000), ("row", "a", 2_000)]
    batch = spark.read.parquet(str(tmp_path / "input"))
    assert echoed(batch, null="drop").where("kind = 'row'").count() == 3
    tumbled = timerheap.spark.tumble(
        batch, timerheap.spark.EventTime("at", null="drop"), 1_000, watermark=STRATEGY
    )
    assert tumbled.groupBy().count().count() == 3


class AfterEveryThirdRow(WatermarkGenerator):
    """Emits the largest time after each third row."""

    def __init__(self) -> None:
        self.rows, self.largest = 0, MIN_WATERMARK

    def on_event(self, event: Any, timestamp: int, output: Any) -> None:
        self.rows += 1
        self.largest = max(self.largest, timestamp)

    def on_periodic_emit(self, output: Any) -> None:
        if self.rows == 3:
            self.rows = 0
            output.emit_watermark(self.largest)


def test_a_generator_keeps_its_state_in_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    strategy = WatermarkStrategy.for_generator(AfterEveryThirdRow)
    for start in (1_000, 3_000):  # the second run begins with the second row of three
        parts = [rows(("a", 1, at)) for at in (start, start + 1_000)]
        streams.write_batches(tmp_path / "input", parts, SCHEMA)
        streams.run(echoed(streams.read_stream(spark, tmp_path / "input"), watermark=strategy), tmp_path)
    assert [row[:3] for row in streams.sink(spark, tmp_path) if row[0] == "timer"] == [
        ("timer", "a", 1_000),
        ("timer", "a", 2_000),
        ("timer", "a", 3_000),
    ]


@pytest.mark.promises("PyFlink", "supported", "WatermarkStrategy.with_idleness")
def test_an_idle_channel_does_not_hold_back_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """No row follows the first micro-batch; without the timeout the watermark would stay with channel 2."""
    streams.write_batches(tmp_path / "input", [rows(("a", 1, 5_000), ("b", 2, 1_000))], SCHEMA)
    df = echoed(
        streams.read_stream(spark, tmp_path / "input"),
        channel="channel",
        order="arrival",
        watermark=WatermarkStrategy.for_monotonous_timestamps().with_idleness(3_000),
    )
    streams.run_until(df, lambda found: len(found) >= 2, tmp_path)
    streams.write_batches(tmp_path / "input", [rows(("a", 1, 6_000))], SCHEMA)
    found = streams.run_until(df, lambda found: len(found) >= 5, tmp_path)
    a, b = (row for row in found if row[0] == "timer")
    assert a == ("timer", "a", 5_000, 5_999)
    assert b[:3] == ("timer", "b", 1_000)
    assert b[3] in (4_999, 5_999)  # channel 2 may become idle before or after the first query stops


class Locked(AfterEveryThirdRow):
    """Has an attribute that cannot be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


SHARED = AfterEveryThirdRow()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel": "nope"}, "channel must name one column, got 'nope'"),
        ({"channel": 3}, "channel must be a column name, got 3"),
        ({"late": True}, 'late must be "drop" or "emit", got True'),
        ({"watermark": 5.5}, "watermark must be a WatermarkStrategy, got 5.5"),
        ({"watermark": True}, "watermark must be a WatermarkStrategy, got True"),
        ({"watermark": -1}, "watermark must be 0 or more, got -1"),
        (
            {"watermark": WatermarkStrategy.for_generator(lambda: SHARED)},
            "must make a new generator",
        ),
        (
            {"watermark": WatermarkStrategy.for_generator(Locked)},
            "Locked.lock must be a number, str",
        ),
        ({"watermark": STRATEGY.with_timestamp_assigner(lambda row, _: row.at)}, "with_timestamp_assigner"),
    ],
)
def test_an_invalid_argument_raises(options: dict[str, Any], message: str, spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, 1)], "k string, channel int, at bigint")
    with pytest.raises((TypeError, ValueError), match=message):
        echoed(df, **options)


def test_reserved_column_names_raise(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, at bigint")
    with pytest.raises(ValueError, match="output_schema must not have a column 'side_output'"):
        timerheap.spark.process(df, "k", Echo(), "side_output int", "at", watermark=STRATEGY, late="emit")
    with pytest.raises(ValueError, match="df must not have a column 'late_by' with late=\"emit\""):
        echoed(df.withColumn("late_by", df.at), late="emit")
    with pytest.raises(ValueError, match="event_time must name the event-time column if late is given"):
        timerheap.spark.process(df, "k", Echo(), OUTPUT, late="emit")


def test_a_null_channel_raises(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", None, 1)], "k string, channel int, at bigint")
    with pytest.raises(Exception, match="channel: a row has null in column 'channel'"):
        echoed(df, channel="channel").collect()
