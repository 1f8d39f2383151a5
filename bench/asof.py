"""Compare as-of joins, as a batch and as a stream, in CPU time and in rows per second end to end.

$ python bench/asof.py [--events N] [--batches N] [--json FILE]

Half of the rows are trades, half are quotes, of 5,000 symbols. As a batch: Spark's union and window, which is
how such a join is written without an operator for it, and DuckDB and Polars on the same files as the limit.
As a stream: the same join as a function of `process_two`; the queries take turns, micro-batch by micro-batch.
The part of the operator is what remains without Spark and without the exchange of rows, on one thread, beside
DuckDB's on one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from three_ways import Variants, compared, in_turn, median
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import KeyedCoProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import EventTime, RightInput
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._asof import newest_plan
from timerheap.spark._asof.newest_runner import AsofJoinRunner
from timerheap.spark._columns import INPUT, TIME
from timerheap.spark._exchange.codec import hashes_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.timer import MAX_WATERMARK

SYMBOLS, SPAN = 5_000, 600_000  # ms of event time in a micro-batch
START = 1_700_000_000_000
TRADES = "symbol string, at timestamp, quantity bigint"
QUOTES = "symbol string, at timestamp, price double"
RESULT = "symbol string, at timestamp, quantity bigint, at_right timestamp, price double"
DELAY = "1 second"


def write(folder: Path, events: int, batches: int) -> None:
    """Write the trades and the quotes of each micro-batch."""
    draw = np.random.default_rng(7)
    symbols = np.array([f"S{number:04}" for number in range(SYMBOLS)], object)
    for number in range(batches):
        for name in ("trades", "quotes"):
            n = events // 2
            times = np.sort(draw.integers(0, SPAN, n)) + START + number * SPAN
            times += draw.integers(0, 500, n)  # a little out of order; a function compares times in ms
            columns: dict[str, Any] = {
                "symbol": symbols[draw.integers(0, SYMBOLS, n)],
                "at": pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
            }
            if name == "trades":
                columns["quantity"] = draw.integers(1, 1000, n)
            else:
                columns["price"] = np.round(draw.random(n) * 100, 2)
            file = folder / name / f"{number:03}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), file)
            os.utime(file, (number, number))


def by_timerheap(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Return the join by `join_asof`."""
    return timerheap.spark.join_asof(trades, quotes, "symbol", "at", watermark=DELAY)


