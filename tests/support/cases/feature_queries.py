"""A query for each feature that keeps state, and the rows that they all run over, in micro-batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import timerheap.spark
from timerheap import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import Corrections, EventTime, Rule
from timerheap.windows import EventTimeSessionWindows, ProcessWindowFunction

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
        ("side", pa.string()),
        ("op", pa.string()),
    ]
)
DELAY = 20  # seconds
CUT = 2  # micro-batches of the old query


def rows_of_changes(seed: int, batches: int = 4, size: int = 60) -> list[list[dict[str, Any]]]:
    """Return rows up to DELAY out of order and a few that are late; each fifth one takes one back."""
    rng = random.Random(seed)
    found: list[list[dict[str, Any]]] = []
    there: list[dict[str, Any]] = []
    for number in range(batches * size):
        if number % size == 0:
            found.append([])
        behind = rng.randrange(DELAY) if rng.random() < 0.97 else rng.randrange(4 * DELAY)
        row = {
            "k": rng.choice([*"abcdefgh", "", None]),
            "at": datetime.fromtimestamp(100 + number - behind, UTC),
            "n": rng.randrange(9),
            "side": rng.choice(["l", "r"]),
            "op": "insert",
        }
        if number % 5 == 4:
            row = there.pop(rng.randrange(len(there))) | {"op": "delete"}
        else:
            there.append(row)
        found[-1].append(row)
    return found


BATCHES = rows_of_changes(5)
RESULT = "what string, k string, at timestamp, n long, seen string"


class Everything(KeyedProcessFunction):
    """Has states of all kinds, one of them with a time to live, and timers with and without names."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.LONG()))
        self.book = runtime_context.get_map_state(MapStateDescriptor("book", Types.LONG(), Types.LONG()))
        brief = ValueStateDescriptor("brief", Types.LONG())
        ttl = StateTtlConfig.new_builder(Time.seconds(15))
        ttl.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)
        brief.enable_time_to_live(ttl.build())
        self.brief = runtime_context.get_state(brief)

    def process_element(self, value: Row, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.log.add(value.n)
        self.book[value.n] = self.count.value()
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 30_000)
        yield self._report("row", value.k, value.at)
        self.brief.update(value.n)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self._report("timer", ctx.get_current_key(), datetime.fromtimestamp(timestamp / 1000, UTC))
        self.log.clear()

    def _report(self, what: str, k: Any, at: datetime) -> tuple[Any, ...]:
        seen = f"{list(self.log)} {sorted(self.book.items())} {self.brief.value()}"
        return what, k, at, self.count.value(), seen


class ByClock(KeyedProcessFunction):
    """Has a timer of processing time with a name, and a state that expires by the clock: both far away."""

    def open(self, runtime_context: Any) -> None:
        seen = ValueStateDescriptor("seen", Types.LONG())
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(36_500)).build())
        self.seen = runtime_context.get_state(seen)

    def process_element(self, value: Row, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 10**12, name="much later")
        timers.register_event_time_timer(ctx.timestamp() + 30_000, name=f"after {value.side}")
        self.seen.update((self.seen.value() or 0) + 1)
        yield "row", value.k, value.at, self.seen.value(), ""

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        at = datetime.fromtimestamp(timestamp / 1000, UTC)
        yield "timer", ctx.get_current_key(), at, self.seen.value(), ctx.timer_name()


class ByName(KeyedProcessFunction):
    """Has timers with names, each of which is moved by the next row of its side."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 30_000, name=f"after {value.side}")
        return ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        at = datetime.fromtimestamp(timestamp / 1000, UTC)
        yield "timer", ctx.get_current_key(), at, None, ctx.timer_name()


class OfTwo(KeyedCoProcessFunction):
    """Joins the sums of both sides, and forgets them 25 s after a right row."""

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums", Types.STRING(), Types.LONG()))

    def process_element1(self, value: Row, ctx: Any) -> Any:
        self.sums[value.side] = (self.sums[value.side] or 0) + value.n
        yield "row", value.k, value.at, value.n, str(sorted(self.sums.items()))

    def process_element2(self, value: Row, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 25_000)
        yield from self.process_element1(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", ctx.get_current_key(), None, timestamp, str(sorted(self.sums.items()))
        self.sums.clear()


class Ruled(KeyedBroadcastProcessFunction):
    """Yields rows with the rule of their key, and how many of them there were."""

    rules = MapStateDescriptor("rules", Types.STRING(), Types.LONG())

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        rule = ctx.get_broadcast_state(self.rules).get(str(value.k))
        yield "row", value.k, value.at, self.count.value(), str(rule)

    def process_broadcast_element(self, value: Row, ctx: Any) -> Any:
        ctx.get_broadcast_state(self.rules).put(str(value.k), value.n)
        return ()


class Collected(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield (str(sorted(row.n for row in elements)),)


class Processor(StatefulProcessor):
    """Sums up, and yields the time of a timer 30 s after each row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "n long")
        self.seen = handle.getMapState("seen", "n long", "count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: (row.at, row.n)):
            total = (self.sum.get() or (0,))[0] + row.n
            self.sum.update((total,))
            count = (self.seen.getValue((row.n,)) or (0,))[0] + 1
            self.seen.updateValue((row.n,), (count,))
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 30_000)
            yield Row(what="row", k=key[0], at=row.at, n=total, seen=str(count))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(what="timer", k=key[0], at=None, n=expiredTimerInfo.getExpiryTimeInMs(), seen="")

    def close(self) -> None:
        pass


