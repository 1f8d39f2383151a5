"""The session-timeout job with other keys, rows, micro-batches and cores, beside the no-op.

Run as ``python bench/session_shapes.py [--events N] [--rounds N] [--only SHAPE ...] [--json FILE]``.

Each shape changes one thing. The variants take turns. Data and checks are those of session_timeout.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession
from session_job import Job, expected
from session_timeout import SETTINGS, Run, expect, run

VARIANTS = ("no-op", "columns", "columns-arrival", "rows", "rows-arrival")


@dataclass(frozen=True)
class Shape:
    """One change of the job; `events` is the number of rows a micro-batch, None for the usual one."""

    events: int | None = None
    batches: int = 4
    key: str = "string"
    payload: int = 0
    one_core: bool = False

    def job(self, events: int) -> Job:
        """Return the job of this shape, whose usual number of rows a micro-batch is `events`."""
        return Job(self.events or events, self.batches, self.key, self.payload)


SHAPES = {
    "bigint key": Shape(key="bigint"),
    "10 columns": Shape(payload=10),
    "local[1]": Shape(one_core=True),
    "100,000 rows": Shape(events=100_000, batches=6),
    "10,000 rows": Shape(events=10_000, batches=8),
    "200 rows": Shape(events=200, batches=10),
}


@contextmanager
def session(log: Path, one_core: bool) -> Iterator[SparkSession]:
    single = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": 1} if one_core else {}
    with spark_session(log, {**SETTINGS, **single}) as spark:
        yield spark


def measure(shape: Shape, events: int, rounds: int, scratch: Path) -> dict[str, dict[str, float]]:
    """Return the figures of each variant: medians over the rounds."""
    job, source = shape.job(events), scratch / "events"
    runs: dict[str, list[Run]] = {variant: [] for variant in VARIANTS}
    with session(scratch / "spark.log", shape.one_core) as spark:
        files = spark.sparkContext.defaultParallelism
        job.write(source, files)
        wanted = expected(source)
        run("no-op", spark, job, source, scratch / "warm-up", files)
        for number in range(rounds):
            for variant in VARIANTS:
                place = scratch / f"{variant}-{number}"
                runs[variant].append(run(variant, spark, job, source, place, files))
                if variant != "no-op":
                    expect(spark, job, variant, place, wanted)
    rates = {
        variant: statistics.median(rate for one in done for rate in one.rates)
        for variant, done in runs.items()
    }
    return {
        variant: {
            "rows_per_second": rates[variant],
            "to_no-op": rates[variant] / rates["no-op"],
            "jvm_ns_a_row": statistics.median(one.jvm for one in done),
            "python_ns_a_row": statistics.median(one.python for one in done),
        }
        for variant, done in runs.items()
    }


def table(result: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the figures as text."""
    lines = [f"{'':32}{'rows/s':>12}{'/ no-op':>9}{'JVM ns':>10}{'Python ns':>11}"]
    for shape, figures in result.items():
        for variant, v in figures.items():
            lines.append(
                f"{shape:16}{variant:16}{v['rows_per_second']:12,.0f}{v['to_no-op']:9.2f}"
                f"{v['jvm_ns_a_row']:10,.0f}{v['python_ns_a_row']:11,.0f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000, help="rows a batch, unless the shape says")
    parser.add_argument("--rounds", type=int, default=2, help="how often each variant runs")
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="the shapes to run")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    result = {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
            result[name] = measure(SHAPES[name], arguments.events, arguments.rounds, Path(directory))
        print(f"{name}: done", file=sys.stderr)
    print(table(result))
    write_json(arguments, result)


if __name__ == "__main__":
    main()
