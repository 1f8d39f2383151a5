"""Measure what it takes to load a key group of many keys from the state store, phase by phase, beside Flink.

Run as ``python bench/recovery.py [--keys 1e6] --json out/recovery.json``. The job is that of capacity.py with
one key group: each key has a named timer and a double. It is loaded into memory, and as a group that is
larger than what it may have there (64 MB). Flink starts from a checkpoint of as many keys, on two slots, and
from one of a thousand keys, which shows what its start takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from capacity import ROWS_A_BATCH, SPAN, Devices, Job, drop_live, end_workers, session
from figures import write_json
from peers.flink import find_jdk
from peers.flink_state import SOURCE, FlinkState
from pyspark import cloudpickle
from state import tell

import timerheap.spark
from timerheap.spark._group.stored import stored_runs
from timerheap.spark._live import large_groups
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._worker.spark_store import SparkStore

SETTLINGS = {"memory": [1 << 60], "runs": []}  # by what a group is loaded into
FEW = 1_000  # keys of Flink's other checkpoint
ROUNDS = 3


def time_phases(log: str) -> None:
    """Let this process append to a file what the phases of each load of a key group take, in seconds."""
    if hasattr(LiveGroups, "timed"):
        return
    took: Counter[str] = Counter()

    def timed(owner: Any, name: str, phase: str) -> Callable[..., Any]:
        call = getattr(owner, name)

        def calls(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                took[phase] += time.perf_counter() - begun

        setattr(owner, name, calls)
        return calls

    timed(SparkStore, "read", "read")
    timed(stored_runs, "read_chunk", "decode")
    timed(large_groups, "read_chunk", "sort")
    timed(large_groups._Sorter, "write", "sort")
    timed(large_groups, "_settle_some", "settle")
    load = timed(LiveGroups, "_loaded", "all")

    def loads(*arguments: Any) -> Any:
        took.clear()
        found = load(*arguments)
        with open(log, "a") as file:
            file.write(json.dumps(took) + "\n")
        return found

    LiveGroups._loaded, LiveGroups.timed = loads, True  # type: ignore[assignment,attr-defined]


class Phased(Devices):
    """Devices whose workers tell what loads take."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        time_phases(self.log)


class OneGroup(Job):
    """The job with one key group."""

    def start(self, name: str = "checkpoint", **options: Any) -> None:
        events = self.spark.readStream.schema("device string, at bigint, reading double")
        result = timerheap.spark.process(
            events.parquet(str(self.work / "in")),
            "device",
            Phased(self.log),
            "device string",
            "at",
            watermark="10 seconds",
            max_parallelism=1,
            **options,
        )
        self.checkpoint = self.work / name
        writer = result.writeStream.format("noop").option("checkpointLocation", str(self.checkpoint))
        self.query = writer.start()


def measure(keys: int, into: str, scratch: Path) -> dict[str, Any]:
    """Return the seconds of a start with the live file, and without it, and those of the phases of a load."""
    os.environ["TIMERHEAP_SETTLING"] = json.dumps(SETTLINGS[into])
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with session(scratch) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        job = OneGroup(spark, keys, scratch / "job")
        job.start()
        for first in range(0, keys, ROWS_A_BATCH):
            job.batch(np.arange(first, min(first + ROWS_A_BATCH, keys)), job.batches * SPAN)
        job.batch(np.arange(1), (job.batches + 1) * SPAN)  # so that no row waits
        found: dict[str, Any] = {}
        for name in ("kept", "loaded"):
            took = []
            for _ in range(ROUNDS):
                assert job.query is not None
                job.query.stop()
                end_workers(spark)
                job.log.write_text("")
                if name == "loaded":
                    drop_live(job)
                begun = time.monotonic()
                job.start()
                job.batch(np.arange(1), (job.batches + 1) * SPAN)
                took.append(time.monotonic() - begun)
                assert job.log.read_text().count("\n") == (name == "loaded")
                if name == "loaded":
                    found.setdefault("phases", []).append(json.loads(job.log.read_text()))
                tell(f"{into}, {name}: {took[-1]:.1f} s {job.log.read_text()}")
            found[name] = statistics.median(took)
        job.query.stop()
    loads = found["phases"]
    found["phases"] = {phase: statistics.median(load[phase] for load in loads) for phase in loads[0]}
    return found


def flink(keys: int, scratch: Path) -> dict[str, Any]:
    """Return the seconds from the start of Flink's process to its first row, by keys of the checkpoint."""
    jdk = find_jdk()
    if jdk is None:
        return {"skipped": "there is no JDK (javac)"}
    from nexmark.flink import CACHE, fetch

    jars = str(fetch(CACHE).parent / "*")
    found: dict[str, Any] = {}
    for name, count in (("few", FEW), ("all", keys)):
        folder = scratch / name
        folder.mkdir()
        subprocess.run([jdk / "javac", "-nowarn", "-cp", jars, "-d", folder, SOURCE], check=True)
        java = FlinkState(jdk, jars, folder, 1 << 30)
        java.ask("build", count, ROWS_A_BATCH)
        java.close()
        (checkpoint,) = (folder / "checkpoints").glob("*/chk-*")
        took = []
        for seed in range(ROUNDS):
            begun = time.monotonic()
            java = FlinkState(jdk, jars, folder, 1 << 30, checkpoint.as_uri())
            started = time.monotonic() - begun
            took.append(started + java.ask("cold", count, 2, seed)[0])  # without its next checkpoint
            java.close()
            tell(f"Flink, {count:,} keys: {took[-1]:.2f} s")
        found[name] = statistics.median(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=lambda n: int(float(n)), default=1_000_000)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found: dict[str, Any] = {"keys": options.keys}
    for name in (*SETTLINGS, "flink"):
        # A JVM keeps the folder of its first session, so each has a process of its own.
        with (
            tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch,
            ProcessPoolExecutor(1, get_context("spawn")) as process,
        ):
            work = (flink, options.keys) if name == "flink" else (measure, options.keys, name)
            found[name] = process.submit(*work, Path(scratch)).result()
        print(json.dumps(found, indent=1), flush=True)
    write_json(options, found)


if __name__ == "__main__":
    main()
