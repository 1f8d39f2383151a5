"""`join_asof` of a stream with a table: the answers are those of a batch, in the micro-batch of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from asof_cases import LEFT, OPTIONS, RIGHT, Options, cases, split, values
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark import EventTime, RightInput, join_asof
from timerheap.watermarks import WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_stream_has_the_answers_of_a_batch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Random cases, with rows of one time, deletes, and null as a key."""
    options: Options = OPTIONS[name]
    left, right = cases(len(name), 50)
    streams.write_batches(tmp_path / "in", split(left, 5), LEFT)
    table = spark.createDataFrame(pa.Table.from_pylist(right, RIGHT))
    result = join_asof(
        streams.read_stream(spark, tmp_path / "in"), table, ["case", "k"], "at", **options.arguments()
    )
    assert result.isStreaming
    streams.run(result, tmp_path)
    batch = spark.createDataFrame(pa.Table.from_pylist(left, LEFT))
    expected = join_asof(batch, table, ["case", "k"], "at", watermark=0, **options.arguments())
    found = spark.read.parquet(str(tmp_path / "sink"))
    assert found.columns == expected.columns
    assert len(left) >= found.count() > 10
    assert values(found.toArrow().to_pylist()) == values(expected.toArrow().to_pylist())


def started(spark: SparkSession, work: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    streams.write_batches(work / "in", [rows], schema)
    return streams.read_stream(spark, work / "in")


def test_names_expressions_and_columns_of_any_type(spark: SparkSession, tmp_path: Path) -> None:
    """Times in milliseconds; the result has the columns that a batch has."""
    schema = pa.schema([("sym", pa.string()), ("at", pa.int64()), ("price", pa.float64())])
    rows = [{"sym": "a", "at": at, "price": 1.0} for at in (9, 10, 14)]
    left = started(spark, tmp_path, rows, schema)
    quotes = spark.createDataFrame(
        [("A", 10, 1.25, {"x": 1}), ("A", 10, 1.5, {"x": 2}), ("A", 13, None, None)],
        "symbol string, since long, price double, m map<string,int>",
    )
    right = RightInput(quotes, key=F.lower("symbol"), event_time=EventTime("since", tie_break="price"))
    result = join_asof(left.groupBy("sym"), right, event_time="at", deleted=F.col("price").isNull())
    assert result.columns == ["sym", "at", "price", "symbol", "since", "price_right", "m"]
    streams.run(result, tmp_path)
    found = {row["at"]: tuple(row)[3:] for row in spark.read.parquet(str(tmp_path / "sink")).collect()}
    assert found == {9: (None,) * 4, 10: ("A", 10, 1.5, {"x": 2}), 14: (None,) * 4}


def test_rows_without_a_time(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    left = started(spark, tmp_path, [{"k": "a", "at": None}, {"k": "a", "at": 5}], schema)
    table = spark.createDataFrame([("a", 1), ("a", None)], "k string, at long")
    dropped = EventTime("at", null="drop")
    streams.run(join_asof(left, RightInput(table, event_time=dropped), "k", dropped), tmp_path)
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "sink")).collect()] == [("a", 5, 1)]
    for which in (left, left.where("at is not null")):
        with pytest.raises(StreamingQueryException, match="event_time must not be null, got a row with null"):
            streams.run(join_asof(which, table, "k", "at"), tmp_path / str(which is left))


def test_what_only_two_streams_have(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    left = started(spark, tmp_path, [], schema)
    table = spark.createDataFrame([("a", 1)], "k string, at long")
    for name, value in (("watermark", 0), ("late", "drop"), ("unmatched", "emit"), ("name", "prices")):
        with pytest.raises(
            ValueError, match=f"{name} must be left out if left is a stream and right a table"
        ):
            join_asof(left, table, "k", "at", **{name: value})
    waiting = RightInput(table, watermark=WatermarkStrategy.for_monotonous_timestamps())
    with pytest.raises(ValueError, match=r"right.watermark must be left out"):
        join_asof(left, waiting, "k", "at")
    with pytest.raises(ValueError, match="right must be a batch like left, got a stream"):
        join_asof(table, left, "k", "at", watermark=0)


def test_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Both spellings; the watermark of the table says only which column is its time."""
    schema = pa.schema([("k", pa.string()), ("at", pa.int64())])
    left = started(
        spark, tmp_path, [{"k": k, "at": at} for k, at in (("a", 5), ("a", 15), (None, 7))], schema
    )
    table = spark.createDataFrame(
        [("a", 1, 1.0), ("a", 6, 2.0), (None, 1, 3.0)], "k string, since long, v double"
    )
    times = {name: f"{time} - INTERVAL '0' SECOND" for name, time in (("l", "at"), ("p", "since"))}
    on = "ON l.k = p.k"
    for number, (query, answer) in enumerate(
        [
            (f"LEFT JOIN p FOR SYSTEM_TIME AS OF l.at AS p {on}", {5: 1.0, 15: 2.0, 7: None}),
            (f"ASOF JOIN p {on} AND l.at >= p.since AND l.at - p.since < 9", {5: 1.0}),
        ]
    ):
        text = f"SELECT l.at, p.v FROM l {query} WHERE l.at < 20"
        df = timerheap.spark.sql(spark, text, times, tables={"l": left, "p": table})
        streams.run(df, tmp_path / str(number))
        found = spark.read.parquet(str(tmp_path / str(number) / "sink"))
        assert {row["at"]: row["v"] for row in found.collect()} == answer
    text = f"SELECT l.at FROM l ASOF JOIN p {on} AND l.at >= p.since AND l.at - p.v < 9"
    with pytest.raises(
        ValueError, match="a further condition that chooses the row of p, a table beside a st"
    ):
        timerheap.spark.sql(spark, text, times, tables={"l": left, "p": table})
