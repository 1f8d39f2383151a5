"""Compare functions OVER rows, as a batch and as a stream, in CPU time and in rows per second end to end.

$ python bench/over.py [--events N] [--batches N] [--json FILE]

The rows are prices of 5,000 symbols. As a batch: the same text in Spark, and in DuckDB on the same files as
the limit. As a stream there is nothing to compare with: Spark refuses it. The part of the operator is what
remains without Spark and without the exchange of rows, on one thread, beside DuckDB's on one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from asof import SPAN, START, SYMBOLS
from pyspark.sql import DataFrame, SparkSession
from three_ways import Variants, compared, in_turn, median
from usage import cpu, jvm_of

import timerheap.spark
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.codec import hashes_of
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.timer import MAX_WATERMARK

SCHEMA = "symbol string, ts timestamp, price double"
WINDOW = "FROM prices WINDOW w AS (PARTITION BY symbol ORDER BY ts)"
FUNCTIONS = {
    "lag": "LAG(price) OVER w AS before",
    "lead": "LEAD(price) OVER w AS after",
    "total": "SUM(price) OVER w AS total",
    "all": "LAG(price) OVER w AS before, LEAD(price) OVER w AS after, ROW_NUMBER() OVER w AS place, "
    "SUM(price) OVER w AS total, MAX(price) OVER w AS highest",
}
QUERIES = {name: f"SELECT symbol, ts, price, {functions} {WINDOW}" for name, functions in FUNCTIONS.items()}
DELAY = "1 second"


def write(folder: Path, events: int, batches: int) -> None:
    """Write the prices of each micro-batch, a little out of order."""
    draw, symbols = np.random.default_rng(7), np.array([f"S{number:04}" for number in range(SYMBOLS)], object)
    folder.mkdir()
    for number in range(batches):
        times = (
            np.sort(draw.integers(0, SPAN, events)) + START + number * SPAN + draw.integers(0, 500, events)
        )
        columns = {
            "symbol": symbols[draw.integers(0, SYMBOLS, events)],
            "ts": pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
            "price": np.round(draw.random(events) * 100, 2),
        }
        file = folder / f"{number:03}.parquet"
        pq.write_table(pa.table(columns), file)
        os.utime(file, (number, number))


def batch(spark: SparkSession, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what the variants take for all rows as one batch; those of Spark write to nowhere."""
    jvm = jvm_of(spark)
    spark.read.parquet(str(data)).createOrReplaceTempView("prices")
    files = QUERIES["all"].replace("FROM prices", f"FROM '{data}/*.parquet'")

    def of_spark(result: Callable[[], DataFrame]) -> Callable[[], object]:
        return lambda: result().write.format("noop").mode("overwrite").save()

    variants: Variants = {
        "timerheap": (of_spark(lambda: timerheap.spark.sql(spark, QUERIES["all"])), jvm),
        "spark": (of_spark(lambda: spark.sql(QUERIES["all"])), jvm),
        "duckdb": (lambda: duckdb.sql(files).to_arrow_table(), None),
    }
    return in_turn(variants, rounds)


def stream(spark: SparkSession, data: Path, work: Path) -> dict[str, dict[str, float]]:
    """Return the median of the micro-batches, without the first."""
    jvm = jvm_of(spark)
    source = work / "prices"
    source.mkdir(parents=True)
    spark.readStream.schema(SCHEMA).parquet(str(source)).createOrReplaceTempView("prices")
    result = timerheap.spark.sql(spark, QUERIES["all"], DELAY)
    query = result.writeStream.option("checkpointLocation", str(work / "checkpoint")).start(
        str(work / "sink"), format="parquet"
    )
    taken: list[dict[str, float]] = []
    for file in sorted(data.iterdir()):
        before, seen = cpu(jvm), len([one for one in query.recentProgress if one.numInputRows])
        draft = work / "prices.parquet"
        os.link(file, draft)
        draft.rename(source / file.name)
        query.processAllAvailable()
        used = cpu(jvm).since(before)
        progress = [one for one in query.recentProgress if one.numInputRows][seen:]
        seconds = sum(one.durationMs["triggerExecution"] for one in progress) / 1000
        taken.append({"seconds": seconds, "jvm": used.jvm, "python": used.python})
    query.stop()
    return {"timerheap": median(taken[1:])}


def planned(spark: SparkSession, text: str) -> Query:
    """Return the query that is built of a text."""
    caught: list[Query] = []
    planned = "timerheap.spark._sql.plan.processed"
    build = import_module(planned).build

    def noted(query: Query, df: DataFrame, **more: Any) -> DataFrame:
        caught.append(query)
        return build(query, df, **more)

    with patch(f"{planned}.build", noted):
        timerheap.spark.sql(spark, text)
    return caught[0]


def operator(spark: SparkSession, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return what the operator takes for rows that have been exchanged, and DuckDB for the same in memory."""
    table = pq.read_table(data).combine_chunks()
    spark.read.parquet(str(data)).createOrReplaceTempView("prices")
    hashes = hashes_of(table.column("symbol").combine_chunks())
    millis = table.column("ts").combine_chunks().view(pa.int64()).to_numpy() // 1000
    connection = duckdb.connect()
    connection.sql("SET threads = 1")
    connection.register("given", table)
    connection.sql("CREATE TABLE prices AS SELECT * FROM given")
    variants: dict[str, Callable[[], object]] = {}
    for name, text in QUERIES.items():
        query = planned(spark, text)
        columns = [
            table.column("price" if one.name not in table.column_names else one.name) for one in query.schema
        ]
        rows = pa.table(columns, names=query.schema.names).cast(query.schema).combine_chunks().to_batches()[0]

        def own(query: Query = query, rows: pa.RecordBatch = rows) -> None:
            group, output = KeyGroup(query.layout), ResultBuffer(*query.outputs)
            runner = query.work.runner(query, Placement.running(1))
            keyed = KeyedRows(rows, hashes, millis)
            run_key_group(MicroBatch(query, runner, None, output), group, keyed, MAX_WATERMARK)
            assert len(output) == len(table)

        variants[f"{name}, own"] = own
        variants[f"{name}, duckdb"] = lambda text=text: connection.sql(text).to_arrow_table()
    return in_turn({name: (action, None) for name, action in variants.items()}, rounds)


def main() -> None:
    compared(__doc__, write, operator, batch, stream)


if __name__ == "__main__":
    main()
