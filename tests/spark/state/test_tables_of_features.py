"""The state of each feature is read as tables, and a new query starts from them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import streams
from feature_queries import ALL, BATCHES, CUT, SCHEMA, WATERMARK, Query
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.errors import CheckpointMismatchError
from timerheap.spark import CheckpointState, InitialState, continue_from, read_checkpoint, start_from

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

OF_GROUPS = "key_group"  # the column that may be another one


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all rows."""
    folder = tmp_path_factory.mktemp("inputs")
    streams.write_batches(folder, BATCHES, SCHEMA)
    return folder


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a file without rows, and the rows that come after the state was read."""
    folder = tmp_path_factory.mktemp("inputs")
    streams.write_batches(folder, [[], *BATCHES[CUT:]], SCHEMA)
    return folder


def tables_of(state: CheckpointState) -> dict[str, DataFrame]:
    """Return all tables of a state by their names."""
    found = {f"state {name}": state.state(name) for name in state.states}
    found |= {"timers": state.timers(), "buffered_rows": state.buffered_rows()}
    with suppress(CheckpointMismatchError):
        found["windows"] = state.windows()
    return found


def initial(state: CheckpointState) -> InitialState:
    """Return the state of another query, made of its tables alone."""
    tables = tables_of(state)
    return InitialState(
        states={name: tables[f"state {name}"] for name in state.states},
        timers=tables["timers"],
        buffered_rows=None if tables["buffered_rows"].isEmpty() else tables["buffered_rows"],
        windows=tables.get("windows"),
        watermarks=state.watermarks(),
    )


def contents(state: CheckpointState) -> dict[str, list[str]]:
    """Return the rows of all tables that have some, without the key groups; broadcast state once."""
    found = {}
    for name, df in tables_of(state).items():
        rows = df.drop(OF_GROUPS)
        values = [str(sorted(row.asDict(True).items())) for row in rows.collect()]
        found[name] = sorted({*values} if "broadcast:" in name else values)
    return {name: rows for name, rows in found.items() if rows}


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", ALL)
def test_a_query_goes_on_from_the_tables_of_another(
    spark: SparkSession, every: Path, others: Path, tmp_path: Path, name: str
) -> None:
    wanted = streams.batches(ALL[name](streams.read_stream(spark, every), 4), tmp_path / "old")
    old = read_checkpoint(spark, tmp_path / "old" / "checkpoint", batch_id=CUT - 1)
    with streams.configured(spark, shuffle_partitions=3):
        df = streams.read_stream(spark, others)
        result = start_from(spark, initial(old), lambda: ALL[name](df, 7))
        first, *found = streams.batches(result, tmp_path / "new")
    assert first == []
    assert sum(map(len, wanted[CUT:])) > 2
    assert [sorted(rows, key=repr) for rows in found] == [sorted(rows, key=repr) for rows in wanted[CUT:]]
    new = read_checkpoint(spark, tmp_path / "new" / "checkpoint", batch_id=0)
    assert contents(new) == contents(old)
    assert new.watermarks().collect() == old.watermarks().collect()


def counted(df: DataFrame, cut: str, length: str) -> DataFrame:
    cuts = getattr(timerheap.spark, cut)(df, "at", length, watermark=WATERMARK)
    return cuts.groupBy("k").agg(F.count("*").alias("rows")).select("k", "rows")


def test_a_query_goes_on_in_place_of_another_with_mended_windows(spark: SparkSession, tmp_path: Path) -> None:
    """And without a key; the sources go on where the old query has stopped."""

    def query() -> DataFrame:
        return counted(streams.read_stream(spark, tmp_path / "in"), "tumble", "500 seconds")

    streams.write_batches(tmp_path / "in", BATCHES[:CUT], SCHEMA)
    streams.run(query(), tmp_path / "old")
    places = tmp_path / "old" / "checkpoint", tmp_path / "new" / "checkpoint"
    old = read_checkpoint(spark, places[0])
    mended = F.when(F.col("k") == "b", 1_000).otherwise(F.col("count_0"))
    windows = old.windows().where("k <> 'a'").withColumn("count_0", mended)
    start = InitialState(windows=windows, watermarks=old.watermarks())
    streams.write_batches(tmp_path / "in", BATCHES[CUT:], SCHEMA)
    result = continue_from(spark, *places, lambda: start_from(spark, start, query), forget=["timerheap"])
    streams.run(result, tmp_path / "new")
    later = [row["k"] for batch in BATCHES[CUT:] for row in batch]
    found = {row["k"]: row["count_0"] for row in read_checkpoint(spark, places[1]).windows().collect()}
    assert (found["a"], found["b"]) == (later.count("a"), 1_000 + later.count("b"))


def test_rows_that_wait_keep_their_microseconds(spark: SparkSession, tmp_path: Path) -> None:
    """By which a right row comes after a left one in the same millisecond."""

    def row(side: str, micros: int) -> dict[str, Any]:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        return {"k": "a", "at": at, "n": micros, "side": side, "op": "insert"}

    def query(folder: Path) -> DataFrame:
        df = streams.read_stream(spark, folder)
        sides = (df.where(f"side = '{side}'").select("k", "at", "n") for side in "lr")
        return timerheap.spark.join_asof(*sides, "k", event_time="at", watermark="1 minute")

    streams.write_batches(tmp_path / "in", [[row("l", 5), row("l", 9), row("r", 7)]], SCHEMA)
    streams.run(query(tmp_path / "in"), tmp_path / "old")
    old = read_checkpoint(spark, tmp_path / "old" / "checkpoint")
    start = InitialState(buffered_rows=old.buffered_rows(), watermarks=old.watermarks())
    later = 600_000_000
    streams.write_batches(tmp_path / "more", [[row("l", later), row("r", later)]], SCHEMA)
    result = start_from(spark, start, lambda: query(tmp_path / "more"))
    streams.run(result.select("n", "n_right"), tmp_path / "new")
    assert streams.sink(spark, tmp_path / "new") == [(5, None), (9, 7)]


def test_tables_that_a_query_cannot_keep_are_refused(spark: SparkSession, every: Path) -> None:
    """Before it starts."""
    df = streams.read_stream(spark, every)

    def refused(name: str, message: str, **tables: Any) -> None:
        with pytest.raises(ValueError, match=message):
            start_from(spark, InitialState(**tables), lambda: ALL[name](df, 4))

    bound = "timestamp_ntz '1970-01-01 00:00:50' AS slice_end"
    window = spark.sql(f"SELECT 'a' AS k, {bound}, 1L AS count_0")
    refused("process", "windows must be None for a query without windows, got a DataFrame", windows=window)
    refused(
        "tumble", r"windows must have a column 'high_1', got the columns \['k', 'slice_end'", windows=window
    )
    shown = window.withColumn("shown", F.lit(True))
    refused("tumble", "windows must be None for a query without windows that show early", windows=shown)
    table = spark.sql("SELECT 'a' AS k, 1L AS value")
    refused(
        "top_changes", r"states must have .* query's states, \['rows'\], got 'row'", states={"row": table}
    )
    refused(
        "top_changes", r"states\['rows'\] must have a column 'value' of type array<", states={"rows": table}
    )
    refused("process_broadcast", "must have maps in the column 'value'", states={"broadcast:rules": table})


def test_state_of_operators_is_given_by_their_names(spark: SparkSession, every: Path) -> None:
    df = streams.read_stream(spark, every)
    df.createOrReplaceTempView("t")
    none, totals = InitialState(), "SELECT k, SUM(n) AS s FROM t GROUP BY k"
    over = f"SELECT s, COUNT(*) AS c FROM ({totals}) GROUP BY s"

    def start(query: str, states: Any) -> DataFrame:
        return start_from(spark, states, lambda: timerheap.spark.sql(spark, query))

    start(totals, none)
    start(over, {"timerheap_2": none})
    with pytest.raises(ValueError, match=r"names of operators, .* \['timerheap', 'timerheap_2'\], got"):
        start(over, none)
    with pytest.raises(ValueError, match=r"names of operators .* are \['timerheap'\], got 'totals'"):
        start(totals, {"totals": none})
    with pytest.raises(TypeError, match=r"initial_state\['timerheap'\] must be what .* returns, .*, got 1"):
        start(totals, {"timerheap": 1})
    with pytest.raises(ValueError, match="initial_state must be None for operator 'timerheap', which"):
        start_from(spark, none, lambda: start(totals, none))
    spark.read.parquet(str(every)).createOrReplaceTempView("t")
    with pytest.raises(ValueError, match="initial_state must be None for a batch DataFrame, got"):
        start(totals, none)


WRONG: dict[str, tuple[Query, dict[str, str], str]] = {
    "timers of no rule": (
        lambda df: ALL["process_all"](df, 4),
        {"timers": "SELECT 'a' AS k, 900000L AS epoch_ms, 'event_time' AS time_domain, 'due' AS name"},
        "timers must have a name such as 'spikes/due'.* got 1 of 1 timers without",
    ),
    "several rules": (
        lambda df: ALL["process_broadcast"](df, 4),
        {"broadcast:rules": "SELECT map('a', 1L) AS value UNION ALL SELECT map('a', 2L)"},
        "must have the same value in each row, .*, got 2 different ones",
    ),
    "no bound of slices": (
        lambda df: counted(df, "tumble", "50 seconds"),
        {"windows": "SELECT 'a' AS k, timestamp_ntz '1970-01-01 00:01:00' AS slice_end, 1L AS count_0"},
        "windows must have bounds that Tumbling windows, size 50000 ms, .* can have, got 1 of 1 others",
    ),
    "no end of a slice": (
        lambda df: counted(df, "tumble", "50 seconds"),
        {"windows": "SELECT 'a' AS k, CAST(null AS timestamp_ntz) AS slice_end, 1L AS count_0"},
        "windows must have no null in the column 'slice_end'; filter such rows out",
    ),
    "no count": (
        lambda df: counted(df, "tumble", "50 seconds"),
        {
            "windows": "SELECT 'a' AS k, timestamp_ntz '1970-01-01 00:01:40' AS slice_end, "
            "bigint(null) AS count_0"
        },
        "accumulators must have no null in columns of int64, got 1",
    ),
    "sessions that touch": (
        lambda df: counted(df, "session", "9 seconds"),
        {
            "windows": "SELECT 'a' AS k, b::timestamp_ntz AS session_start, e::timestamp_ntz AS session_end, "
            "1L AS count_0 FROM VALUES ('1970-01-01 00:01:00', '1970-01-01 00:01:20'), "
            "('1970-01-01 00:01:10', '1970-01-01 00:01:30'), "
            "('1970-01-01 00:02:00', '1970-01-01 00:02:01') AS (b, e)"
        },
        "windows must have bounds that Session windows, gap 9000 ms, .* can have, got 2 of 3 others",
    ),
}


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", WRONG)
def test_rows_that_a_query_cannot_keep_are_refused(
    spark: SparkSession, every: Path, tmp_path: Path, name: str
) -> None:
    """In its first micro-batch."""
    query, texts, message = WRONG[name]
    tables: dict[str, Any] = {table: spark.sql(text) for table, text in texts.items()}
    states = {table: tables.pop(table) for table in texts if table.startswith("broadcast:")}
    start = InitialState(states=states, **tables)
    result = start_from(spark, start, lambda: query(streams.read_stream(spark, every)))
    with pytest.raises(StreamingQueryException, match=message):
        streams.run(result, tmp_path)
