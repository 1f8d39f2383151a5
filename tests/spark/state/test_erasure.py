"""A key that is forgotten on request leaves the files of the checkpoint and those of live state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from erased import files_with
from forgetful import Visits
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark import CheckpointState, InitialState, continue_from, read_checkpoint, start_from
from timerheap.spark._group.stored import manifest
from timerheap.spark._group.stored.manifest import RENEWAL

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

VISITS = pa.schema([("user", pa.string()), ("at", pa.int64()), ("page", pa.string())])
REQUESTS = pa.schema([("user", pa.string()), ("at", pa.int64())])
USER, PAGE = "user-q9x7k2v5w8j4h1z6c3", "page-m3t6z0c8r5y2b7d9f1"
OTHERS = [f"other-{n:04}" for n in range(2_000)]
COMPRESSION = "spark.sql.streaming.stateStore.rocksdb.compression"  # without it files can be searched
OTHER = f"user <> '{USER}'"
KEPT = 2  # micro-batches whose state Spark keeps


class RenewedSoon(Visits):
    """Has its tasks write key groups anew after some micro-batches, instead of a thousand."""

    def open(self, runtime_context: Any) -> None:
        if TaskContext.get() is not None:
            manifest.RENEWAL = 4
        super().open(runtime_context)

    def close(self) -> None:
        if TaskContext.get() is not None:
            manifest.RENEWAL = RENEWAL


def close_stores(spark: SparkSession) -> None:
    """End the stores of earlier queries, and the thread that removes files, which keeps its interval."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def query(spark: SparkSession, work: Path, function: Visits, **options: Any) -> Any:
    return timerheap.spark.process_two(
        streams.read_stream(spark, work / "visits"),
        streams.read_stream(spark, work / "requests"),
        "user",
        function,
        "user string, n bigint",
        "at",
        watermark="10 seconds",
        max_parallelism=2,
        **options,
    )


def visits(at: int, *users: str, page: str = "/") -> list[dict[str, Any]]:
    return [{"user": user, "at": at, "page": page} for user in users]


