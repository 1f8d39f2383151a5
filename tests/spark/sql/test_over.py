"""Functions OVER rows: as Spark has them on a batch, and the same in any micro-batches and after restarts."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot
import streams
from over_cases import (
    BEFORE,
    BEHIND,
    DELAY,
    ORDERED,
    SCHEMA,
    START,
    STEP,
    TOTAL,
    WINDOWS,
    Replay,
    Row,
    cases,
    disordered,
    text,
    values,
)
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import WatermarkStrategy
from timerheap.spark import read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

CASES = int(os.environ.get("TIMERHEAP_ROW_CASES", "200"))
QUERIES = {
    "rows before": (text(BEFORE, 0), text(BEFORE, 1)),
    "rows before and behind": (text(BEFORE | BEHIND, 0), text(BEFORE | BEHIND, 1)),
    "more order": (text(ORDERED, 0, WINDOWS), text(ORDERED, 1, TOTAL)),
    "sums alone": (text({"sum": BEFORE["sum"]}, 0), text({"sum": BEFORE["sum"]}, 1)),
    "bounded alone": tuple(
        text({name: BEFORE[name] for name in ("sum of 2 ms", "rows of 2 ms")}, at) for at in (0, 1)
    ),
    "behind alone": (text(BEHIND, 0), text(BEHIND, 1)),
}


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[list[Row]]:
    """200 cases as the view t, or as many as the environment says, which are then others."""
    rows = cases(1 if CASES == 200 else CASES, CASES)
    frame(spark, rows).coalesce(1).createOrReplaceTempView("t")
    yield rows
    spark.catalog.dropTempView("t")


@pytest.fixture(scope="module")
def answers(spark: SparkSession, table: list[Row]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: values(spark.sql(query).toArrow().to_pylist()) for name, (_, query) in QUERIES.items()}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "OVER, RANGE or ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW (COUNT, SUM, AVG, MIN, MAX)",
    "OVER, ROW_NUMBER, RANK, DENSE_RANK without a limit",
    "LAG",
    "FIRST_VALUE and LAST_VALUE OVER rows",
)
@pytest.mark.promises(
    "Flink SQL", "added", "LEAD", note="a row waits for the next one of its key, or for `lead_within`"
)
@pytest.mark.promises(
    "Flink SQL",
    "added",
    "NTH_VALUE, IGNORE NULLS, more columns in ORDER BY, several frames in one SELECT",
)
def test_a_batch_is_as_in_spark(
    spark: SparkSession, answers: dict[str, list[tuple[Any, ...]]], name: str
) -> None:
    found = timerheap.spark.sql(spark, QUERIES[name][0], max_parallelism=4).toArrow()
    assert values(found.to_pylist()) == answers[name]


def test_spark_is_as_duckdb(table: list[Row], answers: dict[str, list[tuple[Any, ...]]]) -> None:
    """The answers are not those of Spark alone."""
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("t", pa.Table.from_pylist(table, SCHEMA))
        for name, (_, query) in QUERIES.items():
            (text,) = sqlglot.transpile(query, read="spark", write="duckdb")
            rows = connection.sql(text).to_arrow_table().to_pylist()
            for row in rows:  # DuckDB's sums of integers are decimals in Arrow
                for one in row.keys() & {"sum of integers", "sum of some"}:
                    row[one] = None if row[one] is None else int(row[one])
            assert values(rows) == answers[name]


@pytest.mark.parametrize("name", QUERIES)
def test_any_micro_batches_have_the_answers_of_a_batch(
    spark: SparkSession, table: list[Row], answers: dict[str, list[tuple[Any, ...]]], name: str
) -> None:
    """Out of order, in up to 60 micro-batches, with restarts between them."""
    rng, replay = random.Random(name), Replay(spark, QUERIES[name][0])
    by_number = {number: at for at, number in enumerate(replay.rows.column("n").to_pylist())}
    for batches in (1, 2, 7, 60):
        order = np.array([by_number[row["n"]] for row in disordered(table, rng)])
        replay.anew().run(order, batches, rng)
        assert replay.group.late_rows == 0
        assert values(replay.found()) == answers[name]


def test_without_a_key(spark: SparkSession, table: list[Row]) -> None:
    functions = {
        name: tuple(
            one.replace("PARTITION BY c, k,", "PARTITION BY")
            .replace("PARTITION BY c, k ", "")
            .replace("v NULLS LAST", "c, k NULLS LAST, v NULLS LAST")
            for one in pair
        )
        for name, pair in (BEFORE | BEHIND).items()
    }
    wanted = values(spark.sql(text(functions, 1)).toArrow().to_pylist())
    replay, rng = Replay(spark, text(functions, 0)), random.Random(3)
    replay.run(np.argsort(replay.times, kind="stable"), 20, rng)
    assert values(replay.found()) == wanted


@pytest.mark.parametrize("within", [0, 3])
def test_lead_looks_so_far_and_no_further(spark: SparkSession, table: list[Row], within: int) -> None:
    """What is further away is null, on a batch, too; a stream has the answer when that time has passed."""
    query = text({"lead": BEHIND["lead"], "lead 2": BEHIND["lead 2"]}, 0)
    window = BEHIND["lead"][1].removeprefix("LEAD(n) OVER ")
    near = [f"LEAD(at, {n}) OVER {window} <= at + INTERVAL '{within / 1000}' SECOND" for n in (1, 2)]
    wanted = spark.sql(
        f"SELECT *, IF({near[0]}, LEAD(n) OVER {window}, NULL), IF({near[1]}, LEAD(v, 2) OVER {window}, -1D) "
        "FROM t"
    )
    answers = [tuple(row.values()) for row in wanted.toArrow().to_pylist()]
    batch = timerheap.spark.sql(spark, query, lead_within=within)
    assert values(batch.toArrow().to_pylist()) == sorted(answers, key=repr)
    replay, rng = Replay(spark, query, lead_within=within), random.Random(within)
    order = np.argsort(replay.times, kind="stable")
    for part in np.array_split(order, 20):
        replay.add(part, int(replay.times[part].max()) - DELAY - 1)
        if rng.random() < 0.3:
            replay.restart()
    state = replay.group.states["rows"]
    millis = replay.times <= replay.watermark - within
    assert len(replay.found()) >= np.count_nonzero(millis)
    assert 0 < len(state) < 100  # of keys whose last row waits, or has just been answered
    replay.add(order[:0], 1 << 60)
    assert len(replay.found()) == len(order)
    assert (len(state), len(replay.group.event_timers.heap)) == (0, 0)
    assert values(replay.found()) == sorted(answers, key=repr)


def test_the_state_has_what_later_rows_need(spark: SparkSession) -> None:
    """Whatever the number of rows: 3 for LAG of 3, one of an aggregate, and one that waits for LEAD."""
    rows = [
        {"c": n % 5, "k": "a", "at": START + STEP * 40 * n, "v": 1.0, "s": "x", "n": n} for n in range(5000)
    ]
    frame(spark, rows).createOrReplaceTempView("many")
    for name, more, most in (
        ("LAG(v, 3)", "", 3),
        ("SUM(v)", "", 1),
        ("MAX(s)", "ROWS UNBOUNDED PRECEDING", 1),
        ("FIRST_VALUE(v)", "", 2),
        ("NTH_VALUE(v, 2)", "", 2),
        ("RANK()", "", 1),
        ("COUNT(*)", "ROWS 6 PRECEDING", 6),
        ("LEAD(v, 2)", "", 2),
    ):
        query = f"SELECT *, {name} OVER (PARTITION BY c ORDER BY at {more}) AS x FROM many"
        replay = Replay(spark, query)
        sizes = []
        for part in np.array_split(np.arange(5000), 25):
            replay.add(part, int(replay.times[part].max()))
            lists = replay.group.states["rows"].get_many(np.unique(replay.ids))
            sizes.append(max(map(len, lists.to_pylist())))
            replay.restart()
        assert max(sizes) == most
        kept = replay.stored.manifest.nbytes
        assert kept < 20_000
        assert len(replay.found()) == 5000 - (5 * 2 if "LEAD" in name else 0)


def instant(seconds: float) -> Any:
    return START + timedelta(seconds=seconds)


def test_a_stream_over_a_restart_and_late_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A row behind the watermark is late if the key has a later row, else it is one more."""
    rows = [("a", 1), ("b", 3), ("a", 20), ("a", 2), ("b", 4), ("a", 19), ("b", 5), ("a", 40), ("b", 60)]
    batches = [
        [
            {"c": 0, "k": k, "at": instant(second), "v": float(second), "s": None, "n": number}
            for number, (k, second) in enumerate(rows, 1)
            if (number - 1) // 3 == batch
        ]
        for batch in range(3)
    ]
    query = (
        "SELECT k, n, LAG(n) OVER w AS lag, LEAD(n) OVER w AS lead, SUM(v) OVER w AS sum, RANK() OVER w AS r "
        "FROM stream WINDOW w AS (PARTITION BY k ORDER BY at)"
    )
    found: list[Row] = []
    for part in (batches[:2], batches[2:]):
        streams.write_batches(tmp_path / "in", part, SCHEMA)
        streams.read_stream(spark, tmp_path / "in").createOrReplaceTempView("stream")
        result = timerheap.spark.sql(spark, query, "at - INTERVAL '1' SECOND", late="emit", max_parallelism=2)
        streams.run(timerheap.spark.with_side_outputs(result), tmp_path)
    every = spark.read.parquet(str(tmp_path / "sink")).toArrow().to_pylist()
    found = [row for row in every if row.pop("side_output") is None]
    # After the first micro-batch the watermark is at 19, where the keys have rows of 1 and 3 seconds.
    assert sorted(tuple(row.values()) for row in found) == [
        ("a", 1, None, 4, 1.0, 1),
        ("a", 3, 6, 8, 42.0, 4),
        ("a", 4, 1, 6, 3.0, 2),
        ("a", 6, 4, 3, 22.0, 3),
        ("b", 2, None, 5, 3.0, 1),
        ("b", 5, 2, 7, 7.0, 2),
    ]


