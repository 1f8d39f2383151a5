"""Which tables of sql() change, what is refused over them, and which results have `_change_type`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import streams
from changes_model import Table, apply_changes
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.errors import ArgumentError, ArgumentTypeError, ArgumentValueError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

W = "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' DAY))"
UPSERTS = [
    [(1, 1, "a", False), (2, 1, "b", False), (1, 2, "c", False)],
    [(2, 3, "x", True), (1, 1, "late", False), (3, 1, "d", False)],
    [(2, 2, "too late", False), (3, 2, "e", False), (3, 2, "e", False)],
]
"""An id, a version, a value and whether the row is deleted."""
SCHEMA = pa.schema(
    [("id", pa.int64()), ("version", pa.int64()), ("value", pa.string()), ("gone", pa.bool_())]
)


@pytest.fixture
def tables(spark: SparkSession) -> None:
    """Make a changelog ``orders``, and rows ``logs``, of the same columns."""
    rows = spark.range(4).select("id", F.timestamp_seconds("id").alias("at"), F.lit("a").alias("k"))
    rows = rows.withColumn("price", F.col("id").cast("double"))
    rows.createOrReplaceTempView("logs")
    rows.withColumn("_change_type", F.lit("insert")).createOrReplaceTempView("orders")


@pytest.mark.parametrize(
    ("query", "clause"),
    [
        (f"SELECT k, COUNT(*) FROM {W} GROUP BY window_start, window_end, k", "windows of table orders"),
        (f"SELECT * FROM {W}", "windows of table orders"),
        ("SELECT SUM(id) OVER (ORDER BY at) FROM orders", "a function OVER the rows of table orders"),
        (
            "SELECT * FROM orders MATCH_RECOGNIZE (ORDER BY at MEASURES A.id AS i PATTERN (A) "
            "DEFINE A AS id > 1) m",
            "MATCH_RECOGNIZE of table orders",
        ),
        (
            "SELECT * FROM (SELECT k, MAX(at) AS at, COUNT(*) AS n FROM logs GROUP BY k) "
            "MATCH_RECOGNIZE (ORDER BY at "
            "MEASURES A.n AS i PATTERN (A) DEFINE A AS n > 1) m",
            "MATCH_RECOGNIZE of a nested SELECT",
        ),
        (
            "SELECT l.id FROM logs l ASOF JOIN (SELECT k, MAX(at) AS at FROM logs GROUP BY k) o ON "
            "l.k = o.k AND "
            "l.at >= o.at",
            "an as-of join of a nested SELECT",
        ),
    ],
)
def test_what_takes_rows_that_stay_is_refused_over_others(
    query: str, clause: str, spark: SparkSession, tables: None
) -> None:
    with pytest.raises(
        ArgumentValueError, match=f"query: {clause}, whose rows change, is not supported, as in"
    ):
        timerheap.spark.sql(spark, query)


@pytest.mark.parametrize(
    ("query", "changes"),
    [
        ("SELECT id FROM logs WHERE id > 1", False),
        ("SELECT id FROM orders WHERE id > 1", True),
        ("SELECT id FROM logs UNION ALL SELECT id FROM logs", False),
        ("SELECT id FROM logs UNION ALL SELECT id FROM orders", True),
        ("SELECT DISTINCT k FROM logs", True),
        ("SELECT k, COUNT(*) FROM logs GROUP BY k", True),
        ("SELECT k FROM logs QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) = 1", False),
        ("SELECT k FROM logs QUALIFY RANK() OVER (PARTITION BY k ORDER BY at) <= 2", False),
        ("SELECT k FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) = 1", True),
        ("SELECT k FROM logs QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY price) = 1", True),
        ("SELECT k FROM logs QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY at DESC) = 1", True),
        ("SELECT k FROM logs QUALIFY ROW_NUMBER() OVER (PARTITION BY UPPER(k) ORDER BY at) = 1", True),
        (f"SELECT COUNT(*) FROM {W.replace('orders', 'logs')} GROUP BY window_start, window_end", False),
        (
            f"SELECT COUNT(*) FROM (SELECT k, window_end FROM {W.replace('orders', 'logs')} GROUP "
            f"BY window_start, "
            "window_end, k)",
            True,
        ),
        (
            "SELECT COUNT(*) FROM (SELECT l.id FROM logs l ASOF JOIN logs r ON l.k = r.k AND l.at > r.at)",
            True,
        ),
    ],
)
def test_a_result_that_changes_says_so(query: str, changes: bool, spark: SparkSession, tables: None) -> None:
    result = timerheap.spark.sql(spark, query)
    assert ("_change_type" in result.columns) is changes
    assert result.collect()


def test_rows_do_not_have_the_change_type_as_a_column(spark: SparkSession, tables: None) -> None:
    names = ["id", "at", "k", "price", "_change_type"]
    assert timerheap.spark.sql(spark, "SELECT * FROM orders").columns == names
    with pytest.raises(
        ArgumentValueError, match="the result must not have a column _change_type, which says"
    ):
        timerheap.spark.sql(spark, "SELECT k AS _change_type FROM orders")


def test_the_counts_of_columns_of_a_union_must_be_equal(spark: SparkSession, tables: None) -> None:
    with pytest.raises(
        ArgumentValueError, match="as many columns as each other, got 1 and 2; list the columns"
    ):
        timerheap.spark.sql(spark, "SELECT id FROM logs UNION ALL SELECT id, k FROM orders")


@pytest.mark.parametrize(
    ("key", "options"),
    [
        (("id", "version"), {}),
        ((["id"], "version"), {}),
        ("id", {"watermark": {"rows": "version - INTERVAL '5' SECOND"}}),
    ],
)
def test_a_table_of_upserts_is_what_they_make(
    key: Any, options: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    dicts = [[dict(zip(SCHEMA.names, row, strict=True)) for row in batch] for batch in UPSERTS]
    streams.write_batches(tmp_path / "rows", dicts, SCHEMA)
    streams.read_stream(spark, tmp_path / "rows").createOrReplaceTempView("rows")
    result = timerheap.spark.sql(
        spark,
        "SELECT id, value FROM rows WHERE id > 0",
        changes={"rows": key},
        deleted={"rows": "gone"},
        **options,
    )
    table: Table = Table()
    found = []
    for batch in streams.batches(result, tmp_path):
        apply_changes(table, [dict(zip(result.columns, row, strict=True)) for row in batch], ["id"])
        found.append(sorted(table))
    assert found == [[(1, "c"), (2, "b")], [(1, "c"), (3, "d")], [(1, "c"), (3, "e")]]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["orders"], ArgumentTypeError, "changes must be a dict such as"),
        ({"logs": 1}, ArgumentTypeError, "changes must have a key of each table, a name or a list of names"),
        (
            {"logs": ("id", "value", "at")},
            ArgumentTypeError,
            "changes must have a key of each table, a name or",
        ),
        (
            {"logs": ("id", None, "x")},
            ArgumentTypeError,
            "changes must have a key of each table, a name or",
        ),
        (
            {"logs": "id"},
            ArgumentValueError,
            "changes must say what makes an upsert of 'logs' newer, got a key",
        ),
        ({"orders": ("id", "at")}, ArgumentValueError, "got 'orders', which is a changelog; leave it out"),
        (
            {"Logs": ("id", "at")},
            ArgumentValueError,
            "changes must have names of tables as the query has them, got 'Logs', which it has not",
        ),
    ],
)
def test_changes_that_are_not_understood_are_refused(
    changes: Any, error: type[ArgumentError], message: str, spark: SparkSession, tables: None
) -> None:
    with pytest.raises(error, match=message):
        timerheap.spark.sql(
            spark, "SELECT COUNT(*) FROM logs UNION ALL SELECT COUNT(*) FROM orders", changes=changes
        )


def test_what_deletes_rows_of_a_table_that_only_grows_is_refused(spark: SparkSession, tables: None) -> None:
    with pytest.raises(ArgumentValueError, match=r"deleted must have names of tables .* got 'logs'"):
        timerheap.spark.sql(spark, "SELECT COUNT(*) FROM logs GROUP BY k", deleted={"logs": "id IS NULL"})


@pytest.mark.parametrize(
    ("query", "function"),
    [
        ("SELECT k, COUNT(*) AS n FROM logs GROUP BY k", "aggregate_changes"),
        ("SELECT k, id FROM logs QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY id) < 2", "top_changes"),
        ("SELECT a.id FROM logs a JOIN logs b ON a.id = b.id", "join_changes"),
        ("SELECT id FROM logs EXCEPT SELECT id + 1 FROM logs", "aggregate_changes"),
    ],
)
def test_keys_of_each_operator_are_forgotten(
    query: str, function: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tables: None
) -> None:
    """How they are is that of the operators: see test_forgotten_keys."""
    called = Mock(side_effect=getattr(timerheap.spark, function))
    monkeypatch.setattr(f"timerheap.spark._sql.plan.changing_plan.{function}", called)
    rows = spark.readStream.format("rate").load().selectExpr("value AS id", "'a' AS k")
    timerheap.spark.sql(spark, query, tables={"logs": rows}, forget_after="1 day")
    assert called.call_args.kwargs["forget_after"] == 86_400_000


def test_only_what_changes_is_forgotten(spark: SparkSession, tables: None) -> None:
    with pytest.raises(ArgumentValueError, match="forget_after must be None for a query whose result does"):
        timerheap.spark.sql(spark, "SELECT id FROM logs", forget_after=1000)
    with pytest.raises(ArgumentValueError, match="forget_after must be more than 0 ms, got 0"):
        timerheap.spark.sql(spark, "SELECT DISTINCT k FROM logs", forget_after=0)
