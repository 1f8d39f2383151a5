"""Tests of `async_map`: single tasks without Spark, and whole queries."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import async_http
import pyarrow as pa
import pytest
import streams
from async_http import PlaneServer, read_models
from flights import departures, read_flights, write_replay
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

import timerheap.spark
from timerheap.async_io import AsyncFunction, AsyncRetryStrategy, has_exception_predicate
from timerheap.spark._async_map import Mapper

ROWS = StructType([StructField("n", LongType()), StructField("text", StringType())])
SCHEMA = to_arrow_schema(ROWS)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"c0": numbers, "c1": [str(n) for n in numbers]})


def flat(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [n for b in batches for n in b.column("n").to_pylist()]


async def same(row: Row) -> Row:
    return row


# Single tasks, without a Spark session.


class Server(AsyncFunction[Row, Any]):
    """Answers a call when its event is set, and counts the calls."""

    def __init__(self, free: bool = False) -> None:
        self.log: list[Any] = []
        self.under_way: set[int] = set()
        self.most = 0
        self.free = free

    async def open(self, runtime_context: Any) -> None:
        self.log.append("open")
        self.may_answer = asyncio.Event()
        if self.free:
            self.may_answer.set()

    async def close(self) -> None:
        self.log.append(("close", sorted(self.under_way)))

    async def async_invoke(self, value: Row) -> list[Row]:
        self.under_way.add(value.n)
        self.most = max(self.most, len(self.under_way))
        try:
            await asyncio.sleep(0.001)
            await self.may_answer.wait()
        finally:
            self.under_way.remove(value.n)
        return [value]


def test_rows_are_read_only_while_capacity_is_free() -> None:
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 10):
            read.append(start)
            yield batch(*range(start, start + 10))

    class Gated(Server):
        """Answer after making sure that no more rows are read."""

        async def async_invoke(self, value: Row) -> list[Row]:
            if value.n == 0:
                while len(read) < 3:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05)
                self.read = list(read)
                self.may_answer.set()
            return await super().async_invoke(value)

    server = Gated()
    assert flat(Mapper(server, ROWS, SCHEMA, capacity=25)(batches())) == list(range(1000))
    assert server.read == [0, 10, 20]
    assert server.most == 25
    assert server.log == ["open", ("close", [])]


def test_results_are_returned_before_the_input_ends() -> None:
    """A task that read on before it returned its results would block this test."""
    came = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(1, 2)
        yield batch(3)
        assert came.wait(60)

    for part in Mapper(same, ROWS, SCHEMA, capacity=1)(batches()):
        if part.column("n").to_pylist()[0] == 1:
            came.set()
    assert came.is_set()


def test_large_outputs_are_returned_in_several_record_batches() -> None:
    async def many(row: Row) -> list[Row]:
        return [row] * 700

    parts = [part.num_rows for part in Mapper(many, ROWS, SCHEMA)(iter([batch(*range(10))]))]
    assert sum(parts) == 7000
    assert max(parts) <= 1000


def test_a_partition_without_rows_does_not_call_open() -> None:
    server = Server()
    assert list(Mapper(server, ROWS, SCHEMA)(iter([]))) == []
    assert list(Mapper(server, ROWS, SCHEMA)(iter([batch()]))) == []
    assert server.log == []


def test_stopping_a_task_cancels_its_calls() -> None:
    class Slow(Server):
        async def async_invoke(self, value: Row) -> list[Row]:
            if value.n < 5:
                return [value]
            return await super().async_invoke(value)

    server = Slow()
    before = threading.active_count()
    parts = Mapper(server, ROWS, SCHEMA, capacity=10)(iter([batch(*range(1000))]))
    assert flat(itertools.islice(parts, 1)) == [0, 1, 2, 3, 4]
    while len(server.under_way) < 10:
        time.sleep(0.001)
    parts.close()  # type: ignore[attr-defined]
    assert server.log == ["open", ("close", [])]
    assert threading.active_count() == before


def test_an_error_while_reading_cancels_the_calls() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(1, 2)
        raise OSError("the source is gone")

    server = Server()
    with pytest.raises(OSError, match="the source is gone"):
        list(Mapper(server, ROWS, SCHEMA)(batches()))
    assert server.log == ["open", ("close", [])]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (None, TypeError, "gives.* must return a row or a list of rows, got None"),
        ([None], ValueError, r"gives.* yielded None, which does not fit output_schema \(n int64, text str"),
        ((1,), ValueError, r"yielded \(1,\), which does not fit output_schema"),
        ({"m": 1}, ValueError, "yielded {'m': 1}, which does not fit"),
        ("text", ValueError, "yielded 'text', which does not fit"),
    ],
)
def test_invalid_output_raises_and_shows_the_input_row(
    result: Any, error: type[Exception], message: str
) -> None:
    async def gives(row: Row) -> Any:
        return row if row.n < 7 else result

    with pytest.raises(error, match=message) as e:
        list(Mapper(gives, ROWS, SCHEMA)(iter([batch(*range(10))])))
    assert e.value.__notes__ == ["timerheap: for the element Row(n=7, text='7')"]


def test_a_value_of_the_wrong_type_raises_and_names_its_column() -> None:
    async def gives(row: Row) -> Any:
        return row.text, row.n

    with pytest.raises(ValueError, match=r"output_schema: column 'n': '1' \(str\) does not fit int64"):
        list(Mapper(gives, ROWS, SCHEMA)(iter([batch(1)])))


# Whole queries.

spark_needed = pytest.mark.spark


class Client(AsyncFunction[Row, Any]):
    """Writes a file in open and one in close; some calls fail and some are slow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: set[int] = set()

    async def open(self, runtime_context: Any) -> None:
        self.number = len(list(self.folder.iterdir()))
        (self.folder / f"open-{id(self)}-{self.number}").touch()

    def close(self) -> None:
        (self.folder / f"close-{id(self)}-{self.number}").touch()

    async def async_invoke(self, value: Row) -> list[Any]:
        await asyncio.sleep((value.n % 7) / 1000)
        if value.n == 13:
            await asyncio.sleep(600)
        if value.n % 5 == 0 and value.n not in self.failed:
            self.failed.add(value.n)
            raise ConnectionResetError
        return [{"n": value.n, "copy": copy} for copy in range(value.n % 3)]

    def timeout(self, value: Row) -> list[Any]:
        return [(value.n, -1)]


