"""Changes of live tables as streams on Spark: the table that a query makes after each micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import streams
from changes_model import Table, apply_changes, table_of
from live_tables import Row
from pyspark.sql import DataFrame, SparkSession

from timerheap.spark._columns import WEIGHT

BOARD = pa.schema([("team", pa.string()), ("name", pa.string()), ("points", pa.int32()), ("day", pa.int64())])
WORDS = {1: ("insert", "update_postimage"), -1: ("delete", "update_preimage")}


def some_board(rng: np.random.Generator) -> Row:
    team = (None, "red", "blue", "green")[rng.integers(4)]
    points = None if rng.random() < 0.1 else int(rng.integers(6))
    return team, "abcdefGH"[rng.integers(8)], points, int(rng.integers(10))


def changes_table(rows: Sequence[dict[str, Any]], schema: pa.Schema = BOARD, grows: bool = False) -> pa.Table:
    """Return rows with weights as those of a changelog, or without changes of rows that only come."""
    plain = [{name: row[name] for name in schema.names} for row in rows]
    if grows:
        return pa.Table.from_pylist(plain, schema)
    words = [WORDS[row[WEIGHT]][at % 2] for at, row in enumerate(rows)]
    return pa.Table.from_pylist(plain, schema).append_column("_change_type", pa.array(words, pa.string()))


def changelog(spark: SparkSession, rows: Sequence[dict[str, Any]], schema: pa.Schema = BOARD) -> DataFrame:
    return spark.createDataFrame(changes_table(rows, schema))


def tables_after(
    spark: SparkSession,
    transform: Callable[..., DataFrame],
    inputs: Sequence[Sequence[Sequence[dict[str, Any]]]],
    work: Path,
    key: Sequence[str] | None = None,
    *,
    schemas: Sequence[pa.Schema] = (BOARD,),
    grows: bool = False,
    restarts: int = 2,
) -> list[Table]:
    """Run a query over micro-batches of changes of its inputs; return the table after each.

    key: columns of which the table must not have the same values twice
    restarts: how often it starts on one checkpoint
    """
    count = len(inputs[0])
    cuts = [count * at // restarts for at in range(restarts + 1)]
    table: Table = Counter()
    found = []
    for start, stop in pairwise(cuts):
        for number, (batches, schema) in enumerate(zip(inputs, schemas, strict=True)):
            parts = [changes_table(rows, schema, grows) for rows in batches[start:stop]]
            streams.write_batches(work / f"in{number}", parts, parts[0].schema)
        result = transform(*(streams.read_stream(spark, work / f"in{at}") for at in range(len(inputs))))
        batches = streams.batches(result, work)
        assert len(batches) == stop - start
        for batch in batches:
            apply_changes(table, [dict(zip(result.columns, row, strict=True)) for row in batch], key)
            found.append(Counter(table))
    return found


def duckdb_table(text: str, **tables: tuple[pa.Schema, Sequence[Row]]) -> Table:
    """Return what DuckDB answers on live tables."""
    with duckdb.connect() as connection:
        for name, (schema, rows) in tables.items():
            named = [dict(zip(schema.names, row, strict=True)) for row in rows]
            connection.register(name, pa.Table.from_pylist(named, schema))
        return table_of(connection.sql(text).to_arrow_table().to_pylist())


def first_of_duckdb(rows: Sequence[Row], number: str, limit: int, has_number: bool) -> Table:
    """Return the rows of a live table whose number, an expression, is at most the limit."""
    columns = "*" if has_number else "* EXCLUDE place"
    text = f"SELECT {columns} FROM (SELECT *, {number} AS place FROM live) WHERE place <= {limit}"
    return duckdb_table(text, live=(BOARD, rows))
