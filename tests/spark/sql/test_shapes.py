"""Shapes of queries: what may stand where a table or a column may, as batch and as a stream that restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from changes_model import Table, apply_changes
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap.errors import ArgumentValueError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("ts", pa.int64()),
        ("words", pa.list_(pa.string())),
        ("pairs", pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())]))),
    ]
)
ROWS: list[tuple[Any, ...]] = [
    ("a", 1, 1_000, ["p", "q"], [{"x": 1, "y": "m"}]),
    ("a", 2, 2_000, [], []),
    ("b", 5, 3_000, ["p"], [{"x": 2, "y": "n"}, {"x": 3, "y": "o"}]),
    ("a", 7, 12_000, ["r"], []),
    ("a", 3, 13_000, None, None),
    ("b", 4, 31_000, ["q"], [{"x": 4, "y": "m"}]),
]
LAST = ("z", 0, 100_000, ["z"], [])  # ends the windows of the others
TUMBLE = "INTERVAL '10' SECOND"
WINDOWS = f"TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), {TUMBLE}))"
BY = "GROUP BY window_start, window_end"

QUERIES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "group by an expression": (
        f"SELECT UPPER(k) AS kk, COUNT(*) AS n FROM {WINDOWS} WHERE k < 'z' {BY}, UPPER(k)",
        [("A", 2), ("A", 2), ("B", 1), ("B", 1)],
    ),
    "group by an alias": (
        f"SELECT v % 2 AS odd, SUM(v) AS s FROM {WINDOWS} WHERE k < 'z' {BY}, odd",
        [(0, 2), (0, 4), (1, 6), (1, 10)],
    ),
    "group by an alias without windows": (
        "SELECT UPPER(k) AS kk, COUNT(*) AS n FROM t WHERE k < 'z' GROUP BY kk",
        [("A", 4), ("B", 2)],
    ),
    "windows of a nested SELECT": (
        f"SELECT k, SUM(w) AS s FROM TABLE(TUMBLE((SELECT k, v + 1 AS w, ts AS at FROM t WHERE v <> 2), "
        f"DESCRIPTOR(at), {TUMBLE})) {BY}, k",
        [("a", 2), ("b", 6), ("a", 12), ("b", 5)],
    ),
    "windows of a query of WITH": (
        "WITH u AS (SELECT k, ts FROM t) SELECT COUNT(*) AS n FROM "
        f"TABLE(TUMBLE(TABLE u, DESCRIPTOR(ts), {TUMBLE})) {BY}",
        [(3,), (2,), (1,)],
    ),
    "windows of windows": (
        f"SELECT SUM(n) AS n FROM (SELECT k, TUMBLE_ROWTIME(ts, {TUMBLE}) AS rt, COUNT(*) AS n FROM t "
        f"GROUP BY k, TUMBLE(ts, {TUMBLE})) GROUP BY TUMBLE(rt, INTERVAL '20' SECOND)",
        [(5,), (1,)],
    ),
    "group windows of a nested SELECT": (
        f"SELECT kk, COUNT(*) AS n FROM (SELECT LOWER(k) AS kk, ts FROM t) GROUP BY kk, TUMBLE(ts, {TUMBLE})",
        [("a", 2), ("b", 1), ("a", 2), ("b", 1)],
    ),
    "OVER of a nested SELECT": (
        "SELECT k, SUM(w) OVER (PARTITION BY k ORDER BY ts) AS s FROM (SELECT k, v * 2 AS w, ts FROM t)",
        [("a", 2), ("a", 6), ("b", 10), ("a", 20), ("a", 26), ("b", 18)],
    ),
    "a rank between two": (
        "SELECT k, v, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v DESC) AS rn FROM t) "
        "WHERE rn BETWEEN 2 AND 3",
        [("a", 3, 2), ("a", 2, 3), ("b", 4, 2)],
    ),
    "the second of each window": (
        "SELECT v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY v) "
        f"AS rn FROM {WINDOWS}) WHERE rn = 2",
        [(2,), (7,)],
    ),
    "UNNEST": ("SELECT k, w FROM t CROSS JOIN UNNEST(words) AS x(w)", [*["ap", "aq", "bp", "ar", "bq"]]),
    "LEFT JOIN UNNEST of structs": (
        "SELECT t.k, x.n FROM t LEFT JOIN UNNEST(t.pairs) AS x(m, n) ON TRUE WHERE k = 'b' OR v = 3",
        [("b", "n"), ("b", "o"), ("b", "m"), ("a", None)],
    ),
    "UNNEST with numbers": (
        "SELECT y, o FROM t, UNNEST(pairs) WITH ORDINALITY AS x(x, y, o) WHERE t.v = 5",
        [("n", 1), ("o", 2)],
    ),
    "LATERAL": (
        "SELECT k, c FROM t, LATERAL TABLE(EXPLODE(SPLIT(k, ''))) AS x(c) WHERE v IN (2, 5)",
        [("a", "a"), ("b", "b")],
    ),
    "groups of UNNEST": (
        "SELECT w, COUNT(*) AS n FROM t CROSS JOIN UNNEST(words) AS x(w) GROUP BY w",
        [("p", 2), ("q", 2), ("r", 1)],
    ),
    "windows of UNNEST": (
        "SELECT w, COUNT(*) AS n FROM TABLE(TUMBLE("
        "(SELECT w, ts FROM t CROSS JOIN UNNEST(words) AS x(w)), "
        f"DESCRIPTOR(ts), INTERVAL '20' SECOND)) {BY}, w",
        [("p", 2), ("q", 1), ("r", 1), ("q", 1)],
    ),
    "names of columns": ("SELECT b FROM (SELECT v, k FROM t) AS x (a, b) WHERE a > 4", [("b",), ("a",)]),
    "USING": (
        "SELECT k, a.v, b.v AS w FROM t a JOIN t b USING (k) WHERE a.v = 1 AND k = 'a'",
        [("a", 1, 1), ("a", 1, 2), ("a", 1, 7), ("a", 1, 3)],
    ),
    "FULL JOIN USING": (
        "SELECT k, COUNT(*) AS n FROM (SELECT k FROM t WHERE v < 3) a FULL JOIN "
        "(SELECT k FROM t WHERE v > 4) b USING (k) GROUP BY k",
        [("a", 2), ("b", 1)],
    ),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    batches = [
        [dict(zip(SCHEMA.names, row, strict=True)) for row in part] for part in (ROWS[:3], [*ROWS[3:], LAST])
    ]
    streams.write_batches(folder, batches, SCHEMA)
    return folder


def rows_of(rows: Iterable[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Return rows without those of the key that ends the windows of the others."""
    return Counter(tuple(row) for row in rows if "z" not in row)


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "CROSS JOIN UNNEST",
    "LATERAL TABLE",
    "windows of a nested SELECT or of WITH, GROUP BY TUMBLE in cascades",
    "USING",
)
def test_a_query_is_the_same_as_batch_and_as_stream(
    name: str, spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    query, wanted = QUERIES[name]
    batch = spark.read.schema(streams.schema_of(table / "00000.parquet")).parquet(str(table))
    given = {"t": batch.where("k < 'z'")}
    found = timerheap.spark.sql(spark, query, "ts", tables=given, max_parallelism=2).drop("_change_type")
    assert rows_of(map(tuple, found.collect())) == rows_of(wanted)
    stream = streams.read_stream(spark, table)
    result = timerheap.spark.sql(
        spark, query, "ts - INTERVAL '2' SECOND", tables={"t": stream}, max_parallelism=2
    )
    net = Table()
    for rows in streams.batches(result, tmp_path):
        dicts = [dict(zip(result.columns, row, strict=True)) for row in rows]
        apply_changes(net, [{"_change_type": "insert", **row} for row in dicts])
    assert rows_of(net.elements()) == rows_of(wanted)


def test_rows_are_listed(spark: SparkSession) -> None:
    query = "SELECT c, n + 1 AS m FROM (VALUES (1, 'a'), (2, 'b')) AS x(n, c) WHERE n > 1"
    assert streams.rows(timerheap.spark.sql(spark, query)) == [("b", 3)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM t CROSS JOIN UNNEST(words) AS x(k)", "two columns k of a table and of its values"),
        ("SELECT * FROM t CROSS JOIN UNNEST(words) AS x(a, b)", r"each of its 1 columns, got \['a', 'b'\]"),
        (
            "SELECT * FROM t CROSS JOIN UNNEST(v) AS x(a)",
            "UNNEST.v. must be of an array or a map, got bigint",
        ),
        ("SELECT * FROM t LEFT JOIN UNNEST(words) AS x(a) ON a > 'x'", "conditions in WHERE"),
        ("SELECT * FROM t JOIN t AS u ON t.k = u.k CROSS JOIN UNNEST(t.words) AS x(a)", "beside UNNEST or"),
        ("SELECT * FROM t, LATERAL (SELECT v + 1 AS e)", "write the expressions in the select list"),
        ("SELECT a FROM t AS x (a, b)", r"renaming columns with x \(a, b\) of 5 columns is not supported"),
        ("SELECT * FROM t JOIN t AS u USING (k)", "SELECT . of a JOIN with USING is not supported; list"),
    ],
)
def test_other_shapes_are_refused(query: str, message: str, spark: SparkSession, table: Path) -> None:
    batch = spark.read.schema(streams.schema_of(table / "00000.parquet")).parquet(str(table))
    with pytest.raises(ArgumentValueError, match=message):
        timerheap.spark.sql(spark, query, tables={"t": batch})
