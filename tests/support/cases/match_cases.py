"""Many cases of MATCH_RECOGNIZE in one process: sql() reads them, Spark computes columns, no worker starts.

A query of Spark takes a third of a second. Here clauses are read as `sql()` reads them, Spark computes the
columns that all of them need of a table in one job, and the function runs in a `MatchStream`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from match_stream import MatchStream
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from timerheap.spark._sql.plan.match_columns import matching, shown_columns
from timerheap.spark._sql.read.statements import only_query
from timerheap.spark._sql.rewrite.meaning import meaning_of

Answer = list[tuple[Any, ...]] | ValueError


def read(clause: str) -> Any:
    """Return what a clause means."""
    node: Any = meaning_of(only_query(f"SELECT * FROM t MATCH_RECOGNIZE ({clause}) AS m")[0])
    while not hasattr(node, "pattern"):
        node = node.source
    return node


def answers(spark: SparkSession, df: DataFrame, cases: Sequence[tuple[str, str]]) -> list[Answer]:
    """Return the matches of each case: the keys and the measures; or its error.

    df: the rows of all tables; its column `of` has the name of the table
    cases: the name of a table, and the clause
    """
    nodes: list[Any] = []
    for _, clause in cases:
        try:
            nodes.append(read(clause))
        except ValueError as error:
            nodes.append(error)
    read_nodes = [node for node in nodes if not isinstance(node, ValueError)]
    texts = dict.fromkeys(text for node in read_nodes for text in node.columns.values())
    names = {text: f"p{number}" for number, text in enumerate(texts)}
    computed = df.select("*", *(F.expr(text).alias(name) for text, name in names.items()))
    rows = computed.toArrow()
    of = {
        table: rows.filter(pc.equal(rows["of"], table))
        for table in dict.fromkeys(table for table, _ in cases)
    }
    return [
        node
        if isinstance(node, ValueError)
        else _answer(spark, node, df.columns, names, computed.schema, of[table])
        for (table, _), node in zip(cases, nodes, strict=True)
    ]


def asked(spark: SparkSession, cases: Sequence[tuple[str, str]]) -> list[Answer]:
    """Return the answers to clauses on rows, of each partition of its own if there are several.

    Rows are words: 10 is the number `v`, a the letter `c`, 10a both, - none; / begins a new partition `k`.
    `m` is so many minutes, `s` a struct, `l` a list.
    """
    found = []
    for rows in dict.fromkeys(rows for rows, _ in cases):
        for k, part in enumerate(rows.split(" / "), 1):
            for at, word in enumerate(part if part.isalpha() else part.split(), 1):
                number, letter = re.match(r"(-?\d+)?-?(\w*)", word).groups()  # type: ignore[union-attr]
                found.append((rows, k, at, None if number is None else int(number), letter))
    df = spark.createDataFrame(found, "of string, k int, id int, v int, c string").selectExpr(
        "*",
        "timestamp_seconds(id) AS ts",
        "timestamp_seconds(60 * v) AS m",
        "struct(v) AS s",
        "array(v, 2 * v) AS l",
    )
    whole = [
        (rows, f"{'PARTITION BY k ' if ' / ' in rows else ''}ORDER BY ts {clause}") for rows, clause in cases
    ]
    return answers(spark, df, whole)


def _answer(
    spark: SparkSession,
    node: Any,
    visible: list[str],
    names: dict[str, str],
    schema: StructType,
    rows: pa.Table,
) -> Answer:
    columns = {name: name for name in visible}
    columns |= {name: names[text] for name, text in node.columns.items()}
    fields = StructType([StructField(name, schema[at].dataType) for name, at in columns.items()])
    try:
        known: Any = SimpleNamespace(schema=fields)
        function, result = matching(node, known, shown_columns(node, visible))
        rows = rows.sort_by([(name, "ascending") for name in (node.time, *node.ties)])
        of_rows = [tuple(row.values()) for row in rows.select([*node.keys]).to_pylist()] or [()] * len(rows)
        keys = list(dict.fromkeys(of_rows))
        ids = np.array([keys.index(key) for key in of_rows], np.int64)
        order = np.argsort(ids, kind="stable")
        table = pa.table({name: rows[at] for name, at in columns.items()}).take(order)
        (batch,) = table.combine_chunks().to_batches()
        times = np.asarray(batch[node.time].cast(pa.int64())) // 1000
        stream = MatchStream(replace(function._plan, keys=["key"]))
        found = stream.micro_batch(batch, ids[order], times)
    except ValueError as error:
        return error
    values = [tuple(row[one.name] for one in node.measures) for row in found]
    if [text for text, _ in node.items] != [f"`{one.name}`" for one in node.measures] and values:
        measures = spark.createDataFrame(values, StructType(result[len(result) - len(node.measures) :]))
        values = [tuple(row) for row in measures.selectExpr(*(text for text, _ in node.items)).collect()]
    return [(*keys[row["key"]], *of_row) for row, of_row in zip(found, values, strict=True)]