WATERMARK = f"{DELAY} seconds"
TIMED: dict[str, Any] = {"event_time": "at", "watermark": WATERMARK}
CORRECTED = {
    "watermark": "5 seconds",
    "late": Corrections("20 seconds", early=True),
}


def aggregated(cuts: Any, *key: str) -> DataFrame:
    result: DataFrame = cuts.groupBy(*key).agg(F.count("*").alias("rows"), F.sum("n"), F.min("side"))
    return result


def left(df: DataFrame) -> DataFrame:
    return df.where("side = 'l'")


def right(df: DataFrame) -> DataFrame:
    return df.where("side = 'r'")


def changes(df: DataFrame) -> DataFrame:
    return df.withColumnRenamed("op", "_change_type")


def windows(cut: str, *lengths: str, **options: Any) -> Callable[[DataFrame, int], DataFrame]:
    def run(df: DataFrame, groups: int) -> DataFrame:
        known = {"watermark": WATERMARK} | options
        cuts = getattr(timerheap.spark, cut)(df, "at", *lengths, **known, max_parallelism=groups)
        return aggregated(cuts, "k")

    return run


def in_sql(query: str, **options: Any) -> Callable[[DataFrame, int], DataFrame]:
    def run(df: DataFrame, groups: int) -> DataFrame:
        for name, rows in (("t", df), ("l", left(df)), ("r", right(df))):
            rows.createOrReplaceTempView(name)
        return timerheap.spark.sql(df.sparkSession, query, WATERMARK, max_parallelism=groups, **options)

    return run


Query = Callable[[DataFrame], DataFrame]
Feature = Callable[[DataFrame, int], DataFrame]

