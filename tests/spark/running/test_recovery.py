"""Failures of a task, a worker or a query do not change the output."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from processes import kill, python_workers
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from streams import read_stream, run, sink, write_batches

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

GAP, DELAY = 400, 300
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
BATCHES = [
    [{"k": f"k{(b * 5 + i * i) % 13}", "at": b * 1000 + (i * 277) % 1000} for i in range(25)]
    for b in range(6)
]
REPEATED = 3  # the micro-batch that is not committed at first


class Sessions(KeyedProcessFunction):
    """Emits the number of rows of each session and their times."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp() + GAP)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP)
        self.seen.add(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield ctx.get_current_key(), timestamp, str(list(self.seen))
        self.due.clear()
        self.seen.clear()


class Disturbed(Sessions):
    """Is disturbed once in each micro-batch of `DISTURBED`, at its first row or after all state is saved."""

    def __init__(self, markers: Path) -> None:
        self.markers = str(markers)

    def once(self, when: str) -> None:
        task = TaskContext.get()
        batch = task.getLocalProperty("streaming.sql.batchId") if task is not None else None
        disturb, at = DISTURBED.get(batch, (None, None))
        if disturb is not None and at == when:
            try:
                os.close(os.open(f"{self.markers}/{batch}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            disturb()

    def process_element(self, value: Any, ctx: Any) -> None:
        self.once("first row")
        super().process_element(value, ctx)

    def close(self) -> None:
        self.once("all saved")


def sessions(df: DataFrame, function: KeyedProcessFunction) -> DataFrame:
    return timerheap.spark.process(
        df,
        "k",
        function,
        "k string, at bigint, seen string",
        "at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=6,
    )


def expected(batches: list[list[dict[str, Any]]] = BATCHES) -> list[tuple[Any, ...]]:
    every = sorted((row["at"], row["k"]) for batch in batches for row in batch)
    watermark = every[-1][0] - DELAY - 1
    found = []
    for key in {key for _, key in every}:
        seen: list[int] = []
        mine = [at for at, k in every if k == key and at <= watermark]
        for at, after in zip(mine, [*mine[1:], watermark + 1], strict=True):
            seen.append(at)
            if at + GAP < after:  # a row at the same time precedes the timer
                found.append((key, at + GAP, str(seen)))
                seen = []
    return sorted(found, key=repr)


def fail() -> None:
    raise RuntimeError("this attempt fails, and its state must not be seen again")


def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def poison_cache() -> None:
    """Replace every other live group by an empty one, as another attempt of the task might have left it."""
    from timerheap.spark._group.key_group import KeyGroup
    from timerheap.spark._live import live_groups

    groups = live_groups._cache._groups
    for at, held in list(groups.items()):
        groups[at] = held._replace(token=os.urandom(16), group=KeyGroup(held.group.layout))


# By the number of the micro-batch; the first leaves groups in the workers.
DISTURBED: dict[str | None, tuple[Callable[[], None], str]] = {
    "1": (poison_cache, "first row"),
    "2": (fail, "first row"),
    "3": (fail, "all saved"),
    "4": (kill_worker, "first row"),
    "5": (kill_worker, "all saved"),
}


def test_disturbed_tasks_do_not_change_the_output(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", BATCHES, SCHEMA)
    markers = tmp_path / "disturbed"
    markers.mkdir()
    run(sessions(read_stream(spark, tmp_path / "in"), Disturbed(markers)), tmp_path)
    assert {marker.name for marker in markers.iterdir()} == set(DISTURBED)
    assert sink(spark, tmp_path) == expected()


class Looks(KeyedProcessFunction):
    """Yields how many operators of this query have groups in the worker, or the number in the row."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        from timerheap.spark._live import live_groups

        self.seen.update((self.seen.value() or 0) + 1)
        query = cast(TaskContext, TaskContext.get()).getLocalProperty("sql.streaming.queryId")
        owners = {owner for owner, _ in live_groups._cache._groups if owner.query == query}
        yield value.k, max(value.most, len(owners))


def test_a_restarted_query_drops_the_groups_of_its_earlier_runs(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("most", pa.int64())])
    for batches in (1, 2):
        write_batches(tmp_path / "in", [[{"k": f"k{i}", "most": 0} for i in range(6)]] * batches, schema)
        df = read_stream(spark, tmp_path / "in")
        for _ in range(2):
            df = timerheap.spark.process(df, "k", Looks(), "k string, most bigint", max_parallelism=2)
        run(df, tmp_path)
    found = sink(spark, tmp_path)
    assert len(found) == 18
    assert max(most for _, most in found) <= 2, "two operators in the query, of one run"


def test_new_workers_continue_the_groups_without_loading_them(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:3]
    write_batches(tmp_path / "in", batches, SCHEMA)
    found: list[tuple[Any, ...]] = []

    def batch(df: DataFrame, number: int) -> None:
        found.extend(map(tuple, df.collect()))
        for worker in python_workers(jvm):  # they are idle; Spark itself does so after a minute
            kill(worker)

    jvm = cast(Any, spark.sparkContext._jvm).java.lang.ProcessHandle.current().pid()
    writer = sessions(read_stream(spark, tmp_path / "in"), Sessions()).writeStream.foreachBatch(batch)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(found, key=repr) == expected(batches)
    local = Path(cast(str, spark.conf.get("spark.local.dir")))
    files = list(local.glob(f"blockmgr-*/timerheap/query-{query.id}/*"))
    assert len(files) > 1
    metrics = [batch.observedMetrics["timerheap"].metrics for batch in query.recentProgress]
    assert [one["groups_loaded"] for one in metrics] == [0] * len(metrics)
    assert [one["groups_handed_over"] for one in metrics] == [0] + [len(files)] * (len(metrics) - 1)
    assert len(metrics) >= len(batches)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_stops_between_batches_and_repeated_batches_do_not_change_the_output(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, batch in enumerate(BATCHES):
        write_batches(tmp_path / "in", [batch], SCHEMA)
        run(sessions(read_stream(spark, tmp_path / "in"), Sessions()), tmp_path)
        if number == REPEATED:  # stopped after writing the state, before committing the batch
            (tmp_path / "checkpoint" / "commits" / str(number)).unlink()
            (tmp_path / "checkpoint" / "commits" / f".{number}.crc").unlink(missing_ok=True)
    assert sink(spark, tmp_path) == expected()
