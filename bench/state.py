"""Measure what a micro-batch costs while more and more timers stand, and what reading a checkpoint takes.

Run as ``make bench-state ARGS="--standing 1e5 1e6 --batches 10 --masters local[2]"``; README.md explains.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import session_variants
from figures import write_json
from flights import spark_session
from processes import kill, python_workers
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from state_table import table
from usage import cpu, memory

import timerheap.spark
from timerheap import WatermarkStrategy
from timerheap.spark._live.live_groups import LiveGroups

SCHEMA = "key bigint, at bigint"
ROW = 16  # bytes of a row of SCHEMA
SPAN = 100  # event time of a batch, ms: in the whole run no timer fires
AT_ONCE = 1_000_000  # rows of a batch that builds
PARTITIONS = 4


# ---- The job


class Standing(session_variants.Columns):
    """One timer for each key, which a row moves; in a file it says how long workers load key groups."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __setstate__(self, state: dict[str, Any]) -> None:  # in the worker, before any group is loaded
        self.__dict__.update(state)
        time_loads(self.log)


def time_loads(log: str) -> None:
    """Let this process append to a file the seconds of each load of a key group, and those of its CPU."""
    load = LiveGroups._loaded
    if hasattr(load, "timed"):
        return

    def timed(*arguments: Any) -> Any:
        begun, used = time.perf_counter(), time.process_time()
        found = load(*arguments)
        with open(log, "a") as file:
            file.write(f"{time.perf_counter() - begun} {time.process_time() - used}\n")
        return found

    timed.timed = True  # type: ignore[attr-defined]
    LiveGroups._loaded = timed  # type: ignore[method-assign]


def standing(events: DataFrame, log: Path) -> DataFrame:
    """Return the query in timerheap; in order of arrival, as the heapq blob has no other."""
    return timerheap.spark.process(
        events,
        key="key",
        function=Standing(log),
        output_schema=SCHEMA,
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        order="arrival",
    )


def heapq_blob(events: DataFrame, log: Path) -> DataFrame:
    """Return the query with a pickled heapq in one blob for each key group, which is always loaded whole."""
    return session_variants.heapq_blob(events)


VARIANTS = {"timerheap": standing, "heapq": heapq_blob}


# ---- One query, batch by batch


@dataclass(frozen=True)
class Batch:
    """What one micro-batch took."""

    add: float
    trigger: float
    jvm: float
    python: float
    written: int
    groups: int
    loaded: int  # of them, from the state store
    load_seconds: float
    load_cpu: float


