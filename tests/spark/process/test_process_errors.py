"""Errors of `process` name the argument, its value and what it must be."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import streams
from messages import say
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedCoProcessFunction, KeyedProcessFunction, WatermarkStrategy

pytestmark = pytest.mark.spark

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> None:
        pass


class Locked(Nothing):
    def __init__(self) -> None:
        self.limit = 5
        self.guard = threading.Lock()


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.range(4).selectExpr(
        "id", "cast(id as string) k", "timestamp_millis(id) at", "cast(id as int) n", "current_date() day",
        "array(id) ids", "named_struct('a', id) st", "map(id, id) m", "id __timerheap_hash",
    )  # fmt: skip


def process(df: DataFrame, **options: Any) -> DataFrame:
    arguments = {"key": "k", "function": Nothing(), "output_schema": "k string", "max_parallelism": 2}
    return timerheap.spark.process(df, **{**arguments, **options})


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such key": (
        {"key": "plane"},
        ValueError,
        say("key must name one column, got 'plane', which names none; the columns are", "'k'"),
    ),
    "key of another case": (
        {"key": ["k", "K"]},
        ValueError,
        "key must name one column, got 'K', which names none",
    ),
    "no such choice for null times": (
        {"event_time": timerheap.spark.EventTime("at", null="skip"), "watermark": MONOTONOUS},
        ValueError,
        'null must be "error" or "drop", got \'skip\'',
    ),
    "null times without event time": (
        {"event_time": timerheap.spark.EventTime(null="drop")},
        ValueError,
        "event_time must name the event-time column if null is given, got None",
    ),
    "number as key": ({"key": 5}, TypeError, "key must be a column name or a list of column names, got 5"),
    "no key": ({"key": []}, TypeError, r"key must be a column name or .*, got \[\]"),
    "key with a number": ({"key": ["k", 5]}, TypeError, "key must be a column name, got 5; pass a str"),
    "struct as key": (
        {"key": "st"},
        ValueError,
        say("key must be of an atomic type, got column 'st' of type struct<a:bigint>", "select its fields"),
    ),
    "array as key": (
        {"key": ["k", "ids"]},
        ValueError,
        "key must be of an atomic type, got column 'ids' of type array<bigint>",
    ),
    "no such event time": (
        {"event_time": "when"},
        ValueError,
        "event_time must name one column, got 'when', which names none; the columns",
    ),
    "text as event time": (
        {"event_time": "k", "watermark": MONOTONOUS},
        ValueError,
        "event_time must be a timestamp or a bigint of epoch milliseconds, got column 'k' of type string",
    ),
    "int as event time": (
        {"event_time": "n"},
        ValueError,
        "event_time must be a timestamp or a bigint of .*, got column 'n' of type int",
    ),
    "date as event time": (
        {"event_time": "day"},
        ValueError,
        "event_time must be a timestamp or a bigint of .*, got column 'day' of type date",
    ),
    "event time without watermark": (
        {"event_time": "at"},
        TypeError,
        r"watermark must be a WatermarkStrategy, got None; .*for_bounded_out_of_orderness\(",
    ),
    "fraction as watermark": (
        {"event_time": "at", "watermark": 5_000.5},
        TypeError,
        "watermark must be a WatermarkStrategy, got 5000.5; .*or its delay, such as '5 seconds' or 5_000 ms",
    ),
    "field that a struct lacks": (
        {"key": "st.b"},
        ValueError,
        r"key must be a column that each row of df has, got Column<'st.b'>: .*FIELD_NOT_FOUND",
    ),
    "name in backticks that is none": (
        {"key": "`x y`"},
        ValueError,
        r"key must be a column that each row of df has, got Column<'.*x y.*'>: .*UNRESOLVED_COLUMN",
    ),
    "watermark without event time": (
        {"watermark": MONOTONOUS},
        ValueError,
        "event_time must name the event-time column if watermark is given, got None",
    ),
    "order without event time": (
        {"order": "event_time"},
        ValueError,
        'order must be "arrival" without event_time',
    ),
    "order of another name": (
        {"event_time": "at", "watermark": MONOTONOUS, "order": "sorted"},
        ValueError,
        'order must be "event_time" or "arrival", got \'sorted\'',
    ),
    "order as a switch": ({"order": True}, ValueError, 'order must be "event_time" or "arrival", got True'),
    "no groups": ({"max_parallelism": 0}, ValueError, "max_parallelism must be between 1 and 32768, got 0"),
    "many groups": (
        {"max_parallelism": 32_769},
        ValueError,
        "max_parallelism must be between 1 and 32768, got 32769",
    ),
    "groups as text": (
        {"max_parallelism": "8"},
        TypeError,
        "max_parallelism must be an int or None, got '8'",
    ),
    "groups as float": (
        {"max_parallelism": 8.0},
        TypeError,
        r"max_parallelism must be an int or None, got 8\.0",
    ),
    "class as function": (
        {"function": Nothing},
        TypeError,
        r"function must be an instance, got the class Nothing; pass Nothing\(\) instead",
    ),
    "lambda as function": (
        {"function": lambda row: None},
        TypeError,
        "function must be a KeyedProcessFunction or BatchProcessFunction, got .*lambda",
    ),
    "lock in function": (
        {"function": Locked()},
        TypeError,
        say("function must be serialisable, .* got a Locked", r"attribute 'guard'\)", r"open\(\)"),
    ),
    "number as schema": (
        {"output_schema": 5},
        TypeError,
        "output_schema must be a DDL string such as .* or a StructType, got 5",
    ),
    "type as schema": (
        {"output_schema": "bigint"},
        TypeError,
        "output_schema must be .* or a StructType, got",
    ),
    "misspelt schema": (
        {"output_schema": "k strin"},
        ValueError,
        "output_schema must be a DDL string .*, got 'k strin'",
    ),
    "repeated name": (
        {"output_schema": "a int, a int"},
        ValueError,
        "output_schema must have unique .* got 'a'",
    ),
    "reserved name": (
        {"key": "id"},
        ValueError,
        "df must have .* '__timerheap', got '__timerheap_hash'; rename",
    ),
    "reserved name of a result": (
        {"output_schema": "`__timerheap:0:id` int"},
        ValueError,
        "output_schema must have .* '__timerheap', got '__timerheap:0:id'; rename",
    ),
    "channel": (
        {"event_time": timerheap.spark.EventTime(channel="k")},
        ValueError,
        "event_time must name the event-time column if channel is given",
    ),
    "a name to drop": (
        {"state_changes": "last"},
        TypeError,
        "state_changes must be a dict of names of states, got 'last'; write state_changes=",
    ),
    "no names to drop": ({"state_changes": {5: None}}, TypeError, "state_changes must be a dict of names"),
    "clock of a batch": (
        {"processing_time": True},
        ValueError,
        "processing_time must be False for a batch DataFrame, got True",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_argument_raises(case: str, df: DataFrame) -> None:
    options, error, message = BAD[case]
    if case != "reserved name":
        df = df.drop("__timerheap_hash")
    with pytest.raises(error, match=message):
        process(df, **options)


def test_an_input_that_is_not_a_dataframe_raises() -> None:
    with pytest.raises(TypeError, match=r"df must be a pyspark\.sql\.DataFrame, got \[1, 2\]"):
        process([1, 2])


def test_ambiguous_column_names_raise(df: DataFrame) -> None:
    for name in "kn":
        with pytest.raises(ValueError, match=f"df must have unique column names .* got '{name}'"):
            process(df.select("k", name, name))


def test_a_stream_without_rocksdb_raises(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    setting = "spark.sql.streaming.stateStore.providerClass"
    with streams.configured(spark, streaming_stateStore_providerClass=HDFS):
        process(spark.range(1), key="id")
        for provider in (HDFS, None):
            if provider is None:
                spark.conf.unset(setting)
            message = rf"{setting} must be .*HDFSBacked.*spark\.conf\.set\(.*RocksDBStateStoreProvider"
            with pytest.raises(ValueError, match=message):
                process(rates, key="value")
    process(rates, key="value")


def slow_settings(caplog: pytest.LogCaptureFixture, df: DataFrame, key: str) -> list[str]:
    caplog.clear()
    process(df, key=key)
    return [record.getMessage() for record in caplog.records if "slow Spark settings" in record.msg]


def test_settings_that_make_a_query_slow_are_said_in_one_line(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = spark.readStream.format("rate").load()
    changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    with streams.configured(spark, execution_arrow_maxRecordsPerBatch=0):
        assert slow_settings(caplog, rates, "value") == []
    limits = {"execution_arrow_maxRecordsPerBatch": 500, "execution_arrow_maxBytesPerBatch": "64m"}
    with streams.configured(spark, **limits):
        (line,) = slow_settings(caplog, spark.range(1), "id")
        assert "maxRecordsPerBatch is 500, set it to 10000 or more; " in line
        assert "maxBytesPerBatch is 64m, so Spark measures the Arrow batch after each row" in line
        assert "set it to 2147483647 (no limit) if 10000 rows stay below 2 GiB" in line
        assert "changelog" not in line
    for value in ("false", None):
        try:
            spark.conf.set(changelog, value) if value else spark.conf.unset(changelog)
            (line,) = slow_settings(caplog, rates, "value")
        finally:
            spark.conf.set(changelog, "true")
        assert f"{changelog} is false, so each micro-batch writes all state, set it to true" in line
    conf = spark.sparkContext.getConf().set("spark.python.worker.reuse", "false")
    monkeypatch.setattr(type(spark.sparkContext), "getConf", lambda _: conf)
    (line,) = slow_settings(caplog, rates, "value")
    assert line.endswith(
        "spark.python.worker.reuse is false, so each task starts a Python worker, set it to true "
        "for the application"
    )


def test_event_time_order_without_watermarks_raises_on_a_stream(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    settings = {"key": "value", "event_time": "timestamp", "watermark": WatermarkStrategy.no_watermarks()}
    with pytest.raises(ValueError, match=r'order must be "arrival" on a stream with .*no_watermarks'):
        process(rates, **settings)
    process(rates, order="arrival", **settings)
    process(spark.range(1).selectExpr("id value", "now() timestamp"), **settings)


def test_texts_are_names_of_columns_as_in_spark(spark: SparkSession, df: DataFrame) -> None:
    named = df.select("k", "at", "st", F.lit("x").alias("a.b")).alias("e")
    for key in ("st.a", "e.k", "`k`", ["e.`k`", "`st`.`a`"], "a.b", "`a.b`"):
        for watermark in (5_000, "5 seconds"):
            found = timerheap.spark.process(
                named, key, Key(), "key string", "e.at", watermark=watermark, max_parallelism=2
            )
            assert found.count() == 4
    assert [row.key for row in found.distinct().collect()] == ["x"]
    tumbled = timerheap.spark.tumble(named, "e.at", 1_000, watermark=0)
    assert tumbled.groupBy("st.a").agg(F.count("*").alias("n")).columns[0] == "a"


class Key(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield (str(ctx.get_current_key()),)


def test_null_event_times_are_counted(spark: SparkSession) -> None:
    df = spark.range(10).selectExpr("if(id % 2 = 0, null, id) at", "'x' as `the key`").coalesce(1)
    message = r"event_time must not be null, got 5 of 10 rows with null in column 'at'; filter them out"
    with pytest.raises(PythonException, match=message):
        process(df, key="the key", event_time="at", watermark=MONOTONOUS).collect()
    message = (
        r"F\.expr\('timestamp_millis\(at\)'\)\.isNotNull\(\).*, or pass EventTime\(column, null=\"drop\"\)"
    )
    with pytest.raises(PythonException, match=message):
        process(df, key="the key", event_time=F.expr("timestamp_millis(at)"), watermark=MONOTONOUS).collect()


def test_null_event_times_of_two_inputs_name_the_column_and_the_input(spark: SparkSession) -> None:
    left = spark.createDataFrame([("a", 1)], "k string, at bigint")
    right = spark.createDataFrame([("a", 1), ("b", None)], "who string, seen bigint").coalesce(1)
    two = timerheap.spark.RightInput(right, key="who", event_time="seen")
    message = (
        r"right.event_time must not be null, got 1 of 2 rows with null in column 'seen' of right; filter"
    )
    with pytest.raises(PythonException, match=message):
        timerheap.spark.process_two(left, two, "k", Both(), "k string", "at", watermark=MONOTONOUS).collect()
    drops = partial(timerheap.spark.EventTime, null="drop")
    two = timerheap.spark.RightInput(right, key="who", event_time=drops("seen"))
    found = timerheap.spark.process_two(left, two, "k", Both(), "k string", drops("at"), watermark=MONOTONOUS)
    assert [row.k for row in found.collect()] == ["left", "right"]
    message = (
        r"event_time must not be null, got 1 of 2 rows with null in column 'seen' of left; filter .*left"
    )
    with pytest.raises(PythonException, match=message):
        timerheap.spark.process_two(
            right,
            timerheap.spark.RightInput(left, key="k", event_time="at"),
            "who",
            Both(),
            "k string",
            "seen",
            watermark=MONOTONOUS,
        ).collect()


class Both(KeyedCoProcessFunction):
    def process_element1(self, value: Row, ctx: Any) -> Any:
        yield ("left",)

    def process_element2(self, value: Row, ctx: Any) -> Any:
        yield ("right",)