FEATURES: dict[str, Feature] = {
    "process": lambda df, groups: timerheap.spark.process(
        df, "k", Everything(), RESULT, **TIMED, max_parallelism=groups
    ),
    "process, on arrival": lambda df, groups: timerheap.spark.process(
        df, "k", Everything(), RESULT, **TIMED, order="arrival", max_parallelism=groups
    ),
    "process, few channels": lambda df, groups: timerheap.spark.process(
        df, "k", Everything(), RESULT, EventTime("at", channel="side"), watermark=WATERMARK,
        max_parallelism=groups,
    ),
    "process, many channels": lambda df, groups: timerheap.spark.process(
        df.withColumn("device", F.concat_ws(" ", F.lit("a device whose name is so long: "), "k", "n")),
        "k", Everything(), RESULT, EventTime("at", channel="device"), watermark=WATERMARK, order="arrival",
        max_parallelism=groups,
    ),
    "process_two": lambda df, groups: timerheap.spark.process_two(
        left(df), right(df), "k", OfTwo(), RESULT, **TIMED, max_parallelism=groups
    ),
    "process_broadcast": lambda df, groups: timerheap.spark.process_broadcast(
        left(df), right(df), "k", Ruled(), RESULT, **TIMED, max_parallelism=groups
    ),
    "drop_duplicates": lambda df, groups: timerheap.spark.drop_duplicates(
        df, ["k", "side"], within="30 seconds", **TIMED, max_parallelism=groups
    ),
    "drop_duplicates, the last": lambda df, groups: timerheap.spark.drop_duplicates(
        df, ["k", "n"], keep="last", within="30 seconds", **TIMED, max_parallelism=groups
    ),
    "window_operator": lambda df, groups: timerheap.spark.window_operator(
        df, "k", EventTimeSessionWindows.with_gap(9_000), Collected(), "ns string", **TIMED,
        max_parallelism=groups,
    ),
    "tumble": windows("tumble", "50 seconds"),
    "tumble, late rows": windows("tumble", "50 seconds", watermark="5 seconds", late="emit"),
    "hop": windows("hop", "80 seconds", "20 seconds", emit_every="30 seconds"),
    "cumulate": windows("cumulate", "80 seconds", "20 seconds"),
    "session": windows("session", "9 seconds"),
    "tumble, corrected": windows("tumble", "30 seconds", **CORRECTED),
    "hop, corrected": windows("hop", "80 seconds", "20 seconds", **CORRECTED),
    "session, corrected": windows("session", "9 seconds", **CORRECTED),
    "tumble, corrected every 20 s": windows("tumble", "50 seconds", **CORRECTED | {
        "late": Corrections("20 seconds"), "emit_every": "20 seconds"
    }),
    "tumble of all rows": lambda df, groups: aggregated(
        timerheap.spark.tumble(df, "at", "50 seconds", watermark=WATERMARK, max_parallelism=groups)
    ),
    "the first of each window": in_sql(
        "SELECT k, n, window_end FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
        "ORDER BY n DESC, at) AS i FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '50' SECOND))) "
        "WHERE i <= 3"
    ),
    "a join of windows": in_sql(
        "SELECT a.k, a.n, b.n AS m, a.window_end "
        "FROM (SELECT * FROM TABLE(TUMBLE(TABLE l, DESCRIPTOR(at), INTERVAL '50' SECOND))) AS a "
        "LEFT JOIN (SELECT * FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(at), INTERVAL '50' SECOND))) AS b "
        "ON a.k = b.k AND a.n = b.n AND a.window_start = b.window_start AND a.window_end = b.window_end"
    ),
    "join_asof": lambda df, groups: timerheap.spark.join_asof(
        left(df), right(df), "k", **TIMED, tolerance="1 minute", unmatched="emit", max_parallelism=groups
    ),
    "join_asof, corrected": lambda df, groups: timerheap.spark.join_asof(
        left(df), right(df), "k", event_time="at", **CORRECTED, max_parallelism=groups
    ),
    "as of, newest": in_sql("SELECT l.k, l.at, l.n, r.n AS m FROM l LEFT JOIN r "
                            "FOR SYSTEM_TIME AS OF l.at AS r ON l.k = r.k"),
    "as of, versions": in_sql("SELECT l.k, l.at, l.n, r.n AS m FROM l ASOF LEFT JOIN r "
                              "ON l.k = r.k AND l.at >= r.at AND l.n + r.n > 9"),
    "over": in_sql("SELECT k, at, n, SUM(n) OVER w AS s, COUNT(*) OVER w AS c, MAX(n) OVER w AS m, "
                   "LAG(n) OVER (PARTITION BY k ORDER BY at) AS b FROM t WINDOW w AS (PARTITION BY k "
                   "ORDER BY at RANGE BETWEEN INTERVAL '40' SECOND PRECEDING AND CURRENT ROW)"),
    "over all rows before": in_sql("SELECT k, at, n, SUM(n) OVER w AS s, ROW_NUMBER() OVER w AS c, "
                                   "LEAD(n) OVER w AS m FROM t WINDOW w AS (PARTITION BY k ORDER BY at)",
                                   lead_within="30 seconds"),
    "first row": in_sql("SELECT k, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k, n ORDER BY at) AS i "
                        "FROM t) WHERE i = 1"),
    "a pattern": in_sql("SELECT k, a, b, c FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY at "
                        "MEASURES FIRST(A.at) AS a, LAST(B.at) AS b, COUNT(B.n) AS c "
                        "AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C) WITHIN INTERVAL '60' SECOND "
                        "DEFINE A AS A.side = 'l', B AS B.n > PREV(B.n, 1) - 6, C AS C.side = 'r')"),
    "transform_with_state": lambda df, groups: timerheap.spark.transform_with_state(
        df.withWatermark("at", "4 minutes"), "k", Processor(), RESULT, "Append", "EventTime",
        max_parallelism=groups,
    ),
    "aggregate_changes": lambda df, groups: timerheap.spark.aggregate_changes(
        changes(df), "k", F.count("*").alias("rows"), F.sum("n").alias("sum"), F.max("at").alias("newest"),
        F.count_distinct("n").alias("ns"), max_parallelism=groups,
    ),
    "top_changes": lambda df, groups: timerheap.spark.top_changes(
        changes(df), "k", 3, F.col("n").desc(), number="place", max_parallelism=groups
    ),
    "top_changes, rows that only come": lambda df, groups: timerheap.spark.top_changes(
        left(df), "k", 3, F.col("n").desc(), rank="rank", number="place", max_parallelism=groups
    ),
    "join_changes": lambda df, groups: timerheap.spark.join_changes(
        changes(left(df)).drop("side"), changes(right(df)).drop("side"), ["k", "n"], how="full",
        max_parallelism=groups,
    ),
    "changes_of": lambda df, groups: timerheap.spark.changes_of(
        df, ["k", "side"], "at", deleted=F.col("n") == 3, max_parallelism=groups
    ),
}  # fmt: skip
"""Those that the fixtures of releases have."""

ALL: dict[str, Feature] = FEATURES | {
    "process_all": lambda df, groups: timerheap.spark.process_all(
        df, "k", {"one": Rule(Everything(), RESULT), "two": Rule(ByName(), RESULT)}, **TIMED,
        max_parallelism=groups,
    ),
    "tumble, corrected every 130 s": windows("tumble", "500 seconds", **CORRECTED | {
        "late": Corrections("20 seconds"), "emit_every": "130 seconds"
    }),
}  # fmt: skip


def by_clock(df: DataFrame, groups: int) -> DataFrame:
    """Another query, which Spark ends only if it is started by `timerheap.spark.run_available_now`."""
    return timerheap.spark.process(
        df, "k", ByClock(), RESULT, **TIMED, processing_time=True, max_parallelism=groups
    )
