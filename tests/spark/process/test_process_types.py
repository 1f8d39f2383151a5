"""Tests keys, event times, results and columns of every type and name."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, ValueStateDescriptor, WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

UTC = datetime.UTC
INT64_MAX = 2**63 - 1
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def instant(year: int, microsecond: int = 0) -> datetime.datetime:
    return datetime.datetime(year, 3, 1, 12, 30, 59, microsecond, UTC)


def plain(year: int, microsecond: int = 0) -> datetime.datetime:
    return instant(year, microsecond).replace(tzinfo=None)


KEYS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "string": ("string", pa.string(), ["", "a", "\0", "Zoë", "a" * 100]),
    "binary": ("binary", pa.binary(), [b"", b"\0", b"\xff\0", b"a"]),
    "boolean": ("boolean", pa.bool_(), [True, False]),
    "tinyint": ("tinyint", pa.int8(), [-128, 0, 127]),
    "smallint": ("smallint", pa.int16(), [-(2**15), 0, 2**15 - 1]),
    "int": ("int", pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    "bigint": ("bigint", pa.int64(), [-(2**63), 2**53 + 1, 2**53, INT64_MAX]),
    "float": ("float", pa.float32(), [math.nan, 0.0, 1.5, math.inf]),
    "double": ("double", pa.float64(), [math.nan, 0.0, 1e-300, -math.inf]),
    "decimal": (
        "decimal(12,3)",
        pa.decimal128(12, 3),
        [decimal.Decimal(s) for s in ("-1.100", "0.000", "1.100")],
    ),
    "wide decimal": (
        "decimal(38,18)",
        pa.decimal128(38, 18),
        [decimal.Decimal(s) for s in ("-1.000000000000000000", "99999999999999999999.999999999999999999")],
    ),
    "date": ("date", pa.date32(), [datetime.date(year, 2, 28) for year in (1, 1970, 9999)]),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC"), [instant(y, 1) for y in (1066, 1969, 2024)]),
    "timestamp_ntz": ("timestamp_ntz", pa.timestamp("us"), [plain(y, 999_999) for y in (1, 1969, 9999)]),
    "interval": (
        "interval day to second",
        pa.duration("us"),
        [datetime.timedelta(microseconds=us) for us in (-1, 0, 10**15)],
    ),
}


class Count(KeyedProcessFunction):
    """Counts a key's rows, and yields the count at the time of the row."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", "bigint"))

    def process_element(self, value: Row, ctx: Any) -> None:
        key = ctx.get_current_key()
        if not isinstance(key, tuple):
            key = (key,)
        assert [type(part) for part in key] == [type(part) for part in value[: len(key)]]
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield *(key if isinstance(key, tuple) else (key,)), timestamp, self.count.value()


def count_by(df: DataFrame, key: list[str], **options: Any) -> DataFrame:
    types = ", ".join(f"{name} {df.schema[name].dataType.simpleString()}" for name in key)
    return timerheap.spark.process(
        df,
        key,
        Count(),
        f"{types}, at bigint, n bigint",
        "at",
        watermark=MONOTONOUS.with_max_ahead(None),
        max_parallelism=4,
        **options,
    )


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_every_type_are_grouped_as_by_spark(name: str, spark: SparkSession) -> None:
    ddl, type_, values = KEYS[name]
    keys = [*values, None] * 3
    if name in ("float", "double"):
        keys += [-0.0, float("nan")]
    table = pa.table({"k": pa.array(keys, type_), "at": pa.array([5] * len(keys))})
    df = spark.createDataFrame(table).select(F.col("k").cast(ddl), "at")
    counted = count_by(df.repartition(2), ["k"]).toArrow()
    counts = dict.fromkeys(map(repr, [*values, None]), 3)
    if name in ("float", "double"):  # Spark treats both zeros as one key, and all NaNs as one key
        counts |= {"nan": 4, "0.0": 4}
    assert [str(t) for t in counted.schema.types[1:]] == ["int64", "int64"]
    found = [key + 0.0 if key == 0 and isinstance(key, float) else key for key in counted["k"].to_pylist()]
    found = [key.astimezone(UTC) if key and name == "timestamp" else key for key in found]
    assert dict(zip(map(repr, found), counted["n"].to_pylist(), strict=True)) == counts


