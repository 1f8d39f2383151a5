"""Queries for the kill driver: deterministic output, and every kind of state there is."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from processes import below, command, kill
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from streams import write_batches

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

__all__ = ["PLACES", "QUERIES", "SETTLING", "SPARKS_OWN", "Killer", "SaveKiller", "Twins", "write_input"]

SPAN = 1_000  # event time of a batch, ms
GAP = 1_200
WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(300)
INPUT = pa.schema([("k", pa.string()), ("at", pa.int64()), ("n", pa.int64()), ("word", pa.string())])


def write_input(folder: Path, seed: int, batches: int, rows: int, keys: int) -> None:
    """Write the input: keys that come and go, rows out of order, few of them late, texts short and long."""
    draw = random.Random(seed)

    def row(batch: int, number: int) -> dict[str, Any]:
        key = int(draw.triangular(0, keys, batch * keys / batches))
        long = draw.randrange(2_000) if draw.randrange(50) == 0 else 3
        return {
            "k": f"k{key}",
            "at": 1_700_000_000_000 + batch * SPAN + draw.randrange(SPAN),
            "n": number,
            "word": f"w{draw.randrange(9)}".ljust(long, "."),
        }

    write_batches(folder, [[row(b, n) for n in range(rows)] for b in range(batches)], INPUT)


class Killer:
    """Kills once, in one micro-batch of one query, what this Python worker belongs to.

    Parameters
    ----------
    what : {"worker", "executor", "driver", "executors"}
        In local mode the executor is the driver's JVM. "executors" are all those of a `standalone.cluster`,
        killed at the end of a task when another task has ended; see `behind`.
    marker : pathlib.Path
        A file that is created before.
    batch : int
    """

    def __init__(self, what: str, marker: Path, batch: int) -> None:
        self.what, self.marker, self.batch = what, str(marker), batch

    def __call__(self) -> None:
        task = TaskContext.get()
        if self.what == "executors" or not self._is_due(task) or not self._is_first():
            return
        daemon = os.getppid()
        jvm = _parent(daemon)
        if self.what == "driver":
            kill(_parent(jvm))
        kill(os.getpid() if self.what == "worker" else jvm)

    def behind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on, for mapInArrow behind a query; then kill all executors in partition 1."""
        yield from batches
        task = TaskContext.get()
        if self.what != "executors" or not self._is_due(task):
            return
        assert task is not None
        passed, until = Path(f"{self.marker}.passed"), time.monotonic() + 60
        if task.partitionId() == 0:
            passed.touch()
        elif task.partitionId() == 1:
            while not passed.exists() and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(3)  # until the driver knows that the other task has ended
            if self._is_first():
                test = _parent(_parent(_parent(os.getppid())))  # of the cluster's worker
                for process in [p for p in below(test) if "CoarseGrainedExecutorBackend" in command(p)]:
                    kill(process)

    def _is_due(self, task: TaskContext | None) -> bool:
        return task is not None and task.getLocalProperty("streaming.sql.batchId") == str(self.batch)

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


PLACES = ("merge", "release")
"""Where a `SaveKiller` kills a worker: while it writes a run, or before it unlocks a live file."""


class SaveKiller:
    """Kills Python workers at a place of a save, once whenever it is asked to.

    Parameters
    ----------
    wanted : pathlib.Path
        A file with one of `PLACES`, which a worker removes that then dies there.
    """

    def __init__(self, wanted: Path) -> None:
        self.wanted = str(wanted)

    def __call__(self) -> None:
        from timerheap.spark._live.live_file import LiveFile

        allocate, unlock, wanted = LiveFile.allocate, LiveFile.unlock, Path(self.wanted)
        if hasattr(unlock, "is_watched"):
            return

        def is_here(place: str) -> bool:
            try:
                found = wanted.read_text() == place
                if found:
                    wanted.unlink()
            except FileNotFoundError:  # or a different worker was faster
                return False
            return found

        def allocate_watched(file: LiveFile, nbytes: int, mapped: bool = True) -> Any:
            if not mapped and is_here("merge"):  # the kernel ends the process in this merge, or soon after
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
            return allocate(file, nbytes, mapped)

        def unlock_watched(file: LiveFile) -> None:
            if is_here("release"):
                kill(os.getpid())
            unlock(file)

        unlock_watched.is_watched = True  # type: ignore[attr-defined]
        LiveFile.allocate, LiveFile.unlock = allocate_watched, unlock_watched  # type: ignore[method-assign]

    def behind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches


