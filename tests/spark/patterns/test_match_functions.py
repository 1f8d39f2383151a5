"""Functions of several rows in DEFINE and MEASURES against those of Spark over LAG."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Any

import match_cases
import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NAN, INF = float("nan"), float("inf")
X = [None, 1.5, NAN, -2.5, 2.5, INF, -0.0, 0.0, -INF, 1e300, 7.25, NAN, NAN, None, None, -7.0, 3.0]
I = [3, None, -7, 2, 2, -3, 10, 4, None, 2**40, -5, 5, 0, 1, 9, -9, 8]  # noqa: E741
D = [
    "1.25",
    None,
    "-1.25",
    "2.50",
    "2.5",
    "0.005",
    "99.995",
    "-3",
    "7",
    "7",
    "0",
    "1",
    "2",
    None,
    "4",
    "5",
    "6",
]
S = ["a", "b", None, "", "ab", "B", "b", "c", "a", "a", None, None, "x", "y", "z", "zz", "y"]
T = [0, 1, 61, 3600, 3661, 90_000, 90_001, 90_060, 200_000, *range(200_001, 200_009)]

# Conditions, in which p. stands for the row before.
CONDITIONS = [
    "ABS(x - p.x) <= 2", "ABS(p.x) > ABS(x)", "ABS(i - p.i) BETWEEN 5 AND 10", "ABS(d - p.d) > 2",
    "SIGN(x - p.x) = 1", "SIGN(i - p.i) = SIGN(p.i)", "SIGN(d - p.d) < 0",
    "IF(ABS(x - p.x) < 1000, FLOOR(x - p.x), 0) = -4",
    "IF(ABS(x - p.x) < 1000, CEIL(x - p.x), 0) > 3", "CEIL(d - p.d) = FLOOR(d - p.d)", "FLOOR(i + p.i) > 7",
    "ROUND(x + p.x) = ROUND(x) + ROUND(p.x)", "ROUND(x - p.x, 1) > 0", "ROUND(d - p.d, 1) = d - p.d",
    "ROUND(i - p.i, -1) = 0", "ROUND(x * p.x / 3.0D, 2) < 0",
    "(i - p.i) % 3 = 1", "(i - p.i) % -4 < 0", "MOD(p.i, 5) = MOD(i, 5)", "(i + p.i) DIV 4 = -1",
    "(x + p.x) % 2 < 0", "MOD(d - p.d, 2) < 0",
    "SQRT(x - p.x) > 1", "SQRT(p.x + x) IS NULL", "POWER(x - p.x, 2) > 4", "POWER(i - p.i, 2) = 4",
    "EXP(x + p.x) > 10", "LN(x - p.x) > 0", "LN(x - p.x) IS NULL",
    "LEAST(x, p.x) < 0", "LEAST(p.x, x, 1) = 1", "GREATEST(x, p.x) > 3", "GREATEST(x, p.x) = x",
    "GREATEST(i, p.i, 0) = 0", "LEAST(i, p.i) IS NULL", "GREATEST(s, p.s) = 'b'", "LEAST(d, p.d) = p.d",
    "NULLIF(i, p.i) IS NULL", "NULLIF(p.x, x) > 0", "NULLIF(s, p.s) IS NOT NULL",
    "IF(i > p.i, i, p.i) > 4", "IF(p.i IS NULL, TRUE, i > p.i)", "IF(x > p.x, s, p.s) = 'b'",
    "CASE WHEN p.i IS NULL THEN TRUE WHEN i > p.i THEN x > p.x ELSE FALSE END",
    "CASE WHEN i > p.i THEN 'up' WHEN i < p.i THEN 'down' END = 'down'",
    "CASE p.s WHEN 'a' THEN i WHEN s THEN p.i ELSE 100 END > 5",
    "IF(p.i = 0, FALSE, i / p.i > 1)", "CASE WHEN p.i <> 0 THEN i % p.i = 0 ELSE s = 'x' END",
    "s || p.s = 'ab'", "CONCAT(p.s, '-', s) = 'b-c'", "CONCAT(p.s, s) IS NULL",
    "s <=> p.s", "x IS NOT DISTINCT FROM p.x", "i IS DISTINCT FROM p.i", "(i > p.i) IS TRUE",
    "(i > p.i) IS NOT FALSE", "(x > p.x) IS NOT TRUE",
    "TIMESTAMPDIFF(SECOND, p.ts, ts) > 10", "TIMESTAMPDIFF(MINUTE, p.ts, ts) = 1",
    "TIMESTAMPDIFF(HOUR, ts, p.ts) < -1", "TIMESTAMPDIFF(DAY, p.ts, ts) >= 1", "DATEDIFF(ts, p.ts) = 1",
    "TIMESTAMPDIFF(SECOND, p.ts, ts) BETWEEN 1 AND 60 AND ABS(i - p.i) < 10",
    # of one other row: what Spark has
    "COALESCE(p.i, -1) < 0", "concat_ws('-', p.s, 'x') = 'x'", "nvl2(p.s, FALSE, TRUE)", "ISNULL(p.x)",
    "substr(p.s, 1, 1) = substr(s, 1, 1)", "p.s LIKE 'a%'", "p.s RLIKE '^.$' AND s IS NOT NULL",
    "CASE WHEN p.s IS NULL THEN 'none' ELSE upper(p.s) END = 'none'", "isnan(p.x)", "length(p.s) > 1",
    "CAST(p.i AS STRING) = CAST(i AS STRING)", "hour(p.ts) > 0",
]  # fmt: skip


def rows() -> list[tuple[Any, ...]]:
    begin = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    each = zip(X, I, D, S, T, strict=True)
    return [
        ("t", n, x, i, None if d is None else Decimal(d), s, begin + datetime.timedelta(seconds=t))
        for n, (x, i, d, s, t) in enumerate(each)
    ]


@pytest.mark.promises("Flink SQL", "supported", "functions of several rows in DEFINE of MATCH_RECOGNIZE")
def test_functions_of_two_rows_are_those_of_spark(spark: SparkSession) -> None:
    """Of the row before, in columns, and of a row of the match, one by one."""
    schema = "of string, n int, x double, i bigint, d decimal(10, 3), s string, ts timestamp"
    df = spark.createDataFrame(rows(), schema)
    lags = [f"LAG({name}) OVER (ORDER BY ts) AS p{name}" for name in ("x", "i", "d", "s", "ts")]
    spelled = [f"{replaced(one, 'p{}')} AS c{at}" for at, one in enumerate(CONDITIONS)]
    told = df.selectExpr("*", *lags).selectExpr("n", *spelled).orderBy("n").collect()
    clause = "ORDER BY ts MEASURES A.n AS n AFTER MATCH SKIP TO NEXT ROW PATTERN ({}) DEFINE A AS {}"
    near = [clause.format("A", replaced(one, "PREV({})")) for one in CONDITIONS]
    of_match = [clause.format("B A", replaced(one, "LAST(B.{})")) for one in CONDITIONS]
    found = match_cases.answers(spark, df, [("t", one) for one in (*near, *of_match)])
    wrong: list[Any] = []
    for at, condition in enumerate(CONDITIONS):
        met = [row["n"] for row in told if row[f"c{at}"]]
        for answer, first in ((found[at], 0), (found[at + len(CONDITIONS)], 1)):
            wanted = [(n,) for n in met if n >= first]
            wrong += [] if answer == wanted else [(condition, first, answer, wanted)]
    shown = [(*one[:2], one[2] if isinstance(one[2], ValueError) else "", one[3]) for one in wrong]
    assert not shown
    assert sum(any(row[f"c{at}"] for row in told) for at in range(len(CONDITIONS))) > 70  # most can be true


def replaced(condition: str, form: str) -> str:
    """Return a condition in which the columns of the row before are written in some form."""
    return re.sub(r"\bp\.(\w+)", lambda found: form.format(found[1]), condition)
