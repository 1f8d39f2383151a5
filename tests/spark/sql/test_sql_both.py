"""Queries of sql() whose results on a stream are those on a batch: what WHERE drops, names, ranks, joins."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [("k", pa.string()), ("x", pa.int64()), ("y", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
ROWS = [("a", 1, 1, 1), ("b", 0, 1, 2), ("a", 2, 0, 3), (None, 5, 2, 4), (None, 0, 2, 12), ("c", 4, 2, 13)]
W = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
U = W.replace("TABLE t", "TABLE u")
OVER = "OVER (PARTITION BY window_start, window_end ORDER BY"
GROUP = "GROUP BY k, window_start, window_end"
SAME = "L.window_start = R.window_start AND L.window_end = R.window_end"


def row(k: str | None, x: int, y: int, second: int) -> dict[str, Any]:
    return {"k": k, "x": x, "y": y, "ts": EPOCH + dt.timedelta(seconds=second)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the table in two micro-batches; the last row ends the windows of the others."""
    folder = tmp_path_factory.mktemp("table")
    batches = [[row(*one) for one in part] for part in (ROWS[:3], [*ROWS[3:], ("z", 1, 1, 100)])]
    streams.write_batches(folder, batches, SCHEMA)
    return folder


Change = Callable[[DataFrame], DataFrame]


def of_batch(spark: SparkSession, query: str, table: Path, change: Change) -> DataFrame:
    schema = streams.schema_of(table / "00000.parquet")
    for view in "tu":
        df = spark.read.schema(schema).parquet(str(table)).where("k IS NULL OR k <> 'z'")
        change(df).createOrReplaceTempView(view)
    return timerheap.spark.sql(spark, query, max_parallelism=2)


