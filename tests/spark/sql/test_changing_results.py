"""sql() over tables that change: after each micro-batch, what DuckDB makes of the rows that are there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import changing_sql
import duckdb
import pyarrow as pa
import pytest
import streams
from changes_model import apply_changes
from changing_sql import STATEMENTS, TABLES
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

STEPS = 5
GROUPS = 8  # of statements, each run as one query
GROWING = {"payments"}  # the tables without change types

Live = dict[str, list[tuple[Any, ...]]]


class Recorded:
    """Tables that have changed in some steps: their changes as files, and the rows after each step."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.live = folder, []
        tables = changing_sql.Tables(seed)
        for _ in range(STEPS):
            changes = tables.step(7)
            self.live.append({name: [*rows.values()] for name, rows in tables.live.items()})
            for name, rows in changes.items():
                schema = schema_of(name)
                dicts = [dict(zip(schema.names, row, strict=False)) for row in rows]
                streams.write_batches(folder / name, [pa.Table.from_pylist(dicts, schema)], schema)

    def read(self, spark: SparkSession, streaming: bool) -> None:
        """Make views of the tables: streams of their changes, or batches of all of these."""
        for name in TABLES:
            folder = self.folder / name
            df = streams.read_stream(spark, folder) if streaming else spark.read.parquet(str(folder))
            df.createOrReplaceTempView(name)


def schema_of(table: str) -> pa.Schema:
    types = {"bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}
    fields = [(name, types[type_]) for name, type_ in (one.split() for one in TABLES[table].split(", "))]
    return pa.schema([*fields, *([] if table in GROWING else [("_change_type", pa.string())])])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("tables"), seed=11)


@pytest.fixture(scope="module")
def wanted(recorded: Recorded) -> list[dict[str, Counter[str]]]:
    """What DuckDB makes of the rows after each step, for each statement."""
    return [results_of(live) for live in recorded.live]


def results_of(live: Live) -> dict[str, Counter[str]]:
    with duckdb.connect() as db:
        db.execute("SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC'")  # as in Flink and Spark
        for name, columns in TABLES.items():
            db.execute(f"CREATE TABLE {name} ({columns.replace('string', 'varchar')})")
            if live[name]:
                db.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", live[name])
        return {name: Counter(map(plain, db.execute(sql).fetchall())) for name, sql in STATEMENTS.items()}


def plain(row: Sequence[Any]) -> str:
    """Return a row as text, in which numbers of any type are the same."""
    return json.dumps([round(float(value), 9) if isinstance(value, (int, float)) else value for value in row])


def as_text(name: str, df: DataFrame) -> DataFrame:
    """Return the results of a statement as text, so that several statements are one query."""
    columns = [column for column in df.columns if column != "_change_type"]
    df = df.toDF(*(f"c{at}" for at in range(len(columns))), *df.columns[len(columns) :])
    row = F.to_json(F.struct(*df.columns[: len(columns)]), {"ignoreNullFields": "false"})
    change = F.col("_change_type") if "_change_type" in df.columns else F.lit("insert")
    return df.select(F.lit(name).alias("name"), row.alias("row"), change.alias("_change_type"))


def statements(group: int) -> dict[str, str]:
    return {name: sql for at, (name, sql) in enumerate(STATEMENTS.items()) if at % GROUPS == group}


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("group", range(GROUPS))
def test_after_each_micro_batch_the_result_is_that_of_the_rows_there_are(
    group: int,
    recorded: Recorded,
    wanted: list[dict[str, Counter[str]]],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    recorded.read(spark, streaming=True)
    parts = [as_text(name, timerheap.spark.sql(spark, sql)) for name, sql in statements(group).items()]
    union = parts[0]
    for part in parts[1:]:
        union = union.union(part)
    tables: dict[str, Counter[Any]] = {name: Counter() for name in statements(group)}
    batches = streams.batches(union, tmp_path)
    assert len(batches) == STEPS
    for step, rows in enumerate(batches):
        for name, table in tables.items():
            changes = [{"row": row, "_change_type": change} for of, row, change in rows if of == name]
            apply_changes(table, changes, nets=False)
            found = Counter(plain([*json.loads(row).values()]) for (row,) in table.elements())
            assert found == wanted[step][name], (name, step)


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_batch_of_changes_gives_the_table(
    name: str, recorded: Recorded, wanted: list[dict[str, Counter[str]]], spark: SparkSession
) -> None:
    recorded.read(spark, streaming=False)
    rows = as_text(name, timerheap.spark.sql(spark, STATEMENTS[name])).collect()
    table: Counter[Any] = Counter()
    apply_changes(table, [{"row": row.row, "_change_type": row["_change_type"]} for row in rows], nets=False)
    assert Counter(plain([*json.loads(row).values()]) for (row,) in table.elements()) == wanted[-1][name]
