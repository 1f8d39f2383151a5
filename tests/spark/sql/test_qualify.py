"""QUALIFY on any function OVER rows is the same as WHERE around a nested SELECT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

ROWS = [("a", 0, 1), ("a", 1, 1), ("a", 2, 2), ("b", 0, 5)]
OVER = "OVER (PARTITION BY k ORDER BY ts)"
QUERIES = {
    "changes": (
        f"SELECT k, v FROM t QUALIFY LAG(v) {OVER} IS DISTINCT FROM v",
        [("a", 1), ("a", 2), ("b", 5)],
    ),
    "star": (
        f"SELECT * FROM t QUALIFY LAG(v) {OVER} IS DISTINCT FROM v",
        [("a", 0, 1), ("a", 2, 2), ("b", 0, 5)],
    ),
    "alias": (
        f"SELECT k, v, SUM(v) {OVER} AS total FROM t QUALIFY total > 1 AND t.v < 5",
        [("a", 1, 2), ("a", 2, 4)],
    ),
    "alias of something else": (
        f"SELECT k, v * 10 AS tens FROM t QUALIFY tens > 10 AND LAG(v) {OVER} IS NOT NULL",
        [("a", 20)],
    ),
    "named window, WHERE": (
        "SELECT t.k, t.v FROM t WHERE v < 5 QUALIFY LAG(t.v) OVER w < t.v OR ROW_NUMBER() OVER w = 1 "
        "WINDOW w AS (PARTITION BY k ORDER BY ts)",
        [("a", 1), ("a", 2)],
    ),
    "star and alias": (
        f"SELECT *, LAG(v) {OVER} AS before FROM t QUALIFY before < v",
        [("a", 2, 2, 1)],
    ),
    "two functions": (
        f"SELECT k, SUM(v) {OVER} - LAG(v) {OVER} AS rest FROM t QUALIFY AVG(v) {OVER} > 1 AND rest > 0",
        [("a", 3)],
    ),
    "nested": (
        f"SELECT v FROM (SELECT * FROM t QUALIFY SUM(v) {OVER} > 1) WHERE v < 5",
        [(1,), (2,)],
    ),
    "frame": (
        "SELECT k, ts FROM t QUALIFY COUNT(*) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL "
        "'0.001' SECOND PRECEDING AND CURRENT ROW) = 2",
        [("a", 1), ("a", 2)],
    ),
}


def table(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "k string, ts long, v int")


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.promises("Flink SQL", "supported", "QUALIFY with a function OVER rows")
def test_a_condition_on_functions_over_rows(spark: SparkSession, name: str) -> None:
    query, wanted = QUERIES[name]
    table(spark).createOrReplaceTempView("t")
    assert streams.rows(timerheap.spark.sql(spark, query)) == wanted


def test_the_changes_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    rows = table(spark).toArrow()
    end = spark.createDataFrame([("end", 1_000, 0)], "k string, ts long, v int").toArrow()
    streams.write_batches(tmp_path / "t", [rows.slice(0, 2), rows.slice(2), end], rows.schema)
    streams.read_stream(spark, tmp_path / "t").createOrReplaceTempView("t")
    query, wanted = QUERIES["changes"]
    df = timerheap.spark.sql(spark, query, watermark="ts - INTERVAL '0.010' SECOND")
    found: list[Any] = [row for part in streams.batches(df, tmp_path / "work") for row in part]
    assert sorted(found) == wanted
