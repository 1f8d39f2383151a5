"""ORDER BY of MATCH_RECOGNIZE: descending columns, nulls, and collations, against Spark's own order."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

ORDERS = [
    "x DESC, n", "x, n DESC", "x DESC NULLS FIRST, n", "x ASC NULLS LAST, n", "s DESC NULLS LAST, x, n",
    "s NULLS FIRST, x DESC NULLS FIRST, n DESC", "d DESC, b DESC NULLS FIRST, n", "b, d NULLS LAST, n DESC",
]  # fmt: skip
NAN = float("nan")
FALLS = """MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts, p DESC
    MEASURES A.p AS high, LAST(D.p) AS low, U.p AS up
    PATTERN (A D+ U) WITHIN INTERVAL '1' HOUR DEFINE D AS p < LAST(p, 1), U AS p > LAST(p, 1))"""


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    rng = random.Random(1)
    rows = [
        (
            n,
            rng.randrange(3),
            rng.randrange(4),
            rng.choice([None, 1.0, -1.0, 0.0, NAN, float("inf")]),
            rng.choice([None, "", "a", "b", "é"]),
            rng.choice([None, "1.5", "-2"]),
            rng.choice([None, True, False]),
        )
        for n in range(200)
    ]
    df = spark.createDataFrame(rows, "n int, k int, t int, x double, s string, d string, b boolean")
    df = df.selectExpr("n", "k", "timestamp_seconds(t) AS ts", "x", "s", "CAST(d AS decimal(5, 2)) AS d", "b")
    df.createOrReplaceTempView("rows")
    return df


@pytest.mark.promises("Flink SQL", "supported", "DESC, NULLS FIRST and NULLS LAST in MATCH_RECOGNIZE")
@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_one_time_are_in_the_order_of_spark(spark: SparkSession, rows: DataFrame, order: str) -> None:
    query = f"""SELECT k, n, number FROM rows MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts, {order}
        MEASURES COUNT(*) AS number ALL ROWS PER MATCH PATTERN (A+))"""
    found = timerheap.spark.sql(spark, query).collect()
    by = f"ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts, {order})"
    assert sorted(map(tuple, found)) == sorted(map(tuple, rows.selectExpr("k", "n", by).collect()))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_descending_column_on_batches_and_streams(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    parts = [[(0, 3), (1, 1), (1, 2)], [(2, 5)], [(99, 0)]]
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("p", pa.int64())])
    rows = [[{"k": 1, "ts": s * 1_000_000, "p": p} for s, p in part] for part in parts]
    streams.write_batches(tmp_path / "rows", rows, schema)
    if streaming:
        streams.read_stream(spark, tmp_path / "rows").createOrReplaceTempView("t")
        streams.run(timerheap.spark.sql(spark, f"SELECT * FROM t {FALLS}", "0 seconds"), tmp_path)
        assert streams.sink(spark, tmp_path) == [(1, 3, 1, 5)]
    else:
        spark.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("t")
        found = timerheap.spark.sql(spark, f"SELECT * FROM t {FALLS}").collect()
        assert [tuple(row) for row in found] == [(1, 3, 1, 5)]


@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UNICODE_CI"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ORDER BY ts", "ORDER BY ts, c", "ORDER BY must have .*, got column 'c' with {}; .*F.collate"),
        ("PARTITION BY k", "PARTITION BY c", "PARTITION BY must have .*, got column 'c' with {}"),
        ("B.k = A.k", "c = PREV(c)", "EQ in DEFINE must have .*, got c with {}; .* F.collate"),
        ("B.k = A.k", "c IN (A.c, 'x')", "EQ in DEFINE must have .*, got c with {}"),
        ("B.k = A.k", "c BETWEEN A.c AND 'x'", "GE in DEFINE must have .* with {}"),
        ("B.k = A.k", "COALESCE(A.c, '') < IF(A.k = 'a', c, A.c)", "LT in DEFINE must have .* with {}"),
        ("B.k = A.k", "NULLIF(c, A.c) IS NULL", "EQ in DEFINE must have .* with {}"),
        ("B.k = A.k", "GREATEST(c, A.c) IS NULL", "GREATEST in DEFINE must have .* with {}"),
        ("B.k = A.k", "MAX(c) IS NULL", "MAX in DEFINE must have .* with {}"),
        ("COUNT(c)", "MIN(A.c)", "MIN in MEASURES must have .*, got c with {}"),
    ],
)
def test_collated_strings_that_rows_are_compared_by_are_refused(
    spark: SparkSession, collation: str, old: str, new: str, message: str
) -> None:
    columns = f"'a' COLLATE {collation} c", "'a' k", "timestamp_millis(id) ts"
    spark.range(2).selectExpr(*columns).createOrReplaceTempView("texts")
    query = """SELECT * FROM texts MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES COUNT(c) AS n, LAST(c) AS last PATTERN (A B) DEFINE A AS c = 'A', B AS B.k = A.k)"""
    assert [tuple(row) for row in timerheap.spark.sql(spark, query).collect()] == [("a", 2, "a")]
    with pytest.raises(ValueError, match=message.format(collation)):
        timerheap.spark.sql(spark, query.replace(old, new))


@pytest.mark.parametrize("depth", [400, 2_000])
def test_many_parentheses_in_a_condition_are_refused(spark: SparkSession, depth: int) -> None:
    condition = f"{'(' * depth}x > PREV(x){')' * depth}"
    query = f"SELECT * FROM rows MATCH_RECOGNIZE (ORDER BY ts PATTERN (A) DEFINE A AS {condition})"
    with pytest.raises(ValueError, match="query must have fewer expressions in each other"):
        timerheap.spark.sql(spark, query)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("ts DESC", "ORDER BY ts DESC in MATCH_RECOGNIZE is not supported; order by the time column, asc"),
        ("ts, x + 1", r"ORDER BY x \+ 1 in MATCH_RECOGNIZE is not supported"),
        ("ts, own DESC", "ORDER BY must be of an atomic type, got column 'own'"),
        ("ts, y DESC", r"must be by columns of the table, got \['y'\]"),
    ],
)
def test_other_orders_are_refused(spark: SparkSession, rows: DataFrame, order: str, message: str) -> None:
    rows.selectExpr("*", "struct(x) AS own").createOrReplaceTempView("rows")
    query = f"SELECT * FROM rows MATCH_RECOGNIZE (ORDER BY {order} ALL ROWS PER MATCH PATTERN (A))"
    with pytest.raises(ValueError, match=message):
        timerheap.spark.sql(spark, query)