class Twins:
    """Makes one task of each micro-batch wait for its speculative twin, so that both commit their state.

    A function for mapInArrow, behind a stateful operator: a task gets to its end after the operator's commit.

    Parameters
    ----------
    folder : pathlib.Path
        Holds an empty file for each task that got there, `<batch>.<stage>.<partition>.<attempt>`.
    """

    _PATIENCE = 20.0  # seconds; a twin may find no executor

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = str(folder)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        batch, partition = int(task.getLocalProperty("streaming.sql.batchId") or 0), task.partitionId()
        if partition != batch % 2:
            return
        name, folder = f"{batch}.{task.stageId()}.{partition}.", Path(self.folder)
        (folder / f"{name}{task.taskAttemptId()}").touch()
        until = time.monotonic() + self._PATIENCE
        while len([*folder.glob(f"{name}*")]) < 2 and time.monotonic() < until:
            time.sleep(0.02)

    @staticmethod
    def count(folder: Path) -> int:
        """Return how many tasks committed and had a twin that did."""
        tasks = Counter(file.name.rpartition(".")[0] for file in folder.iterdir()) if folder.exists() else {}
        return sum(attempts > 1 for attempts in tasks.values())


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class Sessions(KeyedProcessFunction):
    """Rows: a timer that is deleted and registered anew, a value, a list and a map."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.words = runtime_context.get_map_state(MapStateDescriptor("words", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.killer is not None:
            self.killer()
        due = self.due.value()
        if due is not None:
            ctx.timer_service().delete_event_time_timer(due)
        self.due.update(ctx.timestamp() + GAP)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP)
        if value.n % 10 == 0:  # a second timer, which stays
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)
        self.seen.add(value.n)
        self.words.put(value.word, (self.words.get(value.word) or 0) + 1)
        if value.n % 7 == 0:
            self.words.remove(value.word)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        ends = timestamp == self.due.value()
        yield ctx.get_current_key(), timestamp, repr((ends, list(self.seen), sorted(self.words.items())))
        if ends:
            self.due.clear()
            self.seen.clear()
            if timestamp % 3:  # else the map stays, and the key with it
                self.words.clear()
        elif timestamp % 5 == 0:
            self.seen.update(list(self.seen)[-3:])


class Columns(BatchProcessFunction):
    """Columns: a timer for each key that moves, values in columns, and lists and maps of single keys."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def open(self, runtime_context: Any) -> None:
        self.rows = runtime_context.get_state(ValueStateDescriptor("rows", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))
        self.words = runtime_context.get_map_state(MapStateDescriptor("words", "string", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        if self.killer is not None:
            self.killer()
        ids = ctx.ids
        ctx.timer_service().register_event_time_timers(ids, ctx.timestamps + GAP, name="silent")
        counts = Counter(ids.tolist())
        before = self.rows.values(ids).to_pylist()
        self.rows.update_many(ids, [(b or 0) + counts[i] for b, i in zip(before, ids.tolist(), strict=True)])
        columns = (batch.column(name).to_pylist() for name in ("n", "word"))
        for id_, n, word in zip(ids.tolist(), *columns, strict=True):
            ctx.set_current_key(id_)
            self.seen.add(n)
            if n % 5:
                self.words.put(word, n)
            else:
                self.words.remove(word)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        counts = self.rows.values(due.ids).to_pylist()
        contents = []
        for id_, count in zip(due.ids.tolist(), counts, strict=True):
            ctx.set_current_key(id_)
            contents.append(repr((count, list(self.seen), sorted(self.words.items()))))
            self.seen.clear()
            if count % 3:
                self.words.clear()
        self.rows.update_many(due.ids, pa.nulls(len(counts), pa.int64()))
        keys = ctx.keys(due.ids).column("k")
        yield pa.record_batch([keys, pa.array(due.timestamps), pa.array(contents)], names=["k", "at", "what"])


class Processor(StatefulProcessor):
    """Rows by key, as Spark calls them: a timer that moves and one that stays, a value, a list and a map."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.due = handle.getValueState("due", "at bigint")
        self.seen = handle.getListState("seen", "n bigint")
        self.words = handle.getMapState("words", "word string", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if self.killer is not None:
            self.killer()
        for row in rows:
            if (due := self.due.get()) is not None:
                self.handle.deleteTimer(due[0])
            self.due.update((row.at + GAP,))
            self.handle.registerTimer(row.at + GAP)
            if row.n % 10 == 0:
                self.handle.registerTimer(row.at + 100)
            self.seen.appendValue((row.n,))
            if row.n % 7 == 0:
                self.words.removeKey((row.word,))
            else:
                self.words.updateValue((row.word,), (row.n,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        ends = (at,) == self.due.get()
        what = repr((ends, [n for (n,) in self.seen.get()], list(self.words.iterator())))
        yield Row(k=key.k, at=at, what=what)
        if ends:
            self.due.clear()
            self.seen.clear()
            if at % 3:  # else the map stays, and the key with it
                self.words.clear()


class Values(KeyedProcessFunction):
    """Rows: timers and values alone, so that keys settle."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))
        by_events = StateTtlConfig.TtlTimeCharacteristic.EventTime
        ttl = StateTtlConfig.new_builder(Time.milliseconds(2 * GAP)).set_ttl_time_characteristic(by_events)
        word = ValueStateDescriptor("word", Types.STRING())
        word.enable_time_to_live(ttl.build())
        self.word = runtime_context.get_state(word)

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.killer is not None:
            self.killer()
        if (due := self.due.value()) is not None:
            ctx.timer_service().delete_event_time_timer(due)
        self.due.update(ctx.timestamp() + 3 * GAP)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3 * GAP)
        if value.n % 3 == 0:  # a second timer, which stays
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP, name="later")
        self.total.update((self.total.value() or 0) + value.n / 3)
        self.word.update(value.word)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        ends = timestamp == self.due.value()
        yield ctx.get_current_key(), timestamp, repr((ends, self.total.value(), self.word.value()))
        if ends:
            self.due.clear()
            if timestamp % 3:  # else the total stays, and the key with it
                self.total.clear()


