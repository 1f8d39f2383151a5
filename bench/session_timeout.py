"""The session-timeout job: each event moves the timer of its key, and timers that fire are emitted.

Run as ``python bench/session_timeout.py [--events N] [--batches N] [--rounds N] [--variants NAME ...]
[--json FILE]``. All variants of a run have the same rows. The figures of other keys, rows, micro-batches and
cores are those of session_shapes.py.

Every variant is a streaming query over the same Parquet files, with its own checkpoint, a Parquet sink and
the RocksDB state store. All with timers must emit the same (key, timestamp) pairs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from session_job import Job, difference, expected
from session_variants import UNCHECKED, VARIANTS
from usage import Cpu, cpu, jvm_of

SETTINGS = {  # of all variants
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000_000,
    "spark.sql.execution.arrow.maxBytesPerBatch": 2**31 - 1,  # no limit
}
COMPARED = ("no-op", "heapq", "spark")  # variants that the others are compared with


@dataclass(frozen=True)
class Run:
    """The result of a query: rows per second of each full batch but the first, and the timers fired.

    The CPU time is that of the same batches, in ns a row.
    """

    rates: list[float]
    fired: int
    closing_fired: int
    closing_seconds: float
    jvm: float
    python: float


class CpuOfBatches(StreamingQueryListener):
    """Notes the CPU time that Spark has used by the end of each batch, until the query has `ended`."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self.at: dict[int, Cpu] = {}
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.at[event.progress.batchId] = cpu(self._jvm)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.set()


def run(variant: str, spark: SparkSession, job: Job, source: Path, scratch: Path, files: int) -> Run:
    """Run one variant over the files in `source`, with its output in `scratch`/output.

    The rates exclude the first batch, in which the Python workers start. Most timers fire in the closing
    batch; Spark's own timers need another batch without data, since the watermark is one batch behind.
    """
    jvm = jvm_of(spark)
    events = spark.readStream.schema(job.schema).option("maxFilesPerTrigger", files).parquet(str(source))
    used = CpuOfBatches(jvm)
    spark.streams.addListener(used)
    emitted = VARIANTS[variant](events).observe("emitted", F.count(F.lit(1)).alias("rows"))
    query = (
        emitted.writeStream.option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(scratch / "output"), format="parquet")
    )
    query.awaitTermination()
    used.ended.wait()
    spark.streams.removeListener(used)
    full = range(1, job.batches)
    spent = used.at[full[-1]].since(used.at[0])
    ns_a_row = 1e9 / (len(full) * job.events)
    progress = query.recentProgress
    seconds = [p.durationMs["triggerExecution"] / 1000 for p in progress]
    rows = [p.observedMetrics["emitted"]["rows"] for p in progress]
    return Run(
        rates=[progress[batch].numInputRows / seconds[batch] for batch in full],
        fired=sum(rows),
        closing_fired=sum(rows[job.batches :]),
        closing_seconds=sum(seconds[job.batches :]),
        jvm=spent.jvm * ns_a_row,
        python=spent.python * ns_a_row,
    )


def measure(
    spark: SparkSession, job: Job, variants: Sequence[str], rounds: int, scratch: Path
) -> dict[str, Any]:
    """Run every variant once per round, in turn, and compare its output with `expected`.

    A run of the no-op before each round warms up the JVM, and starts the workers that have ended while
    Spark's own timers, which need fewer, ran.

    Raises
    ------
    ValueError
        If the output of a variant is wrong.
    """
    files = spark.sparkContext.defaultParallelism
    source = scratch / "events"
    job.write(source, files)
    wanted = expected(source)
    runs: dict[str, list[Run]] = {variant: [] for variant in variants}
    for number in range(rounds):
        run("no-op", spark, job, source, scratch / f"warm-up-{number}", files)
        for variant in variants:
            place = scratch / f"{variant}-{number}"
            done = run(variant, spark, job, source, place, files)
            runs[variant].append(done)
            print(
                f"round {number + 1} of {rounds}: {variant:16} {statistics.median(done.rates):11,.0f} rows/s",
                file=sys.stderr,
            )
            if variant not in UNCHECKED:
                expect(spark, job, variant, place, wanted)
    return report(runs, job, rounds)


def expect(spark: SparkSession, job: Job, variant: str, place: Path, wanted: pd.DataFrame) -> None:
    """Raise a ValueError if what a variant has emitted to `place`/output is not what it should."""
    emitted = spark.read.schema(job.result).parquet(str(place / "output")).toPandas()
    if wrong := difference(emitted, wanted):
        raise ValueError(f"{variant} has not emitted what it should: {wrong}")


def report(runs: dict[str, list[Run]], job: Job, rounds: int) -> dict[str, Any]:
    """Return the medians over the rounds, and their ratios to those of `COMPARED` that ran."""
    rates = {v: statistics.median(rate for done in all_ for rate in done.rates) for v, all_ in runs.items()}
    return {
        "job": asdict(job),
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "variants": {
            variant: {
                "rows_per_second": rates[variant],
                "spread": [f(rate for done in all_ for rate in done.rates) for f in (min, max)],
                **{f"to_{other}": rates[variant] / rates[other] for other in COMPARED if other in rates},
                "fired": all_[0].fired,
                "fired_at_the_end": all_[0].closing_fired,
                "seconds_at_the_end": statistics.median(done.closing_seconds for done in all_),
                "jvm_ns_a_row": statistics.median(done.jvm for done in all_),
                "python_ns_a_row": statistics.median(done.python for done in all_),
                "every_rate": [done.rates for done in all_],
            }
            for variant, all_ in runs.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """Return the report as text."""
    job = Job(**result["job"])
    lines = [
        f"Session timeout: {job.batches} batches of {job.events:,} rows, {job.keys:,} keys; "
        f"medians of {result['rounds']} rounds without their first batches",
        f"{'':16}{'rows/s':>12}{'/ no-op':>9}{'/ heapq':>9}{'/ Spark':>9}{'fired':>12}{'closing':>10}"
        f"{'JVM ns':>9}{'Python ns':>10}",
    ]
    for name, v in result["variants"].items():
        ratios = [v.get(f"to_{other}") for other in COMPARED]
        compared = "".join(f"{r:9.{1 if r >= 10 else 2}f}" if r else f"{'':9}" for r in ratios)
        lines.append(
            f"{name:16}{v['rows_per_second']:12,.0f}{compared}{v['fired']:12,}"
            f"{v['seconds_at_the_end']:8.1f} s{v['jvm_ns_a_row']:9,.0f}{v['python_ns_a_row']:10,.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=8, help="2 or more")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant runs")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=[name for name in VARIANTS if name != "spark"],
        help="all but Spark's own timers by default, which need a minute for some 100,000 rows",
    )
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    if arguments.batches < 2:
        parser.error(f"--batches {arguments.batches}: the first batch does not count, so there must be 2")
    job = Job(arguments.events, arguments.batches)
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
        scratch = Path(directory)
        with spark_session(scratch / "spark.log", SETTINGS) as spark:
            result = measure(spark, job, arguments.variants, arguments.rounds, scratch)
    print(table(result))
    write_json(arguments, result)


if __name__ == "__main__":
    main()