def test_late_rows_are_returned(spark: SparkSession, tmp_path: Path) -> None:
    rows = [[1, 2, 30], [25, 31], [20, 60], [28, 90]]
    batches = [
        [{"c": 0, "k": "a", "at": instant(second), "v": None, "s": None, "n": second} for second in part]
        for part in rows
    ]
    streams.write_batches(tmp_path / "in", batches, SCHEMA)
    streams.read_stream(spark, tmp_path / "in").createOrReplaceTempView("stream")
    query = "SELECT n, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS place FROM stream"
    result = timerheap.spark.sql(spark, query, "5 seconds", late="emit", max_parallelism=1)
    progress = streams.run(streams.with_late(result), tmp_path)
    found = spark.read.parquet(str(tmp_path / "sink")).toArrow().to_pylist()
    assert {row["n"]: row["place"] for row in found if row["late_by"] is None} == {
        1: 1,
        2: 2,
        25: 3,
        30: 4,
        31: 5,
        60: 6,
    }
    late = [(row["late_row"]["n"], row["late_by"]) for row in found if row["late_by"] is not None]
    assert late == [(20, 5_001), (28, 3_001)]
    assert sum(one.observedMetrics["timerheap"].metrics["late_rows"] for one in progress) == 2
    state = read_checkpoint(spark, tmp_path / "checkpoint").state("rows").collect()
    assert [len(row["value"]) for row in state] == [1]