class ValueColumns(BatchProcessFunction):
    """Columns: a timer for each key that moves, and a value, so that keys settle."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def open(self, runtime_context: Any) -> None:
        self.rows = runtime_context.get_state(ValueStateDescriptor("rows", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        if self.killer is not None:
            self.killer()
        ids = ctx.ids
        ctx.timer_service().register_event_time_timers(ids, ctx.timestamps + 3 * GAP, name="silent")
        counts = Counter(ids.tolist())
        before = self.rows.values(ids).to_pylist()
        self.rows.update_many(ids, [(b or 0) + counts[i] for b, i in zip(before, ids.tolist(), strict=True)])

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        counts = self.rows.values(due.ids).to_pylist()
        self.rows.update_many(due.ids, [None if count % 3 else count for count in counts])
        keys = ctx.keys(due.ids).column("k")
        what = pa.array([repr(count) for count in counts])
        yield pa.record_batch([keys, pa.array(due.timestamps), what], names=["k", "at", "what"])


class ValueProcessor(StatefulProcessor):
    """Rows by key, as Spark calls them: timers and values alone, so that keys settle."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.killer = killer

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.due = handle.getValueState("due", "at bigint")
        self.last = handle.getValueState("last", "n bigint, word string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if self.killer is not None:
            self.killer()
        for row in rows:
            if (due := self.due.get()) is not None:
                self.handle.deleteTimer(due[0])
            self.due.update((row.at + 3 * GAP,))
            self.handle.registerTimer(row.at + 3 * GAP)
            self.last.update((row.n, row.word))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key.k, at=at, what=repr((self.due.get(), self.last.get())))
        self.due.clear()
        if at % 3:  # else the value stays, and the key with it
            self.last.clear()


