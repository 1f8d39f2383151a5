"""Functions in sql(): the user's aggregates and registered functions, and those that keep all values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import streams
from changes_model import Table, apply_changes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import AggregateFunction
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark import udaf

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.int64()), ("_change_type", pa.string())])
ROWS = [("a", 1, 1000), ("a", 2, 2000), ("b", 5, 3000), ("a", 7, 12_000), ("a", 3, 13_000), ("a", 3, 14_000)]
WINDOWS = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
GROUP = "GROUP BY window_start, window_end, k"


class Ratio(AggregateFunction):
    """The sum of x over that of y."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, value: tuple[int, int], accumulator: list[float]) -> list[float]:
        return [accumulator[0] + value[0], accumulator[1] + value[1]]

    def retract(self, value: tuple[int, int], accumulator: list[float]) -> list[float]:
        return [accumulator[0] - value[0], accumulator[1] - value[1]]

    def merge(self, acc_a: list[float], acc_b: list[float]) -> list[float]:
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]

    def get_result(self, accumulator: list[float]) -> float | None:
        return accumulator[0] / accumulator[1] if accumulator[1] else None


def range_of(values: pd.Series) -> float:
    return float(values.max() - values.min())


def dicts(rows: list[tuple[Any, ...]], change: str = "insert") -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, (*row, change), strict=True)) for row in rows]


@pytest.fixture
def functions(spark: SparkSession) -> Iterator[dict[str, Any]]:
    spark.udf.register("plus", lambda x: None if x is None else x + 1, "long")
    spread = F.pandas_udf(range_of, "double")
    yield {"Ratio": udaf(Ratio(), returns="double", accumulator="array<double>"), "spread": spread}
    spark.sql("DROP TEMPORARY FUNCTION IF EXISTS plus")


@pytest.fixture
def batch(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "k string, v long, ts long")


QUERIES = {
    "Ratio(v, 2)": [("a", 0.75), ("a", 13 / 6), ("b", 2.5)],
    "ratio(v, plus(1)) FILTER (WHERE v > 1)": [("a", 1.0), ("a", 13 / 6), ("b", 2.5)],
    "spread(plus(v))": [("a", 1.0), ("a", 4.0), ("b", 0.0)],
    "LISTAGG(CAST(v AS STRING), '-')": [("a", "1-2"), ("a", "7-3-3"), ("b", "5")],
    "LISTAGG(DISTINCT v)": [("a", "1,2"), ("a", "7,3"), ("b", "5")],
    "ARRAY_AGG(v) FILTER (WHERE v > 2)": [("a", None), ("a", [7, 3, 3]), ("b", [5])],
    "COLLECT_SET(v)": [("a", [1, 2]), ("a", [7, 3]), ("b", [5])],
    "SUM(DISTINCT v)": [("a", 3), ("a", 10), ("b", 5)],
    "AVG(DISTINCT v)": [("a", 1.5), ("a", 5.0), ("b", 5.0)],
    "AVG(DISTINCT CAST(v AS DECIMAL(9, 1)))": None,
    "PERCENTILE(v, 0.25)": [("a", 1.25), ("a", 3.0), ("b", 5.0)],
    "MEDIAN(v)": [("a", 1.5), ("a", 3.0), ("b", 5.0)],
    "FIRST_VALUE(v)": [("a", 1), ("a", 7), ("b", 5)],
    "LAST_VALUE(v)": [("a", 2), ("a", 3), ("b", 5)],
}


@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "LISTAGG, ARRAY_AGG, FIRST_VALUE, LAST_VALUE, SUM(DISTINCT) and AVG(DISTINCT)",
    "functions of the user",
    note="aggregates are passed as `functions`, functions of rows are registered in Spark",
)
def test_aggregates_of_windows(spark: SparkSession, batch: DataFrame, functions: dict[str, Any]) -> None:
    calls = ", ".join(f"{call} AS c{at}" for at, call in enumerate(QUERIES))
    query = f"SELECT k, {calls} FROM {WINDOWS} WHERE plus(v) > 1 {GROUP}"
    found = timerheap.spark.sql(spark, query, tables={"t": batch}, functions=functions).toArrow().to_pylist()
    for at, (call, wanted) in enumerate(QUERIES.items()):
        rows = sorted(((row["k"], row[f"c{at}"]) for row in found), key=repr)
        if wanted is None:
            assert [(k, str(value)) for k, value in rows] == [
                ("a", "1.50000"),
                ("a", "5.00000"),
                ("b", "5.00000"),
            ]
        else:
            assert rows == sorted(wanted, key=repr), call


