"""Functions beside `process` in real-time mode, in a process of their own; see `real_time_child`.

Its arguments are a folder and names of functions; the variable KILLS says how often all workers are
killed, by default once. Prints for each function the rows of its query, and those of a batch. Rows of the
keys "end 0" and "end 1" move the watermark behind all others, and do not count.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from processes import kill, python_workers
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from real_time_child import EPOCH, SCHEMA, STRATEGY, Child, Source, append, lines

import timerheap.spark
from timerheap import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    Time,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import in_real_time, sql
from timerheap.windows import ProcessWindowFunction, SlidingEventTimeWindows

END = 1_000_000
CHANGE = "_change_type"
RULES = MapStateDescriptor("rules", Types.LONG(), Types.BOOLEAN())
SEEN = MapStateDescriptor("seen", Types.LONG(), Types.BOOLEAN())
Rows = Callable[[], DataFrame]


class Counted(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield context.window().end, sum(1 for _ in elements)


class Both(KeyedCoProcessFunction):
    """Yields for each row how many rows of either input its key has had, in event-time order."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value.key, value.at, self.count.value()

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 100)
        yield value.key, value.at, self.count.value()


class Paused(KeyedProcessFunction):
    """Yields each pause of 300 ms after a row of a key."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 300, name="pause")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


class Running(KeyedProcessFunction):
    """Yields for each row how many of its key there have been; rows of one time count together, later."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1, name=f"{ctx.timestamp()}")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


