"""The requests that a query makes to an object store, for each micro-batch, and what S3 asks for them.

Each case is a query of its own, with few rows in its micro-batches, then with none. It reads a source without
a log and writes to no sink, so all requests are those of the checkpoint. moto answers them, on this machine:
it counts, and its speed says nothing of S3's.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import kill_jobs
import numpy as np
import processes
import pyspark
import streams
from connectors import WITHOUT, connectors
from figures import write_json
from jars import jars
from local_spark import FILES, STREAMING, start_spark
from object_store import ObjectStore
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

DOLLARS = {"PUT": 5e-6, "COPY": 5e-6, "LIST": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}
"""What S3 Standard asks for a request in us-east-1."""

EVERY = 10  # seconds from one micro-batch to the next, for a price per day
WARM, FULL, IDLE = 3, 3, 2  # micro-batches: to warm up, with rows, without
PARTITIONS = {
    "process": (1, 2, 8, 32),
    "process, twice": (2, 8),
    "transformWithState": (2, 8),
    "groupBy().count()": (1, 2, 8, 32),
}
MIDDLE = 2  # partitions of the queries with other settings

STORE = "spark.sql.streaming.stateStore"
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
DEFAULT = f"{STREAMING}.checkpointing.FileContextBasedCheckpointFileManager"
CLOUD = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
CLOUD_JAR = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2"
CLOUD_WITHOUT = (
    *("hadoop-aws", "hadoop-azure", "hadoop-azure-datalake", "hadoop-cloud-storage", "hadoop-huaweicloud"),
    *("gcs-connector", "jetty-util", "jetty-util-ajax", "okhttp", "okio", "jackson-dataformat-cbor"),
    *("analyticsaccelerator-s3", "wildfly-openssl"),
)
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
FLAGS = {"fs.s3a.performance.flags": "create,delete,mkdir"}

BASE = {
    "spark.sql.streaming.minBatchesToRetain": 2,  # old files are deleted from the start
    f"{STORE}.minDeltasForSnapshot": 2,
    f"{STORE}.maintenanceInterval": "1h",  # called here, so that its requests are counted by themselves
}


@dataclass
class Case:
    """A query, and what it asked for: in a micro-batch with rows, in one without, and in maintenance."""

    job: str
    partitions: int
    max_parallelism: int = 32
    operators: int = 1
    what: str = ""
    rows: dict[str, float] | None = None
    idle: dict[str, float] | None = None
    snapshot: dict[str, float] | None = None
    maintenance: dict[str, float] | None = None


def process(df: DataFrame, max_parallelism: int) -> DataFrame:
    return timerheap.spark.process(
        df,
        "k",
        kill_jobs.Sessions(),
        "k string, at bigint, what string",
        "at",
        watermark=kill_jobs.WATERMARK,
        max_parallelism=max_parallelism,
    )


def twice(df: DataFrame, max_parallelism: int) -> DataFrame:
    again = process(df, max_parallelism).select("k", "at", F.length("what").cast("bigint").alias("n"))
    return process(again.withColumn("word", F.lit("w")), max_parallelism)


JOBS: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "process": process,
    "process, twice": twice,
    "transformWithState": lambda df, _: kill_jobs.sparks_processor(df),
    "groupBy().count()": lambda df, _: df.groupBy("k").count(),
}


def maintained(spark: SparkSession, store: ObjectStore) -> Counter[Any]:
    """Run the state store's maintenance, wait for its threads, and return what it asked for."""
    java: Any = spark._jvm
    before = store.requests.copy()
    of = java.java.lang.Class.forName("org.apache.spark.sql.execution.streaming.state.StateStore$")
    module = of.getField("MODULE$").get(None)
    method = next(
        each
        for each in of.getDeclaredMethods()
        if each.getName() == "doMaintenance" and each.getParameterCount() == 0
    )
    method.setAccessible(True)
    method.invoke(module, spark._sc._gateway.new_array(java.java.lang.Object, 0))  # type: ignore[attr-defined]
    seen = -1
    while seen != store.requests.total():
        seen = store.requests.total()
        time.sleep(2)
    return store.requests - before


def run(spark: SparkSession, store: ObjectStore, case: Case, settings: dict[str, Any]) -> Case:
    """Run the query of a case, and fill in what it asked for."""
    marks: list[Counter[Any]] = []
    last, done = WARM + FULL + IDLE, threading.Event()
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=20, advanceMillisPerBatch=1000)
    rows = source.load().where(F.col("value") < 20 * (WARM + FULL))
    rows = rows.select(
        F.concat(F.lit("k"), F.col("value") % 7).alias("k"),
        F.unix_millis("timestamp").alias("at"),
        F.col("value").alias("n"),
        F.lit("w").alias("word"),
    )

    def write(df: DataFrame, batch: int) -> None:
        if batch <= last:
            marks.append(store.requests.copy())
        if batch == last:
            case.snapshot = mean([kinds(maintained(spark, store))])
            case.maintenance = mean([kinds(maintained(spark, store))])
            done.set()
        df.collect()

    with streams.with_settings(spark, {**BASE, "spark.sql.shuffle.partitions": case.partitions, **settings}):
        query = (
            JOBS[case.job](rows, case.max_parallelism)
            .writeStream.foreachBatch(write)
            .outputMode("update" if "count" in case.job else "append")
            .option("checkpointLocation", f"s3a://{store.bucket()}/queries/one")
            .start()
        )
        while not done.wait(1):
            if not query.isActive:
                query.awaitTermination()
        query.stop()
    cycles = [kinds(after - before) for before, after in pairwise(marks)]
    case.rows, case.idle = mean(cycles[WARM : WARM + FULL - 1]), mean(cycles[WARM + FULL + 1 :])
    return case


