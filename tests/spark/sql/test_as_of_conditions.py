"""Further conditions in ON of an as-of join: those of DuckDB, nested queries, ages, and FOR SYSTEM_TIME."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import streams
from asof_cases import LEFT, RIGHT, cases, split
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

CONDITIONS = {
    "right": "r.price IS NOT NULL",
    "right, null": "r.price > 1",
    "right, or": "(r.price = 2 OR r.note IS NULL)",
    "left": "l.n % 3 <> 0",
    "neither": "1 = 2",
    "left and right": "l.n % 3 <> 0 AND r.note = 'x'",
    "both": "l.n % 3 + 1 <> r.price",
    "both, a sum": "l.n % 3 + r.price > 3",
    "both, or": "(l.n % 2 = 0 OR r.note IS NOT NULL)",
    "both, null": "(l.k = r.note OR r.price < 3)",
    "age": "l.at - r.at <= INTERVAL '2' MILLISECOND",
    "less than an age": "l.at - r.at < INTERVAL '2' MILLISECOND",
    "age of those with a price": "l.at - r.at <= INTERVAL '3' MILLISECOND AND r.price IS NOT NULL",
    "at least an age": "l.at - r.at > INTERVAL '2' MILLISECOND",
    "two ages": "l.at - r.at > INTERVAL '1' MILLISECOND AND l.at - r.at <= INTERVAL '8' MILLISECOND",
    "all": "l.n % 5 <> 0 AND r.note IS NOT NULL AND l.n % 3 <> r.price "
    "AND l.at - r.at < INTERVAL '9' MILLISECOND",
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[duckdb.DuckDBPyConnection]:
    """200 random cases, in Spark and in DuckDB, which takes any of several right rows of one time."""
    left, right = cases(58, 200)
    distinct = list({(row["case"], row["k"], row["at"]): row for row in right}.values())
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        for name, rows, schema in (("l", left, LEFT), ("r", distinct, RIGHT)):
            table = pa.Table.from_pylist(rows, schema)
            connection.register(name, table)
            spark.createDataFrame(table).createOrReplaceTempView(name)
        yield connection


@pytest.mark.parametrize("how", ["", "LEFT"])
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.promises("Flink SQL", "supported", "ASOF JOIN with further conditions in ON")
def test_conditions_are_those_of_duckdb(
    spark: SparkSession, tables: duckdb.DuckDBPyConnection, name: str, how: str
) -> None:
    query = (
        f'SELECT l.n, r."at" AS since, r.price, r.note FROM l ASOF {how} JOIN r ON l."case" = r."case" AND '
        f'l.k = r.k AND l."at" >= r."at" AND {CONDITIONS[name]}'
    )
    wanted = tables.sql(query.replace("l.at", 'l."at"').replace("r.at", 'r."at"')).fetchall()
    found = timerheap.spark.sql(spark, query.replace('"', "`")).collect()

    def shown(rows: list[Any]) -> list[Any]:
        times = [(row[0], row[1] and row[1].replace(tzinfo=None), *row[2:]) for row in rows]
        return sorted(times, key=repr)

    assert shown([tuple(row) for row in found]) == shown(wanted)
    if how:
        assert len(found) == spark.table("l").count()
    elif name != "neither":
        assert len(found) > 20


T, P = "k string, at timestamp, id int", "k string, since timestamp, v double"
NOON = datetime(2026, 1, 1, 12)


def noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def small(spark: SparkSession) -> None:
    """The tables t and p of the first reports."""
    t = [("a", noon(5), 1), ("c", noon(5), 2)]
    p = [("a", noon(0), 10.0), ("a", noon(3), None)]
    spark.createDataFrame(t, T).createOrReplaceTempView("t")
    spark.createDataFrame(p, P).createOrReplaceTempView("p")


ASOF = "SELECT t.id, p.v FROM t ASOF LEFT JOIN p ON t.k = p.k AND"
QUERIES = {
    "a price": (f"{ASOF} t.at >= p.since AND p.v IS NOT NULL", [(1, 10.0), (2, None)]),
    "a price, first": (f"{ASOF} p.v IS NOT NULL AND t.at >= p.since", [(1, 10.0), (2, None)]),
    "a number, first": (f"{ASOF} p.v > 1 AND t.at >= p.since", [(1, 10.0), (2, None)]),
    "an age": (f"{ASOF} t.at >= p.since AND t.at - p.since < INTERVAL '1' SECOND", [(1, None), (2, None)]),
    "the left": (f"{ASOF} t.at >= p.since AND t.id <> 1", [(1, None), (2, None)]),
    "in parentheses": (f"{ASOF} (t.at >= p.since AND (p.v > 1 AND t.id = 1))", [(1, 10.0), (2, None)]),
    "between": (
        f"{ASOF} p.since BETWEEN t.at - INTERVAL '4' SECOND AND t.at AND p.v IS NULL",
        [(1, None), (2, None)],
    ),
    "a minute": (
        f"{ASOF} t.at >= p.since AND TIMESTAMPDIFF(MINUTE, p.since, t.at) <= 5 AND p.v > 1",
        [(1, 10.0), (2, None)],
    ),
    "the end of a version": (
        "SELECT t.id, p.v FROM t LEFT ASOF JOIN p MATCH_CONDITION (t.at >= p.since) ON t.k = p.k AND t.at < "
        "p.since + INTERVAL '6' SECOND AND t.id < p.v",
        [(1, 10.0), (2, None)],
    ),
    "version first": (
        "SELECT t.id, p.v FROM t LEFT JOIN p FOR SYSTEM_TIME AS OF t.at AS p ON t.k = p.k AND p.v > 1",
        [(1, None), (2, None)],
    ),
    "nested": (
        "SELECT t.id, r.price FROM t ASOF LEFT JOIN (SELECT k AS key, since AS ts, v * 2 AS price FROM p "
        "WHERE v > 1) AS r ON t.k = r.key AND t.at >= r.ts",
        [(1, 20.0), (2, None)],
    ),
    "a view": (
        "WITH r AS (SELECT * FROM p WHERE v > 1), s AS (SELECT * FROM r) SELECT l.id, v FROM (SELECT * "
        "FROM t WHERE id < 2) l LEFT ASOF JOIN s MATCH_CONDITION (l.at >= s.since) USING (k)",
        [(1, 10.0)],
    ),
    "functions over rows": (
        "SELECT t.id, r.before FROM t ASOF LEFT JOIN (SELECT *, LAG(v) OVER (PARTITION BY k ORDER BY since) "
        "AS before FROM p) r ON t.k = r.k AND t.at >= r.since",
        [(1, 10.0), (2, None)],
    ),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.promises("Flink SQL", "supported", "ASOF JOIN of nested SELECTs")
def test_small_tables(spark: SparkSession, name: str) -> None:
    query, wanted = QUERIES[name]
    watermark = {"p": "since - INTERVAL '5' SECOND"}
    assert streams.rows(timerheap.spark.sql(spark, query, watermark)) == wanted


def streamed(spark: SparkSession, folder: Path, count: int) -> None:
    """Random rows as streams of many micro-batches, without late rows, and then as tables."""
    left, right = cases(11, 40)
    for name, rows, schema in (("l", left, LEFT), ("r", right, RIGHT)):
        last = max(row["at"] for row in left + right) + timedelta(days=1)
        end = dict.fromkeys(schema.names) | {"case": -1, "k": "end", "at": last}
        parts = [*split(rows, count), [end]]
        streams.write_batches(folder / name, parts, schema)
        streams.read_stream(spark, folder / name).createOrReplaceTempView(name)
        table = pa.Table.from_pylist(rows, schema)
        spark.createDataFrame(table).createOrReplaceTempView(f"{name}_table")


@pytest.mark.parametrize("name", ["right", "both", "two ages", "all"])
@pytest.mark.parametrize("deleted", [None, "gone"])
def test_a_stream_has_the_results_of_the_batch(
    spark: SparkSession, tmp_path: Path, name: str, deleted: str | None
) -> None:
    streamed(spark, tmp_path, 4)
    query = (
        "SELECT l.n, r.at, r.price, r.note FROM {l} AS l ASOF LEFT JOIN {r} AS r ON l.case = r.case AND l.k "
        f"= r.k AND l.at >= r.at AND {CONDITIONS[name]} WHERE l.n IS NOT NULL"
    )
    options: dict[str, Any] = {"watermark": "10 minutes"}

    def joined(left: str, right: str) -> DataFrame:
        mark = {} if deleted is None else {right: deleted}
        return timerheap.spark.sql(spark, query.format(l=left, r=right), deleted=mark, **options)

    batch, stream = joined("l_table", "r_table"), joined("l", "r")
    found = [row for part in streams.batches(stream, tmp_path / "work") for row in part]
    assert sorted(found, key=repr) == sorted(map(tuple, batch.collect()), key=repr)
    assert len(found) > 50


def state_of(df: DataFrame, work: Path, name: str) -> list[Any]:
    streams.run(df, work)
    state = timerheap.spark.read_checkpoint(df.sparkSession, work / "checkpoint").state(name)
    return sorted(row["k"] if "k" in row else row[0] for row in state.collect())


@pytest.mark.parametrize(("more", "name"), [("", "right"), (" AND t.id <> p.v", "versions")])
def test_an_age_removes_versions(spark: SparkSession, tmp_path: Path, more: str, name: str) -> None:
    """And rows that are no versions advance the watermark."""
    t = [[("a", noon(1), 1)], [("a", noon(100), 2)], [("b", noon(200), 3)]]
    p = [[("a", noon(0), 5.0), ("b", noon(0), 6.0)], [("x", noon(99), None)], [("x", noon(199), None)]]
    for view, parts, schema in (("t", t, T), ("p", p, P)):
        tables = [spark.createDataFrame(rows, schema).toArrow() for rows in parts]
        streams.write_batches(tmp_path / view, tables, tables[0].schema)
        df = streams.read_stream(spark, tmp_path / view)
        df.createOrReplaceTempView(view)
    query = f"{ASOF} t.at >= p.since AND p.v IS NOT NULL{more}"
    kept, aged = (
        timerheap.spark.sql(spark, text, "1 second")
        for text in (query, f"{query} AND t.at <= p.since + INTERVAL '10' SECOND")
    )
    assert len(state_of(kept, tmp_path / "kept", name)) == 2
    assert state_of(aged, tmp_path / "aged", name) == []
    rows = streams.sink(spark, tmp_path / "aged")
    assert sorted(rows) == [(1, 5.0), (2, None)]


def test_nested_rows_know_the_watermark_of_their_table(spark: SparkSession, tmp_path: Path) -> None:
    """And its rows that only end a version, also those that WHERE leaves out."""
    schema = "k string, since timestamp, v double, op string"
    t = [[("a", noon(1), 1), ("a", noon(5), 2)], [("a", noon(9), 3)], [("z", noon(900), 4)]]
    p = [
        [("a", noon(0), 5.0, "I"), ("a", noon(4), None, "D")],
        [("a", noon(8), 7.0, "I")],
        [("a", noon(900), 0.0, "I")],
    ]
    for view, parts, of in (("t", t, T), ("p", p, schema)):
        tables = [spark.createDataFrame(rows, of).toArrow() for rows in parts]
        streams.write_batches(tmp_path / view, tables, tables[0].schema)
        streams.read_stream(spark, tmp_path / view).createOrReplaceTempView(view)
    query = (
        "SELECT t.id, r.price FROM t ASOF LEFT JOIN (SELECT k, since AS ts, v AS price FROM p WHERE v > 1) r "
        "ON t.k = r.k AND t.at >= r.ts"
    )
    watermarks = {"t": "at - INTERVAL '10' SECOND", "p": "since - INTERVAL '10' SECOND"}
    df = timerheap.spark.sql(spark, query, watermarks, deleted={"p": "op = 'D'"})
    found = [row for part in streams.batches(df, tmp_path / "work") for row in part]
    assert sorted(found) == [(1, 5.0), (2, None), (3, 7.0)]
