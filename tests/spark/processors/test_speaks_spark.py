"""Arguments in Spark's own words: intervals as text, columns, grouped DataFrames, withWatermark()."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import AggregateFunction, BatchProcessFunction, KeyedProcessFunction, Types, WatermarkStrategy
from timerheap._arguments import interval_micros
from timerheap.functions import KeyedCoProcessFunction
from timerheap.windows import TumblingEventTimeWindows

pytestmark = pytest.mark.spark

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

INTERVALS = [
    "10 minutes", "1 minute", "5 seconds", "5 second", "500 milliseconds", "1 millisecond", "7 microseconds",
    "1 hour 30 minutes", "2 weeks 3 days 4 hours 5 minutes 6 seconds 7 milliseconds 8 microseconds",
    "interval 5 seconds", "INTERVAL 1 DAY", "Interval\t2 Hours  3\tMINUTES", "  10   minutes \n", "0 seconds",
    "-5 minutes", "- 5 minutes", "+5 minutes", "1 hour -30 minutes", "-1 hour -1 second",
    "1.5 seconds", "1. seconds", ".5 seconds", "-.25 second", "-1.000001 seconds", "0.123456789 seconds",
    "00010 minutes", "5 minutes 5 minutes", "1 week", "36500 days", "interval '5' seconds",
    "interval '1' hour '30' minutes", "INTERVAL '10 minutes'", "interval '-1.5' seconds",
    "interval -5 minutes",
]  # fmt: skip
WRONG = [
    "", " ", "interval", "10", "minutes", "10minutes", "ten minutes", "10 parsecs", "10 minutess", "10 min",
    "1.5 minutes", "0.1234567891 seconds", ". seconds", "5 seconds,", "5 seconds 5", "1 hour30 minutes",
    "--5 minutes", "5 - minutes", "interval5 minutes", "1e3 seconds", "'5' minutes", "PT10M", "00:10:00",
]  # fmt: skip


def test_an_interval_is_parsed_as_by_spark(spark: SparkSession) -> None:
    sparks = spark._jvm.org.apache.spark.sql.catalyst.util.IntervalUtils  # type: ignore[union-attr]
    for text in INTERVALS:
        interval = sparks.fromIntervalString(text)
        seconds = interval.extractAsPeriod().getDays() * 86_400
        assert (
            interval_micros("size", text)
            == seconds * 1_000_000 + interval.extractAsDuration().toNanos() // 1_000
        )
    for text in WRONG:
        with pytest.raises(PySparkException):
            sparks.fromIntervalString(text)
        with pytest.raises(ValueError, match="size must "):
            interval_micros("size", text)


class Seen(KeyedProcessFunction):
    """Yields the key, the event time and the columns of each row."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield str(ctx.get_current_key()), ctx.timestamp(), ",".join(value.__fields__)


class SeenColumns(BatchProcessFunction):
    """Yields the same, as columns."""

    def process_batch(self, rows: pa.RecordBatch, ctx: Any) -> Any:
        (keys,) = ctx.keys(ctx.ids).columns
        names = [",".join(rows.schema.names)] * rows.num_rows
        yield pa.RecordBatch.from_arrays(
            [keys.cast(pa.string()), pa.array(ctx.timestamps), pa.array(names)], ["key", "at", "names"]
        )

    def on_timers(self, timers: Any, ctx: Any) -> Any:
        return ()


