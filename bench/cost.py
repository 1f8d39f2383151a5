"""What a query costs by its rate and its trigger, and what many small queries cost beside one.

Run as ``make bench-cost [ARGS="--parts rates many [--seconds N]"]``.

rates: one query, by rows a second and trigger
many: as many queries as tenants, beside one query whose key begins with the tenant

The job is that of latency.py: it counts the rows of each key, and a tenth of them set a timer of processing
time. Cores are CPU seconds of the JVM and of all Python processes, for each second, after a warm-up.
Checkpoints are on the local disk; object_store.py has what their requests cost elsewhere.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from figures import write_json
from flights import spark_session
from latency import KEYS, SCHEMA, Counts
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from usage import cpu, jvm_of, memory

import timerheap.spark
from timerheap import KeyedProcessFunction

PARTS = ("rates", "many")
RATES = (10, 1_000, 10_000)
TRIGGERS: dict[str, str | None] = {
    "as fast as it can": None,
    "1 second": "1 second",
    "10 seconds": "10 seconds",
}
OF_A_TENANT = 10  # rows a second
PRICES = {
    "core": 0.05,  # dollars an hour, about what machines in a cloud ask on demand
    "batch": (0.075 + 2 * 0.042) / 1000,  # dollars of requests, with 2 partitions: see object_store.py
}
SETTINGS = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": 2}


def rows_of(spark: SparkSession, rate: int, tenants: int) -> DataFrame:
    """Return a stream of so many rows a second, spread over tenants and keys."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    n = F.col("value")
    return rows.select((n % tenants).alias("tenant"), (n % KEYS).alias("key"), n.alias("n"))


class TenantCounts(Counts):
    """The job of latency.py, with the tenant in the key."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key()[1], None, None, timestamp


def counts(rows: DataFrame) -> DataFrame:
    """Return the job over rows; the tenant belongs to the key."""
    return timerheap.spark.process(rows, ["tenant", "key"], TenantCounts(), SCHEMA, processing_time=True)


@contextmanager
def running(df: DataFrame, trigger: str | None, work: str) -> Iterator[Any]:
    """Run a query into no sink, from a checkpoint of its own."""
    checkpoint = tempfile.mkdtemp(dir=work)
    writer = df.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = (writer if trigger is None else writer.trigger(processingTime=trigger)).start()
    try:
        yield query
    finally:
        query.stop()


def expect_running(query: Any) -> None:
    """Raise what a query has failed with."""
    failure = query.exception()
    if failure is not None:
        raise failure


def used(spark: SparkSession, queries: Sequence[Any], warm_up: float, seconds: float) -> dict[str, float]:
    """Return what running queries use: cores, bytes of memory, and micro-batches a second."""
    for query in queries:
        while query.lastProgress is None:  # it has begun
            time.sleep(0.1)
            expect_running(query)
    time.sleep(warm_up)
    jvm = jvm_of(spark)
    before, begun = cpu(jvm), time.monotonic()
    batches = [query.lastProgress["batchId"] for query in queries]
    time.sleep(seconds)
    spent, passed = cpu(jvm).since(before), time.monotonic() - begun
    for query in queries:
        expect_running(query)
    ran = sum(query.lastProgress["batchId"] for query in queries) - sum(batches)
    kept = memory(jvm)
    return {
        "jvm": (spent.jvm + spent.others) / passed,
        "python": spent.python / passed,
        "batches": ran / passed,
        "memory": kept.jvm + kept.python,
        "python_memory": kept.python,
    }


def rates(spark: SparkSession, options: argparse.Namespace, work: str) -> list[dict[str, Any]]:
    found = []
    for rate in options.rates:
        for name, trigger in TRIGGERS.items():
            with running(counts(rows_of(spark, rate, 1)), trigger, work) as query:
                taken = used(spark, [query], options.warm_up, options.seconds)
            found.append({"rate": rate, "trigger": name, **taken})
            print(found[-1], flush=True)
    return found


def many(spark: SparkSession, options: argparse.Namespace, work: str) -> list[dict[str, Any]]:
    found = []
    trigger = TRIGGERS["10 seconds"]
    for tenants in options.tenants:
        with running(counts(rows_of(spark, OF_A_TENANT * tenants, tenants)), trigger, work) as query:
            taken = used(spark, [query], options.warm_up, options.seconds)
        found.append({"queries": 1, "tenants": tenants, **taken})
        print(found[-1], flush=True)
    for tenants in options.queries:
        with ExitStack() as stack:
            queries = [
                stack.enter_context(running(counts(rows_of(spark, OF_A_TENANT, 1)), trigger, work))
                for _ in range(tenants)
            ]
            taken = used(spark, queries, options.warm_up, options.seconds)
        found.append({"queries": tenants, "tenants": tenants, **taken})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rates", nargs="+", type=int, default=list(RATES), help="rows a second")
    parser.add_argument("--queries", nargs="+", type=int, default=[1, 4, 16], help="for a tenant each")
    parser.add_argument("--tenants", nargs="+", type=int, default=[16, 1_000], help="of one query")
    parser.add_argument("--warm-up", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    found: dict[str, Any] = {"prices": PRICES}
    with tempfile.TemporaryDirectory() as work, spark_session(Path(work, "spark.log"), SETTINGS) as spark:
        for part in options.parts:
            found[part] = {"rates": rates, "many": many}[part](spark, options, work)
            write_json(options, found)


if __name__ == "__main__":
    main()