class Matched(KeyedBroadcastProcessFunction):
    """Yields the times of each row and each rule that end in the same digit, whichever comes first."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_map_state(SEEN)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.put(value.at, True)
        rules = ctx.get_broadcast_state(RULES)
        yield from [(value.key, value.at, rule) for rule in rules if fit(value.at, rule)]

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value.at, True)
        found: list[Any] = []

        def look(key: Any, seen: Any) -> None:
            found.extend((key, at, value.at) for at in seen if fit(at, value.at))

        ctx.apply_to_keyed_state(SEEN, look)
        yield from found


def fit(at: int, rule: int) -> bool:
    return at % 10 == rule % 10


FEATURES: dict[str, Callable[[Rows], DataFrame]] = {}


def feature(make: Callable[[Rows], DataFrame]) -> Callable[[Rows], DataFrame]:
    FEATURES[make.__name__] = make
    return make


@feature
def session(rows: Rows) -> DataFrame:
    df = rows().withColumn("time", F.timestamp_millis("at"))
    text = """SELECT key, window_start, window_end, COUNT(*) AS n, MIN(text) AS least
        FROM SESSION(TABLE readings PARTITION BY key, DESCRIPTOR(time), INTERVAL '2' SECOND)
        GROUP BY key, window_start, window_end"""
    return sql(df.sparkSession, text, STRATEGY, tables={"readings": df})


@feature
def hop(rows: Rows) -> DataFrame:
    df = rows().withColumn("time", F.timestamp_millis("at"))
    text = """SELECT window_end, COUNT(*) AS n, COUNT(DISTINCT key) AS some, MAX(at) AS most
        FROM HOP(TABLE readings, DESCRIPTOR(time), INTERVAL '1' SECOND, INTERVAL '3' SECOND)
        GROUP BY window_start, window_end"""
    return sql(df.sparkSession, text, STRATEGY, tables={"readings": df})


@feature
def over(rows: Rows) -> DataFrame:
    df = rows().withColumn("time", F.timestamp_millis("at"))
    text = """SELECT key, at, SUM(at) OVER w AS total, COUNT(*) OVER w AS n FROM readings
        WINDOW w AS (PARTITION BY key ORDER BY time
            RANGE BETWEEN INTERVAL '3' SECOND PRECEDING AND CURRENT ROW)"""
    return sql(df.sparkSession, text, STRATEGY, tables={"readings": df})


@feature
def patterns(rows: Rows) -> DataFrame:
    df = rows().withColumn("time", F.timestamp_millis("at"))
    text = """SELECT * FROM readings MATCH_RECOGNIZE (PARTITION BY key ORDER BY time, text
        MEASURES FIRST(A.at) AS at, LAST(C.at) AS ended PATTERN (A B* C) WITHIN INTERVAL '2' SECOND
        DEFINE A AS text = 'a', C AS text = 'c')"""
    return sql(df.sparkSession, text, STRATEGY, tables={"readings": df})


@feature
def distinct(rows: Rows) -> DataFrame:
    return timerheap.spark.drop_duplicates(
        rows().select("key", "at", F.col("at").alias("n")), ["key", "n"], "at", watermark=STRATEGY
    ).select("key", "at")


@feature
def two(rows: Rows) -> DataFrame:
    left, right = rows().where("text <> 'c'"), rows().where("text = 'c'")
    return timerheap.spark.process_two(
        left, right, "key", Both(), "key string, at long, n long", "at", watermark=STRATEGY
    )


@feature
def broadcast(rows: Rows) -> DataFrame:
    df, limits = rows().where("text <> 'c'"), rows().where("text = 'c'")
    result = "key string, at long, rule long"
    return timerheap.spark.process_broadcast(df, limits, "key", Matched(), result, "at", watermark=STRATEGY)


@feature
def interval(rows: Rows) -> DataFrame:
    first, second = (rows().withColumn("time", F.timestamp_millis("at")) for _ in range(2))
    text = """SELECT a.key, a.at, b.at AS later FROM first a JOIN second b ON a.key = b.key
        AND b.time BETWEEN a.time AND a.time + INTERVAL '2' SECOND"""
    tables = {"first": first.where("text = 'a'"), "second": second.where("text = 'b'")}
    return sql(first.sparkSession, text, STRATEGY, tables=tables)


@feature
def rules(rows: Rows) -> DataFrame:
    pattern = """SELECT * FROM input MATCH_RECOGNIZE (PARTITION BY key ORDER BY at MEASURES LAST(at) AS at
        PATTERN (A B) DEFINE A AS text = 'a', B AS text = 'b')"""
    rules = {"ab": timerheap.spark.SqlRule(pattern)}
    return timerheap.spark.process_all(rows(), "key", rules, "at", watermark=STRATEGY)


@feature
def operator(rows: Rows) -> DataFrame:
    windows = SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1))
    result = "ended long, n long"
    return timerheap.spark.window_operator(
        rows(), "key", windows, Counted(), result, "at", watermark=STRATEGY
    )


@feature
def upserts(rows: Rows) -> DataFrame:
    df = rows().select("key", F.col("text").alias("item"), "at")
    return timerheap.spark.changes_of(df, ["key", "item"], ["at"], deleted=F.expr("at % 3 = 0"))


@feature
def counted(rows: Rows) -> DataFrame:
    return timerheap.spark.aggregate_changes(
        rows(), "key", F.count("*").alias("n"), F.max("at").alias("most")
    )


@feature
def tops(rows: Rows) -> DataFrame:
    return timerheap.spark.top_changes(rows(), "key", 3, F.desc("at"), number="place")


@feature
def chain(rows: Rows) -> DataFrame:
    """Return how often there were so many rows of a key within a second, of windows of windows."""
    df = rows().withColumn("time", F.timestamp_millis("at"))
    text = """SELECT n, window_end, COUNT(*) AS keys FROM TUMBLE((
            SELECT key, window_time, COUNT(*) AS n
            FROM TUMBLE(TABLE readings, DESCRIPTOR(time), INTERVAL '1' SECOND)
            GROUP BY key, window_start, window_end, window_time
        ), DESCRIPTOR(window_time), INTERVAL '4' SECOND) WHERE n > 1 GROUP BY n, window_start, window_end"""
    return sql(df.sparkSession, text, STRATEGY, tables={"readings": df})


@feature
def chained(rows: Rows) -> DataFrame:
    paused = timerheap.spark.process(
        rows(), "key", Paused(), "key string, paused long", "at", watermark=STRATEGY
    )
    paused = paused.where("key <> 'k0'").selectExpr("upper(key) AS key", "paused", "1 AS one")
    counted = timerheap.spark.process(paused, "one", Running(), "one int, at long, n long", "paused")
    counted = counted.selectExpr("n % 3 AS rest", "at", "n")
    result = timerheap.spark.process(counted, "rest", Running(), "rest long, at long, n long", "at")
    return result.where(F.col("at") < END)


@feature
def asof(rows: Rows) -> DataFrame:
    right = rows().where("text = 'c'").select("key", "at", F.col("at").alias("price"))
    left = rows().where("text <> 'c'")
    return timerheap.spark.join_asof(left, right, "key", "at", watermark=STRATEGY)


def net(rows: list[dict[str, Any]]) -> set[str]:
    """Return the rows that changes lead to, each known by its key; other results are left as they are."""
    if rows and CHANGE not in rows[0]:
        return {json.dumps(row) for row in rows}
    found: dict[tuple[Any, ...], str] = {}
    for row in rows:
        kind = row.pop(CHANGE)
        key = tuple(row[name] for name in ("key", "item", "place") if name in row)
        if kind == "delete":
            found.pop(key, None)
        elif kind != "update_preimage":
            found[key] = json.dumps(row)
    return set(found.values())


class Features(Child):
    """Queries over the same rows, whose Python workers are killed meanwhile."""

    def run(self) -> None:
        source, draw, names = Source(self.spark), Random(7), sys.argv[2:]
        kills = int(os.environ.get("KILLS", 1))
        self.starts: Counter[str] = Counter()
        rows: list[tuple[str, int, str]] = [
            (f"k{draw.randrange(5)}", 100 * n + draw.randrange(1000), draw.choice("abc")) for n in range(200)
        ]
        self.results = {name: FEATURES[name](lambda: in_real_time(source.rows())) for name in names}
        for name in names:
            self.start_feature(name)
        for at in range(0, len(rows), 10):
            source.send(at // 10 % 2, *rows[at : at + 10])
            time.sleep(0.1)
            for _ in range(self.kills_at(at, len(rows), kills)):
                self.break_epochs(names)
        for at in (0, 1):
            source.send(at, *((f"end {at}", END, text) for text in "abc"))
        batch = self.spark.createDataFrame(source.sent, SCHEMA)
        for name in names:
            result = FEATURES[name](lambda: batch)
            self.expect_rows(name, net(ended(result.select(F.to_json(F.struct("*"))).toPandas().iloc[:, 0])))
        self.spark.stop()

    def kills_at(self, at: int, rows: int, kills: int) -> int:
        """Return how often workers are killed after this row, of kills that are spread over the rows."""
        return sum(rows * (number + 1) // (kills + 1) // 10 * 10 == at for number in range(kills))

    def break_epochs(self, names: list[str]) -> None:
        """Kill all workers while each query is in an epoch behind one that it has ended."""
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(self.has_ended_an_epoch(name) for name in names):
            time.sleep(0.1)
        time.sleep(1)
        jvm: Any = self.spark.sparkContext._gateway
        # Between two epochs no task has a worker, and nothing breaks.
        while time.monotonic() < until and not any(self.queries[name].exception() for name in names):
            for worker in python_workers(jvm.proc.pid):
                kill(worker)
            time.sleep(1)

    def has_ended_an_epoch(self, name: str) -> bool:
        """Return whether a query has ended an epoch since it was started; start it if a worker has died."""
        self.revive(name)
        return bool(self.queries[name].recentProgress)

    def revive(self, name: str) -> str:
        """Start a query again if it has failed; return why."""
        error = self.queries[name].exception()
        if error is not None:
            self.start_feature(name)
        return "" if error is None else str(error)

    def sink(self, name: str) -> Path:
        return self.folder / f"{name}.sink"

    def start_feature(self, name: str) -> None:
        sink = str(self.sink(name))
        writer = self.writer(name, self.results[name].select(F.to_json(F.struct("*")).alias("row")), "noop")
        writer = writer.foreach(lambda row: append(Path(sink), [row.row]))
        self.queries[name] = timerheap.spark.start_real_time(writer, epoch=EPOCH)
        self.starts[name] += 1

    def expect_rows(self, name: str, wanted: set[str]) -> None:
        """Wait until a query has given these rows, and tell both; start it again where a worker has died."""
        file, found, last = self.sink(name), set[str](), ""
        until = time.monotonic() + 120
        while found != wanted and time.monotonic() < until:
            last = self.revive(name) or last
            found = net(ended(row for (row,) in lines(file)))
            time.sleep(0.1)
        told = {name: sorted(found), f"{name} wanted": sorted(wanted), f"{name} starts": self.starts[name]}
        self.tell(**told)
        if found != wanted:
            self.tell(**{f"{name} error": last[:3000]})
        self.queries[name].stop()
        if name == "chained":
            self.tell(watermarks=[self.watermark_of(name, operator) for operator in range(3)])

    def watermark_of(self, name: str, operator: int) -> str:
        """Return the watermark of an operator of a query after its last epoch."""
        checkpoint = self.folder / "prüfung 检查点" / name
        state = timerheap.spark.read_checkpoint(self.spark, checkpoint, operator=operator)
        return str(state.watermarks().agg(F.max("query_watermark")).collect()[0][0])


def ended(rows: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of which more would not change anything: those that are not at the end."""
    return [json.loads(row) for row in rows if "end " not in row and "1970-01-01T00:16" not in row]


if __name__ == "__main__":
    try:
        Features(Path(sys.argv[1])).run()
    except BaseException:
        print(traceback.format_exc(), flush=True)
        raise
