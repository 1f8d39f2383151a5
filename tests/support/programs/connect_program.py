"""Runs functions on a session of Spark Connect, whose server it starts, and prints their results as JSON.

A program of its own: a process whose session is of Spark Connect can have no other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
from local_spark import FILES, ROCKSDB, forget_defaults, home_without_archives, use_plain_files
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import Rule, ensure_java
from timerheap.windows import AggregateFunction, TumblingEventTimeWindows

WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(1000)
OUTPUT = "k string, at long, n long"
OPTIONS: dict[str, Any] = {"event_time": "at", "watermark": WATERMARK}
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
COUNTS = """
    SELECT k, window_start, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE rows, DESCRIPTOR(at), INTERVAL '2' SECOND))
    GROUP BY k, window_start, window_end
"""
FIRST = """
    SELECT k, n, window_start FROM (
      SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, k) AS place
      FROM (
        SELECT k, window_start, window_end, COUNT(*) AS n
        FROM TABLE(TUMBLE(TABLE rows, DESCRIPTOR(at), INTERVAL '4' SECOND))
        GROUP BY k, window_start, window_end
      )
    ) WHERE place <= 1
"""
AGAIN = OutputTag("again", Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()]))


class Rows(KeyedProcessFunction):
    """Counts the rows of each key, with a timer a second after each."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)
        yield ctx.get_current_key(), ctx.timestamp(), self.n.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, -1


class Columns(BatchProcessFunction):
    """Has a timer a second after each row."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 1000)

    def on_timers(self, due: Any, ctx: Any) -> Iterable[Any]:
        times = pa.array(due.timestamps)
        yield pa.record_batch([ctx.keys(due.ids).column(0), times, times], names=["k", "at", "n"])


class Sides(KeyedCoProcessFunction):
    """Yields the rows of both sides."""

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), value.at, 1

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), value.at, 2


class Alarms(KeyedProcessFunction):
    """Has a timer of processing time for each row, which is due immediately."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), 0, -1


class Repeated(KeyedProcessFunction):
    """Sends the rows of a key to a side output, but for the first."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        key = ctx.get_current_key()
        yield (key, ctx.timestamp(), n) if n == 1 else (AGAIN, (key, n))


class Ruled(KeyedBroadcastProcessFunction):
    """Yields each row with the number of rules so far."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), ctx.timestamp(), len(list(ctx.get_broadcast_state(RULES).keys()))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, 1)


async def doubled(row: Row) -> Row:
    return Row(k=row.k, n=2 * row.at)


class Elements(AggregateFunction):
    """Counts the elements of a window."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Count(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        self.n.update(((self.n.get() or (0,))[0] + len(list(rows)),))
        yield Row(k=key[0], at=0, n=self.n.get()[0])

    def close(self) -> None:
        pass


class Frames(Count):
    """Counts the rows of each key, in pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        self.n.update(((self.n.get() or (0,))[0] + sum(map(len, rows)),))
        yield pd.DataFrame({"k": [key[0]], "at": [0], "n": [self.n.get()[0]]})


SEVERAL = {"all rows": Rule(Rows(), OUTPUT), "columns": Rule(Columns(), OUTPUT)}


def start(work: Path) -> SparkSession:
    ensure_java()
    os.environ["SPARK_HOME"] = str(home_without_archives(work))
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session: SparkSession = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 1)  # quicker
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", False)  # few rows; see local_spark.py
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )
    server: Any = SimpleNamespace(sparkContext=SparkContext._active_spark_context)
    use_plain_files(server)
    forget_defaults(server)
    return session


