"""Upserts become the changes of a table, whatever order they come in."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from changes_model import Table, apply_changes, table_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.spark import changes_of

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("v", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
pytestmark = pytest.mark.spark


def upserts(seed: int, count: int = 120) -> list[Row]:
    rng = random.Random(seed)
    rows = [
        {
            "k": rng.choice([None, "", "a", "b", "c", "d"]),
            "seq": rng.randrange(count // 6),
            "op": rng.choice("uuud"),
            "v": rng.choice([None, 0.0, -0.0, float("nan"), 1.5, 2.0]),
            "tags": rng.choice([None, [], ["x"], ["x", None]]),
        }
        for _ in range(count)
    ]
    return rows + rng.sample(rows, count // 4)  # twice


def rank(row: Row) -> tuple[Any, ...]:
    """Which of the upserts of a key counts: the greatest."""
    number = (0,) if row["v"] is None else (1, row["v"] != row["v"], str(row["v"]))  # -0.0 before 0.0
    tags = "" if row["tags"] is None else repr(row["tags"])
    return row["seq"], row["op"] == "d", row["op"], number, tags


def table(rows: list[Row]) -> Table:
    newest: dict[str | None, Row] = {}
    for row in rows:
        if row["k"] not in newest or rank(row) > rank(newest[row["k"]]):
            newest[row["k"]] = row
    return table_of(row for row in newest.values() if row["op"] != "d")


def changed(df: DataFrame) -> DataFrame:
    return changes_of(df, "k", "seq", deleted=F.col("op") == "d", max_parallelism=4)


@pytest.mark.in_turn(5)
def test_the_table_is_that_of_the_newest_upserts_after_each_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = upserts(5)
    cuts = [0, 7, 8, 40, 41, 90, 150]
    parts = [rows[start:stop] for start, stop in pairwise(cuts)]
    streams.write_batches(tmp_path / "in", parts[:3], SCHEMA)
    found: Table = Counter()
    seen = list[Row]()
    for start, more in ((0, parts[3:]), (3, [])):
        result = changed(streams.read_stream(spark, tmp_path / "in"))
        names = result.columns
        for number, batch in enumerate(streams.batches(result, tmp_path), start):
            apply_changes(found, [dict(zip(names, row, strict=True)) for row in batch], ["k"])
            seen += parts[number]
            assert found == table(seen)
        streams.write_batches(tmp_path / "in", more, SCHEMA)
    assert len(seen) == len(rows)


def test_a_batch_gives_the_table(spark: SparkSession) -> None:
    rows = upserts(6)
    result = changed(spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)))
    found: Table = Counter()
    apply_changes(found, result.toArrow().to_pylist(), ["k"])
    assert found == table(rows)
    assert {row["_change_type"] for row in result.collect()} == {"insert"}


def test_a_null_sequence_is_an_error_that_names_it(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", None)], "k string, seq long")
    with pytest.raises(Exception, match="sequence must not be null, got a row with null in column 'seq'"):
        changes_of(df, "k", "seq").collect()


def test_the_key_may_be_all_there_is(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1), ("a", 2), ("a", 1)], "k string, seq long")
    found = sorted(map(tuple, changes_of(df, ["k", "seq"], "seq").collect()))
    assert found == [("a", 1, "insert"), ("a", 2, "insert")]
