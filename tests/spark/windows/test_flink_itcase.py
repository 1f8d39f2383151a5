"""Runs window queries of Flink's integration tests on their data and compares with their results.

The data are Flink's ``TestData.windowDataWithTimestamp``, the results those of ``WindowAggregateITCase``.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = pytest.mark.spark

MIDNIGHT = dt.datetime(2020, 10, 10, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
SCHEMA = pa.schema(
    [
        ("rowtime", pa.timestamp("us", "UTC")),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("bigdec", pa.decimal128(10, 2)),
        ("string", pa.string()),
        ("name", pa.string()),
    ]
)
ROWS = [
    (1, 1.0, 1.0, "1.11", "Hi", "a"),
    (2, 2.0, 2.0, "2.22", "Comment#1", "a"),
    (3, 2.0, 2.0, "2.22", "Comment#1", "a"),
    (4, 5.0, 5.0, "5.55", None, "a"),
    (7, 3.0, 3.0, None, "Hello", "b"),
    (6, 6.0, 6.0, "6.66", "Hi", "b"),
    (8, None, 3.0, "3.33", "Comment#2", "a"),
    (4, 5.0, None, "5.55", "Hi", "a"),  # late: the watermark is at 6.999
    (16, 4.0, 4.0, "4.44", "Hi", "b"),
    (32, 7.0, 7.0, "7.77", None, None),
    (34, 3.0, 3.0, "3.33", "Comment#3", "b"),
]
END = (60, None, None, None, None, "the watermark goes on")


def as_rows(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [
        dict(
            zip(
                SCHEMA.names,
                (MIDNIGHT + at * SECOND, d, f, None if x is None else Decimal(x), *rest),
                strict=True,
            )
        )
        for at, d, f, x, *rest in rows
    ]


def query(windows: str, where: str = "") -> str:
    return (
        "SELECT name, window_start, window_end, COUNT(*), SUM(bigdec), MAX(double), MIN(float) "
        f"FROM TABLE({windows}) {where} GROUP BY name, window_start, window_end"
    )


def results(text: str) -> list[tuple[Any, ...]]:
    """Return results in the format of Flink's tests, with seconds after midnight."""
    found: list[tuple[Any, ...]] = []
    for line in text.split():
        name, start, end, count, total, most, least = line.split(",")
        times = (MIDNIGHT.replace(tzinfo=None) + int(at) * SECOND for at in (start, end))
        numbers = (None if number == "null" else float(number) for number in (most, least))
        found.append((None if name == "null" else name, *times, int(count), Decimal(total), *numbers))
    return sorted(found, key=repr)


TUMBLE = """
a,0,5,4,11.10,5.0,1.0  a,5,10,1,3.33,null,3.0  b,5,10,2,6.66,6.0,3.0
b,15,20,1,4.44,4.0,4.0  b,30,35,1,3.33,3.0,3.0  null,30,35,1,7.77,7.0,7.0
"""
HOP = """
a,-5,5,4,11.10,5.0,1.0  a,0,10,6,19.98,5.0,1.0  a,5,15,1,3.33,null,3.0
b,0,10,2,6.66,6.0,3.0  b,5,15,2,6.66,6.0,3.0  b,10,20,1,4.44,4.0,4.0
b,15,25,1,4.44,4.0,4.0  b,25,35,1,3.33,3.0,3.0  b,30,40,1,3.33,3.0,3.0
null,25,35,1,7.77,7.0,7.0  null,30,40,1,7.77,7.0,7.0
"""
CUMULATE = """
a,0,5,4,11.10,5.0,1.0  a,0,10,6,19.98,5.0,1.0  a,0,15,6,19.98,5.0,1.0
b,0,10,2,6.66,6.0,3.0  b,0,15,2,6.66,6.0,3.0  b,15,20,1,4.44,4.0,4.0
b,15,25,1,4.44,4.0,4.0  b,15,30,1,4.44,4.0,4.0  b,30,35,1,3.33,3.0,3.0
b,30,40,1,3.33,3.0,3.0  b,30,45,1,3.33,3.0,3.0  null,30,35,1,7.77,7.0,7.0
null,30,40,1,7.77,7.0,7.0  null,30,45,1,7.77,7.0,7.0
"""


