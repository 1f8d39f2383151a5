"""Top-N over changes on Spark: streams over restarts, batches, arguments, and what is kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from change_streams import BOARD, changelog, first_of_duckdb, some_board, tables_after
from changes_model import Table, apply_changes
from live_tables import LiveTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.errors import ArgumentError
from timerheap.spark import join_changes, read_checkpoint, top_changes
from timerheap.spark._changes.guarantees import unique_keys

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


def best(df: DataFrame) -> DataFrame:
    """The first three rows of each team, with their places."""
    order = [F.col("points").desc_nulls_last(), F.col("day").asc_nulls_first()]
    return top_changes(df, "team", 3, order, number="place", max_parallelism=3)


BEST = (
    "row_number() OVER (PARTITION BY team ORDER BY points DESC NULLS LAST, day NULLS FIRST, name NULLS FIRST)"
)
RUNS: dict[str, Any] = {
    "numbers": (best, BEST, 3, ["team", "place"]),
    "ranks of all": (
        lambda df: top_changes(df, [], 2, F.lower("name"), rank="rank", number="place"),
        "rank() OVER (ORDER BY lower(name) NULLS FIRST)",
        2,
        None,
    ),
    "newest": (
        lambda df: top_changes(df.groupBy("team"), order_by=F.desc("day")),
        """row_number() OVER (
            PARTITION BY team ORDER BY day DESC NULLS LAST, name NULLS FIRST, points NULLS FIRST
        )""",
        1,
        ["team"],
    ),
}


@pytest.mark.parametrize("grows", [False, True], ids=["changes", "inserts"])
@pytest.mark.parametrize("name", RUNS)
def test_after_each_micro_batch_the_table_has_the_first_rows(
    spark: SparkSession, tmp_path: Path, name: str, grows: bool
) -> None:
    transform, number, limit, key = RUNS[name]
    live = LiveTable(BOARD.names, some_board, len(name))
    batches = [(live.change(20, grows), list(live.rows)) for _ in range(6)]
    found = tables_after(spark, transform, [[rows for rows, _ in batches]], tmp_path, key, grows=grows)
    has_number = "place" in transform(spark.createDataFrame(pa.Table.from_pylist([], BOARD))).columns
    assert found == [first_of_duckdb(rows, number, limit, has_number) for _, rows in batches]


def test_a_batch_is_the_table(spark: SparkSession) -> None:
    live = LiveTable(BOARD.names, some_board, 7)
    changes = [change for _ in range(5) for change in live.change(20)]
    result = best(changelog(spark, changes))
    found: Table = Counter()
    apply_changes(found, result.toArrow().to_pylist(), ["team", "place"])
    assert found == first_of_duckdb(live.rows, BEST, 3, True)
    assert {row["_change_type"] for row in result.collect()} <= {"insert"}


def test_the_result_says_which_keys_it_has(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "team string, name string, points int")
    assert unique_keys(top_changes(df, "team", 3, "points", number="place")) == (("team", "place"),)
    assert unique_keys(top_changes(df, "team", 1, "points", number="place")) == (("team",),)
    assert unique_keys(top_changes(df, "team", 1, "points")) == (("team",),)
    assert unique_keys(top_changes(df, F.upper("team"), 1, "points")) == ()
    assert unique_keys(top_changes(df, "team", 3, "points")) == ()
    assert unique_keys(top_changes(df, "team", 3, "points", rank="rank", number="place")) == ()
    one_a_name = top_changes(df, "name", 1, "points")
    assert unique_keys(top_changes(one_a_name, "team", 3, "points")) == (("name",),)


def test_the_state_of_rows_that_only_come_has_the_first_ones_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"team": "red", "name": f"name {at}", "points": at, "day": at} for at in range(50)]
    streams.write_batches(tmp_path / "in", [rows[:30], rows[30:]], BOARD)
    streams.batches(best(streams.read_stream(spark, tmp_path / "in")), tmp_path)
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"))
    (kept,) = state.state("rows").collect()
    assert sorted(entry["value"]["points"] for entry in kept["value"]) == [47, 48, 49]
    assert kept["team"] == "red"


def test_so_has_that_of_a_join_of_rows_that_only_come(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"team": "red", "name": f"name {at}", "points": at, "day": at} for at in range(50)]
    streams.write_batches(tmp_path / "in", [rows[:30], rows[30:]], BOARD)
    teams = pa.schema([("team", pa.string()), ("size", pa.int64())])
    streams.write_batches(tmp_path / "teams", [[{"team": "red", "size": 1}]], teams)
    board, sizes = (streams.read_stream(spark, tmp_path / name) for name in ("in", "teams"))
    joined = join_changes(board, sizes, "team").where("points <> 49")
    streams.batches(top_changes(joined, "team", 2, F.desc("points")), tmp_path)
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"), 0)
    (kept,) = state.state("rows").collect()
    assert sorted(entry["value"]["points"] for entry in kept["value"]) == [47, 48]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be 1 or more, got 0"),
        ({"n": True}, "n must be an int, got True"),
        ({"order_by": ()}, "order_by must be a column or a list of columns, got"),
        ({"order_by": "nothing"}, "order_by must name one column, got 'nothing'"),
        ({"order_by": "tags"}, "order_by must be of an atomic type, got column 'tags'"),
        ({"order_by": lambda: F.rand()}, "order_by must have columns that are the same each time"),
        ({"number": "Points"}, "number must be the name of a new column, got 'Points', which df has"),
        ({"number": 1}, "number must be the name of a new column, got 1"),
        ({"rank": "ntile"}, "rank must be one of row_number, rank, dense_rank, got 'ntile'"),
        ({"forget_after": "soon"}, "forget_after must be"),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    df = spark.createDataFrame([], "team string, points int, tags array<string>, _change_type string")
    if "tags" not in message:
        df = df.drop("tags")
    given = {name: value() if callable(value) else value for name, value in arguments.items()}
    with pytest.raises(ArgumentError, match=message):
        top_changes(df, "team", **{"order_by": "points"} | given)
