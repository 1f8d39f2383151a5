"""Expressions of one variable's rows in MATCH_RECOGNIZE that fail for the rows of others."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

ROWS = [("k", 1, "x", "start", 0), ("k", 2, "4", "pay", 2)]
DEFINED = "S AS v = 'start', P AS v = 'pay'"


def found(spark: SparkSession, clause: str, rows: list[tuple[Any, ...]] = ROWS) -> list[tuple[Any, ...]]:
    df = spark.createDataFrame(rows, "k string, at int, s string, v string, w int")
    df.selectExpr("*", "timestamp_seconds(at) AS ts").createOrReplaceTempView("t")
    query = f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clause})"
    return [tuple(row)[1:] for row in timerheap.spark.sql(spark, query).collect()]


@pytest.mark.parametrize(
    ("measures", "value"),
    [
        ("SUM(CAST(P.s AS INT))", 4),
        ("LAST(CAST(P.s AS INT) + 1)", 5),
        ("SUM(10 / P.w)", 5.0),
        ("SUM(CASE WHEN P.w > 0 THEN CAST(P.s AS INT) END)", 4),
        ("MAX(to_date(P.s, 'd'))", None),
    ],
)
@pytest.mark.parametrize("define", [DEFINED, "S AS v = 'start', P AS v = 'pay' AND w > PREV(w)"])
def test_measures_read_the_rows_of_their_variable_alone(
    spark: SparkSession, measures: str, value: Any, define: str
) -> None:
    ((result,),) = found(spark, f"MEASURES {measures} AS x PATTERN (S P) DEFINE {define}")
    assert value is None or result == value


@pytest.mark.parametrize(
    "define",
    [
        "S AS v = 'start', P AS 10 / P.w > 3",
        "S AS v = 'start', P AS CAST(P.s AS INT) > 3",
        "S AS v = 'start', P AS 10 / P.w > PREV(P.w)",
        "S AS v = 'start', P AS v = 'pay' AND CAST(s AS INT) > PREV(w)",
        "S AS v = 'start', P AS SUM(CAST(P.s AS INT)) = 4",
        "S AS v = 'start', P AS 4 / (w - PREV(w)) > 1",
    ],
)
def test_conditions_fail_for_no_row_of_another_variable(spark: SparkSession, define: str) -> None:
    rows = [("k", 0, "z", "start", 0), *ROWS]  # the difference of the first two is zero
    clause = f"MEASURES COUNT(*) AS n PATTERN (S S P) DEFINE {define}"
    assert found(spark, clause, rows) == [(3,)]


def test_a_variable_without_a_condition(spark: SparkSession) -> None:
    clause = "MEASURES SUM(CAST(P.s AS INT)) AS n PATTERN (S P) DEFINE S AS v = 'start'"
    assert found(spark, clause) == [(4,)]


@pytest.mark.parametrize("measure", ["SUM(CAST(P.s AS INT))", "FIRST(CAST(P.s AS INT))", "MAX(1 / P.w)"])
def test_a_measure_of_a_row_that_fails_is_an_error(spark: SparkSession, measure: str) -> None:
    rows = [("k", 1, "1", "start", 1), ("k", 2, "x", "pay", 0)]
    with pytest.raises(Exception, match=r"query: .* in MEASURES must be a value for each row"):
        found(spark, f"MEASURES {measure} AS x PATTERN (S P) DEFINE {DEFINED}", rows)