def test_a_key_of_many_columns_survives_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """Keys differ in only one or two columns; event times exceed the precision of a double."""
    kinds = {name: kind for name, kind in KEYS.items() if name not in ("interval", "wide decimal")}
    columns = [f"k{i}" for i in range(len(kinds))]
    schema = pa.schema(
        [*zip(columns, (type_ for _, type_, _ in kinds.values()), strict=True), ("at", pa.int64())]
    )
    base = [values[-1] for _, _, values in kinds.values()]
    keys = [
        (*base[:i], value, *base[i + 1 :])
        for i, (_, _, values) in enumerate(kinds.values())
        for value in [*values[:-1], None]
    ]
    keys.append((None,) * len(base))
    start = 2**60
    batches = [
        [dict(zip(schema.names, (*key, start + 4 * number), strict=True)) for key in [*keys, tuple(base)]]
        for number in range(3)
    ]
    batches.append([{**batches[0][0], "at": start + 8 + 1}])  # passes start + 8, but nothing later
    for part in (batches[:2], batches[2:]):
        streams.write_batches(tmp_path / "input", part, schema)
        df = streams.read_stream(spark, tmp_path / "input")
        streams.run(count_by(df, columns), tmp_path)

    counted = spark.read.parquet(str(tmp_path / "sink")).toArrow().to_pylist()
    by_time = Counter((row["at"], row["n"]) for row in counted)
    # The watermark is a row's time - 1: each batch's rows and timers wait for the next one.
    assert by_time == {(start + 4 * n, n + 1): len(keys) + 1 for n in range(3)}
    distinct = {tuple(repr(row[column]) for column in columns) for row in counted}
    assert len(distinct) == len(keys) + 1


