"""What settings are worth at 1,000 rows a second, from a row to its result: each choice alone, and all.

Run as ``python bench/latency_choices.py [--rate N] [--seconds N] [--rounds N] [--json FILE]``. The queries
are those of latency.py: timerheap row by row, and Spark's own groupBy().count(). Rows come through a socket
and the results go to the driver, so that what is left is the micro-batch: planning, tasks, state store and
log files. In each round the choices take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import latency
from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession

STREAMING = "org.apache.spark.sql.execution.streaming"
RAW_LOCAL = {"fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs"}
FILE_SYSTEM = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
NO_CHECKSUMS = {"spark.sql.streaming.checkpoint.fileChecksum.enabled": "false"}
ONE_PARTITION = {"spark.sql.shuffle.partitions": "1"}
CHOICES: dict[str, dict[str, str]] = {
    "2 shuffle partitions": {},
    "4 shuffle partitions": {"spark.sql.shuffle.partitions": "4"},
    "1 shuffle partition": ONE_PARTITION,
    "RawLocalFs": RAW_LOCAL,
    "no checksum files": NO_CHECKSUMS,
    "file manager on FileSystem": FILE_SYSTEM,
    "1 shuffle partition, RawLocalFs, no checksum files": ONE_PARTITION | RAW_LOCAL | NO_CHECKSUMS,
    "the same, and the file manager on FileSystem": ONE_PARTITION | RAW_LOCAL | NO_CHECKSUMS | FILE_SYSTEM,
}
QUERIES = ("timerheap", "groupBy")


def measure(
    spark: SparkSession, choice: dict[str, str], name: str, options: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """Return what a query takes with the settings of a choice."""
    settings = {"spark.sql.shuffle.partitions": "2", **choice}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        return latency.arrivals(spark, name, options.rate, options.seconds, work)
    finally:
        for key in settings:
            spark.conf.unset(key)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the rounds, and the smallest and the largest p50."""
    p50 = [run["rows"]["p50"] for run in runs]
    return {
        "p50": statistics.median(p50),
        "spread": [min(p50), max(p50)],
        "p99": statistics.median(run["rows"]["p99"] for run in runs),
        "batch": statistics.median(run["batch"] for run in runs),
        "cores": statistics.median(run["jvm"] + run["python"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=1_000, help="rows a second")
    parser.add_argument("--seconds", type=float, default=8, help="how long rows count")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), choices=list(CHOICES))
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        choice: {name: [] for name in QUERIES} for choice in options.choices
    }
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
        scratch = Path(directory)
        with spark_session(scratch / "spark.log") as spark:
            for name in QUERIES:  # the JVM compiles
                measure(spark, {}, name, options, Path(tempfile.mkdtemp(dir=scratch)))
            for number in range(options.rounds):
                for choice, of in runs.items():
                    for name, found in of.items():
                        work = Path(tempfile.mkdtemp(dir=scratch))
                        found.append(measure(spark, CHOICES[choice], name, options, work))
                        took = found[-1]
                        p50, batch = (took["rows"] or {}).get("p50", float("nan")), took["batch"]
                        print(
                            f"{number} {choice:52}{name:12}{p50:8.0f} ms, batch {batch:5.0f} ms", flush=True
                        )
    choices = {choice: {name: medians(found) for name, found in of.items()} for choice, of in runs.items()}
    write_json(options, {"choices": choices})


if __name__ == "__main__":
    main()
