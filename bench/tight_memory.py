"""Key groups that are larger than the memory of their Python workers: what a micro-batch takes.

Run as root: ``make bench-tight-memory ARGS="--keys 4e6 --shares 1 2 4"``. The job is that of capacity.py.
Flink with RocksDB follows on the same limits (peers/flink_state.py), unless there is no JDK; see README.md.
When the state is built, its live files leave the page cache, and the daemon of the Python workers moves into
a cgroup of memory (v1 or v2), whose limit is the size of the files divided by a share. The page cache of the
mapped files counts there; the JVM stays outside. Then micro-batches of 10,000 rows follow, of keys that are
all equally likely (cold), or of one hundredth of the keys (hot). Before, keys settle that find no room; with
``TIMERHEAP_SETTLING='[0, 65536, 0]'`` none does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from capacity import PARTITIONS, ROWS_A_BATCH, SOME, SPAN, Job, end_workers, jvm, on_disk
from cgroups import forget, limited, members, pages_read
from figures import write_json
from flights import spark_session
from peers import flink_state
from peers.flink_state import WARM_UP
from processes import python_daemons, python_workers
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from state import tell
from tight import HOT, disk, medians, options
from tight_table import tight_memory
from usage import cpu

WARM = 40  # micro-batches in which keys may settle before others are measured


def steps(job: Job, spark: SparkSession, keys: np.ndarray, batches: int, group: Path) -> dict[str, Any]:
    """Run micro-batches of rows of these keys, and return medians of what each takes after the first few."""
    took: list[tuple[float, ...]] = []
    for _ in range(WARM_UP + batches):
        rows = np.random.default_rng(job.batches).choice(keys, SOME, replace=False, shuffle=False)
        processes = members(group)
        before, faults, moved = cpu(jvm(spark)), pages_read(group), disk(processes)
        progress = job.batch(rows, job.batches * SPAN)
        used = cpu(jvm(spark)).since(before)
        seconds = progress["durationMs"]["triggerExecution"] / 1000
        more = np.subtract(disk(processes), moved).tolist()
        took.append((seconds, used.jvm, used.python, pages_read(group) - faults, *more))
        tell(f"  {took[-1]}, {settled_of(progress):,} keys have settled")
    return medians(("seconds", "jvm", "python", "faults", "read MB", "written MB"), took[WARM_UP:])


def settled_of(progress: dict[str, Any]) -> int:
    return int(progress["observedMetrics"]["timerheap"]["metrics"]["settled_keys"])


def settle(job: Job) -> int:
    """Run micro-batches until no more keys settle, and return how many have."""
    settled = 0
    for _ in range(WARM):
        progress = job.batch(np.arange(1), job.batches * SPAN)
        before, settled = settled, settled_of(progress)
        if settled <= before:
            break
    return settled


def measure(keys: int, shares: list[float], batches: int, scratch: Path) -> dict[str, Any]:
    """Build the state of so many keys, and return what micro-batches take under each limit."""
    for module in ("state", "capacity"):
        cloudpickle.register_pickle_by_value(sys.modules[module])
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "3g",
        "spark.local.dir": scratch / "local",
        "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_A_BATCH,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": PARTITIONS,
    }
    with spark_session(scratch / "spark.log", settings) as spark:
        job = Job(spark, keys, scratch / "job")
        job.start()
        begun = time.monotonic()
        for first in range(0, keys, ROWS_A_BATCH):
            job.batch(np.arange(first, min(first + ROWS_A_BATCH, keys)), job.batches * SPAN)
        job.batch(np.arange(1), job.batches * SPAN)  # the rows before are no longer waiting
        size = on_disk({path.parent for path in job.live_files()})
        tell(f"{keys:,} keys built in {time.monotonic() - begun:.0f} s: {size / 1e9:.2f} GB")
        result: dict[str, Any] = {"keys": keys, "rows": SOME, "batches": batches, "files": size, "limits": []}
        some = np.random.default_rng(1).choice(keys, keys // HOT, replace=False)
        for share in shares:
            end_workers(spark)
            forget(job.live_files())
            limit = int(size / share)
            daemons = python_daemons(jvm(spark))
            with limited(daemons, limit) as group:
                found: dict[str, Any] = {"share": share, "limit": limit, "settled": settle(job)}
                for name, chosen in (("cold", np.arange(keys)), ("hot", some)):
                    tell(f"a limit of {limit / 1e6:,.0f} MB, {name}")
                    found[name] = steps(job, spark, chosen, batches, group)
                    assert members(group).issuperset(python_workers(jvm(spark)))
                end_workers(spark)
            result["limits"].append(found)
        job.query.stop()  # type: ignore[union-attr]
    return result


def main() -> None:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--no-flink", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch:
        result = measure(arguments.keys, arguments.shares, arguments.batches, Path(scratch))
        write_json(arguments, result)
        if not arguments.no_flink:
            limits = [found["limit"] for found in result["limits"]]
            result["flink"] = flink_state.measure(arguments.keys, limits, arguments.batches, Path(scratch))
    print(tight_memory(result))
    write_json(arguments, result)


if __name__ == "__main__":
    main()
