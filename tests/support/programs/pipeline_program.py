"""Defines flows of declarative pipelines and runs them twice, and prints their tables and errors as JSON.

A program of its own: a process whose session is of Spark Connect can have no other.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from local_spark import FILES, ROCKSDB
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, OutputTag, Types, ValueStateDescriptor
from timerheap.spark import ensure_java

ODD = OutputTag("odd", Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()]))
COUNTS = """
    SELECT k, window_start, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE rows, DESCRIPTOR(at), INTERVAL '10' SECOND))
    GROUP BY k, window_start, window_end
"""
TIMED: dict[str, Any] = {"event_time": "at", "watermark": "1 second"}


class Count(KeyedProcessFunction):
    """Counts the rows of a key, and sends odd counts aside, too."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield ctx.get_current_key(), n
        if n % 2:
            yield ODD, (ctx.get_current_key(), n)


class Plain(Count):
    """Counts the rows of a key."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield next(iter(super().process_element(value, ctx)))


def flows(spark: SparkSession) -> dict[str, Callable[[], DataFrame]]:
    """Return the query functions of flows that Spark accepts."""

    def rows() -> DataFrame:
        return timerheap.spark.pipeline_table(spark, "default.raw", "k string, at timestamp")

    return {
        "rows": lambda: timerheap.spark.process(rows(), "k", Plain(), "k string, n long").withColumn(
            "m", F.col("n") + 1
        ),
        "side": lambda: timerheap.spark.side_output(
            timerheap.spark.process(rows(), "k", Count(), "k string, n long", side_outputs=[ODD]), ODD
        ),
        "chain": lambda: (
            timerheap.spark.tumble(
                timerheap.spark.drop_duplicates(rows(), ["k", "at"], **TIMED), "at", "10 seconds"
            )
            .groupBy("k")
            .count()
            .drop("window_time")
        ),
        "sql": lambda: timerheap.spark.sql(
            spark, COUNTS, tables={"rows": rows()}, watermark={"rows": "1 second"}
        ),
        "changes": lambda: timerheap.spark.aggregate_changes(
            timerheap.spark.aggregate_changes(rows(), "k", F.count("*").alias("n")),
            "n",
            F.count("*").alias("keys"),
        ),
    }


def refused(spark: SparkSession) -> dict[str, Callable[[], DataFrame]]:
    """Return the query functions of flows that timerheap refuses."""

    def count(df: DataFrame, **options: Any) -> DataFrame:
        return timerheap.spark.process(df, "k", Plain(), "k string, n long", **options)

    return {
        "no such table": lambda: count(spark.readStream.table("default.nothing")),
        "no schema": lambda: timerheap.spark.pipeline_table(spark, "default.nothing"),
        "no database": lambda: count(spark.readStream.table("raw")),
        "a different type": lambda: timerheap.spark.pipeline_table(spark, "default.raw", "k long"),
        "processing time": lambda: count(spark.readStream.table("default.raw"), processing_time=True),
        "sql": lambda: count(spark.sql("SELECT * FROM STREAM default.raw")),
    }


def run(work: Path) -> dict[str, Any]:
    ensure_java()
    os.environ |= {"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_TESTING": "1"}  # the server takes a free port
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        **timerheap.spark.settings(portable=True),
        "spark.sql.warehouse.dir": f"{work}/warehouse",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.checkpointFileManagerClass": FILES,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # few rows; see local_spark.py
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
        "spark.sql.pipelines.maxFlowRetryAttempts": "5",  # on a machine that is busy with others
    }
    spark = SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()
    (work / "in").mkdir()
    tables: dict[str, list[list[str]]] = {}
    for second in (1, 25):
        (work / "in" / f"{second}.json").write_text(f'{{"k": "a", "at": "2026-01-01T00:00:{second:02}Z"}}\n')
        error = pipeline(spark, work, flows(spark), dry=False)
        assert not error, error
    for name in flows(spark):
        found = spark.table(f"default.of_{name}").collect()
        tables[name] = sorted([str(value) for value in row] for row in found)
    errors = {name: pipeline(spark, work, {"x": query}, dry=True) for name, query in refused(spark).items()}
    return {"tables": tables, "errors": errors}


def pipeline(spark: SparkSession, work: Path, queries: dict[str, Callable[[], DataFrame]], dry: bool) -> str:
    """Run a pipeline of these flows, and return its error."""
    from pyspark import pipelines as dp
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import (
        create_dataflow_graph,
        handle_pipeline_events,
        start_run,
    )

    graph = create_dataflow_graph(spark, default_catalog=None, default_database="default", sql_conf={})
    try:
        with graph_element_registration_context(SparkConnectGraphElementRegistry(spark, graph)):
            dp.table(name="raw")(lambda: spark.readStream.schema("k string, at timestamp").json(f"{work}/in"))
            for name, query in queries.items():
                dp.table(name=f"of_{name}")(query)
        events = start_run(
            spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=dry,
            storage=f"file://{work}/storage",
        )  # fmt: skip
        handle_pipeline_events(events)
    except Exception as e:
        return str(e)
    return ""


if __name__ == "__main__":
    work = Path(sys.argv[1])
    (work / "found.json").write_text(json.dumps(run(work)))
    os._exit(0)  # the server is a part of this process, and would be waited for