def test_the_first_rows_of_keys_by_time(spark: SparkSession, table: list[Row]) -> None:
    """Which never change, unlike a Top-N by other columns."""
    spark_rows = spark.sql(
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY c, k ORDER BY at, v NULLS LAST, s NULLS "
        "LAST, n) AS place FROM t) WHERE place <= 3 AND place > 1"
    )
    inner = "SELECT *, ROW_NUMBER() OVER (PARTITION BY c, k ORDER BY at) AS place FROM t"
    for query in (
        f"SELECT * FROM ({inner}) WHERE place <= 3 AND place > 1",
        f"SELECT * FROM (WITH r AS ({inner}) SELECT * FROM r WHERE place <= 3) WHERE place > 1",
        f"{inner} QUALIFY place <= 3 AND place > 1",
    ):
        found = timerheap.spark.sql(spark, query)
        assert streams.rows(found) == streams.rows(spark_rows)


def test_lead_within_needs_a_lead(spark: SparkSession, table: list[Row]) -> None:
    with pytest.raises(
        ValueError, match="lead_within must be None for a query without LEAD or NEXT; leave it out"
    ):
        timerheap.spark.sql(spark, QUERIES["sums alone"][0], lead_within="1 hour")
    with pytest.raises(ValueError, match="lead_within must be 0 or more, got -1"):
        timerheap.spark.sql(spark, QUERIES["behind alone"][0], lead_within=-1)
    with pytest.raises(ValueError, match="lead_within must be None for a query without LEAD"):
        timerheap.spark.sql(
            spark, "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' DAY))", lead_within=1
        )