def cases(df: DataFrame) -> dict[str, Callable[[], DataFrame]]:
    """Return what makes a result of the rows, batch or stream, by name."""
    timed = df.withColumn("at", F.timestamp_millis("at"))

    def grouped(windows: Any) -> DataFrame:
        result = windows.groupBy("k").agg(F.count("*").alias("n"), F.max("at").alias("last"))
        return result.select("k", F.unix_millis("window_start"), "n")

    def of_sql(text: str) -> DataFrame:
        timed.createOrReplaceTempView("rows")
        return timerheap.spark.sql(df.sparkSession, text, WATERMARK).select(
            "k", F.unix_millis("window_start"), "n"
        )

    def of_operator() -> DataFrame:
        windows = TumblingEventTimeWindows.of(2000)
        made = {"accumulator_type": Types.LONG(), **OPTIONS}
        result = timerheap.spark.window_operator(df, "k", windows, Elements(), "n long", **made)
        return result.select("k", F.unix_millis("window_start"), "n")

    right = timerheap.spark.RightInput(df, event_time="at", watermark=WATERMARK)
    return {
        "rows": lambda: timerheap.spark.process(df, "k", Rows(), OUTPUT, **OPTIONS),
        "chain": lambda: chained(timerheap.spark.process(df, "k", Rows(), OUTPUT, **OPTIONS)),
        "columns": lambda: timerheap.spark.process(
            df.groupBy("k"), function=Columns(), output_schema=OUTPUT, **OPTIONS
        ),
        "two inputs": lambda: timerheap.spark.process_two(df, right, "k", Sides(), OUTPUT, **OPTIONS),
        "rules": lambda: timerheap.spark.process_broadcast(
            df, df.where("k = 'a'"), "k", Ruled(), OUTPUT, **OPTIONS
        ),
        "several rules": lambda: timerheap.spark.rule_results(
            timerheap.spark.process_all(df, "k", SEVERAL, **OPTIONS), "all rows"
        ),
        "calls": lambda: timerheap.spark.async_map(df.where("at < 99000"), doubled, "k string, n long"),
        "processor": lambda: timerheap.spark.transform_with_state(df, "k", Count(), OUTPUT, "Append", "None"),
        "processor in pandas": lambda: timerheap.spark.transform_with_state_in_pandas(
            df, "k", Frames(), OUTPUT, "Append", "None"
        ),
        "results": lambda: timerheap.spark.process(df, "k", Repeated(), OUTPUT, **OPTIONS),
        "side output": lambda: timerheap.spark.side_output(
            timerheap.spark.process(df, "k", Repeated(), OUTPUT, **OPTIONS).where("n > 1").select("k"), AGAIN
        ),
        "window operator": of_operator,
        "tumble": lambda: grouped(timerheap.spark.tumble(timed, "at", size=2000, watermark=WATERMARK)),
        "hop": lambda: grouped(timerheap.spark.hop(timed, "at", slide=2000, size=4000, watermark=WATERMARK)),
        "cumulate": lambda: grouped(
            timerheap.spark.cumulate(timed, "at", step=2000, max_size=4000, watermark=WATERMARK)
        ),
        "session": lambda: grouped(timerheap.spark.session(timed, "at", 2000, watermark=WATERMARK)),
        "sql": lambda: of_sql(COUNTS),
        "ranks": lambda: of_sql(FIRST),
        "changes": lambda: timerheap.spark.aggregate_changes(
            changes_of_rows(df), "k", F.count("*").alias("n"), F.max("at").alias("last")
        ),
    }


def changes_of_rows(df: DataFrame) -> DataFrame:
    return timerheap.spark.changes_of(df.where("at < 9000"), ["k", "at"], "at")


def chained(results: DataFrame) -> DataFrame:
    """Count results, whose watermark the windows follow, also in a union."""
    both = results.where("n < 0").union(results.where("n > 0").select("k", "at", "n"))
    counts = timerheap.spark.tumble(both, "at", 2_000).groupBy("k").count()
    return counts.select("k", F.unix_millis("window_start"), "count")


