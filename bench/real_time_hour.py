"""Memory, files and latency of a query in real-time mode over an hour, a line of JSON an epoch.

Run as ``python bench/real_time_hour.py [--minutes N] [--epoch SECONDS] [--rate N] [--keys N]``. The query and
its source are those of bench/real_time.py. Results are dropped when they have been counted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from flights import spark_session
from processes import python_workers
from pyspark.sql import functions as F
from real_time import NANOS, SOURCES, Stream, compile_scala, offset_of_nanos, percentiles, timers

import timerheap.spark
from timerheap import WatermarkStrategy


def megabytes(process: int) -> int:
    """Return the resident memory of a process, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)


def newest(commits: Path) -> int:
    """Return the number of the last epoch that was committed, -1 before the first one."""
    return max((int(file.name) for file in commits.glob("[0-9]*")), default=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--epoch", type=int, default=60, help="seconds")
    parser.add_argument("--rate", type=float, default=500, help="rows a second")
    parser.add_argument("--keys", type=int, default=100_000, help="that have timers all the time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        compile_scala(Path(scratch) / "classes")
        settings = timerheap.spark.settings(real_time=True) | {
            "spark.master": "local[6]",
            "spark.sql.shuffle.partitions": SOURCES,
            "spark.sql.leafNodeDefaultParallelism": 1,  # for a look at the results meanwhile
            "spark.driver.extraClassPath": Path(scratch) / "classes",
        }
        with spark_session(Path(scratch) / "log", settings) as spark:
            jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
            stream = Stream(spark, "results", options.keys)
            result = timers(stream.rows, WatermarkStrategy.for_monotonous_timestamps(), real_time=True)
            there = F.expr(NANOS).cast("double") / 1e6 + offset_of_nanos(spark)
            writer = result.where("key >= 0").withColumn("there", there).writeStream.format("memory")
            writer = writer.queryName("results").outputMode("update")
            writer = writer.option("checkpointLocation", f"{scratch}/checkpoint")
            query = timerheap.spark.start_real_time(writer, epoch=options.epoch * 1000)
            while not spark.table("results").limit(1).count() and query.isActive:
                time.sleep(1)
            sink = query._jsq.streamingQuery().sink()  # type: ignore[attr-defined]
            sink.clear()
            commits = Path(scratch, "checkpoint/commits")
            began = stream.run(options.rate, options.minutes * 60)
            seen, last = newest(commits), began * 1000
            while time.time() < began + options.minutes * 60:
                while newest(commits) == seen:
                    time.sleep(0.1)
                    if failure := query.exception():
                        raise failure
                seen = newest(commits)
                time.sleep(1)  # a table in memory has the results of ended epochs alone
                found = spark.table("results").select("at", "there").toPandas().to_numpy()
                sink.clear()
                waits = found[:, 1] - found[:, 0] - 1000 * SOURCES / options.rate  # until the next row
                gaps = np.diff(np.append(last, np.sort(found[:, 1])))  # with the pause before the epoch
                last = found[:, 1].max(initial=last)
                files = list(Path(scratch, "checkpoint/timerheap").glob("0*/*"))
                line = {
                    "minute": round((time.time() - began) / 60, 1),
                    "results": len(found),
                    "p50, p90, p99, ms": percentiles(waits)[:3],
                    "longest without a result, s": round(gaps.max(initial=0) / 1000, 2),
                    "workers, MB": sorted(filter(None, map(megabytes, python_workers(jvm)))),
                    "JVM, MB": megabytes(jvm),
                    "files": len(files),
                    "files, MB": round(sum(file.stat().st_size for file in files) / 1e6, 1),
                    "load": round(os.getloadavg()[0], 1),
                }
                print(json.dumps(line), flush=True)
            query.stop()


if __name__ == "__main__":
    main()