def test_order_by_a_struct_is_refused(spark: SparkSession, table: list[Row]) -> None:
    query = "SELECT RANK() OVER (ORDER BY at, named_struct('x', v)) AS r FROM t"
    with pytest.raises(ValueError, match=r"^query: ORDER BY .* must be of an atomic type, got struct<x"):
        timerheap.spark.sql(spark, query)


@pytest.mark.parametrize(
    ("order", "watermark", "message"),
    [
        (
            "n",
            "5 seconds",
            "must be ordered by its time, got the bigint 'n', of which nothing says that it is",
        ),
        (
            "n",
            WatermarkStrategy.for_monotonous_timestamps(),
            "must be ordered by its time, got the bigint 'n'",
        ),
        ("n", "at - INTERVAL '5' SECOND", "must be ordered by its time 'at', got 'n'; query a batch"),
        ("n", {"stream": "WATERMARK FOR at AS at - INTERVAL '5' SECOND"}, "by its time 'at', got 'n'"),
        ("n", None, "must be ordered by its time, got the bigint 'n'"),
        ("at", None, "watermark must be a WatermarkStrategy for the streaming table stream, got None"),
        (
            "v",
            "5 seconds",
            "the time of table stream must be a timestamp, or a bigint of milliseconds, got v of type double",
        ),
        ("v", "at - INTERVAL '5' SECOND", "must be ordered by its time 'at', got 'v'"),
    ],
)
def test_a_stream_is_ordered_by_its_time_alone(
    spark: SparkSession, tmp_path: Path, order: str, watermark: Any, message: str
) -> None:
    """By any other column, rows would be late that are not; a batch can be ordered by any number."""
    streams.write_batches(tmp_path / "in", [[], []], SCHEMA)
    rank = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS place FROM stream"
    for query in (
        f"SELECT SUM(v) OVER (PARTITION BY k ORDER BY {order}) AS total FROM stream",
        rank,
        f"SELECT * FROM stream MATCH_RECOGNIZE (PARTITION BY k ORDER BY {order} MEASURES A.v AS a "
        "PATTERN (A B) DEFINE A AS A.v > 1)",
    ):
        streams.read_stream(spark, tmp_path / "in").createOrReplaceTempView("stream")
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            timerheap.spark.sql(spark, query, watermark)
        if watermark == "5 seconds" and order == "n":
            named = streams.read_stream(spark, tmp_path / "in").withWatermark("at", "1 second")
            named.createOrReplaceTempView("stream")
            with pytest.raises(ValueError, match="must be ordered by its time 'at', got 'n'"):
                timerheap.spark.sql(spark, query, watermark)
            assert timerheap.spark.sql(spark, query, "n - INTERVAL '5' SECOND").isStreaming