def run(spark: SparkSession, work: Path) -> dict[str, Any]:
    df = spark.createDataFrame([("a", 0), ("b", 5), ("a", 3000)], "k string, at long")
    spark.createDataFrame([*df.collect(), ("b", 99_000)], df.schema).write.parquet(f"{work}/input")
    stream = spark.readStream.schema(df.schema).parquet(f"{work}/input")
    made = {name: make() for name, make in cases(df).items()}
    made["groups of results"] = cases(df)["rows"]().groupBy("k").count()
    batch = apart(side_by_side(made))
    # One query, since each that starts costs more than its rows.
    results = side_by_side({name: make() for name, make in cases(stream).items()})
    writer = results.writeStream.option("checkpointLocation", f"{work}/all/checkpoint")
    writer.trigger(availableNow=True).start(f"{work}/all/output", format="parquet").awaitTermination()
    streams = apart(spark.read.parquet(f"{work}/all/output"))
    alarms = timerheap.spark.process(stream, "k", Alarms(), OUTPUT, processing_time=True)
    writer = alarms.writeStream.option("checkpointLocation", f"{work}/alarms/a checkpoint").format("parquet")
    for _ in range(2):
        timerheap.spark.run_available_now(writer, f"{work}/alarms/output")
    streams["alarms"] = in_order(spark.read.parquet(f"{work}/alarms/output"))
    rows, others = (
        timerheap.spark.process(stream, "k", Rows(), OUTPUT, name=name, **OPTIONS)
        for name in ("rows", "others")
    )
    metrics = timerheap.spark.PrometheusMetrics()
    spark.streams.addListener(metrics)
    writer = rows.union(rows).union(others).writeStream.option("checkpointLocation", f"{work}/noop")
    query = writer.format("noop").start()
    query.processAllAvailable()
    seen, other = (timerheap.spark.progress(query, name) for name in ("rows", "others"))
    assert seen is not None
    assert other is not None
    refused = [
        refusal(lambda: timerheap.spark.read_checkpoint(spark, f"{work}/all/checkpoint")),
        refusal(
            lambda: timerheap.spark.transform_with_state(
                df, "k", Count(), OUTPUT, "Append", "None", df.groupBy("k")
            )
        ),
    ]
    try:
        changes = changes_of_rows(df).withColumn("at", F.when(F.rand() < 2, F.col("at")))
        timerheap.spark.aggregate_changes(changes, "k")
    except ValueError as e:
        refused.append(str(e))
    progress = {"watermark": seen.watermark, "fired_timers": seen.fired_timers, "keys": told(metrics)}
    progress["others"] = other.fired_timers
    query.stop()
    return {"batch": batch, "streams": streams, "refused": refused, "progress": progress}


def side_by_side(results: dict[str, DataFrame]) -> DataFrame:
    """Return all results in one, with their names and their rows as text."""
    parts = []
    for name, df in results.items():
        numbered = df.toDF(*map(str, range(len(df.columns))))
        parts.append(numbered.select(F.lit(name).alias("name"), F.to_json(F.struct("*")).alias("row")))
    return reduce(DataFrame.union, parts)


def apart(results: DataFrame) -> dict[str, list[list[Any]]]:
    """Return the rows of each result, in order."""
    found: dict[str, list[list[Any]]] = {}
    for name, row in results.collect():
        found.setdefault(name, []).append(list(json.loads(row).values()))
    return {name: sorted(rows) for name, rows in found.items()}


def told(metrics: timerheap.spark.PrometheusMetrics) -> float:
    """Return the number of keys of which the listener has heard; it hears of them a little later."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        samples = [sample for family in metrics.collect() for sample in family.samples]
        if keys := [sample.value for sample in samples if sample.name == "timerheap_keys"]:
            return keys[0]
        time.sleep(0.1)
    return -1


def in_order(result: DataFrame) -> list[list[Any]]:
    return sorted(map(list, result.collect()))


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except NotImplementedError as e:
        return str(e)
    return "accepted"


if __name__ == "__main__":
    work = Path(sys.argv[1])
    (work / "found.json").write_text(json.dumps(run(start(work), work)))
    os._exit(0)  # the server is a part of this process, and would be waited for