def test_aggregates_over_the_last_rows(
    spark: SparkSession, batch: DataFrame, functions: dict[str, Any]
) -> None:
    over = "OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
    query = (
        f"SELECT v, ratio(v, 1) {over} AS r, spread(v) {over} AS s, LISTAGG(DISTINCT v) {over} AS l FROM t"
    )
    found = timerheap.spark.sql(spark, query, "ts", tables={"t": batch}, functions=functions)
    assert streams.rows(found) == [
        (1, 1.0, 0.0, "1"),
        (2, 1.5, 1.0, "1,2"),
        (3, 3.0, 0.0, "3"),
        (3, 5.0, 4.0, "7,3"),
        (5, 5.0, 0.0, "5"),
        (7, 4.5, 5.0, "2,7"),
    ]


def test_aggregates_take_values_back(spark: SparkSession, functions: dict[str, Any], tmp_path: Path) -> None:
    """The first value of two that are equal is taken back; a restart goes on."""
    batches = [dicts(ROWS[:3]), dicts(ROWS[3:]), dicts([ROWS[0], ROWS[4]], "delete")]
    streams.write_batches(tmp_path / "rows", batches, SCHEMA)
    calls = {
        "Ratio(v, 2)": (2.0, 2.5),
        "spread(v) FILTER (WHERE v < 5)": (1.0, None),
        "LISTAGG(v, '|')": ("2|7|3", "5"),
        "SUM(DISTINCT v)": (12, 5),
        "MEDIAN(v)": (3.0, 5.0),
        "FIRST_VALUE(v)": (2, 5),
        "LAST_VALUE(v)": (3, 5),
    }
    shown = ", ".join(f"{call} AS c{at}" for at, call in enumerate(calls))
    stream = streams.read_stream(spark, tmp_path / "rows")
    query = f"SELECT k, {shown} FROM t GROUP BY k"
    result = timerheap.spark.sql(spark, query, tables={"t": stream}, functions=functions, max_parallelism=2)
    table = Table()
    for batch in streams.batches(result, tmp_path):
        apply_changes(table, [dict(zip(result.columns, row, strict=True)) for row in batch], ["k"])
    wanted = sorted(zip("ab", *calls.values(), strict=True))
    assert [tuple(map(str, row)) for row in sorted(table)] == [tuple(map(str, row)) for row in wanted]


def test_registered_functions_are_called_in_patterns(
    spark: SparkSession, batch: DataFrame, functions: dict[str, Any]
) -> None:
    query = """
        SELECT a, b FROM t MATCH_RECOGNIZE (
            PARTITION BY k ORDER BY ts MEASURES plus(A.v) AS a, plus(LAST(B.v)) AS b
            PATTERN (A B) DEFINE B AS plus(B.v) > plus(A.v) + 1
        ) AS m"""
    found = timerheap.spark.sql(spark, query, tables={"t": batch}, functions=functions)
    assert streams.rows(found) == [(3, 8)]


FALLS = """
    SELECT k, first, n, total, part, s FROM t MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts
        MEASURES FIRST(A.ts) AS first, COUNT(*) AS n, SUM(A.v) AS total, Ratio(A.v, 2) AS part, spread(v) AS s
        {} AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A+ B) WITHIN INTERVAL '1' MINUTE
        DEFINE A AS Ratio(A.v, 1) <= 3 AND CAST(A.ts AS INT) > 0, B AS spread(A.v) < B.v AND B.v >= 3
    ) AS m"""


def falls_of(rows: list[tuple[Any, ...]], every: bool) -> list[tuple[Any, ...]]:
    """Return the matches of `FALLS`, the longest of each start, with each row of them or the last one."""
    found = []
    for key in {row[0] for row in rows}:
        part = sorted((row for row in rows if row[0] == key), key=lambda row: row[2])
        for start in range(len(part)):
            most = start
            while most < len(part) and mean(part[start : most + 1]) <= 3:
                most += 1
            for end in range(most, start, -1):
                taken = [row[1] for row in part[start:end]]
                if end < len(part) and part[end][1] >= 3 and max(taken) - min(taken) < part[end][1]:
                    for till in range(start + 1, end + 2) if every else [end + 1]:
                        rows_of_a, shown = part[start : min(till, end)], part[start:till]
                        total = sum(row[1] for row in rows_of_a)
                        values = [row[1] for row in shown]
                        spread = float(max(values) - min(values))
                        found.append((key, part[start][2], len(shown), total, mean(rows_of_a) / 2, spread))
                    break
    return sorted(found, key=repr)