def test_a_batch_may_be_ordered_by_any_number(spark: SparkSession, table: list[Row]) -> None:
    query = (
        "SELECT n, SUM(c) OVER w AS total, LAG(v) OVER w AS before FROM t "
        "WINDOW w AS (PARTITION BY k ORDER BY n)"
    )
    assert streams.rows(timerheap.spark.sql(spark, query)) == streams.rows(spark.sql(query))


DISTINCT = {
    "the first": "SELECT DISTINCT ON (c, k) * FROM t ORDER BY c, k, at, n",
    "some columns": "SELECT DISTINCT ON (c, k) n, v w FROM t WHERE n > 9 ORDER BY at, v DESC NULLS LAST, n",
    "nested": "SELECT n FROM (SELECT DISTINCT ON (k) t.n FROM t ORDER BY t.k, t.at, t.n) AS q WHERE n > 1",
    "by a name of the list": "SELECT DISTINCT ON (c) c, k, n AS m, v FROM t ORDER BY c, m",
    "by a number": "SELECT DISTINCT ON (k) n, c FROM t ORDER BY k DESC, n",
}


@pytest.mark.parametrize("name", DISTINCT)
@pytest.mark.promises(
    "Flink SQL", "added", "SELECT DISTINCT ON (k) ... ORDER BY ts, the first row of each key"
)
def test_distinct_on_is_that_of_duckdb(spark: SparkSession, table: list[Row], name: str) -> None:
    found = timerheap.spark.sql(spark, DISTINCT[name])
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("t", pa.Table.from_pylist(table, SCHEMA))
        (text,) = sqlglot.transpile(DISTINCT[name], read="spark", write="duckdb")
        wanted = connection.sql(text).to_arrow_table()
    assert found.columns == wanted.column_names
    assert values(found.toArrow().to_pylist()) == values(wanted.to_pylist())


def test_distinct_on_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """The first row of a key when the watermark has passed it; later ones are late if the key has a row."""
    seconds = [[3, 9, 4], [2, 8, 40], [1, 90]]
    batches = [
        [{"c": 0, "k": "ab"[n % 2], "at": instant(n), "v": None, "s": None, "n": n} for n in part]
        for part in seconds
    ]
    streams.write_batches(tmp_path / "in", batches, SCHEMA)
    streams.read_stream(spark, tmp_path / "in").createOrReplaceTempView("stream")
    query = "SELECT DISTINCT ON (k) n FROM stream ORDER BY k, at"
    result = timerheap.spark.sql(spark, query, "at - INTERVAL '8' SECOND", max_parallelism=2)
    assert sorted(row for part in streams.batches(result, tmp_path / "work") for row in part) == [(2,), (3,)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT DISTINCT ON (k) n FROM t", "SELECT DISTINCT ON (k) without an order of the rows of a key"),
        ("SELECT DISTINCT ON (k) n FROM t ORDER BY k", "SELECT DISTINCT ON (k) without an order"),
        (
            "SELECT DISTINCT ON (k) LAG(n) OVER (ORDER BY at) AS x FROM t ORDER BY at",
            "SELECT DISTINCT ON (k) beside OVER or QUALIFY is not supported",
        ),
        ("SELECT DISTINCT ON (k) n FROM t ORDER BY at LIMIT 3", "LIMIT is not supported"),
    ],
)
def test_distinct_on_that_is_refused(spark: SparkSession, table: list[Row], query: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        timerheap.spark.sql(spark, query)
