"""Compares TUMBLE, HOP and CUMULATE with Spark's own window() and with loops over the rows."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from collections.abc import Iterable
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import AggregateFunction, WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

MINUTE = 60_000
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(2 * MINUTE)
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("v", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.string()),
        ("day", pa.date32()),
    ]
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def make(seed: int, count: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        ms = number * 4_000 + draw.randrange(2 * MINUTE)
        rows.append(
            {
                "k": draw.choice(["a", "b", None]),
                "at": EPOCH + dt.timedelta(milliseconds=ms),
                "v": draw.choice([None, -3, 0, 7, 2**40]),
                "x": draw.choice([None, 0.25, -1.5, 8.0]),
                "d": draw.choice([None, "p", "q", "r"]),
                "day": dt.date(2013, 1, 1 + draw.randrange(28)),
            }
        )
    return rows


def aggregates() -> list[Column]:
    return [
        F.count("*").alias("rows"),
        F.count("v"),
        F.sum("v"),
        F.avg("v").alias("mean"),
        F.min("x"),
        F.max("day"),
        F.min("d"),
        F.sum("x"),
        F.stddev("x"),
        F.var_pop("v"),
    ]


def flat(result: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows with floats rounded to twelve digits."""
    rounded = [
        tuple(float(f"{value:.10g}") if isinstance(value, float) else value for value in row)
        for row in streams.rows(result)
    ]
    return sorted(rounded, key=repr)


@pytest.mark.parametrize(("slide", "size"), [(10, 10), (5, 20)])
def test_windows_of_a_batch_equal_those_of_spark(
    slide: int, size: int, spark: SparkSession, tmp_path: Path
) -> None:
    streams.write_batches(tmp_path, [make(1, 600)], SCHEMA)
    df = spark.read.parquet(str(tmp_path / "00000.parquet"))
    options: dict[str, Any] = {"watermark": STRATEGY, "max_parallelism": 3}
    if slide == size:
        windows = timerheap.spark.tumble(df, "at", size=size * MINUTE, **options)
    else:
        windows = timerheap.spark.hop(df, "at", slide=slide * MINUTE, size=size * MINUTE, **options)
    more = [F.count_distinct("d").alias("ds"), F.approx_count_distinct("d")]
    ours = windows.groupBy("k").agg(*aggregates(), *more)
    window = F.window("at", f"{size} minutes", f"{slide} minutes").alias("w")
    theirs = df.groupBy("k", window).agg(*aggregates(), *more)
    theirs = theirs.select("k", "w.start", "w.end", *theirs.columns[2:])
    assert flat(ours.drop("window_time")) == flat(theirs)
    assert [field.dataType for field in ours.drop("window_time").schema] == [
        field.dataType for field in theirs.schema
    ]


def test_aggregates_of_decimals_are_exact_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(2)
    wide = [Decimal(draw.randrange(-(10**32), 10**32)).scaleb(-10, Context(prec=38)) for _ in range(200)]
    rows: list[dict[str, Any]] = [
        {"at": EPOCH + dt.timedelta(seconds=n), "price": Decimal(n % 7) / 4 if n % 5 else None, "wide": value}
        for n, value in enumerate(wide)
    ]
    closing = {"at": EPOCH + dt.timedelta(days=1), "price": None, "wide": None}
    decimals = [pa.field("price", pa.decimal128(10, 2)), pa.field("wide", pa.decimal128(38, 10))]
    schema = pa.schema([SCHEMA.field("at"), *decimals])
    streams.write_batches(tmp_path / "in", [rows[:90], [*rows[90:], closing]], schema)
    stream = streams.read_stream(spark, tmp_path / "in")
    asked = [make(name) for name in ("price", "wide") for make in (F.sum, F.avg, F.max)]
    asked.append(F.stddev("price"))
    options: dict[str, Any] = {"watermark": STRATEGY, "max_parallelism": 3}
    windows = timerheap.spark.hop(stream, "at", slide=MINUTE, size=2 * MINUTE, **options)
    ours = windows.groupBy().agg(*asked).drop("window_time")
    streams.run(ours, tmp_path)
    found = spark.read.schema(ours.schema).parquet(str(tmp_path / "sink"))
    df = spark.read.parquet(str(tmp_path / "in")).where("wide is not null")
    theirs = df.groupBy(F.window("at", "2 minutes", "1 minute").alias("w")).agg(*asked)
    theirs = theirs.select("w.start", "w.end", *theirs.columns[1:])
    assert flat(found) == flat(theirs)
    assert [field.dataType for field in ours.schema] == [field.dataType for field in theirs.schema]


