"""Interval joins: of batches as Spark joins them, and of streams when no match can come any more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("id", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("at", TIME)])
SHIPMENTS = pa.schema([("id", pa.int64()), ("k", pa.string()), ("w", pa.int64()), ("since", TIME)])
HOWS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN"]
NEAR = "l.at BETWEEN r.since - INTERVAL '4' SECOND AND r.since + INTERVAL '2' SECOND"
SELECT = "SELECT l.id AS lid, l.k, l.v, r.id AS rid, r.w"
CONDITIONS = {
    "between": f"l.k = r.k AND {NEAR}",
    "comparisons": "l.k = r.k AND r.since > l.at - INTERVAL '2' SECOND "
    "AND l.at + INTERVAL '4' SECOND >= r.since",
    "a difference": "l.k = r.k AND r.since - l.at <= INTERVAL '4' SECOND "
    "AND l.at - r.since < INTERVAL '2' SECOND",
    "right rows before": "l.k = r.k AND l.at - INTERVAL '5' SECOND < r.since "
    "AND r.since < l.at - INTERVAL '1' SECOND",
    "right rows behind": "l.k = r.k AND r.since BETWEEN l.at + INTERVAL '1' SECOND "
    "AND l.at + INTERVAL '6' SECOND",
    "several bounds": f"l.k = r.k AND {NEAR} AND r.since >= l.at AND r.since < l.at + INTERVAL '3' SECOND",
    "null is null": f"l.k IS NOT DISTINCT FROM r.k AND {NEAR}",
    "no key": NEAR,
    "an expression as the key": f"UPPER(l.k) = UPPER(r.k) AND l.v = r.w % 2 AND {NEAR}",
    "a condition on both": f"l.k = r.k AND {NEAR} AND l.v < r.w",
    "conditions on each": f"l.k = r.k AND {NEAR} AND l.v > 0 AND r.w IS NOT NULL",
    "any condition": f"l.k = r.k AND {NEAR} AND (l.v = 1 OR r.w > 1 OR l.v + r.w IS NULL)",
    "right before, a condition": "l.k = r.k AND l.at - INTERVAL '5' SECOND < r.since AND "
    "r.since < l.at - INTERVAL '1' SECOND AND l.v < r.w",
    "right behind, a condition": "l.k = r.k AND r.since BETWEEN l.at + INTERVAL '1' SECOND AND l.at + "
    "INTERVAL '6' SECOND AND l.v < r.w",
}


def batches_of(seed: int, value: str, time: str) -> list[list[dict[str, Any]]]:
    """Make rows of four micro-batches, up to two seconds out of order."""
    draw = random.Random(seed)
    rows = [
        {
            "id": number,
            "k": draw.choice(["a", "b", None]),
            value: draw.choice([None, 0, 1, 2]),
            time: EPOCH + timedelta(milliseconds=500 * number + 250 * draw.randrange(8)),
        }
        for number in range(60)
    ]
    return [rows[at : at + 15] for at in range(0, 60, 15)]


LEFT, RIGHT = batches_of(1, "v", "at"), batches_of(2, "w", "since")
WATERMARK = {"l": "at - INTERVAL '2' SECOND", "r": "since - INTERVAL '2' SECOND"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for table, rows, schema in (("l", LEFT, ORDERS), ("r", RIGHT, SHIPMENTS)):
        found[table] = tmp_path_factory.mktemp("tables") / table
        streams.write_batches(found[table], rows, schema)
    return found


@pytest.fixture
def batch(spark: SparkSession, folders: dict[str, Path]) -> Iterator[None]:
    for table, folder in folders.items():
        spark.read.parquet(str(folder)).createOrReplaceTempView(table)
    yield
    for table in folders:
        spark.catalog.dropTempView(table)


@pytest.fixture
def stream(spark: SparkSession, folders: dict[str, Path]) -> Iterator[None]:
    for table, folder in folders.items():
        streams.read_stream(spark, folder).createOrReplaceTempView(table)
    yield
    for table in folders:
        spark.catalog.dropTempView(table)


def wanted(spark: SparkSession, folders: dict[str, Path], query: str) -> list[tuple[Any, ...]]:
    """Return what Spark answers on batches."""
    for table, folder in folders.items():
        spark.read.parquet(str(folder)).createOrReplaceTempView(f"{table}_batch")
    query = query.replace("FROM l", "FROM l_batch AS l").replace("JOIN r", "JOIN r_batch AS r")
    return streams.rows(spark.sql(query.replace("FROM r ", "FROM r_batch AS r ")))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.promises("Flink SQL", "supported", "interval JOIN (INNER, LEFT, RIGHT, FULL OUTER)")
def test_a_batch_has_the_pairs_of_spark(
    spark: SparkSession, batch: None, folders: dict[str, Path], name: str, how: str
) -> None:
    query = f"{SELECT} FROM l {how} r ON {CONDITIONS[name]}"
    found = timerheap.spark.sql(spark, query, max_parallelism=2)
    assert found.columns == ["lid", "k", "v", "rid", "w"]
    assert streams.rows(found) == wanted(spark, folders, query)


END = min(
    max(row["at"] for rows in LEFT for row in rows), max(row["since"] for rows in RIGHT for row in rows)
)
END -= timedelta(seconds=2)
SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)
TIMES = "SELECT l.id AS lid, r.id AS rid, l.at, r.since"
IN_TIME = [  # a query, and how long its left and right rows without a match wait
    (f"FULL OUTER JOIN r ON {CONDITIONS['between']}", 4 * SECOND, 2 * SECOND),
    (f"LEFT JOIN r ON {CONDITIONS['a condition on both']}", 4 * SECOND, None),
    (f"FULL OUTER JOIN r ON {CONDITIONS['a condition on both']}", 4 * SECOND, 2 * SECOND),
    (
        f"FULL OUTER JOIN r ON {CONDITIONS['right before, a condition']}",
        MILLISECOND - SECOND - 2 * MILLISECOND,
        5 * SECOND - MILLISECOND,
    ),
    (f"FULL OUTER JOIN r ON {CONDITIONS['right behind, a condition']}", 6 * SECOND, -SECOND),
    (f"RIGHT JOIN r ON {CONDITIONS['any condition']}", None, 2 * SECOND),
    (f"JOIN r ON {CONDITIONS['any condition']}", None, None),
]
EXISTS = f"SELECT id, at FROM l WHERE {{}}EXISTS (SELECT * FROM r WHERE {CONDITIONS['a condition on both']})"


def test_a_stream_has_pairs_and_the_rows_that_no_match_can_come_for(
    spark: SparkSession, stream: None, folders: dict[str, Path], tmp_path: Path
) -> None:
    parts, expected = [], []
    for case, (join, left_waits, right_waits) in enumerate(IN_TIME):
        query = f"{TIMES} FROM l {join}"
        result = timerheap.spark.sql(spark, query, WATERMARK, max_parallelism=2)
        parts.append(result.select(F.lit(case).alias("case"), "*"))
        for lid, rid, at, since in wanted(spark, folders, query):
            decided = lid is not None and rid is not None
            decided = decided or (since is None and left_waits is not None and at + left_waits <= END)
            decided = decided or (at is None and right_waits is not None and since + right_waits <= END)
            expected += [(case, lid, rid, at, since)] if decided else []
    for number, no in enumerate(("", "NOT "), len(IN_TIME)):
        result = timerheap.spark.sql(spark, EXISTS.format(no), WATERMARK, max_parallelism=2)
        none = F.lit(None)
        parts.append(result.select(F.lit(number), "id", none.cast("bigint"), "at", none.cast("timestamp")))
        rows = wanted(spark, folders, EXISTS.format(no))
        expected += [(number, lid, None, at, None) for lid, at in rows if at + 4 * SECOND <= END]
    streams.run(reduce(DataFrame.unionAll, parts), tmp_path)
    assert streams.sink(spark, tmp_path) == sorted(expected, key=repr)
    assert len({row[0] for row in expected}) == len(parts)


@pytest.mark.promises("Flink SQL", "added", "interval SEMI JOIN and ANTI JOIN", note="in Flink, of all rows")
def test_a_batch_has_the_left_rows_of_exists_and_in(
    spark: SparkSession, batch: None, folders: dict[str, Path]
) -> None:
    inside = f"(SELECT r.w FROM r WHERE {CONDITIONS['between']})"
    for query in (EXISTS.format(""), EXISTS.format("NOT "), f"SELECT id, at FROM l WHERE v IN {inside}"):
        found = timerheap.spark.sql(spark, query, max_parallelism=2)
        assert found.columns == ["id", "at"]
        assert streams.rows(found) == wanted(spark, folders, query)
    not_in = f"SELECT id, at FROM l WHERE v NOT IN {inside}"  # which depends on null: a join of all rows
    found = timerheap.spark.sql(spark, not_in, max_parallelism=2)
    assert streams.rows(found.drop("_change_type")) == wanted(spark, folders, not_in)


def test_rows_of_groups_windows_and_nested_queries_are_joined(
    spark: SparkSession, batch: None, folders: dict[str, Path]
) -> None:
    sides = "(SELECT id, k, v * 2 AS v, at AS t FROM l WHERE v > 0) AS l"
    on = "l.k = r.k AND r.since BETWEEN l.t AND l.t + INTERVAL '3' SECOND"
    query = f"SELECT l.k, COUNT(*) AS n, SUM(l.v) AS s FROM {sides} LEFT JOIN r ON {on} GROUP BY l.k"
    found = timerheap.spark.sql(spark, query, max_parallelism=2).drop("_change_type")
    assert streams.rows(found) == wanted(spark, folders, query)
    counts = (
        "(SELECT k, COUNT(*) AS n, window_time FROM TABLE(TUMBLE(TABLE l, DESCRIPTOR(at), INTERVAL '5' "
        "SECOND)) GROUP BY k, window_start, window_end, window_time) AS c"
    )
    within = "r.since BETWEEN c.window_time - INTERVAL '5' SECOND AND c.window_time"
    query = f"SELECT c.k, c.n, c.window_time, r.id FROM {counts} JOIN r ON c.k = r.k AND {within}"
    windows = (
        "(SELECT k, COUNT(*) AS n, TIMESTAMP_SECONDS(5 * (1 + UNIX_SECONDS(at) DIV 5)) - INTERVAL '0.001' "
        "SECOND AS window_time FROM l GROUP BY 1, 3) AS c"
    )
    found = timerheap.spark.sql(spark, query, max_parallelism=2)
    assert streams.rows(found) == wanted(spark, folders, query.replace(counts, windows))


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN", "LEFT JOIN with a condition"])
def test_late_rows_are_dropped_unless_they_are_results_without_a_match(
    how: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The second left row is late: the watermark is at 18 s, and its match is gone."""

    def at(second: int) -> datetime:
        return EPOCH + second * SECOND

    left: Any = [[(1, at(10)), (2, at(20))], [(3, at(9)), (4, at(21))], [(5, at(40))]]
    right: Any = [[(1, at(9)), (2, at(20))], [(3, at(22))], [(4, at(40))]]
    for name, batches, schema in (("l", left, ORDERS), ("r", right, SHIPMENTS)):
        value, time = schema.names[2:]
        rows = [[{"id": one, "k": "a", value: one, time: when} for one, when in batch] for batch in batches]
        streams.write_batches(tmp_path / name, rows, schema)
        streams.read_stream(spark, tmp_path / name).createOrReplaceTempView(name)
    condition = "AND l.v < r.w + 10" if "condition" in how else ""
    query = (
        f"SELECT l.id AS lid, r.id AS rid FROM l {how.replace(' with a condition', '')} r ON l.k = r.k AND "
        f"r.since BETWEEN l.at - INTERVAL '1' SECOND AND l.at + INTERVAL '1' SECOND {condition}"
    )
    found = timerheap.spark.sql(spark, query, WATERMARK, max_parallelism=1)
    streams.run(found, tmp_path)
    pairs = [(1, 1), (2, 2), (4, 2), (4, 3), (5, 4)]
    assert streams.sink(spark, tmp_path) == sorted(pairs + [(3, None)] * (how != "JOIN"), key=repr)


def test_a_stream_without_times_has_the_join_of_all_rows(spark: SparkSession, stream: None) -> None:
    query = f"{SELECT} FROM l LEFT JOIN r ON {CONDITIONS['between']}"
    assert timerheap.spark.sql(spark, query).columns[-1] == "_change_type"
    assert timerheap.spark.sql(spark, query, {"l": WATERMARK["l"]}).columns[-1] == "_change_type"
    assert timerheap.spark.sql(spark, query, "2 seconds").columns[-1] == "w"
    one_bound = f"{SELECT} FROM l JOIN r ON l.k = r.k AND l.at >= r.since"
    assert timerheap.spark.sql(spark, one_bound, WATERMARK).columns[-1] == "_change_type"
    upserts = timerheap.spark.sql(spark, query, WATERMARK, changes={"r": "id"})
    assert upserts.columns[-1] == "_change_type"
