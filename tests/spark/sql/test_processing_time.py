"""Queries by the processing time: rows as they arrive, whose time is the clock of their micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap.errors import ArgumentValueError

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
FIRST = [("a", 5), ("a", 3), ("b", 7), ("a", 1), ("a", 4)]
THEN = [("a", 9), ("b", 1), ("a", 2)]
HOUR = "RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW"


def dicts(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Two micro-batches of rows."""
    streams.write_batches(tmp_path / "rows", [dicts(FIRST), dicts(THEN)], SCHEMA)
    return streams.read_stream(spark, tmp_path / "rows")


@pytest.mark.parametrize("time", ["proctime", "PROCTIME()"])
@pytest.mark.promises(
    "Flink SQL",
    "different",
    "OVER, processing time",
    note="the time of a row is that of its micro-batch; rows follow each other as they arrive",
)
def test_functions_over_rows_see_those_that_have_arrived(
    time: str, spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    """A restart goes on where the query has stopped; no two rows are peers, as in Flink."""
    by = f"PARTITION BY k ORDER BY {time}"
    query = (
        f"SELECT k, v, SUM(v) OVER ({by}) AS s, COUNT(*) OVER ({by} {HOUR}) AS n, LAG(v) OVER ({by}) AS l, "
        f"MAX(v) OVER ({by} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS m, RANK() OVER ({by}) AS r FROM t"
    )
    result = timerheap.spark.sql(spark, query, tables={"t": rows}, max_parallelism=2)
    assert result.columns == ["k", "v", "s", "n", "l", "m", "r"]
    found = streams.batches(result, tmp_path)
    assert [sorted(batch) for batch in found if batch] == [
        [
            ("a", 1, 9, 3, 3, 3, 3),
            ("a", 3, 8, 2, 5, 5, 2),
            ("a", 4, 13, 4, 1, 4, 4),
            ("a", 5, 5, 1, None, 5, 1),
            ("b", 7, 7, 1, None, 7, 1),
        ],
        [("a", 2, 24, 6, 9, 9, 6), ("a", 9, 22, 5, 4, 9, 5), ("b", 1, 8, 2, 7, 7, 2)],
    ]
    streams.write_batches(tmp_path / "rows", [dicts(FIRST[:1])], SCHEMA)
    assert streams.batches(result, tmp_path)[-1] == [("a", 5, 29, 7, 2, 5, 7)]


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "MATCH_RECOGNIZE, processing time",
    note="the time of a row is that of its micro-batch; rows follow each other as they arrive",
)
def test_a_pattern_is_matched_in_rows_as_they_arrive(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    query = """
        SELECT * FROM t MATCH_RECOGNIZE (
            PARTITION BY k ORDER BY {} MEASURES A.v AS a, B.v AS b AFTER MATCH SKIP PAST LAST ROW
            PATTERN (A B) WITHIN INTERVAL '1' HOUR DEFINE A AS A.v > 2, B AS B.v < 3
        ) AS m"""
    for time in ("PROCTIME()", "p"):
        result = timerheap.spark.sql(spark, query.format(time), tables={"t": rows}, max_parallelism=2)
        assert result.columns == ["k", "a", "b"]
        found = streams.batches(result, tmp_path / time)
        assert [sorted(batch) for batch in found if batch] == [[("a", 3, 1)], [("a", 9, 2), ("b", 7, 1)]]


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "interval JOIN of processing time",
    note="the time of a row is that of its micro-batch",
)
def test_rows_are_joined_that_arrive_near_each_other(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    others = rows.selectExpr("k", "v AS w").where("v > 8")
    query = """
        SELECT t.k, v, w FROM t LEFT JOIN o ON t.k = o.k AND
            t.p BETWEEN o.p - INTERVAL '{0}' SECOND AND o.p + INTERVAL '{0}' SECOND"""
    found = {}
    for seconds in (1, 100):
        result = timerheap.spark.sql(
            spark, query.format(seconds), tables={"t": rows, "o": others}, processing_time="p"
        )
        alone = 2 * (seconds == 1)  # rows of b, which have no match within a second
        found[seconds] = streams.run_until(
            result,
            lambda rows, alone=alone: len({v for k, v, _ in rows if k == "b"}) >= alone and len(rows) >= 6,
            tmp_path / str(seconds),
        )
    assert found[100] == sorted(("a", v, 9) for k, v in FIRST + THEN if k == "a")
    assert {row for row in found[1] if row[0] == "b"} == {("b", 1, None), ("b", 7, None)}


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN"])
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "lookup JOIN",
    note="the table is a DataFrame that is no stream, which Spark reads for each micro-batch",
)
def test_a_lookup_join_has_the_table_of_the_micro_batch(
    how: str, spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    names = spark.createDataFrame([("a", "A"), ("a", "aa"), ("c", "C")], "k string, name string")
    query = f"""
        SELECT t.k, v, d.name FROM t {how} names FOR SYSTEM_TIME AS OF t.proctime AS d
        ON t.k = d.k AND d.name <> 'aa'"""
    result = timerheap.spark.sql(spark, query, tables={"t": rows, "names": names})
    streams.run(result, tmp_path)
    wanted = [(k, v, "A" if k == "a" else None) for k, v in FIRST + THEN if how != "JOIN" or k == "a"]
    assert streams.sink(spark, tmp_path) == sorted(wanted, key=repr)


@pytest.mark.promises("Flink SQL", "supported", "several lookup JOINs in one SELECT")
def test_a_lookup_join_follows_a_different_one(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    query = """
        SELECT t.v, d.name, e.size, d.k FROM t
        JOIN names FOR SYSTEM_TIME AS OF t.proctime AS d ON t.k = d.k
        LEFT JOIN sizes FOR SYSTEM_TIME AS OF t.proctime AS e ON d.name = e.name AND e.size > t.v"""
    names = spark.createDataFrame([("a", "A"), ("b", "B")], "k string, name string")
    sizes = spark.createDataFrame([("A", 3), ("A", 8)], "name string, size int")
    result = timerheap.spark.sql(spark, query, tables={"t": rows, "names": names, "sizes": sizes})
    assert result.columns == ["v", "name", "size", "k"]
    streams.run(result, tmp_path)
    wanted = []
    for k, v in FIRST + THEN:
        found = [size for size in (3, 8) if k == "a" and size > v] or [None]
        wanted += [(v, k.upper(), size, k) for size in found]
    assert streams.sink(spark, tmp_path) == sorted(wanted, key=repr)


@pytest.mark.promises(
    "Flink SQL", "refused", "temporal JOIN of processing time", note="of two streams; Flink refuses it, too"
)
def test_a_lookup_join_of_a_stream_is_refused(spark: SparkSession, rows: DataFrame) -> None:
    query = "SELECT t.k FROM t JOIN d FOR SYSTEM_TIME AS OF t.proctime ON t.k = d.k"
    with pytest.raises(ArgumentValueError, match="processing time proctime of the stream d is not supported"):
        timerheap.spark.sql(spark, query, tables={"t": rows, "d": rows})