def results(
    spark: SparkSession, query: str, table: Path, work: Path, change: Change = lambda df: df
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and the rows of a query, which are the same on a batch and on a stream."""
    batch = of_batch(spark, query, table, change)
    rows = sorted((tuple(row) for row in batch.collect()), key=repr)
    for view in "tu":
        change(streams.read_stream(spark, table)).createOrReplaceTempView(view)
    stream = timerheap.spark.sql(spark, query, "0 seconds", max_parallelism=2)
    assert stream.columns == batch.columns
    found = [row for part in streams.batches(stream, work) for row in part if "z" not in row]
    assert sorted(found, key=repr) == rows
    return batch.columns, rows


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (f"SELECT k, 10 / x AS q FROM {W} WHERE x <> 0", [("a", 10.0), ("a", 5.0), ("c", 2.5), (None, 2.0)]),
        (f"SELECT k, x FROM (SELECT * FROM {W} WHERE x <> 0) WHERE 10 / x < 4", [("c", 4), (None, 5)]),
        (
            f"SELECT k, q FROM (SELECT k, 10 / x AS q, ROW_NUMBER() {OVER} 10 / x) AS rn FROM {W} "
            "WHERE x <> 0) WHERE rn = 1",
            [("c", 2.5), (None, 2.0)],
        ),
        (
            f"SELECT L.k, R.y FROM (SELECT *, 10 / x AS q FROM {W} WHERE x <> 0) L JOIN (SELECT *, 10 / y "
            f"AS q FROM {U} WHERE y <> 0) R ON {SAME} AND L.q = R.q",
            [("a", 1), ("a", 1), ("a", 2)],
        ),
        (
            f"SELECT L.k, 10 / L.x AS q FROM {W} L JOIN {U} R ON {SAME} AND 10 / L.x = 10 / R.y AND "
            "10 / R.y > 5 WHERE L.x <> 0 AND R.y <> 0",
            [("a", 10.0), ("a", 10.0)],
        ),
        (
            f"SELECT L.k, L.q, R.q AS q2 FROM (SELECT k, 10 / COUNT(x) q, window_start, window_end FROM {W} "
            f"WHERE x <> 0 {GROUP}) L JOIN (SELECT k, SUM(10 / y) q, window_start, window_end FROM {W} WHERE "
            f"y <> 0 {GROUP} HAVING 10 / COUNT(y) > 1) R ON {SAME} AND 10 / L.q = 10 / L.q AND L.k = R.k",
            [("a", 5.0, 10.0), ("c", 10.0, 5.0)],
        ),
        (
            f"SELECT k, x FROM {W} L WHERE x <> 0 AND 10 / x IN (SELECT 10 / y FROM {U} R WHERE y <> 0 AND "
            f"{SAME})",
            [("a", 1), ("a", 2)],
        ),
    ],
    ids=["select", "where", "rank", "join", "condition", "sides", "in"],
)
def test_what_where_drops_is_not_computed(
    query: str, wanted: list[tuple[Any, ...]], spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    assert results(spark, query, table, tmp_path)[1] == wanted


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (
            f"SELECT k, x FROM {W} QUALIFY ROW_NUMBER() {OVER} x DESC) <= 1",
            [("c", 4), (None, 5)],
        ),
        (
            f"SELECT w.k, RANK() {OVER} w.x) AS r FROM {W} w QUALIFY r <= 3 AND r > 1 AND w.y < 2",
            [("a", 2), ("a", 3)],
        ),
        (
            f"SELECT k, COUNT(*) AS n FROM {W} {GROUP} HAVING COUNT(*) > 0 QUALIFY RANK() {OVER} "
            "COUNT(*) DESC, k) = 1",
            [("a", 2), (None, 1)],
        ),
        (
            f"SELECT n, r FROM (SELECT COUNT(*) AS n, RANK() {OVER} SUM(x) DESC) AS r FROM {W} "
            f"{GROUP}) WHERE r < 3",
            [(1, 1), (1, 1), (1, 2), (2, 2)],
        ),
        (
            f"SELECT k, r FROM (SELECT *, ROW_NUMBER() {OVER} x DESC) AS r FROM {W}) L WHERE r < 3 "
            f"AND k IN (SELECT k FROM {U} R WHERE {SAME})",
            [("a", 2), ("c", 1)],
        ),
    ],
    ids=["row number", "rank", "group", "nested", "and IN"],
)
@pytest.mark.promises("Flink SQL", "supported", "QUALIFY with a rank of windows")
def test_ranks_need_no_query_of_their_own(
    query: str, wanted: list[tuple[Any, ...]], spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    assert results(spark, query, table, tmp_path)[1] == wanted


@pytest.mark.parametrize("equal", ["L.k IS NOT DISTINCT FROM R.k", "L.k = R.k"])
def test_null_equals_null_as_a_key_of_is_not_distinct_from(
    equal: str, spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    query = (
        f"SELECT L.k, L.x, R.x AS x2 FROM {W} L LEFT JOIN {U} R ON {SAME} AND {equal} AND R.x > 0 AND L.y > 0"
    )
    nulls = [(None, 0, None), (None, 5, 5 if "DISTINCT" in equal else None)]
    wanted = [("a", 1, 1), ("a", 1, 2), ("a", 2, None), ("b", 0, None), ("c", 4, 4), *nulls]
    assert results(spark, query, table, tmp_path)[1] == wanted


TWICE = f"SELECT k, x AS k, k AS x, window_start, window_end FROM {W}"
OURS = "start of the window, k of the grouping set, number of the grouping set, COUNT(*), k of the left side"


def with_our_names(df: DataFrame) -> DataFrame:
    """Add columns with names that ours had, or that aggregates have."""
    names = [*OURS.split(", "), "rows of the left side", "count", "early", "0", "a.b", "c`d"]
    return df.withColumns({name: F.col("x") + 1 for name in names})


@pytest.mark.parametrize(
    ("query", "columns", "wanted"),
    [
        (
            f"SELECT L.k, R.k FROM {W} L JOIN {U} R ON {SAME} AND L.x = R.x WHERE L.k <> 'b'",
            "k k",
            [("a", "a"), ("a", "a"), ("c", "c")],
        ),
        (f"SELECT COUNT(*), k, COUNT(*) AS k FROM {W} {GROUP}", "COUNT(*) k k", None),
        (f"SELECT *, ROW_NUMBER() {OVER} x DESC) AS k FROM {W} QUALIFY k = 1", None, None),
        (
            "SELECT * FROM (SELECT k, COUNT(*), COUNT(*), window_start, window_end FROM "
            f"{W} {GROUP}) L FULL JOIN (SELECT k, SUM(y) AS k, window_start, window_end FROM {W} WHERE x > 1 "
            f"{GROUP}) R ON {SAME}",
            "k COUNT(*) COUNT(*) window_start window_end k k window_start window_end",
            None,
        ),
        (
            "SELECT k, `k of the grouping set`, `number of the grouping set`, COUNT(*) AS `k of the left "
            f"side` FROM {W} GROUP BY window_start, window_end, CUBE (k, `k of the grouping set`), "
            "`number of the grouping set`",
            None,
            None,
        ),
        (
            "SELECT *, SUM(x) OVER w AS k, SUM(x) OVER w FROM t WINDOW w AS (PARTITION BY k ORDER BY ts ROWS "
            "BETWEEN 1 PRECEDING AND CURRENT ROW)",
            None,
            None,
        ),
        (
            "SELECT *, x AS ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS k FROM t) "
            "WHERE k = 1",
            None,
            None,
        ),
    ],
)
def test_columns_may_have_any_names_and_several_the_same(
    query: str,
    columns: str | None,
    wanted: list[tuple[Any, ...]] | None,
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
) -> None:
    names, rows = results(spark, query, table, tmp_path, with_our_names)
    assert columns is None or " ".join(names) == columns
    assert rows == (wanted or rows) != []


@pytest.mark.parametrize(
    ("query", "columns", "wanted"),
    [
        (
            f"SELECT * FROM ({TWICE}) QUALIFY RANK() {OVER} window_end) = 1",
            "k k x window_start window_end",
            None,
        ),
        (f"SELECT * FROM (SELECT *, RANK() {OVER} x) AS k FROM {W}) WHERE k = 1", None, None),
        (f"SELECT L.*, R.k FROM ({TWICE}) L JOIN {U} R ON {SAME} AND L.x = R.k", None, None),
        (f"SELECT * FROM {W} L LEFT JOIN {U} R ON {SAME} AND L.k = R.k", None, None),
        (f"SELECT * FROM ({TWICE}) L WHERE x IN (SELECT k FROM {U} R WHERE {SAME})", None, None),
        (
            f"SELECT k, COUNT(*), `COUNT(*)`, MAX(x) FROM {W} {GROUP}, `COUNT(*)`",
            "k COUNT(*) COUNT(*) MAX(x)",
            [
                ("a", 1, 2, 1),
                ("a", 1, 3, 2),
                ("b", 1, 1, 0),
                ("c", 1, 5, 4),
                (None, 1, 1, 0),
                (None, 1, 6, 5),
            ],
        ),
    ],
)
def test_columns_of_a_batch_may_have_any_names_and_several_the_same(
    query: str, columns: str | None, wanted: list[tuple[Any, ...]] | None, spark: SparkSession, table: Path
) -> None:
    """Ranks, joins and groups, some of which are also streams above."""
    batch = of_batch(spark, query, table, with_our_names)
    rows = sorted((tuple(row) for row in batch.collect()), key=repr)
    assert columns is None or " ".join(batch.columns) == columns
    assert rows == (wanted or rows) != []


def test_keys_and_aggregates_of_windows_may_have_one_name(spark: SparkSession, table: Path) -> None:
    df = with_our_names(spark.read.parquet(str(table))).withColumn("window_start", F.lit("w"))
    windows = timerheap.spark.tumble(df, "ts", 10_000, watermark="0 seconds", late="emit")
    counts = windows.groupBy("k", "window_start").agg(
        F.count("*").alias("k"), F.max("COUNT(*)").alias("early")
    )
    assert counts.columns == ["k", "window_start", "window_start", "window_end", "window_time", "k", "early"]
    found = sorted((tuple(row) for row in counts.toDF(*"abcdefg").select(*"abfg").collect()), key=repr)
    assert found[:2] == [("a", "w", 2, 3), ("b", "w", 1, 1)]
    assert timerheap.spark.late_rows(counts).columns[-1] == "late_by"


@pytest.mark.parametrize("name", ["window_start", "window_end", "window_time"])
def test_a_table_with_a_column_of_its_windows_raises(name: str, spark: SparkSession, table: Path) -> None:
    spark.read.parquet(str(table)).withColumn(name, F.lit(1)).createOrReplaceTempView("t")
    for query in (f"SELECT k FROM {W}", f"SELECT k, COUNT(*) FROM {W} {GROUP}"):
        with pytest.raises(ValueError, match=f"table t must not have a column {name}, which .* rename it"):
            timerheap.spark.sql(spark, query)


def test_group_windows_leave_the_columns_of_the_table(
    spark: SparkSession, table: Path, tmp_path: Path
) -> None:
    query = (
        "SELECT TUMBLE_END(ts, INTERVAL '10' SECOND) AS e, window_end, MAX(window_start), COUNT(*) AS "
        "window_time FROM t GROUP BY window_end, TUMBLE(ts, INTERVAL '10' SECOND)"
    )

    def with_bounds(df: DataFrame) -> DataFrame:
        return df.withColumns({"window_start": F.col("x"), "window_end": F.coalesce("k", F.lit("n"))})

    names, rows = results(spark, query, table, tmp_path, with_bounds)
    assert names == ["e", "window_end", "MAX(window_start)", "window_time"]
    assert [row[1:] for row in rows] == [("a", 2, 2), ("b", 0, 1), ("n", 5, 1), ("c", 4, 1), ("n", 0, 1)]


SESSION = "TABLE(SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND))"


def clock(moment: dt.datetime) -> int:
    return (moment.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(seconds=1)


@pytest.mark.promises(
    "Flink SQL", "supported", "SELECT of the rows of SESSION", "Top-N of the rows of SESSION"
)
def test_rows_have_the_session_that_aggregates_them(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    def with_nested(df: DataFrame) -> DataFrame:
        return df.select(
            "*", F.struct("x", F.array("k").alias("ks"), "ts").alias("time"), F.lit(1.5).alias("d")
        )

    query = f"SELECT k, x, `time`.ts, `time`.ks, d, window_start, window_end, window_time FROM {SESSION}"
    _, rows = results(spark, query, table, tmp_path / "rows", with_nested)
    sessions = [("a", 1, 8), ("a", 1, 8), ("b", 2, 7), ("c", 13, 18), (None, 12, 17), (None, 4, 9)]
    assert [(row[0], *map(clock, row[5:7])) for row in rows] == sessions
    assert all(row[3] == [row[0]] and row[6] - row[7] == dt.timedelta(milliseconds=1) for row in rows)
    query = (
        f"SELECT k, x, RANK() {OVER} x DESC) AS r FROM {SESSION.replace('PARTITION BY k', '')} QUALIFY r < 3"
    )
    assert results(spark, query, table, tmp_path / "top")[1] == [
        ("a", 2, 2),
        ("c", 4, 1),
        (None, 0, 2),
        (None, 5, 1),
    ]
    query = (
        f"SELECT L.k, L.x, R.n FROM {SESSION} L JOIN (SELECT k, COUNT(*) AS n, window_start, window_end FROM "
        f"{SESSION} {GROUP}) R ON L.k = R.k AND {SAME} WHERE L.x > 0"
    )
    assert results(spark, query, table, tmp_path / "join")[1] == [("a", 1, 2), ("a", 2, 2), ("c", 4, 1)]


def test_a_late_row_belongs_to_a_session_that_has_not_ended(spark: SparkSession, tmp_path: Path) -> None:
    """As in aggregates of sessions, also after restarts; a row whose session has ended is dropped."""
    batches = [[1, 20], [17, 3, 14], [21, 40, 60]]
    found: list[tuple[Any, ...]] = []
    for part in batches:
        streams.write_batches(tmp_path / "t", [[row("a", second, 0, second) for second in part]], SCHEMA)
        streams.read_stream(spark, tmp_path / "t").createOrReplaceTempView("t")
        query = f"SELECT k, x, window_start, window_end FROM {SESSION}"
        streams.run(timerheap.spark.sql(spark, query, "0 seconds", max_parallelism=2), tmp_path)
        found = streams.sink(spark, tmp_path)
    sessions = [(1, 1, 6), (14, 14, 26), (17, 14, 26), (20, 14, 26), (21, 14, 26), (40, 40, 45)]
    assert sorted((x, clock(start), clock(end)) for _, x, start, end in found) == sessions
