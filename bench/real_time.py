"""From the moment a timer is due to its result, in real-time mode, beside micro-batches and Spark's own path.

Run as ``python bench/real_time.py [--rates N ...] [--seconds N] [--epoch SECONDS] [--keys N] [--linger MS]
[--no-wait N ...] [--json FILE]``.

Two sources have rows at set times, which are their event times. Each row sets a timer 100 ms ahead, whose
result has the key and how many rows it has had; before that, `--keys` other keys have set timers for the next
hour. A timer is due at the first row that is later than it. Its result is there when the JVM has the row that
Python returns. A result is "inside" an epoch if it was not due during a pause between two epochs, nor in the
1.5 s after it. Rows of the first seconds do not count.

A pause is the longest time without a result around the end of an epoch.

"the JVM alone" sends rows through the same shuffle, without Python: from sending to the sink. "Scala" is the
same function for Spark's own operator, transformWithState, in real-time mode. With "by the clock", timers are
of processing time, 100 ms behind the time at which the function has the row, and due at their own time.
"clock 20" is a query without rows whose watermark follows the clock every 20 ms. With "no wait", rows do not
wait for others (`linger`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from usage import cpu

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy

SOURCES = 2
AHEAD = 100  # ms
HOUR = 3_600_000
BY_CLOCK = ("real time, by the clock", "Scala, by the clock")
SCALA = Path(__file__).parent / "scala"
WARM_UP = 6.0  # seconds of rows that do not count
AFTER_PAUSE = 1.5
MARKS = (50, 90, 99, 100)
NANOS = "reflect('java.lang.System', 'nanoTime')"  # the clock of the JVM, in SQL


class Timers(KeyedProcessFunction):
    """A timer for each row, of event time or of processing time."""

    def __init__(self, by_clock: bool) -> None:
        self.by_clock = by_clock

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        service, ahead = ctx.timer_service(), AHEAD if value.key >= 0 else HOUR
        if self.by_clock:
            service.register_processing_time_timer(service.current_processing_time() + ahead)
        else:
            service.register_event_time_timer(value.at + ahead)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


def timers(rows: DataFrame, watermark: WatermarkStrategy | None, real_time: bool) -> DataFrame:
    """Return when the timers of rows fire; the keys of rows before a run are negative.

    watermark: None for timers of processing time
    """
    event_time = {} if watermark is None else {"event_time": "at", "watermark": watermark}
    return timerheap.spark.process(
        timerheap.spark.in_real_time(rows) if real_time else rows,
        key="key",
        function=Timers(by_clock=watermark is None),
        output_schema="key long, at long, rows long",
        processing_time=watermark is None,
        **event_time,
    )


def offset_of_nanos(spark: SparkSession) -> float:
    """Return what makes epoch ms of the ms of `NANOS`."""
    system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    # The JVM is asked after the clock, so the largest is nearest.
    return max(time.time() * 1000 - system.nanoTime() / 1e6 for _ in range(50))


class Stream:
    """A source whose rows are due at times that are known before: first those of many keys, then a few."""

    def __init__(self, spark: SparkSession, name: str, keys: int) -> None:
        self._schedule = spark.sparkContext._jvm.Schedule.make(name, SOURCES, keys)  # type: ignore[union-attr]
        self.rows = spark.readStream.format("ScheduledRows").option("name", name).load()
        self._start, self._between, self._count = 0, 1.0, 0

    def run(self, rate: float, seconds: float) -> float:
        """Have `rate` rows a second in all, both sources at the same times; return when they begin."""
        self._between = 1000 * SOURCES / rate if rate else 1.0
        self._count = int(seconds * rate / SOURCES)
        self._start = self._schedule.run(self._between, self._count)
        time.sleep(max(self._start / 1000 - time.time(), 0))
        return self._start / 1000

    def due(self, timestamps: np.ndarray) -> np.ndarray:
        """Return when the sources have rows later than each timestamp, epoch ms; NaN if not in the run."""
        number = np.ceil((timestamps - self._start + 1) / self._between)
        inside = (number >= 0) & (number < self._count)
        return np.where(inside, self._start + np.floor(number * self._between), np.nan)


def percentiles(latencies: np.ndarray) -> list[float]:
    return [round(float(np.percentile(latencies, mark)), 1) for mark in MARKS] if len(latencies) else []


def compile_scala(folder: Path) -> None:
    """Compile the source and the operator in Scala with the compiler that PySpark has among its jars."""
    folder.mkdir()
    java, jars = timerheap.spark.ensure_java() / "bin/java", Path(pyspark.__file__).parent / "jars/*"
    subprocess.run(
        [java, "-cp", jars, "scala.tools.nsc.Main", "-usejavacp", "-d", folder, *SCALA.glob("*.scala")],
        check=True,
    )


class Bench:
    """One session, in which each case is a query of its own."""

    def __init__(self, spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        self.jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        self.offset = offset_of_nanos(spark)

    def run(self, name: str, rate: float, way: str, seconds: float) -> dict[str, Any]:
        """Run a query, and return its figures."""
        table = "results_" + "".join(filter(str.isalnum, name))
        stream = Stream(self.spark, table, 0 if way == "the JVM alone" else self.options.keys)
        if way == "the JVM alone":
            result = stream.rows.repartition(SOURCES, "key").selectExpr("key", "at", "at AS rows")
        elif way.startswith("Scala"):
            rows = stream.rows.withColumn("event", F.timestamp_millis("at"))
            operator = self.spark.sparkContext._jvm.TimersInScala
            result = DataFrame(operator.result(rows._jdf, way in BY_CLOCK), self.spark)
        else:
            watermark = None if way in BY_CLOCK else WatermarkStrategy.for_monotonous_timestamps()
            if way.startswith("clock"):
                watermark = watermark.with_wall_clock(after="1 second", lag="1 second")
            result = timers(stream.rows, watermark, real_time=way != "micro-batches")
        result = result.where("key >= 0").withColumn("there", F.expr(NANOS))
        checkpoint = self.folder / table
        writer = result.writeStream.format("memory").queryName(table)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if way == "micro-batches":
            query = writer.outputMode("append").start()
        elif way in ("real time", "real time, by the clock", "no wait") or way.startswith("clock"):
            tick = int(way.partition(" ")[2]) if way.startswith("clock") else 20
            query = timerheap.spark.start_real_time(
                writer.outputMode("update"),
                epoch=self.options.epoch * 1000,
                tick=tick,
                linger=0 if way == "no wait" else self.options.linger,
            )
        else:
            query = writer.outputMode("update").trigger(realTime=f"{self.options.epoch} seconds").start()
        until = time.time() + 600
        while not self.spark.table(table).limit(1).count():  # behind the rows of all keys
            if query.exception() or time.time() > until:
                raise TimeoutError(f"{name}: no result: {query.exception()}")
            time.sleep(1)
        time.sleep(self.options.epoch)  # else the first pause, which saves all keys, is in the run
        began = stream.run(rate, seconds)
        used = cpu(self.jvm)
        time.sleep(seconds)
        used, lasted = cpu(self.jvm).since(used), time.time() - began
        time.sleep(2)
        failure = query.exception()
        found = self.spark.table(table).select("at", "there").toPandas()
        query.stop()
        if failure:
            raise failure
        there = found["there"].astype("int64").to_numpy() / 1e6 + self.offset
        at = found["at"].to_numpy()
        due = at if way in BY_CLOCK else stream.due(at - 1 if way == "the JVM alone" else at)
        counts = (due > (began + min(WARM_UP, seconds / 3)) * 1000) & (due < (began + seconds) * 1000)
        latencies = (there - due)[counts]
        commits = sorted(file.stat().st_mtime for file in (checkpoint / "commits").glob("[0-9]*"))
        inside = np.ones(len(latencies), bool)
        for end in commits:
            inside &= (due[counts] < (end - 1) * 1000) | (due[counts] > (end + AFTER_PAUSE) * 1000)
        order = np.sort(there) / 1000
        around = [
            (order[1:] > end - 2) & (order[:-1] < end + 2) for end in commits if began < end < began + seconds
        ]
        pauses = [float(np.diff(order)[near].max(initial=0)) for near in around]
        last = float(there.max()) - (began + seconds) * 1000 if len(there) else None
        return {
            "case": name,
            "rows a second": rate,
            "inside": percentiles(latencies[inside]) if way != "micro-batches" else [],
            "all": percentiles(latencies),
            "results": len(latencies),
            "pauses, s": [round(pause, 2) for pause in pauses]
            if rate >= 100 and way != "micro-batches"
            else [],
            "last result after the last row, ms": last and round(last),
            "load": os.getloadavg()[0],
            "cores, JVM": round(used.jvm / lasted, 2),
            "cores, Python": round(used.python / lasted, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=float, nargs="*", default=[1_000, 5_000, 10_000, 25_000])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--epoch", type=int, default=20, help="seconds")
    parser.add_argument("--lone", action=argparse.BooleanOptionalAction, default=True, help="and no rows")
    parser.add_argument("--keys", type=int, default=100_000, help="that have timers all the time")
    parser.add_argument("--beside", nargs="*", default=["micro-batches", "Scala", *BY_CLOCK, "the JVM alone"])
    parser.add_argument("--clock", type=int, nargs="*", default=[20, 100], help="ticks, in ms")
    parser.add_argument("--linger", type=int, default=30, help="how long rows wait for others, in ms")
    parser.add_argument("--no-wait", type=float, nargs="*", default=[1_000, 10_000], help="rates without it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [
        (f"real time, {rate:,.0f}{name}", rate, way, options.seconds)
        for rate in options.rates
        for way, name in (("real time", ""), ("no wait", ", no wait"))
        if way == "real time" or rate in options.no_wait
    ]
    if options.lone:
        cases += [("a lone row in 2 s", 1.0, "real time", options.seconds), ("idle", 0.0, "real time", 20.0)]
    cases += [(f"idle, clock {tick}", 0.0, f"clock {tick}", 20.0) for tick in options.clock]
    cases += [(way, 1_000.0, way, options.seconds) for way in options.beside]
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = timerheap.spark.settings(real_time=True) | {
            "spark.master": "local[6]",
            "spark.sql.shuffle.partitions": SOURCES,
            "spark.sql.leafNodeDefaultParallelism": 1,  # for a look at the results meanwhile
            "spark.driver.extraClassPath": Path(scratch) / "classes",
            "spark.sql.streaming.stateStore.checkpointFormatVersion": 2,  # for Spark's operator
        }
        compile_scala(Path(scratch) / "classes")
        with spark_session(Path(scratch) / "log", settings) as spark:
            bench = Bench(spark, Path(scratch), options)
            for case in cases:
                figures.append(bench.run(*case))
                print(*(f"{name}: {value}" for name, value in figures[-1].items()), sep="; ", flush=True)
    write_json(options, {"epoch, s": options.epoch, "marks": MARKS, "cases": figures})


if __name__ == "__main__":
    main()
