"""Errors of `process` name the argument, its value and what it must be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark._worker import batch_runner
from timerheap.testing import ProcessTester

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


def say(*parts: str) -> str:
    return "(?s)" + ".*".join(parts)


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
    "number as watermark": (
        {"event_time": "at", "watermark": 5_000},
        TypeError,
        "watermark must be a WatermarkStrategy, got 5000",
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
        "df must have .* '__timerheap_', got '__timerheap_hash'; rename",
    ),
    "channel": (
        {"channel": "k"},
        ValueError,
        "event_time must name the event-time column if channel is given",
    ),
    "a name to drop": (
        {"drop_state": "last"},
        TypeError,
        "drop_state must be a list of names of states, got 'last'; write drop_state=",
    ),
    "no names to drop": ({"drop_state": [5]}, TypeError, r"drop_state must be a list of names .* got \[5\]"),
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
    return [record.getMessage() for record in caplog.records if "make this query slow" in record.msg]


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
        assert "maxBytesPerBatch is 64m, so Spark computes the size of an Arrow batch after each row" in line
        assert "set it to 2147483647, which is no limit, unless 10000 rows may exceed it" in line
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


class Rows(KeyedProcessFunction):
    """Calls `act` with its context and its row."""

    def __init__(self, act: Callable[[Any, Any, Any], Any], states: dict[str, Any] | None = None) -> None:
        self.act = act
        self.descriptors = states or {}

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def process_element(self, value: Row, ctx: Any) -> Any:
        return self.act(self.runtime_context, value, ctx)


class Columns(BatchProcessFunction):
    def __init__(self, act: Callable[[Any, Any, Any], Any]) -> None:
        self.act = act

    def open(self, runtime_context: Any) -> None:
        self.runtime_context = runtime_context

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        return self.act(self.runtime_context, batch, ctx)


class Endless(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.key_hashes, 7)

    def on_timers(self, due: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(due.key_hashes, due.timestamps)


def value_state(runtime_context: Any, type_: Any) -> Any:
    return runtime_context.get_state(ValueStateDescriptor("last", type_))


def list_state(runtime_context: Any) -> Any:
    return runtime_context.get_list_state(ListStateDescriptor("log", "string"))


def map_state(runtime_context: Any) -> Any:
    return runtime_context.get_map_state(MapStateDescriptor("book", "string", "int"))


def both(runtime_context: Any) -> None:
    value_state(runtime_context, "bigint")
    runtime_context.get_map_state(MapStateDescriptor("last", "string", "int"))


def batch_of(*columns: pa.Array, names: tuple[str, ...] = ("k", "n")) -> list[pa.RecordBatch]:
    return [pa.record_batch(list(columns), names=names)]


ONE, TEXT = pa.array([1]), pa.array(["a"])
RUNS: dict[str, tuple[Any, str]] = {
    "narrow row": (
        Rows(lambda rc, row, ctx: [("a",)]),
        say(
            r"process_element yielded \('a',\), which does not fit output_schema \(k string, n int64\)",
            "yield a tuple or Row of 2 values, or a dict with these names",
            "in process_element, key 'x', timestamp 1000",
        ),
    ),
    "strange name": (
        Rows(lambda rc, row, ctx: [{"k": "a", "m": 5}]),
        r"process_element yielded \{'k': 'a', 'm': 5\}",
    ),
    "text for a number": (
        Rows(lambda rc, row, ctx: [("a", "5")]),
        r"column 'n': '5' \(str\) does not fit int64",
    ),
    "great number": (
        Rows(lambda rc, row, ctx: [("a", 2**63)]),
        r"column 'n': 9223372036854775808 \(int\) does not",
    ),
    "missing value": (
        Rows(lambda rc, row, ctx: [(None, 5)]),
        "None in column 'k', which output_schema says is not null",
    ),
    "row for a batch": (
        Columns(lambda rc, batch, ctx: [("a", 5)]),
        "process_batch yielded a tuple; yield a pyarrow.Rec",
    ),
    "strange column": (
        Columns(lambda rc, batch, ctx: batch_of(TEXT, ONE, names=("k", "m"))),
        say(r"process_batch yielded the columns \['k', 'm'\]", r"output_schema has \['k', 'n'\]"),
    ),
    "number column as text": (
        Columns(lambda rc, batch, ctx: batch_of(ONE, ONE)),
        "column 'k' as int64, which does not",
    ),
    "text column": (
        Columns(lambda rc, batch, ctx: batch_of(TEXT, TEXT)),
        "yielded column 'n' as string, which does not",
    ),
    "null in a column": (
        Columns(lambda rc, batch, ctx: batch_of(pa.array([None]), ONE)),
        "null in column 'k', which out",
    ),
    "float in a state": (
        Rows(lambda rc, row, ctx: value_state(rc, "bigint").update(2.5)),
        r"state 'last': 2\.5 \(float\) does not fit int64",
    ),
    "None in a list": (
        Rows(lambda rc, row, ctx: list_state(rc).add(None)),
        "state 'log': an element of a list state must not be None",
    ),
    "None as a key": (
        Rows(lambda rc, row, ctx: map_state(rc).put(None, 5)),
        "state 'book': a key of a map state must not be None",
    ),
    "column in a state": (
        Columns(lambda rc, batch, ctx: value_state(rc, "int").update_many(ctx.key_hashes[:1], ["a"])),
        say("values must fit int32, the type of state 'last': "),
    ),
    "short column in a state": (
        Columns(lambda rc, batch, ctx: value_state(rc, "int").update_many(ctx.key_hashes[:1], [1, 2])),
        "values must have one value for each of the 1 key_hashes of state 'last', got 2",
    ),
    "one name, two states": (
        Rows(lambda rc, row, ctx: both(rc)),
        say(
            "state 'last' is already in use as a value state of int64",
            "cannot also be a map state of map<string, int32>",
        ),
    ),
    "strange type": (
        Rows(lambda rc, row, ctx: value_state(rc, "long long")),
        "state 'last': the type must be one that timerheap can store, got 'long long'",
    ),
    "no type": (
        Rows(lambda rc, row, ctx: value_state(rc, int)),
        "state 'last': the type must be one of Types",
    ),
    "reducing state": (
        Rows(lambda rc, row, ctx: rc.get_reducing_state(None)),
        "must be a ReducingStateDescriptor, got None",
    ),
    "aggregating state": (
        Rows(lambda rc, row, ctx: rc.get_aggregating_state(0)),
        "must be an AggregatingStateDescriptor, got 0",
    ),
    "descriptor": (
        Rows(lambda rc, row, ctx: rc.get_state("last")),
        "state_descriptor must be a ValueStateDescriptor, got 'last'",
    ),
    "clock": (
        Rows(lambda rc, row, ctx: ctx.timer_service().register_processing_time_timer(5)),
        r"processing_time must be True .* timers need process\(\.\.\., processing_time=True\)",
    ),
    "clock of columns": (
        Columns(
            lambda rc, batch, ctx: ctx.timer_service().register_processing_time_timers(ctx.key_hashes, 5)
        ),
        r"processing-time timers need process\(\.\.\., processing_time=True\)",
    ),
    "float as timestamp": (
        Rows(lambda rc, row, ctx: ctx.timer_service().register_event_time_timer(2.5)),
        r"timestamp.*2\.5.*float",
    ),
    "floats as timestamps": (
        Columns(lambda rc, batch, ctx: ctx.timer_service().register_event_time_timers(ctx.key_hashes, 2.5)),
        "timestamps",
    ),
    "deleting without timestamps": (
        Columns(lambda rc, batch, ctx: ctx.timer_service().delete_event_time_timers(ctx.key_hashes)),
        "timestamps must be those of the timers to delete, got None",
    ),
    "nobody's id": (
        Columns(lambda rc, batch, ctx: ctx.keys(np.array([5]))),
        "key_hashes must be ids of live keys, got 5",
    ),
    "endless": (
        Endless(),
        say(
            "on_timers has registered timers that were already due 50 times in a row",
            "key {'k': 'x'} at timestamp 7",
        ),
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_an_invalid_call_in_a_function_raises(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "_ROUNDS", 50)  # a million take a while
    function, message = RUNS[case]
    test = ProcessTester(function, "k", "k string, at timestamp", "k string not null, n bigint", "at")
    test.push([("x", datetime.fromtimestamp(1, UTC))])
    with pytest.raises((KeyError, RuntimeError, TypeError, ValueError), match=message):
        test.finish()


@pytest.mark.parametrize("case", ["narrow row", "row for a batch"])
def test_an_invalid_call_in_a_function_fails_the_query(case: str, spark: SparkSession) -> None:
    function, message = RUNS[case]
    df = spark.range(1).selectExpr("'x' k", "timestamp_millis(1000) at").coalesce(1)
    failing = process(
        df,
        function=function,
        output_schema="k string not null, n bigint",
        event_time="at",
        watermark=MONOTONOUS,
    )
    with streams.configured(spark, shuffle_partitions=1), pytest.raises(PythonException, match=message):
        failing.collect()


def test_null_event_times_are_counted(spark: SparkSession) -> None:
    df = spark.range(10).selectExpr("if(id % 2 = 0, null, id) at", "'x' as `the key`").coalesce(1)
    message = r"event_time must not be null, got 5 of 10 rows with null in column 'at'; filter them out"
    with pytest.raises(PythonException, match=message):
        process(df, key="the key", event_time="at", watermark=MONOTONOUS).collect()


class Keeps(KeyedProcessFunction):
    """Counts a key's rows in a state of a given type, and registers a timer in the far future."""

    def __init__(self, type_: str = "bigint") -> None:
        self.type = type_

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", self.type))

    def process_element(self, value: Row, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10**9)
        yield str(value.k), int(self.count.value())