def expected(n: int) -> list[tuple[int, int]]:
    return [(n, -1)] if n == 13 else [(n, copy) for copy in range(n % 3)]


@spark_needed
@pytest.mark.promises("PyFlink", "supported", "AsyncFunction.open", "AsyncFunction.close")
def test_a_streaming_query_returns_all_results_and_closes_its_functions(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    files = [[{"n": n, "at": start} for n in range(f * 20, f * 20 + 20)] for f in range(2)]
    streams.write_batches(tmp_path / "in", files, schema)
    (tmp_path / "log").mkdir()
    retry = AsyncRetryStrategy.fixed_delay(2, 5, exception_predicate=has_exception_predicate)

    def transform(df: DataFrame) -> DataFrame:
        return timerheap.spark.async_map(
            df, Client(tmp_path / "log"), "n bigint, copy int", capacity=10, timeout=4_000, ordered=False,
            retry=retry,
        )  # fmt: skip

    out = streams.stream(spark, transform, tmp_path / "in", tmp_path / "work")
    assert sorted(out) == sorted(row for n in range(40) for row in expected(n))
    log = [path.name.partition("-") for path in (tmp_path / "log").iterdir()]
    opened, closed = (sorted(rest for kind, _, rest in log if kind == wanted) for wanted in ("open", "close"))
    assert len(opened) == 2  # micro-batches of one task with rows
    assert opened == closed


@spark_needed
@pytest.mark.promises("PyFlink", "supported", "AsyncFunction.async_invoke")
def test_a_batch_query_keeps_the_order_and_all_column_types(spark: SparkSession) -> None:
    df = spark.range(500, numPartitions=2).select(
        "id",
        F.expr("nullif(id % 3, 0)").alias("a.b`c"),
        F.timestamp_millis(F.col("id") * 997).alias("at"),
        F.expr("array(id, null)").alias("list"),
        F.expr("map(string(id), id)").alias("map"),
        F.expr("struct(id, string(id) as s)").alias("nested"),
        F.expr("cast(id as decimal(20, 3))").alias("exact"),
    )
    names = df.columns

    async def slowly(row: Row) -> Row:
        assert row.asDict().keys() == set(names)
        await asyncio.sleep((row.id % 5) / 1000)
        return row

    result = timerheap.spark.async_map(df, slowly, capacity=100, timeout=60_000, ordered=True)
    assert result.schema == df.schema
    assert result.toArrow() == df.toArrow()


@spark_needed
def test_the_watermark_is_kept_with_its_column(spark: SparkSession) -> None:
    clock = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    passed = timerheap.spark.async_map(clock, same)
    assert passed.schema["timestamp"].metadata == {"spark.watermarkDelayMs": 5000}
    lost = timerheap.spark.async_map(clock, same, "timestamp timestamp, value bigint")
    assert not lost.schema["timestamp"].metadata


@spark_needed
def test_an_error_fails_the_query_and_shows_the_row(spark: SparkSession) -> None:
    async def fails(row: Row) -> Row:
        await asyncio.sleep(0.001 * row.id)
        if row.id == 7:
            raise LookupError("no such plane")
        return row

    result = timerheap.spark.async_map(spark.range(20, numPartitions=1), fails)
    with pytest.raises(PythonException, match=r"(?s)LookupError: no such plane.*element Row\(id=7\)"):
        result.collect()


@spark_needed
def test_an_invalid_argument_raises_before_the_query_starts(spark: SparkSession) -> None:
    df = spark.range(3)
    lock = threading.Lock()

    async def locked(row: Row) -> Row:
        with lock:
            return row

    def plain(row: Row) -> Row:
        return row

    for arguments, error, message in [
        ({"df": [1, 2]}, TypeError, r"df must be a pyspark.sql.DataFrame, got \[1, 2\]"),
        ({"df": df.select("id", "id")}, ValueError, "df must have unique column names .* got 'id'"),
        ({"function": plain}, TypeError, "function must be a coroutine function .*plain.*; write it with"),
        (
            {"function": Client},
            TypeError,
            r"function must be an instance, got the class Client; pass Client\(\)",
        ),
        ({"function": locked}, TypeError, "function must be serialisable, to be sent to the workers"),
        ({"output_schema": "n bgint"}, ValueError, "output_schema must be a DDL string .*, got 'n bgint'"),
        ({"output_schema": 5}, TypeError, "output_schema must be a DDL string .*, got 5"),
        ({"capacity": 0}, ValueError, "capacity must be 1 or more, got 0"),
        ({"capacity": "100"}, TypeError, "capacity must be an int, got '100'"),
        ({"timeout": 0}, ValueError, "timeout must be 1 ms or more, got 0"),
        ({"timeout": 0.5}, TypeError, "timeout must be an int of milliseconds or a timedelta, got 0.5"),
        ({"ordered": 1}, TypeError, "ordered must be True or False, got 1"),
        ({"retry": 3}, TypeError, "retry must be an AsyncRetryStrategy, got 3; pass Async"),
    ]:
        with pytest.raises(error, match=message):
            timerheap.spark.async_map(**{"df": df, "function": same, **arguments})  # type: ignore[arg-type]


class Patient(PlaneServer):
    """Answers no request before it has received a hundred."""

    async def think(self) -> None:
        while self.most < 100:
            await asyncio.sleep(0.01)


@spark_needed
def test_the_example_makes_a_hundred_concurrent_requests(spark: SparkSession, tmp_path: Path) -> None:
    flights = read_flights().dropna(subset=["dep_delay"]).head(400)
    write_replay(flights, tmp_path / "flights", batches=2)
    models = read_models()
    with Patient(models) as server:
        batches = async_http.run(spark, tmp_path, server.url)
    assert [batch.numInputRows for batch in batches] == [200, 200]
    assert (server.calls, server.most) == (400, 100)
    asked = departures(spark.read.parquet(str(tmp_path / "flights"))).collect()
    answers = spark.read.parquet(str(tmp_path / "models")).collect()
    assert Counter(map(tuple, answers)) == Counter((*row, models.get(row.plane)) for row in asked)


def test_the_loop_of_the_example_requests_all_rows() -> None:
    with PlaneServer({"N1": "A320"}) as server:
        rows = [Row(plane="N1"), Row(plane="N2")]
        answers = asyncio.run(async_http.one_after_the_other(rows, server.url))
    assert answers == [("N1", "A320"), ("N2", None)]
    assert (server.calls, server.most) == (2, 1)
