"""MATCH_RECOGNIZE of nested queries, queries of WITH, and windows, on batches and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

# Key, second, value: a rises at 2 and 13, b at 4; the rows of c are only there to be left out.
ROWS = [
    ("a", 1, 5), ("c", 1, 1), ("a", 2, 7), ("b", 3, 1), ("b", 4, 2), ("c", 4, 9), ("a", 11, 3), ("b", 12, 0),
    ("a", 13, 4), ("c", 21, 0), ("a", 22, 1), ("b", 31, 9),
]  # fmt: skip
SCHEMA = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
RISES = """MATCH_RECOGNIZE (PARTITION BY {keys} ORDER BY {time}
    MEASURES A.{v} AS low, B.{v} AS high, unix_seconds(CAST(MATCH_ROWTIME() AS TIMESTAMP)) AS s
    PATTERN (A B) WITHIN INTERVAL '1' HOUR DEFINE B AS {v} > A.{v}) AS m"""
TUMBLE = "TABLE(TUMBLE(TABLE ticks, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
SUMS = f"SELECT window_start, window_end, window_time, k, SUM(v) AS w FROM {TUMBLE}"
SUMS += " GROUP BY window_start, window_end, window_time, k"
ALL = [("a", 5, 7, 2), ("a", 3, 4, 13), ("b", 1, 2, 4), ("b", 0, 9, 31), ("c", 1, 9, 4)]

# A query, and what it finds.
CASES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "nested": (
        f"SELECT * FROM (SELECT k, ts, v FROM ticks) {RISES.format(keys='k', time='ts', v='v')}", ALL
    ),
    "nested twice, renamed, with conditions and expressions": (
        f"""SELECT k, low / 10 AS low, high, s FROM (
            SELECT k, at, 10 * w AS w FROM (SELECT k, ts AS at, v AS w FROM ticks WHERE k <> 'c') AS x
            WHERE x.w <> 1) AS y {RISES.format(keys='k', time='at', v='w')} WHERE m.high < 90""",
        [("a", 5, 70, 2), ("a", 3, 40, 13)],
    ),
    "WITH": (
        f"""WITH some AS (SELECT *, v + 1 AS w FROM ticks WHERE k = 'a'), more AS (SELECT * FROM some)
            SELECT k, low, high, s FROM more {RISES.format(keys='k', time='ts', v='w')}""",
        [("a", 6, 8, 2), ("a", 4, 5, 13)],
    ),
    "windows": (
        f"""SELECT k, low, high, s FROM {TUMBLE} AS w
            {RISES.format(keys='k, window_start, window_end', time='ts', v='v')}""",
        [("a", 5, 7, 2), ("a", 3, 4, 13), ("b", 1, 2, 4), ("c", 1, 9, 4)],
    ),
    "a SELECT of windows": (
        f"""SELECT k, low, high, s FROM (SELECT k, window_end, ts, 2 * v AS w FROM {TUMBLE} WHERE k <> 'c')
            {RISES.format(keys='k, window_end', time='ts', v='w')}""",
        [("a", 10, 14, 2), ("a", 6, 8, 13), ("b", 2, 4, 4)],
    ),
    "sums of windows": (
        f"SELECT k, low, high, s FROM ({SUMS}) {RISES.format(keys='k', time='window_time', v='w')}",
        [("b", 0, 9, 39)],
    ),
    "sums of windows in WITH": (
        f"""WITH sums AS ({SUMS}) SELECT k, low, high, s FROM (SELECT * FROM sums WHERE w < 11)
            {RISES.format(keys='k', time='window_time', v='w')}""",
        [("b", 0, 9, 39)],
    ),
    "LAG": (
        f"""SELECT k, low, high, s FROM (
            SELECT k, ts, v - LAG(v) OVER (PARTITION BY k ORDER BY ts) AS w FROM ticks)
            {RISES.format(keys='k', time='ts', v='w')}""",
        [("a", -4, 1, 13), ("b", -2, 9, 31)],
    ),
    "first rows": (
        """SELECT * FROM (SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n
            FROM ticks) WHERE n = 1) MATCH_RECOGNIZE (ORDER BY ts, k MEASURES A.k AS k, B.k AS l
            PATTERN (A B) WITHIN INTERVAL '1' HOUR)""",
        [("a", "c")],
    ),
}  # fmt: skip
MATCHES = f"""SELECT k, x, y FROM (SELECT * FROM ticks {RISES.format(keys="k", time="ts", v="v")}
    ) MATCH_RECOGNIZE (PARTITION BY k ORDER BY s MEASURES A.low AS x, B.low AS y PATTERN (A B))"""


def told(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()), key=repr)


@pytest.fixture
def ticks(spark: SparkSession) -> DataFrame:
    df = spark.createDataFrame(ROWS, "k string, s long, v long")
    df = df.selectExpr("k", "timestamp_seconds(s) AS ts", "v")
    df.createOrReplaceTempView("ticks")
    return df


@pytest.mark.promises(
    "Flink SQL", "supported", "MATCH_RECOGNIZE of a nested SELECT, of WITH, and of a window table function"
)
@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_a_query_are_matched(spark: SparkSession, case: str) -> None:
    query, wanted = CASES[case]
    assert told(timerheap.spark.sql(spark, query)) == sorted(wanted, key=repr)


@pytest.mark.usefixtures("ticks")
def test_matches_of_matches_and_any_time_of_a_batch(spark: SparkSession) -> None:
    query = MATCHES.replace("unix_seconds(CAST(MATCH_ROWTIME() AS TIMESTAMP))", "MATCH_ROWTIME()")
    assert told(timerheap.spark.sql(spark, query)) == [("a", 5, 3), ("b", 1, 0)]
    query = "SELECT * FROM (SELECT ts + INTERVAL '1' DAY AS later, v FROM ticks) MATCH_RECOGNIZE ("
    query += "ORDER BY later MEASURES day(MATCH_ROWTIME()) AS d, SUM(v) AS n PATTERN (A+))"
    assert told(timerheap.spark.sql(spark, query)) == [(2, 42)]


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_a_query_of_a_stream_are_matched(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """A row far ahead, which a condition may leave out, ends all."""
    query, wanted = CASES[case]
    end = [("c", 9_000, -1)]
    parts = [ROWS[:3], ROWS[3:6], ROWS[6:9], ROWS[9:], end, [("c", 9_001, -1)]]
    rows = [[{"k": k, "ts": s * 1_000_000, "v": v} for k, s, v in part] for part in parts]
    streams.write_batches(tmp_path / "rows", rows, SCHEMA)
    streams.read_stream(spark, tmp_path / "rows").createOrReplaceTempView("ticks")
    streams.run(timerheap.spark.sql(spark, query, {"ticks": "1 second"}), tmp_path)
    found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "sink")).collect()]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