def millis(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(milliseconds=1)


def cumulated(rows: Iterable[dict[str, Any]], step: int, size: int, end: int) -> list[tuple[Any, ...]]:
    """Compute the count and the distinct values of each window that ends by `end`, over all keys."""
    found: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for row in rows:
        start = millis(row["at"]) // size * size
        for stop in range(start + step, start + size + step, step):
            if millis(row["at"]) < stop <= end:
                found[start, stop].append(row["d"])
    return sorted(
        (start, stop, len(values), {v for v in values if v is not None})
        for (start, stop), values in found.items()
    )


def test_cumulating_windows_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    rows = make(2, 500)
    parts = [rows[:170], rows[170:340], rows[340:]]
    streams.write_batches(tmp_path / "input", parts[:2], SCHEMA)

    def query() -> DataFrame:
        df = streams.read_stream(spark, tmp_path / "input")
        windows = timerheap.spark.cumulate(
            df,
            "at",
            step=2 * MINUTE,
            max_size=10 * MINUTE,
            watermark=STRATEGY,
            max_parallelism=2,
        )
        return windows.groupBy().agg(F.count("*").alias("n"), F.count_distinct("d").alias("ds"), F.max("d"))

    streams.run(query(), tmp_path)
    streams.write_batches(tmp_path / "input", parts[2:], SCHEMA)
    streams.run(query(), tmp_path)
    found = sorted((millis(row[0]), millis(row[1]), *row[3:]) for row in streams.sink(spark, tmp_path))
    end = millis(max(row["at"] for row in rows)) - 2 * MINUTE
    wanted = cumulated(rows, 2 * MINUTE, 10 * MINUTE, end)
    assert [row[:3] for row in found] == [row[:3] for row in wanted]
    assert [row[3:] for row in found] == [(len(row[3]), max(row[3])) for row in wanted]
    assert len(found) > 10
    state = timerheap.spark.read_checkpoint(spark, tmp_path / "checkpoint")
    assert state.windows().count()
    assert state.watermarks().first()["input"] == "df"


class Longest(AggregateFunction):
    def create_accumulator(self) -> Any:
        return ""

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + (value or "")

    def get_result(self, accumulator: Any) -> Any:
        return "".join(sorted(accumulator))

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a + acc_b


def test_late_rows_and_early_results_are_returned(spark: SparkSession, tmp_path: Path) -> None:
    rows = make(3, 200)
    late = [{**rows[0], "d": "late"}, {**rows[1], "d": "later"}]
    streams.write_batches(tmp_path / "input", [rows[:100], rows[100:] + late], SCHEMA)

    def query(df: DataFrame) -> DataFrame:
        windows = timerheap.spark.tumble(
            df, "at", size=5 * MINUTE, watermark=STRATEGY, late="emit", emit_every=MINUTE, max_parallelism=2
        )
        words = timerheap.spark.udaf(Longest(), F.col("d"), returns="string", accumulator="string", name="ds")
        return streams.with_late(windows.groupBy("k").agg(F.count("*").alias("n"), words))

    found = streams.stream(spark, query, tmp_path / "input", tmp_path)
    watermarks = [millis(max(r["at"] for r in part)) - 2 * MINUTE - 1 for part in (rows[:100], rows)]
    out = {row[-1]["d"]: row[-2] for row in found if row[-2] is not None}
    assert out == dict.fromkeys(("late", "later"), watermarks[0] + 1 - (5 * MINUTE - 1))
    wanted: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        stop = millis(row["at"]) // (5 * MINUTE) * (5 * MINUTE) + 5 * MINUTE
        wanted[row["k"], stop].append(row["d"])
    closed = [
        (k, stop, len(ds), "".join(sorted("".join(d or "" for d in ds)))) for (k, stop), ds in wanted.items()
    ]
    final, early = (
        sorted(((row[0], millis(row[2]), row[4], row[5]) for row in found if row[6] is is_early), key=repr)
        for is_early in (False, True)
    )
    assert final == sorted((one for one in closed if one[1] - 1 <= watermarks[1]), key=repr)
    last = [one for one in closed if one[1] - 1 > watermarks[1]]
    assert set(last) <= set(early)
    assert len(early) > len(last)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda df: timerheap.spark.tumble(df, "v", size=0, watermark=STRATEGY),
            "size must be more than 0 ms",
        ),
        (
            lambda df: timerheap.spark.hop(df, "at", slide=20, size=7, watermark=STRATEGY),
            r"slide must be at most size \(7 ms\), got 20 ms",
        ),
        (
            lambda df: timerheap.spark.cumulate(df, "k", step=7, max_size=21, watermark=STRATEGY),
            "time must be a timestamp or .*, got column 'k' of type string",
        ),
        (
            lambda df: timerheap.spark.tumble(df, "at", size=5, watermarks=STRATEGY),
            r"tumble\(\) got an unexpected keyword argument 'watermarks'",
        ),
        (
            lambda df: timerheap.spark.session(df, "at", 5, offset=5),
            r"session\(\) got an unexpected keyword argument 'offset'",
        ),
        (
            lambda df: timerheap.spark.tumble(df, "at", size=5),
            "watermark must be a WatermarkStrategy, got None",
        ),
        (lambda df: ours(df).agg(F.first("v")), r"agg: first\(v, false\) is not supported"),
        (lambda df: ours(df).agg(F.sum("v") + 1), r"agg: \+\(sum\(v\), 1\) is not supported"),
        (
            lambda df: ours(df).agg(F.count_distinct("v", "k")),
            r"aggregates of one column, got count\(v, k\)",
        ),
        (
            lambda df: ours(df).agg(F.max(F.struct("v"))),
            r"agg: max\(struct\(v\)\) must be of an atomic type, got struct<v:bigint>",
        ),
        (lambda df: ours(df).agg(), "aggregates must be one or more, got none"),
        (lambda df: ours(df).agg("v"), "agg must receive a Column .*, got 'v'"),
    ],
)
def test_an_invalid_argument_raises(call: Any, message: str, spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, v bigint").withColumn("at", F.timestamp_millis("v"))
    with pytest.raises((TypeError, ValueError), match=message):
        call(df)


def ours(df: DataFrame) -> Any:
    return timerheap.spark.tumble(df, "at", size=5, watermark=STRATEGY).groupBy("k")


def test_sessions_equal_those_of_a_loop(spark: SparkSession, tmp_path: Path) -> None:
    rows = make(4, 200)
    streams.write_batches(tmp_path / "input", [rows[:100], rows[100:]], SCHEMA)

    def query(df: DataFrame) -> DataFrame:
        cut = timerheap.spark.session(df, "at", 10_000, watermark=STRATEGY, max_parallelism=2)
        return cut.groupBy("k").agg(F.count("*").alias("n"), F.max("v"))

    found = streams.stream(spark, query, tmp_path / "input", tmp_path)
    end = millis(max(row["at"] for row in rows)) - 2 * MINUTE
    wanted = []
    for key in ("a", "b", None):
        times = sorted(millis(row["at"]) for row in rows if row["k"] == key)
        start = 0
        for at in range(1, len(times) + 1):
            if at == len(times) or times[at] - times[at - 1] > 10_000:
                if times[at - 1] + 10_000 <= end:
                    wanted.append((key, times[start], times[at - 1] + 10_000, at - start))
                start = at
    results = [(row[0], millis(row[1]), millis(row[2]), row[4]) for row in found]
    assert sorted(results, key=repr) == sorted(wanted, key=repr)
    assert all(row[2] - row[3] == dt.timedelta(milliseconds=1) for row in found)
    assert len(wanted) > 10


def test_explain_describes_the_plan(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, v bigint").withColumn("at", F.timestamp_millis("v"))
    hop = partial(timerheap.spark.hop, df, "at", slide=5, size=20, watermark=STRATEGY)
    hop().groupBy("k").explain(F.sum("v"))
    said = capsys.readouterr().out
    assert "Hopping windows, size 20 ms, slice 5 ms, offset 0 ms, time zone UTC" in said
    assert "local   rows are aggregated by key and slice before they are sent" in said
    assert "global  4 key groups of (k)" in said
    assert "a row is late when the last window of its slice has fired; it is dropped" in said
    sessions = timerheap.spark.session(df, "at", 5, watermark=STRATEGY)
    sessions.groupBy("k").explain(F.sum("v"))
    said = capsys.readouterr().out
    assert "Session windows, gap 5 ms, time zone UTC" in said
    assert "local   none: rows are sent as they are (the windows are sessions)" in said
    assert "a row is late when its session, all it touches, has fired" in said
    hop(late="emit", time_zone="Asia/Tokyo").groupBy().explain(F.sum("v"))
    said = capsys.readouterr().out
    assert 'local   none: rows are sent as they are (late is "emit")' in said
    assert "late_rows() returns it" in said