class Times(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value.n, ctx.timestamp()


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_event_times_are_truncated_to_milliseconds(order: str, spark: SparkSession) -> None:
    micros = [0, 1, 999, 1000, -1, -999, -1000, -1001, -30_000_000_000_000_123, 200_000_000_000_000_999]
    numbers = range(len(micros))
    df = spark.createDataFrame(pa.table({"n": numbers, "us": micros, "ms": [us // 1000 for us in micros]}))
    for at in (
        F.timestamp_micros("us"),
        F.timestamp_micros("us").cast("timestamp_ntz"),
        F.col("ms"),
    ):
        timed = df.select(F.lit("k").alias("k"), "n", at.alias("at"))
        yielded = timerheap.spark.process(
            timed,
            "k",
            Times(),
            "n bigint, ms bigint",
            "at",
            watermark=MONOTONOUS,
            order=order,
            max_parallelism=1,
        )
        assert sorted(map(tuple, yielded.collect())) == [(n, micros[n] // 1000) for n in numbers]


RESULT = {
    "k": "string", "yes": "boolean", "i8": "tinyint", "i16": "smallint", "i32": "int", "i64": "bigint",
    "f": "float", "d": "double", "dec": "decimal(38,18)", "s": "string", "bin": "binary", "day": "date",
    "ts": "timestamp", "ntz": "timestamp_ntz", "arr": "array<bigint>",
    "st": "struct<a: bigint, b: array<string>>", "m": "map<string, struct<x: double, y: timestamp>>",
    "aa": "array<array<int>>", "am": "array<map<int, string>>",
}  # fmt: skip
VALUES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "least": {
        "yes": False, "i8": -128, "i16": -(2**15), "i32": -(2**31), "i64": -(2**63), "f": -math.inf,
        "d": -1e308, "dec": decimal.Decimal("-99999999999999999999.999999999999999999"), "s": "",
        "bin": b"", "day": datetime.date(1, 1, 1), "ts": instant(1066), "ntz": plain(1), "arr": [],
        "st": {"a": None, "b": []}, "m": {}, "aa": [[]], "am": [{}],
    },
    "most": {
        "yes": True, "i8": 127, "i16": 2**15 - 1, "i32": 2**31 - 1, "i64": INT64_MAX, "f": 1.5, "d": 5e-324,
        "dec": decimal.Decimal("0.000000000000000001"), "s": "\0Zoë", "bin": b"\0\xff",
        "day": datetime.date(9999, 12, 31), "ts": instant(2400, 999_999), "ntz": plain(9999, 1),
        "arr": [INT64_MAX, None, -(2**63)], "st": {"a": 2**53 + 1, "b": ["x", None]},
        "m": {"": {"x": 0.5, "y": instant(1500, 1)}, "none": None}, "aa": [[1, None], None, []],
        "am": [{1: "one", 2: None}, None],
    },
}  # fmt: skip


FORMS = ("dict", "tuple", "Row")
ARROW = pa.schema(
    {
        "k": pa.string(), "yes": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(),
        "i64": pa.int64(), "f": pa.float32(), "d": pa.float64(), "dec": pa.decimal128(38, 18),
        "s": pa.large_string(), "bin": pa.binary(), "day": pa.date32(),
        "ts": pa.timestamp("us", "Europe/Oslo"), "ntz": pa.timestamp("us"),
        "arr": pa.list_(pa.int64()), "st": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        "m": pa.map_(pa.string(), pa.struct({"x": pa.float64(), "y": pa.timestamp("us", "UTC")})),
        "aa": pa.list_(pa.list_(pa.int32())), "am": pa.list_(pa.map_(pa.int32(), pa.string())),
    }
)  # fmt: skip


class Everything(KeyedProcessFunction):
    """Yields VALUES as a dict, a tuple and a Row, with nested structs in the same forms."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        fields = {name: VALUES[value.k].get(name) for name in RESULT if name != "k"}
        yield {"k": f"{value.k} dict", **VALUES[value.k]}
        if fields["st"] is not None:
            fields["st"] = Row(**fields["st"])
            fields["m"] = {k: v and tuple(v.values()) for k, v in fields["m"].items()}
        yield f"{value.k} tuple", *fields.values()
        yield Row(k=f"{value.k} Row", **fields)


class EverythingInColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        names = [f"{key} {form}" for key in batch.column("k").to_pylist() for form in FORMS]
        rows = [{n: pairs(v) for n, v in {"k": name, **VALUES[name.split()[0]]}.items()} for name in names]
        yield pa.RecordBatch.from_pylist(rows[:4], ARROW)
        yield pa.Table.from_pylist(rows[4:], ARROW).select([*RESULT][::-1])


def pairs(value: Any) -> Any:
    """Return maps as lists of pairs, like Arrow."""
    if isinstance(value, dict):
        return value if set(value) in ({"a", "b"}, {"x", "y"}) else [(k, pairs(v)) for k, v in value.items()]
    return [pairs(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("function", [Everything(), EverythingInColumns()], ids=["rows", "columns"])
def test_results_may_have_all_types(function: Any, spark: SparkSession, tmp_path: Path) -> None:
    schema = ", ".join(f"{name} {type_}" for name, type_ in RESULT.items())
    streams.write_batches(
        tmp_path / "input", [[{"k": key} for key in VALUES]], pa.schema([("k", pa.string())])
    )
    expected = {
        f"{key} {form}": {name: pairs(fields.get(name)) for name in RESULT if name != "k"}
        for key, fields in VALUES.items()
        for form in FORMS
    }

    def found(df: DataFrame) -> dict[str, Any]:
        return {row.pop("k"): row for row in df.toArrow().to_pylist()}

    df = spark.read.parquet(str(tmp_path / "input"))
    assert found(timerheap.spark.process(df, "k", function, schema, max_parallelism=2)) == expected
    df = streams.read_stream(spark, tmp_path / "input")
    streams.run(timerheap.spark.process(df, "k", function, schema, max_parallelism=2), tmp_path)
    assert found(spark.read.parquet(str(tmp_path / "sink"))) == expected


class Echo(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        assert tuple(value[:2]) == ctx.get_current_key()
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield *ctx.get_current_key(), timestamp, *[None] * 6


def test_columns_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    names = ["k`ey", "a.b", "at time", "__id", "__timestamp", "label", "Größe; (m)", "select", 'it\'s "x"']
    schema = pa.schema([(name, pa.int64()) for name in names])
    batches = [[dict.fromkeys(names, 10 * batch + n) for n in range(3)] for batch in range(3)]
    streams.write_batches(tmp_path / "input", batches, schema)
    result = StructType([StructField(name, LongType()) for name in names])

    def echo(df: DataFrame) -> DataFrame:
        return timerheap.spark.process(
            df, names[:2], Echo(), result, names[2], watermark=MONOTONOUS, max_parallelism=2
        )

    def expected(watermark: int) -> list[tuple[Any, ...]]:
        values = [row[names[0]] for batch in batches for row in batch if row[names[0]] <= watermark]
        return sorted([(v,) * 9 for v in values] + [(v,) * 3 + (None,) * 6 for v in values], key=repr)

    yielded = echo(spark.read.parquet(str(tmp_path / "input")))
    assert yielded.columns == names
    assert streams.rows(yielded) == expected(INT64_MAX)
    assert streams.stream(spark, echo, tmp_path / "input", tmp_path) == expected(21)


class Departures(KeyedProcessFunction):
    """Yields each row at once, and again 10 s later."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10_000)
        yield value.k, value.at

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), datetime.datetime.fromtimestamp(timestamp / 1000, UTC)


def test_a_windowed_aggregate_may_follow_on_the_event_time_of_the_results(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Windows on the event time of the results close, and count rows and timers."""
    start = instant(2024)
    seconds = [[0, 3, 7], [5, 12, 31], [33, 34, 62], [95], [161], [300]]
    batches = [
        [{"k": "ab"[s % 2], "at": start + datetime.timedelta(seconds=s)} for s in batch] for batch in seconds
    ]
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    streams.write_batches(tmp_path / "input", batches, schema)

    def departures(df: DataFrame) -> DataFrame:
        delay = WatermarkStrategy.for_bounded_out_of_orderness(10_000)
        return timerheap.spark.process(
            df, "k", Departures(), "k string, at timestamp", "at", watermark=delay,
            max_parallelism=2,
        )  # fmt: skip

    def windows(df: DataFrame) -> DataFrame:
        counted = df.groupBy(F.window("at", "20 seconds")).agg(F.count("*").alias("n"))
        return counted.select(F.col("window.start").alias("start"), "n")

    df = streams.read_stream(spark, tmp_path / "input")
    with pytest.raises(AnalysisException, match="watermark"):
        streams.run(windows(departures(df)), tmp_path / "refused")
    yielded = streams.stream(
        spark,
        lambda df: windows(departures(df).withWatermark("at", "0 seconds")),
        tmp_path / "input",
        tmp_path,
    )
    times = [s + later for batch in seconds for s in batch for later in (0, 10)]
    epoch = int(start.timestamp())
    counts = Counter((epoch + s) // 20 * 20 for s in times if s <= 161)
    closed = {start: n for start, n in counts.items() if start + 20 <= epoch + 105}
    found = {int(start.timestamp()): n for start, n in yielded}
    assert closed.items() <= found.items() <= counts.items()


class Repeat(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value.k, value.b, value["values"], value.deep, ctx.timestamp()


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_large_arrow_types_work(streaming: bool, spark: SparkSession, tmp_path: Path) -> None:
    """An int in the results is a timestamp in epoch ms."""
    deep = pa.map_(pa.string(), pa.struct([("s", pa.string())]))
    types = [pa.string(), pa.binary(), pa.list_(pa.string()), deep, pa.int64()]
    schema = pa.schema(list(zip(["k", "b", "values", "deep", "at"], types, strict=True)))
    batches = [
        [{"k": "a", "b": b"x", "values": ["v", None], "deep": [("m", {"s": "t"})], "at": 5_000}],
        [{"k": None, "b": None, "values": None, "deep": None, "at": 1_000}],
    ]
    output = "k string, b binary, values array<string>, deep map<string, struct<s string>>, at timestamp"
    streams.write_batches(tmp_path / "input", batches, schema)
    with streams.configured(spark, execution_arrow_useLargeVarTypes=True):
        df = spark.read.parquet(str(tmp_path / "input"))
        df = streams.read_stream(spark, tmp_path / "input") if streaming else df
        options = {"order": "arrival", "late": "emit", "max_parallelism": 2, "watermark": MONOTONOUS}
        result = streams.with_late(timerheap.spark.process(df, "k", Repeat(), output, "at", **options))
        if streaming:
            streams.run(result, tmp_path)
            result = spark.read.parquet(str(tmp_path / "sink"))
        shown = ("k", "b", "values", "deep", "unix_millis(at)", "late_by", "late_row.at")
        found = sorted(map(tuple, result.selectExpr(*shown).collect()), key=repr)
        one = ("a", b"x", ["v", None], {"m": Row(s="t")}, 5_000, None, None)
        late = (*(None,) * 5, 4_000, 1_000) if streaming else (*(None,) * 4, 1_000, None, None)
        assert found == sorted([one, late], key=repr)
        if not streaming:
            timed = df.withColumn("at", F.timestamp_millis("at"))
            windows = timerheap.spark.hop(timed, "at", slide=1_000, size=1_000, watermark=MONOTONOUS)
            counted = windows.groupBy("k").agg(F.min("b").alias("least"), F.count_distinct("b").alias("n"))
            assert {tuple(row) for row in counted.select("k", "least", "n").collect()} == {
                ("a", b"x", 1),
                (None, None, 0),
            }

            async def echo(row: Row) -> Row:
                return row

            mapped = timerheap.spark.async_map(df, echo).collect()
            assert sorted(map(repr, mapped)) == sorted(map(repr, df.collect()))


def test_a_timestamp_outside_the_range_of_python_raises(spark: SparkSession) -> None:
    df = spark.sql("SELECT 'a' k, 1L n, timestamp_micros(253402300800000000) seen")
    says = r"column 'seen' must be in the years .* got \+?10000-01-01.* for key 'a', 1; filter"
    with pytest.raises(PythonException, match=says):
        timerheap.spark.process(df, ["k", "n"], Times(), "n bigint, ms bigint").collect()