class MovesColumns(BatchProcessFunction):
    one_timer_per_key = True

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        pass


class Renamed(Keeps):
    """Counts in a state with another name."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("rows", self.type))


def test_an_unused_state_is_reported_once_on_the_driver_and_can_be_dropped(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema([("k", pa.int64())])
    warned = []
    for function, options in [(Keeps(), {}), (Renamed(), {}), (Renamed(), {"drop_state": ["count"]})]:
        streams.write_batches(tmp_path / "input", [[{"k": k} for k in range(6)]] * 2, schema)
        df = streams.read_stream(spark, tmp_path / "input")
        result = process(df, function=function, output_schema="k string, n bigint", **options)
        caplog.clear()
        streams.run(result, tmp_path)
        warned.append([record.getMessage() for record in caplog.records])
    assert [len(messages) for messages in warned] == [0, 1, 0], "of two key groups, in two micro-batches"
    assert "state 'count' is in the checkpoint, and the function has not asked for it" in warned[1][0]
    assert "pass drop_state=['count']" in warned[1][0]
    counted = sorted((str(k), n) for k in range(6) for n in (1, 1, 2, 2, 3, 4))
    assert streams.sink(spark, tmp_path) == counted

    with pytest.raises(ValueError, match="drop_state must name states that the function no longer has"):
        process(df, function=Keeps(), output_schema="k string, n bigint", drop_state=["count"])


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "max_parallelism": (
        {"max_parallelism": 5},
        say(
            "max_parallelism must be 3, as in the checkpoint, got 5",
            "pass max_parallelism=3, or start a new checkpoint",
        ),
    ),
    "one_timer_per_key": (
        {"function": MovesColumns()},
        say("one_timer_per_key must stay as it was: .* are a TimerHeap", "change it back"),
    ),
    "key": (
        {"key": "text"},
        say("key must have the types of the checkpoint's keys", "int64", "got", "string"),
    ),
    "state": (
        {"function": Keeps("double")},
        "state 'count' is a value state of int64, not a value state of double",
    ),
    "columns": (
        {"drop": "note"},
        say("df must have the columns of the rows that wait", "others: 'note' is missing; go back to"),
    ),
    "order": (
        {"order": "arrival"},
        say("order must be 'event_time' while rows wait in the checkpoint", "got 'arrival'; go back to"),
    ),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_changing_what_a_snapshot_fixes_raises(changed: str) -> None:
    def tester(
        function: Any = None, key: str = "k", max_parallelism: int = 3, drop: str = "", order: Any = None
    ) -> ProcessTester:
        columns = {"k": "bigint", "at": "bigint", "note": "string", "text": "string"}
        schema = ", ".join(f"{name} {type_}" for name, type_ in columns.items() if name != drop)
        options = {"order": order, "max_parallelism": max_parallelism}
        return ProcessTester(function or Keeps(), key, schema, "k string, n bigint", "at", **options)

    test = tester()
    test.push([(k, 5 + k, "x", str(k)) for k in range(6)])
    test.advance_watermark(7)
    arguments, message = CHANGES[changed]
    with pytest.raises(ValueError, match=message):
        tester(**arguments).restore(test.snapshot())
    same = tester()
    same.restore(test.snapshot())
    assert same.state("count") == test.state("count") == {0: 1, 1: 1, 2: 1}


def test_changing_what_the_checkpoint_fixes_raises_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each changed query raises; then the original query continues without loss."""
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("note", pa.string())])
    rows = [{"k": k, "at": 5 + k, "note": "x"} for k in range(6)]
    folder = tmp_path / "input"

    def query(max_parallelism: int = 3, drop: str = "") -> None:
        df = streams.read_stream(spark, folder).drop(drop)
        streams.run(
            timerheap.spark.process(
                df,
                "k",
                Keeps(),
                "k string, n bigint",
                "at",
                watermark=MONOTONOUS,
                max_parallelism=max_parallelism,
            ),
            tmp_path,
        )

    streams.write_batches(folder, [rows], schema)
    query()
    streams.write_batches(folder, [[{**row, "at": row["at"] + 10} for row in rows]], schema)
    for changed in ("max_parallelism", "columns"):
        arguments, message = CHANGES[changed]
        with pytest.raises(StreamingQueryException, match=message):
            query(**arguments)
    with streams.configured(spark, shuffle_partitions=3):  # the checkpoint's number of partitions counts
        query()
    # The last row waits still: the watermark is 19.
    assert streams.sink(spark, tmp_path) == sorted(
        (str(k), n) for k in range(6) for n in (1, 2) if k < 5 or n < 2
    )