class Run:
    """A query over visits and requests, one micro-batch after the other."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark, self.work, self.at = spark, work, 0
        self.checkpoint = work / "checkpoint"

    def add(self, rows: list[dict[str, Any]], forget: tuple[str, ...] = ()) -> None:
        """Add rows, and requests, or one of nobody, so that both watermarks go on."""
        streams.write_batches(self.work / "visits", [rows], VISITS)
        requests = [{"user": user, "at": self.at} for user in forget or ("nobody",)]
        streams.write_batches(self.work / "requests", [requests], REQUESTS)

    def step(self, query: Any, forget: tuple[str, ...] = ()) -> None:
        self.at += 60_000
        self.add(visits(self.at, OTHERS[self.at // 60_000 % 100]), forget)
        query.processAllAvailable()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Any:
    close_stores(spark)
    settings = {
        "streaming_minBatchesToRetain": KEPT,
        "streaming_stateStore_minDeltasForSnapshot": 2,
        "streaming_stateStore_maintenanceInterval": "200ms",
    }
    with streams.configured(spark, **settings):
        spark.conf.set(COMPRESSION, "none")
        yield Run(spark, tmp_path)
        spark.conf.unset(COMPRESSION)
    close_stores(spark)


def traces(run: Run, running: Any) -> set[str]:
    """Return the files of the checkpoint and of live state that have the user or the page."""
    (local,) = Path(run.spark.conf.get("spark.local.dir") or "").glob(
        f"blockmgr-*/timerheap/query-{running.id}"
    )
    return {
        f"{folder.name}/{name}"
        for folder in (run.checkpoint, local)
        for text in (USER, PAGE)
        for name in files_with(folder, text)
    }


def without_the_user(old: CheckpointState) -> InitialState:
    return InitialState(
        states={name: old.state(name).where(OTHER) for name in old.states},
        timers=old.timers().where(OTHER),
        buffered_rows=old.buffered_rows().where(OTHER),
        watermarks=old.watermarks(),
    )


def test_a_key_is_forgotten_while_the_query_runs(run: Run, spark: SparkSession) -> None:
    run.add(visits(0, *OTHERS) + visits(0, USER, page=PAGE))
    with streams.started(query(spark, run.work, RenewedSoon()), run.work) as running:
        run.step(running)
        run.step(running)
        before = traces(run, running)
        assert {name.partition("/")[0] for name in before} == {"checkpoint", f"query-{running.id}"}
        assert ".sst" in {Path(name).suffix for name in before}
        streams.write_batches(run.work / "visits", [visits(run.at + 59_000, USER, page=PAGE)], VISITS)
        run.step(running, forget=(USER,))  # the row before the request waits as it does, and comes first
        run.step(running)
        run.step(running)
        state = read_checkpoint(spark, run.checkpoint)
        assert {name: state.state(name).where(f"user = '{USER}'").count() for name in state.states} == {
            "last": 0,
            "pages": 0,
            "times": 0,
        }
        assert state.timers().where(f"user = '{USER}'").count() == 0
        assert state.buffered_rows().where(f"user = '{USER}'").count() == 0
        deadline = time.monotonic() + streams.PATIENCE
        while left := traces(run, running):
            assert time.monotonic() < deadline, left
            run.step(running)
        assert read_checkpoint(spark, run.checkpoint).state("last").count() == len(OTHERS)


def test_a_new_query_starts_without_a_key(run: Run, spark: SparkSession) -> None:
    """Then the old checkpoint is deleted; rows of the key that wait are left out, too."""
    run.add(visits(0, *OTHERS) + visits(0, USER, page=PAGE))
    with streams.started(query(spark, run.work, Visits()), run.work) as running:
        run.step(running)
        run.at += 60_000
        run.add(visits(run.at, *OTHERS[:3]) + visits(run.at, USER, page=PAGE))
        running.processAllAvailable()
    old = read_checkpoint(spark, run.checkpoint)
    counts = {name: old.state(name).count() for name in old.states} | {"timers": old.timers().count()}
    kept = without_the_user(old)
    again = Run(spark, run.work / "again")
    again.at = run.at
    again.add(visits(run.at, OTHERS[0]))
    with streams.started(query(spark, again.work, Visits(), initial_state=kept), again.work) as running:
        running.processAllAvailable()
        assert traces(again, running) == set()
        new = read_checkpoint(spark, again.checkpoint)
        assert {name: new.state(name).count() for name in new.states} == {
            name: counts[name] - 1 for name in new.states
        }
        assert new.timers().count() == counts["timers"] - 2
        assert new.timers().where(OTHER).count() == new.timers().count()
        assert new.buffered_rows().where(OTHER).count() == new.buffered_rows().count() > 3
        again.step(running)
        again.step(running)
        assert traces(again, running) == set()


def test_a_query_continues_without_a_key(run: Run, spark: SparkSession) -> None:
    """Its sources go on where those of the old query have ended, and rows that wait are taken along.

    It has the id of the old query, whose live files are there as long as the executor.
    """
    run.add(visits(0, *OTHERS) + visits(0, USER, page=PAGE))
    with streams.started(query(spark, run.work, Visits()), run.work) as running:
        run.step(running)
    kept = without_the_user(read_checkpoint(spark, run.checkpoint))
    waiting = kept.buffered_rows.count()
    old, run.checkpoint = run.checkpoint, run.work / "again" / "checkpoint"

    def started() -> Any:
        return start_from(spark, kept, lambda: query(spark, run.work, Visits()))

    result = continue_from(spark, str(old), str(run.checkpoint), started, forget=["timerheap"])
    with streams.started(result, run.work / "again") as running:
        run.step(running)
        assert [name for text in (USER, PAGE) for name in files_with(run.checkpoint, text)] == []
        new = read_checkpoint(spark, run.checkpoint)
        assert waiting > 0
        assert new.state("last").count() == len(OTHERS)
        assert new.state("times").select(F.sum(F.size("value"))).first() == (len(OTHERS),)