TUMBLES = "TUMBLE(TABLE t1, DESCRIPTOR(rowtime), INTERVAL '5' SECOND)"
HOPS = "HOP(TABLE t1, DESCRIPTOR(rowtime), INTERVAL '5' SECOND, INTERVAL '10' SECOND)"
CUMULATES = "CUMULATE(TABLE t1, DESCRIPTOR(rowtime), INTERVAL '5' SECOND, INTERVAL '15' SECOND)"


CUBE = """
all,0,5,4,11.10,5.0,1.0  all,5,10,3,9.99,6.0,3.0  all,15,20,1,4.44,4.0,4.0  all,30,35,2,11.10,7.0,3.0
"""
CUBES = (
    query(TUMBLES)
    .replace("SELECT name", "SELECT IF(GROUPING_ID(name) = 1, 'all', name)")
    .replace("BY name", "BY CUBE (name)")
)


QUERIES = {
    "tumble": (CUBES, TUMBLE + CUBE),
    "hop": (query(HOPS), HOP),
    "cumulate": (query(CUMULATES), CUMULATE),
    "where": (query(TUMBLES, "WHERE name = 'a' AND double > 0"), "a,0,5,4,11.10,5.0,1.0"),
}


@pytest.mark.promises("Flink SQL", "supported", "late rows")
def test_late_rows_of_slices_are_the_same_as_in_flink(spark: SparkSession, tmp_path: Path) -> None:
    """Of all queries in one stream. Rows that WHERE drops, such as that at 8, advance the watermark too."""
    streams.write_batches(tmp_path / "input", map(as_rows, (ROWS[:7], [*ROWS[7:], END])), SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t1")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(1_000)
    whole: list[DataFrame] = []
    for name, (text, _) in QUERIES.items():
        result = timerheap.spark.sql(spark, text, strategy, max_parallelism=2)
        whole.append(result.toDF(*"abcdefg").withColumn("query", F.lit(name)))
    streams.run(reduce(DataFrame.union, whole), tmp_path)
    found = streams.sink(spark, tmp_path)
    for name, (_, expected) in QUERIES.items():
        assert [row[:-1] for row in found if row[-1] == name] == results(expected), name


def test_distinct_values_and_late_rows_of_sessions_are_the_same_as_in_flink(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query restarts between its micro-batches."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(1_000)
    text = query("SESSION(TABLE t1 PARTITION BY name, DESCRIPTOR(rowtime), INTERVAL '2' SECOND)")
    text = text.replace("MIN(float)", "COUNT(DISTINCT double), COUNT(DISTINCT string)")
    for batches in ([ROWS[:4]], [ROWS[4:7], [*ROWS[7:], END]]):
        streams.write_batches(tmp_path / "input", map(as_rows, batches), SCHEMA)
        streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t1")
        streams.run(timerheap.spark.sql(spark, text, strategy, max_parallelism=2), tmp_path)
    assert sorted(streams.sink(spark, tmp_path), key=lambda row: (str(row[0]), row[1])) == [
        (name, *(MIDNIGHT.replace(tzinfo=None) + at * SECOND for at in (start, end)), *results)
        for name, start, end, *results in [
            (None, 32, 34, 1, Decimal("7.77"), 7.0, 1, 0),
            ("a", 1, 6, 4, Decimal("11.10"), 5.0, 3, 2),
            ("a", 8, 10, 1, Decimal("3.33"), None, 0, 1),
            ("b", 6, 9, 2, Decimal("6.66"), 6.0, 2, 2),
            ("b", 16, 18, 1, Decimal("4.44"), 4.0, 1, 1),
            ("b", 34, 36, 1, Decimal("3.33"), 3.0, 1, 1),
        ]
    ]