def kinds(requests: Counter[Any]) -> Counter[str]:
    return Counter(request.kind for request in requests.elements())


def mean(counts: list[Counter[str]]) -> dict[str, float]:
    return {kind: sum(count[kind] for count in counts) / len(counts) for kind in DOLLARS}


def dollars(requests: dict[str, float]) -> float:
    return sum(DOLLARS[kind] * count for kind, count in requests.items())


def per_day(case: Case) -> float:
    """Return what S3 asks for a day: micro-batches, a snapshot in each tenth, maintenance in each sixth."""
    assert case.rows
    assert case.snapshot
    assert case.maintenance
    once = dollars(case.rows) + dollars(case.maintenance) / 6
    once += max(dollars(case.snapshot) - dollars(case.maintenance), 0) / 10
    return once * 86_400 / EVERY


def cases() -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield each case, and its settings beside those of all."""
    plain: dict[str, Any] = {MANAGER: FILES, f"{STORE}.checkpointFormatVersion": 2}
    for job, numbers in PARTITIONS.items():
        for partitions in numbers:
            yield Case(job, partitions, operators=2 if "twice" in job else 1), plain
    for groups in (128, 1024):
        yield Case("process", MIDDLE, groups), plain
    others: dict[str, dict[str, Any]] = {
        "recommended, flags": plain | FLAGS,
        "recommended, version 1": {MANAGER: FILES},
        "Spark's defaults": {MANAGER: DEFAULT},
        "Spark's defaults, flags": {MANAGER: DEFAULT, **FLAGS},
        "Abortable": {MANAGER: CLOUD},
        "recommended, no checksums": plain | {CHECKSUMS: "false"},
        "recommended, no changelog": plain | {f"{STORE}.rocksdb.changelogCheckpointing.enabled": "false"},
    }
    for what, settings in others.items():
        yield Case("process", MIDDLE, what=what), settings


def cells(requests: dict[str, float] | None) -> list[str]:
    """Return the requests at the price of a PUT, at that of a GET, and those without a price."""
    assert requests is not None
    groups = (("PUT", "COPY", "LIST"), ("GET", "HEAD"), ("DELETE",))
    return [f"{sum(requests[kind] for kind in group):.4g}" for group in groups]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def shown(found: list[Case]) -> Iterator[str]:
    """Yield the tables of the documentation."""
    of = ["PUT, COPY, LIST", "GET, HEAD", "DELETE"]
    yield table(
        ["job", "partitions", "key groups", *of, "without rows", "maintenance", "snapshot", "a day"],
        [
            [
                case.job,
                str(case.partitions),
                str(case.max_parallelism) if "process" in case.job else "",
                *cells(case.rows),
                *(" / ".join(cells(each)) for each in (case.idle, case.maintenance, case.snapshot)),
                f"${per_day(case):.2f}",
            ]
            for case in found
            if not case.what
        ],
    )
    other = [case for case in found if case.what]
    first = [c for c in found if (c.job, c.partitions, c.max_parallelism) == ("process", MIDDLE, 32)]
    if other:
        yield table(
            ["settings", *of, "a day"],
            [
                [case.what or "recommended", *cells(case.rows), f"${per_day(case):.2f}"]
                for case in [*first[:1], *other]
            ],
        )
    a, b = fitted([case for case in found if not case.what])
    yield f"a + b * partitions * operators: a = {' / '.join(cells(a))}, b = {' / '.join(cells(b))}"


def fitted(found: list[Case]) -> tuple[dict[str, float], dict[str, float]]:
    """Return a and b of requests = a + b * partitions * operators, by kind, for the queries of all jobs."""
    sizes = np.array([[1.0, case.partitions * case.operators] for case in found])
    a, b = {}, {}
    for kind in DOLLARS:
        counts = np.array([(case.rows or {})[kind] for case in found])
        (a[kind], b[kind]), *_ = np.linalg.lstsq(sizes, counts, rcond=None)
    return a, b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run only cases whose job and settings contain this")
    parser.add_argument("--most", type=int, default=32, help="the largest number of partitions")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    for module in (kill_jobs, processes):
        cloudpickle.register_pickle_by_value(module)
    paths = (*connectors("s3a"), *jars(CLOUD_JAR, without=(*WITHOUT, *CLOUD_WITHOUT)))
    found: list[Case] = []
    with tempfile.TemporaryDirectory() as scratch, ObjectStore() as store:
        spark = start_spark(scratch, settings={"spark.jars": ",".join(map(str, paths)), **store.settings})
        for case, settings in cases():
            if options.only in f"{case.job} {case.what}" and case.partitions <= options.most:
                found.append(run(spark, store, case, settings))
                print(case, flush=True)
        spark.stop()
    print(f"PySpark {pyspark.__version__}, {date.today()}", *shown(found), sep="\n\n")
    write_json(options, {"cases": [asdict(case) for case in found]})


if __name__ == "__main__":
    main()