def by_window(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Return the join by Spark's union, and the last quote of a window over both."""
    sides = [
        trades.withColumn("price", F.lit(None).cast("double")).withColumn("quoted", F.lit(None)),
        quotes.withColumn("quantity", F.lit(None).cast("bigint")).withColumn(
            "quoted", F.struct(F.col("at").alias("at"), "price")
        ),
    ]
    both = sides[0].withColumn("side", F.lit(1)).unionByName(sides[1].withColumn("side", F.lit(0)))
    before = Window.partitionBy("symbol").orderBy("at", "side").rowsBetween(Window.unboundedPreceding, 0)
    found = both.withColumn("quoted", F.last("quoted", ignorenulls=True).over(before)).where("side = 1")
    return found.select("symbol", "at", "quantity", F.col("quoted.at").alias("at_right"), "quoted.price")


class Priced(KeyedCoProcessFunction):
    """The join, row by row."""

    def open(self, runtime_context: Any) -> None:
        type_ = Types.ROW_NAMED(["at", "price"], [Types.SQL_TIMESTAMP(), Types.DOUBLE()])
        self.quote = runtime_context.get_state(ValueStateDescriptor("quote", type_))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        quote = self.quote.value()
        found = (None, None) if quote is None else (quote.at, quote.price)
        yield value.symbol, value.at, value.quantity, *found

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.quote.update((value.at, value.price))


def by_function(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Return the join by `process_two`."""
    right = RightInput(quotes, event_time=EventTime("at", tie_break=F.lit(0)))
    left = EventTime("at", tie_break=F.lit(1))
    return timerheap.spark.process_two(trades, right, "symbol", Priced(), RESULT, left, watermark=DELAY)


def by_duckdb(data: Path) -> Any:
    """Return the join by DuckDB, as an Arrow table."""
    return duckdb.sql(
        f"""SELECT t.symbol, t.at, t.quantity, q.at AS at_right, q.price
        FROM '{data}/trades/*.parquet' t ASOF LEFT JOIN '{data}/quotes/*.parquet' q
        ON t.symbol = q.symbol AND t.at >= q.at"""
    ).to_arrow_table()


def by_polars(data: Path) -> Any:
    """Return the join by Polars, whose inputs must be sorted."""
    trades = pl.scan_parquet(data / "trades" / "*.parquet").sort("at")
    quotes = pl.scan_parquet(data / "quotes" / "*.parquet").with_columns(at_right="at").sort("at")
    return trades.join_asof(quotes, on="at", by="symbol", coalesce=True, check_sortedness=False).collect()


def batch(spark: SparkSession, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what the variants take for all rows as one batch; those of Spark write to nowhere."""
    jvm = jvm_of(spark)

    def of_spark(join: Callable[[DataFrame, DataFrame], DataFrame]) -> Callable[[], object]:
        inputs = [spark.read.parquet(str(data / name)) for name in ("trades", "quotes")]
        return lambda: join(*inputs).write.format("noop").mode("overwrite").save()

    variants: Variants = {
        "timerheap": (of_spark(by_timerheap), jvm),
        "spark": (of_spark(by_window), jvm),
        "duckdb": (lambda: by_duckdb(data), None),
        "polars": (lambda: by_polars(data), None),
    }
    return in_turn(variants, rounds)


def stream(spark: SparkSession, data: Path, work: Path) -> dict[str, dict[str, float]]:
    """Return the medians of the micro-batches of each variant, without the first."""
    jvm = jvm_of(spark)
    queries, taken = {}, {}
    for name, join in {"timerheap": by_timerheap, "process_two": by_function}.items():
        inputs = []
        for side, schema in (("trades", TRADES), ("quotes", QUOTES)):
            source = work / name / side
            source.mkdir(parents=True)
            inputs.append(spark.readStream.schema(schema).parquet(str(source)))
        writer = join(*inputs).writeStream.option("checkpointLocation", str(work / name / "checkpoint"))
        queries[name] = writer.start(str(work / name / "sink"), format="parquet")
        taken[name] = list[dict[str, float]]()
    for file in sorted((data / "trades").iterdir()):
        for name, query in queries.items():
            before = cpu(jvm)
            for side in ("quotes", "trades"):
                draft = work / name / f"{side}.parquet"
                os.link(data / side / file.name, draft)
                draft.rename(work / name / side / file.name)
            query.processAllAvailable()
            used = cpu(jvm).since(before)
            progress = [one for one in query.recentProgress if one.numInputRows]
            seconds = sum(one.durationMs["triggerExecution"] for one in progress[len(taken[name]) :]) / 1000
            taken[name].append({"seconds": seconds, "jvm": used.jvm, "python": used.python})
    for query in queries.values():
        query.stop()
    results = [spark.read.parquet(str(work / name / "sink")) for name in queries]
    assert not results[0].exceptAll(results[1]).count()
    assert not results[1].exceptAll(results[0]).count()
    return {name: median(each[1:]) for name, each in taken.items()}


def operator(spark: SparkSession, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what the operator takes for rows that have been exchanged, and DuckDB for the same in memory."""
    caught: list[Query] = []
    inputs = [spark.read.parquet(str(data / name)) for name in ("trades", "quotes")]
    with patch.object(newest_plan, "build", lambda query, df: caught.append(query)):
        by_timerheap(*inputs)
    query = caught[0]
    tables = [pq.read_table(data / name).combine_chunks() for name in ("trades", "quotes")]
    columns: dict[str, list[pa.Array]] = {name: [] for name in query.schema.names}
    for side, table in enumerate(tables):
        names = {carrier: name for name, carrier in query.work.columns[side].items()}
        for field in query.schema:
            if field.name == INPUT:
                column = pa.array(np.full(len(table), side, np.int8))
            elif field.name in names:
                column = table.column(names[field.name]).combine_chunks().cast(field.type)
            else:
                column = pa.nulls(len(table), field.type)
            columns[field.name].append(column)
    whole = {name: pa.concat_arrays(parts) for name, parts in columns.items()}
    rows = pa.RecordBatch.from_arrays(list(whole.values()), names=list(whole))
    hashed = KeyedRows(
        rows, hashes_of(rows.column(query.key[0])), rows.column(TIME).view(pa.int64()).to_numpy() // 1000
    )

    def own() -> None:
        group, output = KeyGroup(query.layout), ResultBuffer(*query.outputs)
        runner = AsofJoinRunner(query.work, query)
        run_key_group(MicroBatch(query, runner, None, output), group, hashed, MAX_WATERMARK)
        assert len(output) == len(tables[0])

    connection = duckdb.connect()
    connection.sql("SET threads = 1")
    for name, table in zip(("trades", "quotes"), tables, strict=True):
        connection.register(name, table)
        connection.sql(f"CREATE TABLE {name}_here AS SELECT * FROM {name}")
    text = """SELECT t.symbol, t.at, t.quantity, q.at AS at_right, q.price FROM trades_here t
        ASOF LEFT JOIN quotes_here q ON t.symbol = q.symbol AND t.at >= q.at"""
    variants = {"operator": own, "duckdb": lambda: connection.sql(text).to_arrow_table()}
    return in_turn({name: (action, None) for name, action in variants.items()}, rounds)


def main() -> None:
    compared(__doc__, write, operator, batch, stream)


if __name__ == "__main__":
    main()
