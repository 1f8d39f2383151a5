"""Compares window joins, Top-N and windows of windows with what Flink's own SQL has answered."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap.spark._tvf.zone_columns import end_of
from timerheap.tvf.zone import TimeZone

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "flink_sql.json").read_text())
QUERIES = {one["name"]: one for one in RECORDED["queries"]}
JOINED = QUERIES["hottest keys"]["sql"].replace("L.n >=", "L.n + 0 >=")
QUERIES["hottest keys, with a JOIN"] = {**QUERIES["hottest keys"], "sql": JOINED}
SCHEMA = pa.schema(
    [("id", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
END = {"id": 99, "k": "a", "v": 9, "ts": EPOCH + dt.timedelta(days=1)}  # ends all windows but its own
LATE = {"id": 98, "k": "a", "v": 4, "ts": EPOCH + dt.timedelta(minutes=1)}  # in the second micro-batch


def rows_of(table: str) -> list[dict[str, Any]]:
    found = []
    for row in RECORDED["tables"][table]:
        ts = EPOCH + dt.timedelta(milliseconds=row["millis"])
        found.append({"id": row["id"], "k": row["k"], "v": row["v"], "ts": ts})
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write each table in two micro-batches; in the first, ``r`` is behind ``l``."""
    found = {}
    for table, cut in (("l", 25), ("r", 12)):
        rows = rows_of(table)
        found[table] = tmp_path_factory.mktemp("tables") / table
        streams.write_batches(found[table], [rows[:cut], [LATE, *rows[cut:], END]], SCHEMA)
    return found


@pytest.fixture(scope="module")
def tables(spark: SparkSession, folders: dict[str, Path]) -> dict[str, DataFrame]:
    """Read each table once, without the rows that are only in streams."""
    return {table: spark.read.parquet(str(folder)).where("id < 98") for table, folder in folders.items()}


@pytest.fixture
def views(spark: SparkSession) -> Iterator[None]:
    yield
    for table in ("l", "r"):
        spark.catalog.dropTempView(table)


