"""MATCH_RECOGNIZE in sql(): on batches, on streams with restarts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

V = """
    PARTITION BY k ORDER BY ts
    MEASURES MATCH_NUMBER() AS match, LAST(price) AS val, CLASSIFIER() AS label, FINAL COUNT(B.*) AS n
    ALL ROWS PER MATCH
    PATTERN (A B+ C+) WITHIN INTERVAL '1' MINUTE
    DEFINE B AS B.price < PREV(B.price), C AS C.price > PREV(C.price)"""
TOLD = """
    PARTITION BY k ORDER BY ts
    MEASURES FIRST(A.price) AS first, LAST(B.price, 1) AS before, SUM(U.price) AS total, COUNT(B.*) AS n,
        AVG(B.price) + 1 AS mean, LAST(word) AS word, PREV(FIRST(B.price)) AS prev, MAX(A.ts) AS at,
        FIRST(CLASSIFIER(U), 1) AS second, concat('(', FINAL LAST(`within`), ')') AS quoted
    PATTERN (A B+) SUBSET U = (A, B)
    DEFINE B AS SUM(B.price) < 200 AND B.price <> FIRST(A.price) AND upper(word) IS NOT NULL"""


def view(spark: SparkSession, rows: list[tuple[Any, ...]], name: str = "ticker") -> DataFrame:
    texts = spark.createDataFrame(rows, "k string, s long, price long, word string")
    df = texts.selectExpr("k", "timestamp_seconds(s) AS ts", "price", "word")
    df.createOrReplaceTempView(name)
    return df


def matches(spark: SparkSession, clause: str, select: str = "*", **options: Any) -> DataFrame:
    query = f"SELECT {select} FROM ticker MATCH_RECOGNIZE ({clause}) AS m"
    return timerheap.spark.sql(spark, query, **options)


PRICES = [90, 80, 70, 80, 90, 50, 40, 60]
ROWS = [
    (key, at + 7 * (key == "b"), price, word)
    for at, (price, word) in enumerate(zip(PRICES, "abcdefgh", strict=True), 1)
    for key in "ab"
]
VS = [
    (1, 1, 90, "A", 2), (2, 1, 80, "B", 2), (3, 1, 70, "B", 2), (4, 1, 80, "C", 2), (5, 1, 90, "C", 2),
    (6, 2, 50, "A", 1), (7, 2, 40, "B", 1), (8, 2, 60, "C", 1),
]  # fmt: skip
SHOWN = "k, unix_seconds(ts) AS s, match, val, label, n"
WANTED = sorted(("a", *row) for row in VS) + sorted(("b", row[0] + 7, *row[1:]) for row in VS)


@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "MATCH_RECOGNIZE",
    "PARTITION BY, ORDER BY in MATCH_RECOGNIZE",
    "PREV, FIRST, LAST with offsets",
)
@pytest.mark.promises(
    "Flink SQL", "added", "ALL ROWS PER MATCH", "CLASSIFIER(), MATCH_NUMBER()", "FINAL, RUNNING"
)
def test_all_rows_of_a_v(spark: SparkSession) -> None:
    view(spark, ROWS)
    found = matches(spark, V)
    assert found.columns == ["k", "ts", "match", "val", "label", "n", "price", "word"]
    assert sorted(map(tuple, found.selectExpr(*SHOWN.split(", ")).collect())) == WANTED


@pytest.mark.promises("Flink SQL", "added", "SUBSET")
@pytest.mark.promises("Flink SQL", "supported", "aggregates in DEFINE and MEASURES")
def test_measures_and_conditions_on_the_match(spark: SparkSession) -> None:
    df = view(spark, ROWS[::2]).withColumn("within", F.col("word"))
    df.createOrReplaceTempView("ticker")
    found = matches(spark, TOLD).withColumnRenamed("at", "ts").selectExpr("*", "unix_seconds(ts) AS at")
    assert [tuple(row) for row in found.drop("ts").orderBy("at").collect()] == [
        ("a", 90, 80, 240, 2, 76.0, "c", 90, "B", "(c)", 1),
        ("a", 80, 50, 260, 3, 61.0, "g", 80, "B", "(g)", 4),
    ]
    assert found.schema["total"].dataType.simpleString() == "bigint"


@pytest.mark.promises("Flink SQL", "added", "NEXT", note="`lead_within` says how far it looks")
def test_next_looks_behind_a_match_and_as_far_as_lead_within(spark: SparkSession) -> None:
    view(spark, ROWS[::2])
    clause = """PARTITION BY k ORDER BY ts
        MEASURES FIRST(A.price) AS first, NEXT(price) AS next, NEXT(FIRST(A.price + 1), 2) AS third
        PATTERN (A B?) DEFINE A AS price < NEXT(price), B AS B.price > PREV(B.price) AND price < 90"""
    found = [tuple(row)[1:] for row in matches(spark, clause).orderBy("first").collect()]
    assert found == [(40, None, None), (70, 90, 91)]
    assert matches(spark, clause, lead_within="999 milliseconds").collect() == []
    within = matches(spark, clause, lead_within="1 second").orderBy("first").collect()
    assert [tuple(row)[1:] for row in within] == [(40, None, None), (70, 90, None)]
    with pytest.raises(ValueError, match="lead_within must be None for a query without LEAD or NEXT"):
        matches(spark, V, lead_within=1)


@pytest.mark.promises("Flink SQL", "added", "PREV", note="`lag_within` says how far it looks")
def test_prev_looks_as_far_as_lag_within(spark: SparkSession) -> None:
    view(spark, [("a", 1, 1, ""), ("a", 3, 2, ""), ("a", 6, 3, "")])
    clause = """PARTITION BY k ORDER BY ts MEASURES price AS p, PREV(price, 2) AS before
        PATTERN (A) DEFINE A AS price > PREV(price)"""
    for lag_within, wanted in (
        (None, [(2, None), (3, 1)]),
        ("3 seconds", [(2, None), (3, None)]),
        (2_999, [(2, None)]),
    ):
        found = matches(spark, clause, "p, before", lag_within=lag_within).orderBy("p")
        assert [tuple(row) for row in found.collect()] == wanted
    with pytest.raises(ValueError, match="lag_within must be None for a query without PREV"):
        matches(spark, clause.replace("PREV", "LAST"), lag_within=1)
    with pytest.raises(ValueError, match="lag_within must be"):
        matches(spark, clause, lag_within=-1)


def stream(spark: SparkSession, folder: Path, parts: list[list[tuple[Any, ...]]]) -> DataFrame:
    """Add micro-batches to a folder; return the stream of it as the table ticker."""
    for rows in parts:
        table = view(spark, rows, "one").toArrow()
        table = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
        streams.write_batches(folder, [table], table.schema)
    df = streams.read_stream(spark, folder)
    df.createOrReplaceTempView("ticker")
    return df


def test_a_stream_keeps_partial_matches_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    rows = sorted(ROWS, key=lambda row: row[1])
    parts = [rows[:5], rows[5:9], rows[9:], [("c", 1000, 1, "")]]
    found = []
    for number, part in enumerate(parts):
        stream(spark, tmp_path / "rows", [part])
        result = matches(spark, V, SHOWN, watermark="0 seconds")
        streams.run(result, tmp_path)
        written = spark.read.parquet(str(tmp_path / "sink")).collect() if number else []
        found.append(len(written))
    assert sorted(map(tuple, written)) == WANTED
    assert found[-2] < found[-1], found  # the last rows ended a V, or WITHIN did


@pytest.mark.promises("Flink SQL", "added", "greedy quantifier at the end of PATTERN")
@pytest.mark.promises("Flink SQL", "supported", "WITHIN")
def test_the_end_of_within_decides_a_greedy_end_and_late_rows_are_returned(
    spark: SparkSession, tmp_path: Path
) -> None:
    ticks = [[("a", 1, 5, ""), ("a", 2, 6, "")], [("b", 11, 0, "")], [("b", 12, 0, ""), ("a", 3, 9, "late")]]
    stream(spark, tmp_path / "rows", ticks)
    clause = """PARTITION BY k ORDER BY ts MEASURES FIRST(ts) AS ts, LAST(price) AS last
        PATTERN (A+) WITHIN INTERVAL '10' SECOND DEFINE A AS price > 1"""
    result = matches(spark, clause, "k, last", watermark="0 seconds", late="emit")
    found = streams.batches(streams.with_late(result), tmp_path)
    shown = [[(k, last, late) for k, last, late, _ in rows] for rows in found]
    assert [row for rows in shown for row in rows if row[1] is not None] == [("a", 6, None)]
    assert [rows for rows in shown if ("a", 6, None) in rows] == [shown[1]]
    assert [row[3]["word"] for rows in found for row in rows if row[3]] == ["late"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("B.price <", "Q.price <", "must name variables of PATTERN, got Q"),
        ("DEFINE B", "DEFINE X", "DEFINE must name variables of PATTERN, got X"),
        ("COUNT(B.*)", "COUNT(X.*)", "must name variables of PATTERN, got X"),
        (
            "COUNT(B.*)",
            "STDDEV(B.price)",
            r"FINAL STDDEV\(B.price\) is not supported; it is for FIRST, LAST, COUNT",
        ),
        ("LAST(price)", "NEXT(PREV(price))", r"NEXT\(PREV\(price\)\) is not supported"),
        ("LAST(price)", "MATCH_ROWTIME(price)", r"MATCH_ROWTIME\(price\) is not .* of ts, the time of ORDER"),
        ("LAST(price)", "MATCH_PROCTIME()", r"MATCH_PROCTIME\(\) is not supported; write MATCH_ROWTIME"),
        ("LAST(price) AS val", "LAST(price)", "without a name"),
        ("ORDER BY ts", "ORDER BY ts DESC", "ORDER BY ts DESC in MATCH_RECOGNIZE is not supported"),
        ("ALL ROWS PER MATCH", "ALL ROWS PER MATCH WITH UNMATCHED ROWS", "WITH UNMATCHED ROWS is not"),
        (
            "ALL ROWS PER MATCH",
            "ALL ROWS PER MATCH AFTER MATCH SKIP TO X",
            "AFTER MATCH SKIP must name variables",
        ),
        ("A B+ {- C+ -}", "A B+ C+)", r"must end, got '\)'|valid SQL"),
        ("A B+ {- C+ -}", "A B+ C{3,2}", "no less than it must, got 3 to 2"),
        (
            "B.price < PREV(B.price)",
            "upper(B.word) < concat_ws('', word, A.word)",
            "of several rows in DEFINE",
        ),
        (
            "B.price < PREV(B.price)",
            "B.word < A.price",
            "LT in DEFINE is not supported for string and int64",
        ),
        ("B.price < PREV(B.price)", "B.ts > date'2026-01-01' AND ts > CAST(A.ts AS DATE)", "GT in DEFINE is"),
        (
            "B.price < PREV(B.price)",
            "B.price / A.word > 1",
            "DIV in DEFINE is not supported for int64 and string of different rows",
        ),
        ("B.price < PREV(B.price)", "B.price + 1", "DEFINE B must be a condition"),
        ("B.price < PREV(B.price)", "MATCH_NUMBER() = 1", "in DEFINE is not supported; use it in MEASURES"),
    ],
)
@pytest.mark.promises("Flink SQL", "refused", "MATCH_PROCTIME()", note="use `MATCH_ROWTIME()`")
@pytest.mark.promises(
    "Flink SQL", "refused", "ALL ROWS PER MATCH WITH UNMATCHED ROWS", note="join the result with the table"
)
def test_what_is_not_supported_is_named(spark: SparkSession, old: str, new: str, message: str) -> None:
    view(spark, ROWS[:1])
    clause = V.replace("C+)", "{- C+ -})")
    assert old in clause
    with pytest.raises(ValueError, match=message):
        matches(spark, clause.replace(old, new))


def test_a_stream_refuses_what_can_grow_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    stream(spark, tmp_path / "rows", [ROWS[:2]])
    endless = V.replace("WITHIN INTERVAL '1' MINUTE", "")
    with pytest.raises(ValueError, match=r"A B\+ C\+\) must not grow .* unbounded_matches=True"):
        matches(spark, endless, watermark="0 seconds")
    matches(spark, endless, watermark="0 seconds", unbounded_matches=True)
    matches(spark, endless.replace("A B+ C+", "A B C"), watermark="0 seconds")
    with pytest.raises(ValueError, match=r"must not have \^ or \$ on a stream"):
        matches(spark, V.replace("A B+", "^A B+"), watermark="0 seconds")


@pytest.mark.parametrize(
    ("pattern", "define", "refused"),
    [
        ("(A|B)+ C", "C AS SUM(A.price) > 10", "A or B"),
        ("(A? B)+ C", "C AS AVG(A.price) > 10", "A or B"),
        ("((A|B) D)+ C", "C AS SUM(B.price) > 10", "A or B"),
        ("(A|B)+ C", "A AS A.price > 1, C AS SUM(A.price) > 10", None),
        ("(A|B)+ C", "C AS COUNT(A.price) > 10", None),
        ("(A|B)+ C", "C AS SUM(price) > 10", None),
        ("A* B* C", "C AS SUM(A.price) > 10", None),
        ("(A|B) C", "C AS SUM(A.price) > 10", None),
    ],
)
def test_a_stream_refuses_partial_matches_that_double_with_each_row(
    spark: SparkSession, tmp_path: Path, pattern: str, define: str, refused: str | None
) -> None:
    clause = f"""PARTITION BY k ORDER BY ts MEASURES LAST(C.price) AS last
        PATTERN ({pattern}) WITHIN INTERVAL '1' MINUTE DEFINE {define}"""
    view(spark, ROWS[:1])
    matches(spark, clause)
    stream(spark, tmp_path / "rows", [ROWS[:2]])
    matches(spark, clause, watermark="0 seconds", unbounded_matches=True)
    if refused is None:
        matches(spark, clause, watermark="0 seconds")
        return
    with pytest.raises(ValueError, match=f"must not take any row as {refused} on a stream if DEFINE has"):
        matches(spark, clause, watermark="0 seconds")