def mean(rows: list[tuple[Any, ...]]) -> float:
    return sum(row[1] for row in rows) / len(rows)


@pytest.mark.parametrize("rows", ["ONE ROW", "ALL ROWS"])
@pytest.mark.promises("Flink SQL", "supported", "MATCH_RECOGNIZE, aggregates of the user in MEASURES, DEFINE")
def test_aggregates_are_called_in_patterns(
    rows: str, spark: SparkSession, functions: dict[str, Any], tmp_path: Path
) -> None:
    rng = random.Random(5)
    told = [(rng.choice("ab"), rng.randrange(7), 1000 * at) for at in range(1, 60)]
    folder = tmp_path / "rows"
    streams.write_batches(folder, [dicts(told[at : at + 15]) for at in range(0, 45, 15)], SCHEMA)
    query, wanted = FALLS.format(f"{rows} PER MATCH"), falls_of(told, rows == "ALL ROWS")
    for restarts in range(2):  # the second time with the rest, and one row that ends all
        df = streams.read_stream(spark, folder).drop("_change_type")
        result = timerheap.spark.sql(spark, query, "ts", tables={"t": df}, functions=functions)
        streams.run(result, tmp_path)
        if not restarts:
            streams.write_batches(folder, [dicts([*told[45:], ("c", 9, 1_000_000)])], SCHEMA)
    assert streams.sink(spark, tmp_path) == wanted
    batch = spark.read.schema(df.schema).parquet(str(folder))
    found = timerheap.spark.sql(spark, query, tables={"t": batch}, functions=functions)
    assert streams.rows(found) == wanted
    assert len(wanted) > 5


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"SELECT spread(v, 1) AS s FROM {WINDOWS} {GROUP}", "spread must be called with one column, got 2"),
        (f"SELECT LISTAGG(v, k) AS s FROM {WINDOWS} {GROUP}", "write a literal in place of k"),
        (f"SELECT PERCENTILE(v, 5) AS s FROM {WINDOWS} {GROUP}", "write a fraction from 0 to 1"),
        (f"SELECT SUM(DISTINCT k) AS s FROM {WINDOWS} {GROUP}", "SUM.DISTINCT k. must be of a numeric type"),
        (f"SELECT ARRAY_AGG(v ORDER BY ts) AS s FROM {WINDOWS} {GROUP}", "with an order is not supported"),
        (
            "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES spread(DISTINCT A.v) AS s PATTERN (A+) "
            "DEFINE A AS v > 1) m",
            r"SPREAD.DISTINCT A.v. in MATCH_RECOGNIZE is not supported; write spread\(A.x\)",
        ),
        (
            "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES Ratio(A.v, B.v) AS s PATTERN (A+ B) "
            "DEFINE A AS v > 1) m",
            "RATIO.A.v, B.v. of several variables is not supported; write one function for each of them",
        ),
    ],
)
def test_what_functions_cannot_do_is_refused(
    query: str, message: str, spark: SparkSession, batch: DataFrame, functions: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        timerheap.spark.sql(spark, query, "ts", tables={"t": batch}, functions=functions)


def test_functions_are_checked(spark: SparkSession, batch: DataFrame, functions: dict[str, Any]) -> None:
    wrong: Any
    for wrong, error, message in (
        (5, ArgumentTypeError, "functions must be a dict such as"),
        ({"f": len}, ArgumentTypeError, r"functions\['f'\] must be an aggregate .* register other functions"),
        (
            {"f": udaf(Ratio(), "v", returns="double", accumulator="double")},
            ArgumentValueError,
            r"functions\['f'\] must be without columns, got \['v'\]",
        ),
    ):
        with pytest.raises(error, match=message):
            timerheap.spark.sql(spark, "SELECT k FROM t", tables={"t": batch}, functions=wrong)
    with pytest.raises(ArgumentValueError, match="columns must name at least one column of Ratio"):
        timerheap.spark.aggregate_changes(batch, "k", functions["Ratio"])