class SeenTwo(KeyedCoProcessFunction):
    """Yields the same for the rows of two inputs."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield str(ctx.get_current_key()), ctx.timestamp(), ",".join(value.__fields__)

    process_element2 = process_element1


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        assert value.__fields__ == ["k", "s", "ms", "at"]
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


SEEN = "key string, at bigint, names string"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(0)


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    rows = [("a", ("x",), 1_000), ("A", ("x",), 2_000), ("b", ("x",), 3_000)]
    return spark.createDataFrame(rows, "k string, s struct<k: string>, ms bigint").withColumn(
        "at", F.timestamp_millis("ms")
    )


def seen(result: DataFrame) -> dict[tuple[str, int | None], str]:
    return {(row["key"], row["at"]): row["names"] for row in result.collect()}


@pytest.mark.parametrize("function", [Seen(), SeenColumns()])
def test_a_column_or_an_expression_may_be_the_key_and_the_time(function: Any, df: DataFrame) -> None:
    def ask(key: Any, event_time: Any, **options: Any) -> dict[tuple[str, int | None], str]:
        return seen(
            timerheap.spark.process(df, key, function, SEEN, event_time, watermark=STRATEGY, **options)
        )

    by_name = dict.fromkeys([("a", 1_000), ("A", 2_000), ("b", 3_000)], "k,s,ms,at")
    lower = dict.fromkeys([("a", 1_000), ("a", 2_000), ("b", 3_000)], "k,s,ms,at")
    assert (
        ask(F.col("k"), timerheap.spark.EventTime(F.col("at"), channel=F.col("K")))
        == by_name
        == ask([df["k"]], df.ms)
    )
    assert ask(F.lower("k").alias("k"), F.timestamp_millis("ms")) == lower == ask([F.lower(df["k"])], "at")
    shifted = {("x", at + 1): names for (_, at), names in by_name.items()}
    assert ask(F.col("s.k"), F.col("ms") + 1) == shifted
    grouped = df.groupBy(F.lower("k"))
    assert lower == seen(
        timerheap.spark.process(
            grouped, function=function, output_schema=SEEN, event_time="at", watermark="0 seconds"
        )
    )


def test_columns_and_expressions_name_keys_times_and_channels_everywhere(df: DataFrame) -> None:
    right = df.select(F.col("k").alias("Key"), "ms", F.lit(0).alias("n"))
    two = timerheap.spark.process_two(
        df.groupBy(F.lower("k")), right.groupBy(F.lower("key")), function=SeenTwo(), output_schema=SEEN,
        event_time=F.col("ms") + 1, watermark="0 seconds",
    )  # fmt: skip
    lower = [("a", 1_001), ("a", 2_001), ("b", 3_001)]
    assert sorted((row["key"], row["at"], row["names"]) for row in two.collect()) == sorted(
        (*key, names) for key in lower for names in ("k,s,ms,at", "Key,ms,n")
    )
    windows = timerheap.spark.window_operator(
        df.groupBy(F.lower("k").alias("low")), assigner=TumblingEventTimeWindows.of("2 seconds"),
        function=Count(), output_schema="n bigint", event_time=F.col("at"), accumulator_type=Types.LONG(),
        watermark="0 seconds",
    )  # fmt: skip
    assert windows.columns == ["low", "window_start", "window_end", "n"]
    counts = {("a", 0): 1, ("a", 2_000): 1, ("b", 2_000): 1}
    assert {(row["low"], row["ms"]): row["n"] for row in _in_ms(windows).collect()} == counts
    cut = timerheap.spark.tumble(df, F.timestamp_millis(F.col("ms")), size="2 seconds", watermark="0 seconds")
    result = cut.groupBy(F.lower("k"), F.col("s.k")).agg(F.count("*").alias("n"))
    assert result.columns[:3] == ["lower(k)", "k", "window_start"]
    assert {(row["lower(k)"], row["ms"]): row["n"] for row in _in_ms(result).collect()} == counts


def _in_ms(result: DataFrame) -> DataFrame:
    return result.withColumn("ms", F.unix_millis("window_start"))


def test_late_rows_do_not_have_computed_columns(df: DataFrame) -> None:
    result = timerheap.spark.process(
        df, F.lower("k"), Seen(), SEEN, F.col("ms") * 2, watermark="0 seconds", late="emit"
    )
    assert timerheap.spark.late_rows(result).columns == [*df.columns, "late_by"]
    cut = timerheap.spark.session(df, F.col("at"), "1 second", watermark="0 seconds", late="emit")
    late = timerheap.spark.late_rows(cut.groupBy(F.lower("k")).agg(F.count("*")))
    assert late.columns == [*df.columns, "late_by"]


def test_a_column_that_cannot_be_used_raises(df: DataFrame) -> None:
    grouped: dict[str, Any] = {"df": df.groupBy("k"), "key": None}
    no_row_has = r"key must be a column that each row of df has, got "
    for arguments, error, message in [
        ({"key": F.col("x")}, ValueError, no_row_has + "Column<'x'>: .*"),
        ({"key": F.count("*")}, ValueError, no_row_has + ".*count"),
        ({"key": [F.col("*")]}, ValueError, no_row_has + ".*: it stands for 4 columns"),
        ({"key": F.col("s")}, ValueError, "key must be of an atomic type, got column 's' of type struct"),
        ({"event_time": F.lower("k")}, ValueError, r"event_time must be .*, got column 'lower\(k\)' of type"),
        ({"watermark": "5"}, ValueError, "watermark must be a duration such as"),
        ({"watermark": "-5 seconds"}, ValueError, "watermark must be 0 or more"),
        ({"watermark": "1 month"}, ValueError, "watermark must have a fixed length"),
        ({**grouped, "key": "k"}, TypeError, "key must be left out if df is grouped, .*, got 'k'"),
        ({**grouped, "function": None}, TypeError, "function must be a .*, got None"),
        (
            {**grouped, "df": df.rollup("k")},
            ValueError,
            r"df must be grouped by groupBy\(\), got a rollup\(\)",
        ),
        (
            {**grouped, "df": df.groupBy()},
            ValueError,
            "df must be grouped by one or more columns, got df.grou",
        ),
    ]:
        call = {"df": df, "key": "k", "function": Seen(), "output_schema": SEEN, "event_time": "at"}
        with pytest.raises(error, match=message):
            timerheap.spark.process(**{**call, "watermark": STRATEGY, **arguments})
    with pytest.raises(ValueError, match=r"key must be columns of df for a processor, got .* add it with"):
        timerheap.spark.transform_with_state(df, F.lower("k"), None, SEEN, "Append", "None")


def test_a_stream_with_spark_s_watermark_needs_no_other(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])

    def row(second: int) -> dict[str, Any]:
        return {"k": "a", "at": EPOCH + dt.timedelta(seconds=second)}

    batches = [[row(10), row(1)], [row(9), row(2), row(20)], [row(16)]]
    streams.write_batches(tmp_path / "input", batches, schema)
    df = streams.read_stream(spark, tmp_path / "input").withWatermark("at", "5 seconds")
    result = timerheap.spark.process(df.groupBy("k"), function=Seen(), output_schema=SEEN, max_parallelism=2)
    streams.run(result, tmp_path)
    # The watermark is 5 seconds and 1 ms behind the latest time of the micro-batches before: 2 is late.
    assert sorted(at for _, at, _ in streams.sink(spark, tmp_path)) == [1_000, 9_000, 10_000]
    cut = timerheap.spark.tumble(df, "at", size="5 seconds").groupBy("k").agg(F.count("*").alias("n"))
    assert cut.isStreaming
    both = timerheap.spark.process_two(df, df, F.col("k"), SeenTwo(), SEEN)
    assert both.isStreaming
    with pytest.raises(ValueError, match=r"right\.event_time must name the event-time column, since left"):
        timerheap.spark.process_two(df, df.select("k"), "k", SeenTwo(), SEEN)
    with pytest.raises(ValueError, match=r"event_time must name .*, got None, .*withWatermark\(\) on"):
        timerheap.spark.process(df.withColumn("again", F.col("at")), "k", Seen(), SEEN)


def test_windows_take_what_a_spark_user_types_first(spark: SparkSession) -> None:
    rows = [("a", 1_000, 3), ("a", 2_000, 5), ("b", 11_000, 7)]
    df = spark.createDataFrame(rows, "k string, at long, x long")
    windows = timerheap.spark.tumble(df, "at", "10 seconds", watermark="0 seconds").groupBy("k")
    counted = windows.count()
    assert counted.columns == ["k", "window_start", "window_end", "window_time", "count"]
    assert sorted(row["count"] for row in counted.collect()) == [1, 2]
    both = windows.agg({"x": "max", "*": "count"})
    assert both.columns[4:] == ["max(x)", "count(1)"]
    assert sorted(tuple(row)[4:] for row in both.collect()) == [(5, 2), (7, 1)]
    hops = timerheap.spark.hop(df, "at", "10 seconds", "5 seconds", watermark="0 seconds").groupBy().count()
    assert sum(row["count"] for row in hops.collect()) == 6


@pytest.mark.parametrize("name", ["sum", "max", "mean", "where", "pivot"])
def test_an_error_names_the_right_call_on_windows(spark: SparkSession, name: str) -> None:
    df = spark.createDataFrame([("a", 1_000)], "k string, at long")
    windows = timerheap.spark.tumble(df, "at", size="10 seconds", watermark="0 seconds")
    with pytest.raises(AttributeError, match=rf"windows have no '{name}'; .*\.groupBy\('key'\)\.agg\(F\."):
        getattr(windows, name)
    with pytest.raises(AttributeError, match=rf"grouped windows have no '{name}'; .*\.agg\(F\."):
        getattr(windows.groupBy("k"), name)