def processor(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    arguments = (Processor(killer), "k string, at bigint, what string", "Append", "EventTime")
    return timerheap.spark.transform_with_state(timed(df), "k", *arguments, max_parallelism=8)


def values_processor(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    arguments = (ValueProcessor(killer), "k string, at bigint, what string", "Append", "EventTime")
    return timerheap.spark.transform_with_state(timed(some(df)), "k", *arguments, max_parallelism=8)


def some(df: DataFrame) -> DataFrame:
    """Return so few rows that a micro-batch does not touch all keys."""
    return df.where("n % 4 = 0")


def sparks_processor(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    arguments = (Processor(killer), "k string, at bigint, what string", "Append", "EventTime")
    return timed(df).groupBy("k").transformWithState(*arguments)


def sparks_windows(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    return timed(df).groupBy(F.session_window("time", "700 milliseconds"), "k").agg(F.sum("n").alias("n"))


def timed(df: DataFrame) -> DataFrame:
    return df.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "300 milliseconds")


def process(
    df: DataFrame,
    function: KeyedProcessFunction | BatchProcessFunction,
    order: str,
    max_parallelism: int = 8,
    name: str | None = None,
) -> DataFrame:
    return timerheap.spark.process(
        df,
        "k",
        function,
        "k string, at bigint, what string",
        "at",
        watermark=WATERMARK,
        order=order,
        max_parallelism=max_parallelism,
        name=name,
    )


def continued(df: DataFrame, killer: Killer | None = None, version: int = 0) -> DataFrame:
    """Return what is the same in each version, from operators at other places, with other key groups."""
    rows = process(df, Sessions(killer), "event_time", 8 - version % 3, "rows")
    columns = process(df, Columns(killer), "arrival", 5 + version % 4, "columns")
    return rows.union(columns) if version % 2 else columns.union(rows)


def hop(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    cut = timerheap.spark.hop(df, "at", slide=500, size=2_000, watermark=WATERMARK, max_parallelism=8)
    return cut.groupBy("k").agg(F.count("*").alias("rows"), F.sum("n").alias("n"), F.max("n").alias("most"))


def session(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    cut = timerheap.spark.session(df, "at", 700, watermark=WATERMARK, max_parallelism=8)
    return cut.groupBy("k").agg(F.count("*").alias("rows"), F.sum("n").alias("n"))


def twice(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    first = process(df, Sessions(killer), "event_time")
    again = first.select("k", "at", F.length("what").cast("bigint").alias("n"), F.lit("w").alias("word"))
    return process(again, Columns(), "arrival")


def asof(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    sides = df.where("n % 3 = 0"), df.where("n % 3 > 0")
    arguments: dict[str, Any] = {"watermark": WATERMARK, "tolerance": 900, "unmatched": "emit"}
    joined = timerheap.spark.join_asof(*sides, "k", "at", **arguments, max_parallelism=8)
    return timerheap.spark.with_side_outputs(joined)


def over(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    df.createOrReplaceTempView("killed")
    text = """SELECT k, at, n, LAG(n, 2) OVER w AS before, LEAD(n) OVER w AS after,
        ROW_NUMBER() OVER w AS place, SUM(n) OVER w AS total, MAX(word) OVER (w ROWS 5 PRECEDING) AS most,
        COUNT(*) OVER (w RANGE BETWEEN INTERVAL '0.7' SECOND PRECEDING AND CURRENT ROW) AS recent
        FROM killed WINDOW w AS (PARTITION BY k ORDER BY at)"""
    arguments: dict[str, Any] = {"lead_within": 900, "late": "emit", "max_parallelism": 8}
    result = timerheap.spark.sql(df.sparkSession, text, "at - INTERVAL '0.3' SECOND", **arguments)
    return timerheap.spark.with_side_outputs(result)


def patterns(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    df.withColumn("time", F.timestamp_millis("at")).createOrReplaceTempView("ticks")
    query = """SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY time, n
        MEASURES MATCH_NUMBER() AS number, FIRST(A.n) AS first, SUM(B.n) AS total, LAST(word) AS word,
            CLASSIFIER() AS label, NEXT(n) AS next
        AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A B+ X*? C) WITHIN INTERVAL '1' SECOND
        DEFINE B AS n > PREV(n), C AS n < AVG(B.n))"""
    beside: dict[str, Any] = {"late": "emit", "timed_out": "emit", "lead_within": GAP}
    found = timerheap.spark.sql(df.sparkSession, query, WATERMARK, **beside, max_parallelism=8)
    return timerheap.spark.with_side_outputs(found)


def changes(df: DataFrame, killer: Killer | None = None) -> DataFrame:
    """Chain all operators on changes: a table of upserts, joined, counted, and of the counts the first."""
    rows, names = df.where("n % 4 > 0").withColumn("item", F.col("n") % 6), df.where("n % 4 = 0")
    items = timerheap.spark.changes_of(
        rows, ["k", "item"], ["at", "n"], deleted=F.expr("n % 7 = 0"), max_parallelism=8
    )
    newest = timerheap.spark.changes_of(names, "k", ["at", "n"], max_parallelism=4)
    labels = newest.select("k", F.substring("word", 1, 2).alias("label"), "_change_type")
    joined = timerheap.spark.join_changes(items, labels, "k", how="left", max_parallelism=8)
    counts = timerheap.spark.aggregate_changes(
        joined.where("item > 0"),
        ["label", "item"],
        F.count("*").alias("rows"),
        F.sum("n").alias("total"),
        F.min("at").alias("first"),
        F.count_distinct("word").alias("words"),
        max_parallelism=8,
    )
    order = [F.desc("rows"), F.asc("total")]
    return timerheap.spark.top_changes(counts, "label", 3, order, number="place", max_parallelism=8)


QUERIES: dict[str, Callable[..., DataFrame]] = {
    "rows": lambda df, killer=None: process(df, Sessions(killer), "event_time"),
    "rows-arrival": lambda df, killer=None: process(df, Sessions(killer), "arrival"),
    "columns": lambda df, killer=None: process(df, Columns(killer), "event_time"),
    "columns-arrival": lambda df, killer=None: process(df, Columns(killer), "arrival"),
    "continued": continued,
    "asof": asof,
    "over": over,
    "patterns": patterns,
    "changes": changes,
    "hop": hop,
    "session": session,
    "twice": twice,
    "processor": processor,
    "values": lambda df, killer=None: process(some(df), Values(killer), "event_time"),
    "values-columns": lambda df, killer=None: process(some(df), ValueColumns(killer), "arrival"),
    "values-processor": values_processor,
    "sparks-processor": sparks_processor,
    "sparks-windows": sparks_windows,
}
"""By name; those without a function of their own ignore the killer."""

SETTLING = frozenset({"values", "values-columns", "values-processor"})
"""Queries whose keys settle, if the threshold is low."""

SPARKS_OWN = frozenset({"sparks-processor", "sparks-windows"})
"""Queries without timerheap."""
