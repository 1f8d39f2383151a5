"""Small micro-batches: a timer a key in timerheap, beside Spark's own streaming groupBy().count().

Three queries show what Spark itself takes for an operator in Python: "mapInArrow" returns its rows, "no-op"
is transformWithState with a counter for each partition, "packed no-op" has timerheap's pack stage before it.

latency.py runs them, in one session over directories of their own. Each micro-batch of each query is one new
file, and the queries take turns, batch by batch, so what disturbs the machine disturbs all of them. In the
end some micro-batches follow on the end of all Python workers, which Spark ends when they have been idle for
a minute.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from processes import kill, python_workers
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from session_job import SCHEMA, SPAN
from session_variants import Columns, Rows, packed
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import WatermarkStrategy

_WARM_UP = 40  # micro-batches: workers start, the JVM compiles what runs often
_IDLE = 5  # micro-batches after the end of all Python workers


def _process(function: Any, order: str) -> Callable[[DataFrame], DataFrame]:
    def variant(events: DataFrame) -> DataFrame:
        return timerheap.spark.process(
            events,
            key="key",
            function=function,
            output_schema=SCHEMA,
            event_time="at",
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            order=order,
        )

    return variant


class Counter(StatefulProcessor):
    """Counts the rows of each key, and emits nothing."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self._count.get()
        self._count.update(((0 if before is None else before[0]) + sum(map(len, rows)),))
        return iter(())

    def close(self) -> None:
        pass


def _counted(groups: Any) -> DataFrame:
    counted: DataFrame = groups.transformWithStateInPandas(Counter(), SCHEMA, "Append", "None")
    return counted


def _no_op(events: DataFrame) -> DataFrame:
    partitions = events.sparkSession.conf.get("spark.sql.shuffle.partitions")
    labelled = events.withColumn("label", F.expr(f"pmod(xxhash64(key), {partitions})"))
    return _counted(labelled.groupBy("label"))


VARIANTS: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "groupBy": ("update", lambda events: events.groupBy("key").count()),
    "mapInArrow": ("append", lambda events: events.mapInArrow(lambda batches: batches, SCHEMA)),
    "no-op": ("append", _no_op),
    "packed no-op": ("append", lambda events: _counted(packed(events))),
    "columns": ("append", _process(Columns(), "event_time")),
    "columns-arrival": ("append", _process(Columns(), "arrival")),
    "rows": ("append", _process(Rows(), "event_time")),
}


def _write(directory: Path, batch: int, rows: int) -> None:
    rng = np.random.default_rng(batch)
    keys = pa.array([f"user-{key:08}" for key in rng.integers(0, 10 * rows, rows).tolist()])
    at = np.sort(rng.integers(batch * SPAN, (batch + 1) * SPAN, rows))
    whole = directory / f".{batch:05}"
    pq.write_table(pa.table({"key": keys, "at": at}), whole)
    whole.rename(directory / f"{batch:05}.parquet")


def measure(
    spark: SparkSession, rows: int, batches: int, scratch: Path, names: Sequence[str]
) -> dict[str, Any]:
    """Run variants in turn, micro-batch by micro-batch; return their figures."""
    jvm = jvm_of(spark)
    queries = {}
    for name in names:
        mode, variant = VARIANTS[name]
        source = scratch / name
        source.mkdir(parents=True)
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = variant(events).writeStream.format("noop").outputMode(mode)
        queries[name] = writer.option("checkpointLocation", str(scratch / f"{name}.checkpoint")).start()
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    idle: dict[str, list[float]] = {name: [] for name in names}
    for batch in range(_WARM_UP + batches + _IDLE):
        for name, query in queries.items():
            if batch >= _WARM_UP + batches:
                for worker in python_workers(jvm):
                    kill(worker)
            _write(scratch / name, batch, rows)
            before = cpu(jvm)
            query.processAllAvailable()
            spent = cpu(jvm).since(before)
            done = [p for p in query.recentProgress if p.numInputRows][-1]
            seconds = done.durationMs["triggerExecution"] / 1000
            if batch >= _WARM_UP + batches:
                idle[name].append(seconds)
            elif batch >= _WARM_UP:
                figures[name].append((seconds, spent.jvm, spent.python))
    for query in queries.values():
        query.stop()
    return {
        name: dict(zip(("seconds", "jvm", "python"), _medians(all_), strict=True))
        | {"idle": statistics.median(idle[name])}
        for name, all_ in figures.items()
    }


def _medians(figures: list[tuple[float, ...]]) -> Iterator[float]:
    return (statistics.median(column) for column in zip(*figures, strict=True))


def table(result: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = []
    for rows, variants in result["rows"].items():
        lines.append(
            f"{int(rows):,} rows a micro-batch, {result['partitions']} shuffle partitions; medians of "
            f"{result['batches']} micro-batches"
        )
        heads = f"{'batch ms':>10}{'/ groupBy':>11}{'JVM cpu ms':>12}{'Python cpu ms':>15}"
        heads += f"{'idle ms':>9}{'/ warm':>8}"
        lines.append(f"{'':16}{heads}")
        for name, v in variants.items():
            groupby, idle = v["seconds"] / variants["groupBy"]["seconds"], v["idle"] / v["seconds"]
            batch, jvm, python, after = (v[part] * 1000 for part in ("seconds", "jvm", "python", "idle"))
            line = f"{name:16}{batch:10,.0f}{groupby:11.2f}{jvm:12,.0f}{python:15,.0f}"
            lines.append(f"{line}{after:9,.0f}{idle:8.2f}")
    return "\n".join(lines)
