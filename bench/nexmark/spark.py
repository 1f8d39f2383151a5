"""Runs the queries on Spark: once to be measured, once for their rows, which are compared with Flink's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from usage import Meter, jvm_of

from nexmark import columns, plain, spark_alone, streams, timers, windows

Query = Callable[[DataFrame], DataFrame]
NAMES = [f"q{number}" for number in range(23)]


def _queries(*modules: object) -> dict[str, Query]:
    return {name: getattr(module, name) for name in NAMES for module in modules if hasattr(module, name)}


TIMERHEAP = _queries(timers, windows, columns)
SPARK = _queries(plain, spark_alone)
QUERIES = {name: TIMERHEAP.get(name) or SPARK[name] for name in NAMES}
UPDATE = (plain.q17, spark_alone.q18)  # in update mode: a micro-batch emits the rows that have changed
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
CLOCK = "q12"  # its windows are those of the clock

SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads",  # see usage.compiling
    "spark.executorEnv.PYTHONPATH": Path(__file__).parents[1],
    "spark.sql.session.timeZone": "UTC",
}


class Run(NamedTuple):
    """What a query has taken."""

    seconds: float  # of all its micro-batches, with planning and commit
    cpu: float  # CPU seconds of the JVM and all that it has started, from the query's start to its end
    compilers: float  # the part of the JVM's just-in-time compilers
    python: float  # the workers' part
    checkpoints: int  # one for each micro-batch
    plan: list[str]  # the names of the operators, from the sink down


def run(spark: SparkSession, query: Query, directory: Path, work: Path, into: Path | None = None) -> Run:
    """Run a query over all files; its rows are dropped, or go to CSV files if `into` is given."""
    writer = _writer(query(streams.events(spark, directory / "spark")), query, work)
    if into is not None:
        writer = writer.partitionBy("dt", "hm").option("path", str(into)).format("csv")
    else:
        writer = writer.format("noop")
    return run_writer(spark, writer, no_data=query is not QUERIES[CLOCK])


def run_writer(spark: SparkSession, writer: DataStreamWriter, no_data: bool = True) -> Run:
    """Run what writes a stream until all files are read."""
    meter = Meter(jvm_of(spark))
    # A clock would go on for ever: without this, it stops when all files are read.
    spark.conf.set(NO_DATA, no_data)
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    spent, compiled = meter.read()
    progress = running.recentProgress
    seconds = sum(one.durationMs["triggerExecution"] for one in progress) / 1000
    return Run(seconds, sum(spent), compiled, spent.python, len(progress), operators(running))


def operators(query: StreamingQuery) -> list[str]:
    """Return the names of the operators of the last micro-batch; of one in Python, its function's, too."""
    text = query._jsq.explainInternal(False)
    return re.findall(r"^[\s:|+-]*(?:\*\s?\(\d+\)\s*)?!?([A-Z]\w+(?: [a-z_]\w*(?=\())?)", text, re.M)


def results(spark: SparkSession, query: Query, directory: Path, work: Path) -> DataFrame:
    """Run a query over all files and return its rows; `batch` is the micro-batch that has emitted a row."""
    rows = work / "rows"

    def keep(df: DataFrame, number: int) -> None:
        df.withColumn("batch", F.lit(number)).write.mode("append").parquet(str(rows))

    writer = _writer(query(streams.events(spark, directory / "spark")), query, work).foreachBatch(keep)
    spark.conf.set(NO_DATA, True)
    if query is not QUERIES[CLOCK]:
        writer.trigger(availableNow=True).start().awaitTermination()
    else:
        running = writer.start()
        files = len(list((directory / "spark").iterdir()))
        while sum(one.numInputRows > 0 for one in running.recentProgress) < files:
            running.awaitTermination(0.5)  # raises what has gone wrong
        running.awaitTermination(15)  # until the last window has been over for some micro-batches
        running.stop()
    return spark.read.parquet(str(rows))


def _writer(df: DataFrame, query: Query, work: Path) -> DataStreamWriter:
    writer = df.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    return writer.outputMode("update" if query in UPDATE else "append")
