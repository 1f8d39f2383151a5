"""Measure what keys, timers, states and waiting rows take: live, in the checkpoint, in RocksDB; and loads.

Run as ``make bench-capacity ARGS="--keys 5e6 2e7"``; README.md explains. With ``--settled`` all keys have a
timer and a value, and settle: ``bench/capacity.py --settled --keys 4e6 --json out/capacity_settled.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from processes import python_workers
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from state import kill_workers, tell, time_loads
from usage import memory

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import CheckpointState
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.stored.kinds import EVENT_TIMERS, KEYS, ROWS, USER_STATE
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._group.user_states import attached_state
from timerheap.spark._live import live_file as live
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._memory.blocks import Block

SCHEMA = "device string, at bigint, reading double"
DAY = 86_400_000
ROWS_A_BATCH = 1_000_000  # of a micro-batch that builds
SOME = 10_000  # rows of the micro-batches that are measured
SPAN = 60_000  # event time of a micro-batch, ms
FEW = 10  # one key in so many has lists, and one a waiting row
ABOVE = 1 << 20  # bytes of a key group in memory from which on keys settle, with --settled
LONG = 9  # elements of the longer of its two lists
PARTITIONS = 4


class Devices(KeyedProcessFunction):
    """Each device has a named timer and its last reading; some have lists of one and of nine times.

    Workers append to the file `log` how long the loads of key groups take.
    """

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __setstate__(self, state: dict[str, Any]) -> None:  # in the worker, before any group is loaded
        self.__dict__.update(state)
        time_loads(self.log)

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.DOUBLE()))
        self.one = runtime_context.get_list_state(ListStateDescriptor("one", Types.LONG()))
        self.nine = runtime_context.get_list_state(ListStateDescriptor("nine", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + 30 * DAY, name="silent")
        self.last.update(value.reading)
        if value.device[-1] == "0" and value.reading < 0:
            self.one.add(value.at)
            step = int(-value.reading * 1000)  # so that times differ
            self.nine.add_all([value.at + n * step for n in range(LONG)])


def devices(events: DataFrame, log: Path, **options: Any) -> DataFrame:
    """Return the query; rows wait until the newest one is ten seconds later."""
    return timerheap.spark.process(
        events,
        "device",
        Devices(log),
        "device string",
        "at",
        watermark="10 seconds",
        **options,
    )


class Job:
    """The query with so many keys, micro-batch by micro-batch."""

    def __init__(self, spark: SparkSession, keys: int, work: Path) -> None:
        self.spark, self.keys, self.work = spark, keys, work
        self.batches = 0
        self.query: StreamingQuery | None = None
        self.log = work / "loads.txt"
        (work / "in").mkdir(parents=True)

    def start(self, name: str = "checkpoint", **options: Any) -> None:
        events = self.spark.readStream.schema(SCHEMA).parquet(str(self.work / "in"))
        writer = devices(events, self.log, **options).writeStream.format("noop")
        self.checkpoint = self.work / name
        self.query = writer.option("checkpointLocation", str(self.checkpoint)).start()

    def batch(self, numbers: np.ndarray, at: int, span: int = SPAN, sign: int = 1) -> dict[str, Any]:
        """Run one micro-batch with a row for each of these keys, and return its progress.

        The rows are of random times between `at` and `at` + `span`.
        """
        assert self.query is not None
        random, n = np.random.default_rng(self.batches), len(numbers)
        padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
        columns = {
            "device": pc.binary_join_element_wise("unit-", padded, ""),  # 13 bytes
            "at": at + random.integers(0, span, n),
            "reading": sign * random.uniform(1, 60, n).round(2),
        }
        table = pa.table(columns)
        draft = self.work / "draft.parquet"
        pq.write_table(table, draft, row_group_size=ROWS_A_BATCH // PARTITIONS)
        draft.rename(self.work / "in" / f"{self.batches:05}.parquet")
        self.batches += 1
        self.query.processAllAvailable()
        found = [p for p in self.query.recentProgress if p.numInputRows][-1]
        assert found.numInputRows == n, (found.numInputRows, n)
        return json.loads(found.json)

    def step(self, at: int) -> tuple[float, dict[str, int]]:
        """Run a micro-batch of some rows; return its seconds, and the files that it has added."""
        before = self.files()
        numbers = np.random.default_rng(at).choice(self.keys, SOME, replace=False, shuffle=False)
        seconds = self.batch(numbers, at)["durationMs"]["triggerExecution"] / 1000
        return seconds, Counter(kind_of(path) for path in self.files() - before)

    def files(self) -> set[Path]:
        found = (path.relative_to(self.checkpoint) for path in self.checkpoint.rglob("*") if path.is_file())
        return {path for path in found if not path.name.startswith(".")}

    def live_files(self) -> list[Path]:
        assert self.query is not None
        found = (self.work.parent / "local").glob(f"**/timerheap/query-{self.query.id}/*.*")
        return [path for path in found if path.is_file()]


def kind_of(path: Path) -> str:
    """Return what a file of a checkpoint is: the folder of the log, or the end of the name in the state."""
    return path.parts[0] if path.parts[0] != "state" else path.suffix or path.parts[2]


# ---- Sizes


class Counting:
    """The memory of a live file, which counts the bytes that are attached."""

    def __init__(self, file: LiveFile) -> None:
        self.file, self.nbytes = file, 0

    def attach(self, at: int, nbytes: int) -> Block:
        self.nbytes += nbytes
        return self.file.attach(at, nbytes)

    def take(self) -> int:
        taken, self.nbytes = self.nbytes, 0
        return taken


def live_bytes(files: list[Path], state: CheckpointState) -> Counter[str]:
    """Return the bytes that each part has in the live files of a stopped query, with its room to grow."""
    schemas = {part.kind: part.schema for part in state._survey.parts}
    keys, rows = KeyTable.fields(schemas[KEYS]), RowBuffer.rows_of(schemas[ROWS])
    found: Counter[str] = Counter()
    for path in files:
        file = LiveFile.lock(str(path))
        assert file is not None, path
        first = np.frombuffer(path.read_bytes()[: live._SEALED], np.uint8)
        *_, file.label = live._PLACE.unpack(live.unseal(live._FIRST_PAGE, first))
        head, counting = json.loads(file.read_head()), Counting(file)
        parts = [KeyTable(keys, counting, head["keys"])]
        found["keys"] += counting.take()
        parts += [JournalledTimers(EVENT_TIMERS, counting, head["event"])]
        found["timers"] += counting.take()
        parts += [RowBuffer(rows, "event_time", counting, head["rows"])]
        found["rows"] += counting.take()
        for name, each in head["states"].items():
            parts += [attached_state(counting, each)]
            found[name] += counting.take()
        file.unlock()
    return found


def stored_bytes(state: CheckpointState) -> dict[str, tuple[int, int]]:
    """Return for each part the bytes of its chunks, and the number of its entries."""
    names = {KEYS: "keys", EVENT_TIMERS: "timers", ROWS: "rows"}
    names |= {part.kind: part.name for part in state._survey.parts if part.kind >= USER_STATE}
    nbytes: Counter[str] = Counter()
    for manifest in state._survey.manifests:
        for run in manifest.runs:
            nbytes[names.get(run.kind, "others")] += run.nbytes
    groups = state.groups().select(
        F.sum("keys"),
        F.sum("event_time_timers"),
        F.sum("buffered_rows"),
        *(F.sum(F.col("states")[name]) for name in state.states),
    )
    counts = dict(zip(["keys", "timers", "rows", *state.states], groups.collect()[0], strict=True))
    return {name: (size, counts.get(name) or 0) for name, size in nbytes.items()}


def snapshots(checkpoint: Path) -> tuple[int, int]:
    """Return the bytes of the newest snapshot of each partition, and the version of the oldest of these.

    A snapshot is a zip file, which lists the files of RocksDB (SST) that it needs.
    """
    size, versions = 0, []
    for partition in sorted((checkpoint / "state" / "0").glob("[0-9]*")):
        newest = max(partition.glob("*.zip"), key=lambda path: int(path.stem.partition("_")[0]))
        versions.append(int(newest.stem.partition("_")[0]))
        with zipfile.ZipFile(newest) as archive:
            text = archive.read("metadata").decode()
        listed = json.loads(text.partition("\n")[2])["sstFiles"]
        size += newest.stat().st_size + sum(file["sizeBytes"] for file in listed)
    return size, min(versions, default=0)


def wait_for_snapshots(job: Job, version: int) -> int:
    """Wait until each partition has a snapshot of at least this version, and return their bytes."""
    while True:
        try:
            size, oldest = snapshots(job.checkpoint)
        except (ValueError, FileNotFoundError):  # there is none yet
            size, oldest = 0, -1
        if oldest >= version:
            return size
        time.sleep(2)


def on_disk(folders: Iterable[Path]) -> int:
    return sum(
        path.stat().st_blocks * 512 for folder in folders for path in folder.rglob("*") if path.is_file()
    )


# ---- Measuring


def session(scratch: Path) -> AbstractContextManager[SparkSession]:
    """Return a Spark whose workers find the classes of this module."""
    for module in ("state", __name__):
        cloudpickle.register_pickle_by_value(sys.modules[module])
    streaming = "spark.sql.streaming"
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.local.dir": scratch / "local",
        "spark.sql.execution.arrow.maxRecordsPerBatch": ROWS_A_BATCH,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": PARTITIONS,
        f"{streaming}.stateStore.maintenanceInterval": "5s",
        # Spark's default runs two programs for every file on a local disk.
        f"{streaming}.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    return spark_session(scratch / "spark.log", settings)


def measure(keys: int, scratch: Path) -> dict[str, Any]:
    """Build the state of so many keys, and return its sizes and what loading it takes."""
    with session(scratch) as spark:
        job = Job(spark, keys, scratch / "job")
        job.start()
        begun = time.monotonic()
        for first in range(0, keys, ROWS_A_BATCH):
            numbers = np.arange(first, min(first + ROWS_A_BATCH, keys))
            job.batch(numbers[numbers % FEW != 0], job.batches * SPAN)
            job.batch(numbers[numbers % FEW == 0], job.batches * SPAN, sign=-1)
        tell(f"{keys:,} keys built in {time.monotonic() - begun:.0f} s")
        steps = [job.step(job.batches * SPAN) for _ in range(12)]
        newest = job.batches * SPAN + DAY
        job.batch(np.arange(1, keys, FEW), newest, 9_000)  # which stay
        version = job.batches
        for _ in range(11):  # after ten versions Spark writes another snapshot
            job.batch(np.arange(1), newest + 9_000, 1)
        rocksdb = on_disk((scratch / "local").glob("spark-*/StateStoreId*"))
        snapshot = wait_for_snapshots(job, version)
        result = sizes(job) | {
            "keys": keys,
            "snapshot": snapshot,
            "rocksdb": rocksdb,
            "step_seconds": statistics.median(seconds for seconds, _ in steps),
            "files": dict(sum((files for _, files in steps), Counter[str]())),
            "steps": len(steps),
            "memory": memory(jvm(spark))._asdict(),
        }
        tell(table(result | {"loads": {}}))
        result["loads"] = loads(job, newest)
    return result


def measure_settled(keys: int, scratch: Path) -> dict[str, Any]:
    """Build the state of so many keys without lists and waiting rows, which settle; return what they take."""
    os.environ["TIMERHEAP_SETTLING"] = json.dumps([ABOVE])
    with session(scratch) as spark:
        job = Job(spark, keys, scratch / "job")
        job.start()
        for first in range(0, keys, ROWS_A_BATCH):
            job.batch(np.arange(first, min(first + ROWS_A_BATCH, keys)), job.batches * SPAN)
        settled = {"keys": 0}
        for _ in range(20):  # in as many micro-batches as it takes
            observed = job.batch(np.arange(1), job.batches * SPAN)["observedMetrics"]["timerheap"]["metrics"]
            before, settled = settled, {what: observed[f"settled_{what}"] for what in ("keys", "bytes")}
            if before["keys"] == settled["keys"] > 0:
                break
        steps = [job.step(job.batches * SPAN) for _ in range(12)]
        for _ in range(11):  # after ten versions Spark writes another snapshot
            job.batch(np.arange(1), job.batches * SPAN)
        assert job.query is not None
        mapped = on_disk({path.parent for path in job.live_files()})
        snapshot = wait_for_snapshots(job, job.batches - 11)
        rocksdb = on_disk((scratch / "local").glob("spark-*/StateStoreId*"))
        state = timerheap.spark.read_checkpoint(job.spark, job.checkpoint)
        result = {
            "keys": keys,
            "settled": settled,
            "above": ABOVE,
            "groups": observed["max_parallelism"],
            "mapped": mapped,
            "stored": stored_bytes(state),
            "text": state._chunks.select(F.sum(F.length("text"))).collect()[0][0],
            "rocksdb": rocksdb,
            "snapshot": snapshot,
            "step_seconds": statistics.median(seconds for seconds, _ in steps),
            "files": dict(sum((files for _, files in steps), Counter[str]())),
            "steps": len(steps),
        }
        newest = job.batches * SPAN
        job.query.stop()
        end_workers(job.spark)
        result["loads"] = loads(job, newest)
    return result


def sizes(job: Job) -> dict[str, Any]:
    """Stop the query, and return the sizes of its state."""
    assert job.query is not None
    state = timerheap.spark.read_checkpoint(job.spark, job.checkpoint)
    files = job.live_files()
    mapped = on_disk({path.parent for path in files})
    stored = stored_bytes(state)
    text = state._chunks.select(F.sum(F.length("text"))).collect()[0][0]
    job.query.stop()
    end_workers(job.spark)
    return {
        "live": dict(live_bytes(files, state)),
        "stored": stored,
        "text": text,
        "mapped": mapped,
    }


def loads(job: Job, at: int) -> dict[str, Any]:
    """Restart the query without its live files, then also without RocksDB, and as a new query."""
    found: dict[str, Any] = {}
    close = job.spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop  # type: ignore[union-attr]
    for name in ("restart", "without live files", "without RocksDB", "read_checkpoint"):
        if name != "restart":
            drop_live(job)
        if name in ("without RocksDB", "read_checkpoint"):
            close()
        job.log.write_text("")
        begun = time.monotonic()
        try:
            if name == "read_checkpoint":
                for path in (job.work / "in").iterdir():  # the old query has read them
                    path.unlink()
                state = timerheap.spark.read_checkpoint(job.spark, job.checkpoint)
                job.start("again", initial_state=state)
            else:
                job.start()
            job.batch(np.arange(1), at + 9_000, 1)
        except StreamingQueryException as e:
            found[name] = {"failed": str(e).partition("\n")[0]}
        else:
            timed = [float(each) for each in job.log.read_text().split()]
            seconds = time.monotonic() - begun
            found[name] = {"seconds": seconds, "groups": len(timed) // 2, "cpu": sum(timed[1::2])}
        tell(f"{job.keys:,} keys, {name}: {found[name]}")
        assert job.query is not None
        job.query.stop()
        end_workers(job.spark)
    return found


def drop_live(job: Job) -> None:
    files = job.live_files()
    assert files, "the live files of a query must be where they were"
    for folder in {path.parent for path in files}:
        shutil.rmtree(folder)


def end_workers(spark: SparkSession) -> None:
    """End the idle Python workers, and wait until Spark cannot take one of them any more."""
    kill_workers(jvm(spark))
    while python_workers(jvm(spark)):
        time.sleep(0.1)
    time.sleep(1)


def jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]


# ---- The report


def table(found: dict[str, Any]) -> str:
    """Return the figures as text."""
    keys, stored, live_ = found["keys"], found["stored"], found["live"]
    lines = [f"{keys:,} keys", f"{'part':<10}{'entries':>12}{'live':>10}{'chunks':>10}  bytes an entry"]
    for name, (nbytes, count) in sorted(stored.items()):
        if count:
            lines.append(f"{name:<10}{count:>12,}{live_.get(name, 0) / count:>10.1f}{nbytes / count:>10.1f}")
    few = stored["one"][1]
    per = [
        (each["nine"] - each["one"]) / (LONG - 1) / few
        for each in (live_, {k: v[0] for k, v in stored.items()})
    ]
    lines.append(f"{'an element':<22}{per[0]:>10.1f}{per[1]:>10.1f}")
    chunks = sum(nbytes for nbytes, _ in stored.values())
    for name, size in (
        ("live files", found["mapped"]),
        ("chunks", chunks),
        ("chunks as text", found["text"]),
        ("RocksDB, local", found["rocksdb"]),
        ("snapshot", found["snapshot"]),
    ):
        lines.append(f"{name:<22}{size / 1e6:>10,.0f} MB{size / keys:>10.1f} bytes a key")
    lines.append(f"a micro-batch of {SOME:,} rows: {found['step_seconds']:.2f} s; files in {found['steps']}:")
    lines.append(", ".join(f"{name} {count}" for name, count in sorted(found["files"].items())))
    for name, load in found["loads"].items():
        failed = load.get("failed")
        text = failed or f"{load['seconds']:.1f} s; {load['groups']} key groups, CPU {load['cpu']:.1f} s"
        lines.append(f"{name:<22}{text}")
    lines.append(
        "memory: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in found["memory"].items())
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=lambda n: int(float(n)), nargs="+", default=[5_000_000, 20_000_000])
    parser.add_argument("--settled", action="store_true", help="keys that settle")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    if options.settled:
        with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch:
            found = measure_settled(options.keys[0], Path(scratch))
        print(json.dumps(found, indent=1), flush=True)
        write_json(options, found)
        return
    result = []
    for keys in options.keys:
        # A JVM keeps the folder of its first session, so each size has a process of its own.
        with (
            tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch,
            ProcessPoolExecutor(1, get_context("spawn")) as process,
        ):
            result.append(process.submit(measure, keys, Path(scratch)).result())
        print(table(result[-1]), flush=True)
        write_json(options, result)


if __name__ == "__main__":
    main()
