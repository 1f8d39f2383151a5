"""What Flink writes in another way than Spark, and what of a query needs no other table."""

from __future__ import annotations

import pytest
import streams
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap.errors import ArgumentValueError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]


def test_constructors_and_calls_of_flink(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(2000, "x")], "ts long, k string")
    query = (
        "SELECT MAP[k, ts, 'y', 3] AS m, MAP[k, ts]['x'] AS one, UNIX_MILLIS(TO_TIMESTAMP_LTZ(ts, 3)) AS ms, "
        "UNIX_MILLIS(TO_TIMESTAMP_LTZ(ts, 0)) AS s FROM t"
    )
    found = timerheap.spark.sql(spark, query, tables={"t": rows})
    assert [tuple(row) for row in found.collect()] == [({"x": 2000, "y": 3}, 2000, 2000, 2_000_000)]


@pytest.mark.promises("Flink SQL", "supported", "SELECT without FROM", note="one row of a batch")
def test_a_query_may_have_rows_of_its_own(spark: SparkSession) -> None:
    found = timerheap.spark.sql(spark, "SELECT 1 + 1 AS two, 'x' AS x")
    assert [tuple(row) for row in found.collect()] == [(2, "x")]
    query = "SELECT word FROM LATERAL TABLE(EXPLODE(SPLIT('a,b', ','))) AS t(word) WHERE word <> 'a'"
    assert streams.rows(timerheap.spark.sql(spark, query)) == [("b",)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT *", r"\* without FROM is not supported"),
        ("SELECT TO_TIMESTAMP_LTZ(ts, 6) FROM t", r"write the precision 0, of seconds, or 3"),
        ("SELECT JSON_VALUE(k, '$.a') FROM t", r"JSON_VALUE\(k, '\$.a'\) is not supported; write GET_JSON"),
        (
            "SELECT CURRENT_WATERMARK(ts) FROM t",
            "the metrics of the query have its watermark",
        ),
        ("SELECT /*+ STATE_TTL('t' = '1d') */ k FROM t", "a hint is not supported"),
        (
            "WITH v AS (SELECT k, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY n DESC) AS r "
            "FROM t) WHERE r = 1) SELECT a.k FROM t AS a JOIN v FOR SYSTEM_TIME AS OF a.ts AS b ON a.k = b.k",
            "an as-of join of a nested SELECT, whose rows change|does not say which column of b is its time",
        ),
    ],
)
def test_what_is_not_there_is_refused(query: str, message: str, spark: SparkSession) -> None:
    rows = spark.createDataFrame([(2000, "x", 1)], "ts long, k string, n int")
    with pytest.raises(ArgumentValueError, match=message):
        timerheap.spark.sql(spark, query, tables={"t": rows})


def test_windows_of_the_pairs_of_an_interval_join_have_columns_of_both(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x", 1, 1000), ("x", 2, 2000), ("y", 5, 7000)], "k string, n int, ts long")
    query = """
        SELECT a.k, b.k AS other, SUM(a.n * b.n) AS products
        FROM t AS a JOIN t AS b ON a.ts BETWEEN b.ts - INTERVAL '1' SECOND AND b.ts
        WHERE b.n > 1 GROUP BY a.k, b.k, TUMBLE(b.ts, INTERVAL '5' SECOND)"""
    found = timerheap.spark.sql(spark, query, "ts - INTERVAL '1' SECOND", tables={"t": rows})
    assert found.columns == ["k", "other", "products"]
    assert streams.rows(found) == [("x", "x", 2 + 4), ("y", "y", 25)]