@dataclass
class Job:
    """A query with so many standing timers; each step is a micro-batch that changes some of them."""

    spark: SparkSession
    variant: str
    timers: int
    changed: int
    work: Path
    steps: int = 0
    batches: list[Batch] = field(default_factory=list)
    idle: list[Batch] = field(default_factory=list)
    query: StreamingQuery | None = None

    @property
    def jvm(self) -> int:
        return self.spark.sparkContext._gateway.proc.pid

    @property
    def log(self) -> Path:
        return self.work.parent / "loads.jsonl"

    def start(self) -> None:
        (self.work / "in").mkdir(parents=True, exist_ok=True)
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.work / "in"))
        writer = VARIANTS[self.variant](events, self.log).writeStream.format("noop")
        self.query = writer.option("checkpointLocation", str(self.work / "checkpoint")).start()

    def stop(self) -> None:
        assert self.query is not None
        self.query.stop()

    def build(self) -> None:
        """Register the timers, in batches that do not count."""
        for first in range(0, self.timers, AT_ONCE):
            self._batch(np.arange(first, min(first + AT_ONCE, self.timers)))

    def step(self) -> Batch:
        """Move some of the timers, and return what the batch took."""
        draw = np.random.default_rng(self.steps)
        return self._batch(draw.choice(self.timers, self.changed, replace=False, shuffle=False))

    def _batch(self, keys: np.ndarray) -> Batch:
        assert self.query is not None
        at = np.linspace(self.steps * SPAN, (self.steps + 1) * SPAN - 1, len(keys)).astype(np.int64)
        draft = self.work / f"{self.steps:05}.parquet"
        pq.write_table(pa.table({"key": keys, "at": at}), draft, row_group_size=AT_ONCE // PARTITIONS)
        self.steps += 1
        self.log.write_text("")
        written, used = set(self._changelogs()), cpu(self.jvm)
        draft.rename(self.work / "in" / draft.name)
        self._finish()
        progress = [p for p in self.query.recentProgress if p.numInputRows][-1]
        assert progress.numInputRows == len(keys), (progress.numInputRows, len(keys))
        spent = cpu(self.jvm).since(used)
        observed = progress.observedMetrics.get("timerheap")  # the heapq blob has none
        metrics = observed.metrics if observed else {}
        loads = list(map(float, self.log.read_text().split()))
        return Batch(
            add=progress.durationMs["addBatch"] / 1000,
            trigger=progress.durationMs["triggerExecution"] / 1000,
            jvm=spent.jvm,
            python=spent.python,
            written=sum(path.stat().st_size for path in set(self._changelogs()) - written),
            groups=metrics.get("groups", 0),
            loaded=metrics.get("groups_loaded", 0),
            load_seconds=sum(loads[::2]),
            load_cpu=sum(loads[1::2]),
        )

    def _finish(self) -> None:
        """Wait for the end of the batch; on a busy machine a Python worker may not be there in time."""
        while True:
            assert self.query is not None
            try:
                return self.query.processAllAvailable()
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
                tell("a Python worker has not connected in time: the query starts again")
                self.start()

    def _changelogs(self) -> Iterator[Path]:
        return (self.work / "checkpoint" / "state").glob("0/*/*.changelog")


def session(master: str, scratch: Path) -> AbstractContextManager[SparkSession]:
    """Start a local Spark for the benchmark."""
    streaming = "spark.sql.streaming"
    settings = {
        "spark.master": master,
        "spark.driver.memory": "4g",
        "spark.local.dir": scratch / "local",
        "spark.sql.execution.arrow.maxRecordsPerBatch": AT_ONCE,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": PARTITIONS,
        # Spark's default runs two programs for every file on a local disk.
        f"{streaming}.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        f"{streaming}.pollingDelay": "50ms",  # the queries that wait for their turn cost little
    }
    return spark_session(scratch / "spark.log", settings)


def kill_workers(jvm: int) -> None:
    """End the idle Python workers, as Spark does after a minute."""
    for worker in python_workers(jvm):
        kill(worker)


# ---- Measuring


def measure(master: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run all queries of one master in turn, and return their figures."""
    with session(master, scratch) as spark:
        sizes = [("timerheap", n) for n in options.standing]
        sizes += [("heapq", n) for n in options.standing if n <= options.heapq]
        jobs = [Job(spark, variant, n, options.changed, scratch / f"{variant}-{n}") for variant, n in sizes]
        for job in jobs:
            job.start()
            begun = time.monotonic()
            job.build()
            tell(f"{master}: {job.variant} {job.timers:,} built in {time.monotonic() - begun:.0f} s")
        for number in range(options.batches):
            for job in jobs:
                job.batches.append(job.step())
            tell(f"{master}: batch {number + 1} of {options.batches}: {last(jobs)}")
        for pause in [0] * options.killed + [options.pause] * options.paused:
            if pause:
                time.sleep(pause)
            for job in jobs:
                if not pause:
                    kill_workers(job.jvm)
                job.idle.append(job.step())
            tell(f"{master}: after {f'{pause} s' if pause else 'the end of all workers'}: {last(jobs)}")
        ours = [job for job in jobs if job.variant == "timerheap"]
        cold = {job.timers: cold_load(job) for job in ours}
        result = {
            "jobs": [figures(job, jobs) for job in jobs],
            "cold": cold,
            "read": {job.timers: read_timers(job) for job in ours},
            "memory_after_restarts": restarts(ours[0], options.restarts),
        }
        for job in jobs:
            job.stop()
    return result


def cold_load(job: Job) -> dict[str, Any]:
    """Restart a query in new workers; return the size of its state, and what loading it costs.

    The live key groups are removed, as they are with an executor, since the new workers would continue them.
    """
    assert job.query is not None
    job.stop()
    kill_workers(job.jvm)
    live = list((job.work.parent / "local").glob(f"**/timerheap/query-{job.query.id}"))
    assert live, "the live files of a query must be where they were"
    for directory in live:
        shutil.rmtree(directory)
    job.start()
    batch = job.step()
    state = job.spark.read.format("statestore").option("stateVarName", "chunks")
    chunks = state.load(str(job.work / "checkpoint")).select(F.sum(F.length("user_map_value.text")))
    size = chunks.collect()[0][0]
    tell(f"cold load of {job.timers:,}: {size / 1e6:.1f} MB in {batch.load_seconds:.2f} s of the workers")
    return {
        "bytes": size,
        "seconds": batch.load_seconds,
        "cpu": batch.load_cpu,
        "jvm": batch.jvm - median(job.batches, "jvm"),
        "groups": batch.loaded,
        "add": batch.add,
        "add_before": median(job.batches, "add"),
    }


def read_timers(job: Job) -> dict[str, float]:
    """Read all timers from the checkpoint of the running query, and return what that costs."""
    begun, used = time.monotonic(), cpu(job.jvm)
    state = timerheap.spark.read_checkpoint(job.spark, job.work / "checkpoint")
    counted = state.timers().agg(F.count("timestamp"), F.max("key")).collect()
    assert counted[0][0] == job.timers, counted
    spent = cpu(job.jvm).since(used)
    tell(f"read {job.timers:,} timers in {time.monotonic() - begun:.1f} s")
    return {"seconds": time.monotonic() - begun, "jvm": spent.jvm, "python": spent.python}


def restarts(job: Job, times: int) -> list[dict[str, int]]:
    """Restart a query again and again; return the memory of the JVM and of Python after each time, bytes."""
    found = []
    for _ in range(times):
        job.stop()
        job.start()
        job.step()
        found.append(memory(job.jvm)._asdict())
    return found


def figures(job: Job, jobs: list[Job]) -> dict[str, Any]:
    """Return the medians of one query, and its ratio to the smallest of the same variant."""
    base = min((other for other in jobs if other.variant == job.variant), key=lambda other: other.timers)
    groups = job.batches[-1].groups or jobs[0].batches[-1].groups  # as many as ours
    found = {name: median(job.batches, name) for name in ("add", "trigger", "jvm", "python", "written")}
    return {
        "variant": job.variant,
        "timers": job.timers,
        "changed": job.changed,
        **found,
        "ratio": found["add"] / median(base.batches, "add"),
        "ratio_trigger": found["trigger"] / median(base.batches, "trigger"),
        "groups": groups,
        "written_allowed": 6 * ROW * job.changed + 1024 * groups,
        "loaded": sum(batch.loaded for batch in job.batches),
        "loaded_after_idling": sum(batch.loaded for batch in job.idle),
        "add_after_idling": median(job.idle, "add") if job.idle else None,
        "batches": [asdict(batch) for batch in job.batches],
        "idle": [asdict(batch) for batch in job.idle],
    }


def median(batches: list[Batch], name: str) -> float:
    return statistics.median(getattr(batch, name) for batch in batches)


def last(jobs: list[Job]) -> str:
    """Return the seconds of each query's last batch, for the progress."""
    return ", ".join(
        f"{job.variant} {job.timers:.0e} {(job.idle or job.batches)[-1].add:.2f} s" for job in jobs
    )


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--standing", type=lambda n: int(float(n)), nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--changed", type=int, default=10_000, help="timers that a batch moves")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--masters", nargs="+", default=["local[2]", "local[4]"])
    parser.add_argument(
        "--heapq", type=lambda n: int(float(n)), default=10**6, help="most timers of the heapq blob"
    )
    parser.add_argument("--killed", type=int, default=3, help="batches after the end of all Python workers")
    parser.add_argument("--pause", type=int, default=90, help="seconds before a batch that pauses")
    parser.add_argument("--paused", type=int, default=2, help="batches that pause")
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    cloudpickle.register_pickle_by_value(session_variants)
    logging.basicConfig()  # warnings, such as the reason why a key group could not be handed over
    result: dict[str, Any] = {"cores": os.cpu_count(), "masters": {}}
    for master in options.masters:
        with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch:
            result["masters"][master] = measure(master, options, Path(scratch))
    print(table(result))
    write_json(options, result)


if __name__ == "__main__":
    main()
