"""Cases of Flink's tests of SQL, run: several as one query of batches or streams, and their final tables."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from changes_model import apply_changes
from flink_tables import WORDS, Case, Table
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

import timerheap.spark
from timerheap.errors import ArgumentError

PARTS = 3  # micro-batches of a stream, which starts again before the last one
LAST = dt.timedelta(days=10)  # after all rows of a stream comes one that ends what waits


def kinds_of(table: Table) -> bool:
    """Return whether the rows of a table begin with their kinds."""
    return bool(table[1]) and isinstance(table[1][0][0], str) and table[1][0][0] in WORDS


def schema_of(table: Table) -> T.StructType:
    schema = T.StructType.fromDDL(table[0])
    return schema.add("_change_type", T.StringType()) if kinds_of(table) else schema


def arrow_of(table: Table) -> pa.Schema:
    local = T.StructType([replaced(field) for field in schema_of(table)])
    arrow = to_arrow_schema(local)
    for at, field in enumerate(schema_of(table)):
        if isinstance(field.dataType, T.TimestampType):
            arrow = arrow.set(at, arrow.field(at).with_type(pa.timestamp("us", "UTC")))
    return arrow


def replaced(field: T.StructField) -> T.StructField:
    """Return a field without a time zone, for which Spark would ask."""
    return (
        T.StructField(field.name, T.TimestampNTZType())
        if isinstance(field.dataType, T.TimestampType)
        else field
    )


def dicts(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table, in which times are seconds."""
    schema, rows = schema_of(table), table[1]
    if kinds_of(table):
        rows = [(*row, WORDS[kind]) for kind, *row in rows]
    timed = [
        field.name for field in schema if isinstance(field.dataType, T.TimestampType | T.TimestampNTZType)
    ]
    found = [dict(zip(schema.names, row, strict=True)) for row in rows]
    for row in found:
        row.update({name: instant(row[name]) for name in timed if row[name] is not None})
    return found


def instant(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(seconds=seconds)


def write(folder: Path, table: Table, parts: int, first: int, behind: int) -> None:
    """Write some parts of a table as files, each of a micro-batch: those from `first` until `behind`."""
    rows = dicts(table)
    size = -(-len(rows) // parts)
    batches = [rows[at * size : at * size + size] for at in range(first, behind)]
    streams.write_batches(
        folder, [pa.Table.from_pylist(one, arrow_of(table)) for one in batches], arrow_of(table)
    )


def write_last(case: Case, name: str, folder: Path) -> None:
    """Write the last part of a table, and if it has a watermark, the row that ends what waits."""
    table, delay = case.tables[name], case.options.get("watermark")
    delay = delay.get(name) if isinstance(delay, dict) else delay
    if case.ends and delay is not None:
        time, rows = delay.split(" ")[0], dicts(table)
        last = max(row[time] for row in rows if row[time] is not None)
        last += round(LAST.total_seconds() * 1000) if isinstance(last, int) else LAST
        end = {time: last, **({"_change_type": "insert"} if kinds_of(table) else {})}
        size = -(-len(rows) // PARTS)
        batch = pa.Table.from_pylist([*rows[(PARTS - 1) * size :], end], arrow_of(table))
        streams.write_batches(folder, [batch], arrow_of(table))
    else:
        write(folder, table, PARTS, PARTS - 1, PARTS)


def results_of(spark: SparkSession, cases: list[Case], folder: Path, streaming: bool) -> DataFrame:
    """Return the results of several cases as one DataFrame: their numbers, rows as text, change types."""
    parts = []
    for number, case in enumerate(cases):
        for name, table in case.tables.items():
            path = folder / f"{number}-{name}"
            moves = streaming and name not in case.still
            write(path, table, PARTS if moves else 1, 0, PARTS - 1 if moves else 1)
            df = streams.read_stream(spark, path) if moves else spark.read.parquet(str(path))
            df.createOrReplaceTempView(name)
        result = timerheap.spark.sql(spark, case.query, **case.options)
        if "_change_type" not in result.columns:
            result = result.withColumn("_change_type", F.lit("insert"))
        names = [f"c{at}" for at in range(len(result.columns) - 1)]
        result = result.toDF(*names, "_change_type")
        for name in names:
            if isinstance(result.schema[name].dataType, T.TimestampType | T.TimestampNTZType):
                result = result.withColumn(name, F.col(name).cast("timestamp").cast("double"))
        row = F.to_json(F.struct(*names), {"ignoreNullFields": "false"})
        parts.append(result.select(F.lit(number).alias("case"), row.alias("row"), "_change_type"))
    union = parts[0]
    for part in parts[1:]:
        union = union.union(part)
    return union


def batches_of(spark: SparkSession, cases: list[Case], folder: Path) -> list[list[tuple[Any, ...]]]:
    """Return what several cases give on streams: two micro-batches, a restart, and a last one."""
    result = results_of(spark, cases, folder / "tables", streaming=True)
    found = _ended(result, folder)
    for number, case in enumerate(cases):
        for name in case.tables:
            if name not in case.still:
                write_last(case, name, folder / "tables" / f"{number}-{name}")
    return found + _ended(result, folder)


def _ended(result: DataFrame, folder: Path) -> list[list[tuple[Any, ...]]]:
    """Run a query over all rows there are; return those of each of its micro-batches."""
    found: dict[int, list[tuple[Any, ...]]] = {}

    def collect(df: DataFrame, batch: int) -> None:
        found[batch] = [tuple(row) for row in df.collect()]

    writer = result.writeStream.foreachBatch(collect)
    timerheap.spark.run_available_now(writer.option("checkpointLocation", str(folder / "checkpoint")))
    return [rows for _, rows in sorted(found.items())]


def flat(value: Any) -> Any:
    """Return a value with all numbers as doubles, in which JSON has decimals, times and integers."""
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [flat(one) for one in value]
    return value if isinstance(value, str) or value is None else float(value)


def plain(row: Any) -> str:
    return json.dumps(flat(list(row)))


def check(cases: list[Case], batches: list[list[tuple[Any, ...]]]) -> None:
    """Expect the final table of each case."""
    for number, case in enumerate(cases):
        table: Counter[Any] = Counter()
        for rows in batches:
            changes = [{"row": row, "_change_type": change} for of, row, change in rows if of == number]
            apply_changes(table, changes, nets=False)
        found = Counter(plain(json.loads(row).values()) for (row,) in table.elements())
        assert case.result is not None
        wanted = Counter(map(plain, case.result))
        assert found == wanted, (case.test, sorted(found - wanted), sorted(wanted - found))


def refusal_of(spark: SparkSession, case: Case, folder: Path) -> str:
    """Return the error of a case that is refused."""
    with pytest.raises((ArgumentError, AnalysisException)) as found:
        results_of(spark, [case], folder, streaming="batch" not in case.runs)
    return str(found.value)


@contextmanager
def registered(spark: SparkSession) -> Iterator[None]:
    """Register the functions of rows that the queries call."""
    spark.udf.register("add", lambda a, b: None if a is None or b is None else a + b, "long")
    spark.udf.register("prefixed", lambda text: f">{text}", "string")
    yield
    for name in ("add", "prefixed"):
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