def answers(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return rows as they are recorded."""

    def plain(value: Any) -> Any:
        if isinstance(value, dt.datetime):  # the session's zone is UTC
            return (value.replace(tzinfo=dt.UTC) - EPOCH) // dt.timedelta(milliseconds=1)
        return value

    return sorted(([plain(value) for value in row] for row in rows), key=repr)


def of_batch(spark: SparkSession, tables: dict[str, DataFrame], name: str) -> list[list[Any]]:
    for table, df in tables.items():
        df.createOrReplaceTempView(table)
    return answers(streams.rows(timerheap.spark.sql(spark, QUERIES[name]["sql"], max_parallelism=2)))


def of_stream(spark: SparkSession, folders: dict[str, Path], name: str, work: Path) -> list[list[Any]]:
    for table, folder in folders.items():
        streams.read_stream(spark, folder).createOrReplaceTempView(table)
    query = timerheap.spark.sql(spark, QUERIES[name]["sql"], "2 minutes", max_parallelism=2)
    progress = streams.run(query, work)
    assert len(progress[0].sources) == 1 + ("TABLE r" in QUERIES[name]["sql"])  # each table is read once
    return answers(streams.sink(spark, work))


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "window JOIN (INNER, LEFT, RIGHT, FULL OUTER)",
    "window SEMI JOIN (IN, EXISTS)",
    "window ANTI JOIN (NOT IN, NOT EXISTS)",
    "aggregation over a nested window aggregation",
    "WITH",
    "OVER RANGE BETWEEN ... PRECEDING AND CURRENT ROW",
    "OVER ROWS BETWEEN ... PRECEDING AND CURRENT ROW",
    "GROUP BY TUMBLE(...), HOP(...), SESSION(...)",
)
@pytest.mark.promises(
    "Flink SQL", "added", "RANK and DENSE_RANK in a window Top-N", note="Flink has them only on batches"
)
@pytest.mark.promises(
    "Flink SQL",
    "different",
    "deduplication, first row (ORDER BY time)",
    note="a row is emitted once, when the watermark has passed it, and never changes",
)
def test_a_batch_has_the_results_of_flink(
    name: str, spark: SparkSession, tables: dict[str, DataFrame], views: None
) -> None:
    assert of_batch(spark, tables, name) == QUERIES[name]["rows"]


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", QUERIES)
def test_a_stream_that_starts_again_has_the_results_of_flink(
    name: str, spark: SparkSession, folders: dict[str, Path], views: None, tmp_path: Path
) -> None:
    inputs = {table: tmp_path / table for table in folders}
    for file in ("00000.parquet", "00001.parquet"):
        for table, folder in folders.items():
            inputs[table].mkdir(exist_ok=True)
            shutil.copy2(folder / file, inputs[table] / file)
        found = of_stream(spark, inputs, name, tmp_path)
    assert found == QUERIES[name]["rows"]


SIDE = (
    "SELECT k, COUNT(*) AS n, SUM(v) FILTER (WHERE v > 2) AS s, window_start, window_end FROM "
    "TABLE(HOP(TABLE {}, DESCRIPTOR(ts), INTERVAL '2' MINUTES, INTERVAL '6' MINUTES)) {} "
    "GROUP BY k, window_start, window_end"
)
SIDES = (  # some rows are in both, some in one of them, some in none
    f"({SIDE.format('l', 'WHERE v > 1')} HAVING COUNT(*) > 1) L {{}} ({SIDE.format('{}', 'WHERE v < 4')}) R "
    "ON L.k = R.k AND L.window_start = R.window_start AND L.window_end = R.window_end"
)


NO_KEYS = (
    "SELECT L.n, R.m, L.s FROM (SELECT COUNT(*) AS n, window_start AS s, window_end AS e FROM "
    "TABLE(TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL '5' MINUTES)) GROUP BY window_start, window_end) L JOIN "
    "(SELECT MAX(v) AS m, window_start AS s, window_end AS e FROM "
    "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '5' MINUTES)) WHERE v > 1 "
    "GROUP BY window_start, window_end) R ON L.s = R.s AND L.e = R.e"
)


@pytest.mark.usefixtures("one_partition")
def test_two_sides_of_one_table_are_computed_by_one_operator(
    spark: SparkSession, folders: dict[str, Path], tables: dict[str, DataFrame], views: None, tmp_path: Path
) -> None:
    """They have the rows that two tables with the same contents have, in each kind of a join."""
    for table in "lr":
        tables["l"].createOrReplaceTempView(table)
    both = "L.k AS k1, R.k AS k2, L.n AS n1, L.s AS s1, R.n AS n2, R.s AS s2, L.window_end AS e1"
    found = {}
    for how in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"):
        together, apart = (
            timerheap.spark.sql(spark, f"SELECT {both} FROM {SIDES.format(how, table)}") for table in "lr"
        )
        found[how] = answers(streams.rows(together))
        assert found[how] == answers(streams.rows(apart))
    assert len({len(rows) for rows in found.values()}) == 4
    together, apart = (timerheap.spark.sql(spark, NO_KEYS.format(table)) for table in "lr")
    assert answers(streams.rows(together)) == answers(streams.rows(apart)) != []
    streams.read_stream(spark, folders["l"]).createOrReplaceTempView("l")
    query = timerheap.spark.sql(spark, f"SELECT {both} FROM {SIDES.format('FULL JOIN', 'l')}", "2 minutes")
    progress = streams.run(query, tmp_path)
    assert [len(progress[0].sources), len(progress[0].stateOperators)] == [1, 1]
    assert answers(streams.sink(spark, tmp_path)) == found["FULL JOIN"]


SPRING, AUTUMN = 1615705200000, 1636264800000  # the changes to and from summer time in New York in 2021


@pytest.mark.parametrize(
    "windows",
    [
        "TUMBLE(TABLE l, DESCRIPTOR(ts), INTERVAL '1' HOUR)",
        "HOP(TABLE l, DESCRIPTOR(ts), INTERVAL '30' MINUTES, INTERVAL '90' MINUTES, INTERVAL '7' MINUTES)",
        "CUMULATE(TABLE l, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '4' HOUR)",
    ],
)
@pytest.mark.promises("Flink SQL", "supported", "SELECT of the rows of TUMBLE, HOP and CUMULATE")
def test_rows_have_the_windows_that_aggregate_them(windows: str, spark: SparkSession, views: None) -> None:
    """Where clocks change, windows follow them."""
    times = [change + minutes * 60_000 for change in (SPRING, AUTUMN) for minutes in range(-200, 200, 7)]
    df = spark.createDataFrame([(time,) for time in times], "ms long")
    df.selectExpr("timestamp_millis(ms) AS ts").createOrReplaceTempView("l")
    bounds, zone = "window_start, window_end, window_time", "America/New_York"
    rows = timerheap.spark.sql(spark, f"SELECT ts, {bounds} FROM TABLE({windows})", time_zone=zone)
    query = f"SELECT {bounds}, COUNT(*) AS n FROM TABLE({windows}) GROUP BY {bounds}"
    found = streams.rows(timerheap.spark.sql(spark, query, time_zone=zone))
    counts = {(*window,): n for *window, n in found}
    assert Counter(row[1:] for row in streams.rows(rows)) == counts
    assert len(counts) == len(found)


def test_a_window_of_rows_ends_after_the_hour_that_is_repeated(spark: SparkSession) -> None:
    """As `TimeZone.passes_at` has it."""
    hour, zone = 3_600_000, TimeZone("America/New_York")
    one = int(zone.to_local([AUTUMN - hour])[0])  # 1:00 in summer time
    df = spark.createDataFrame([(one + at * hour - 1,) for at in range(4)], "last long")
    found = [row[0] + 1 for row in df.select(end_of(df["last"], zone)).collect()]
    assert found == [AUTUMN - hour, AUTUMN + hour, AUTUMN + 2 * hour, AUTUMN + 3 * hour]
    change = int(zone.to_local([AUTUMN])[0])
    times = [change + at * hour // 4 for at in range(-20, 20)]
    df = spark.createDataFrame([(time,) for time in times], "last long")
    found = [row[0] for row in df.select(end_of(df["last"], zone)).collect()]
    assert found == zone.passes_at(times).tolist()
