"""From the moment a timer is due to its result, in real-time mode, beside micro-batches and Spark's own path.

Run as ``python bench/real_time.py [--rates N ...] [--seconds N] [--epoch SECONDS] [--keys N] [--json FILE]``.

Two sources send rows, each with the time when it was sent as its event time. Each row sets a timer 100 ms
ahead, whose result has the key and how many rows it has had; before that, `--keys` other keys have set timers
for the next hour. A timer is due when both sources have sent a row that is later than it. Its result is there
when the JVM has the row that Python returns. A result is "inside" an epoch if it was not due during a pause
between two epochs, nor in the 1.5 s after it. Rows of the first seconds do not count.

"the JVM alone" sends rows through the same shuffle, without Python: from sending to the sink.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
WARM_UP = 6.0  # seconds of rows that do not count
AFTER_PAUSE = 1.5
MARKS = (50, 90, 99, 100)


class Timers(KeyedProcessFunction):
    """A timer for each row."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value.at + (AHEAD if value.key >= 0 else HOUR))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


class Stream:
    """A stream in the JVM, and the thread that sends its rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        streams = self._jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        text = self._jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream = streams.apply(spark._jsparkSession, SOURCES, text)
        texts = DataFrame(self._stream.toDF(), spark).select(F.explode(F.split("value", ";")).alias("row"))
        columns = F.split("row", ",")
        self.rows = texts.select(columns[0].cast("long").alias("key"), columns[1].cast("long").alias("at"))
        self.sent: list[list[tuple[int, float]]] = [[] for _ in range(SOURCES)]  # event times, and when

    def _send(self, source: int, keys: list[int]) -> None:
        now = time.time() * 1000
        text = ";".join(f"{key},{int(now)}" for key in keys)
        data = self._jvm.java.util.Collections.singletonList(text)
        self._stream.addData(source, self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(data))
        self.sent[source].append((int(now), now))

    def fill(self, keys: int) -> None:
        """Send a row of each of so many other keys."""
        for start in range(1, keys + 1, 1000):
            self._send(start // 1000 % SOURCES, [-key for key in range(start, min(start + 1000, keys + 1))])

    def run(self, rate: float, seconds: float) -> None:
        """Send `rate` rows a second in all, those of both sources at almost the same times."""
        began, sent = time.time(), 0
        while (now := time.time()) < began + seconds:
            due = int((now - began) * rate / SOURCES)
            if due > sent:
                for source in range(SOURCES):
                    self._send(source, [(n * SOURCES + source) % 10_000 for n in range(sent, due)])
                sent = due
            time.sleep(0.001)

    def due(self, timestamps: np.ndarray) -> np.ndarray:
        """Return when both sources had sent a row later than each timestamp, epoch ms; NaN if not yet."""
        latest = np.full(len(timestamps), -np.inf)
        for sent in self.sent:
            times = [at for at, _ in sent]
            places = [bisect_left(times, int(timestamp) + 1) for timestamp in timestamps]
            at = [sent[place][1] if place < len(sent) else np.nan for place in places]
            latest = np.fmax(latest, at) if not np.isnan(at).any() else np.maximum(latest, at)
        return latest


def percentiles(latencies: np.ndarray) -> list[float]:
    return [round(float(np.percentile(latencies, mark)), 1) for mark in MARKS] if len(latencies) else []


class Bench:
    """One session, in which each case is a query of its own."""

    def __init__(self, spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        self.jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
        self.offset = min(time.time() * 1000 - system.nanoTime() / 1e6 for _ in range(50))

    def run(self, name: str, rate: float, way: str, seconds: float) -> dict[str, Any]:
        """Run a query, and return its figures."""
        stream = Stream(self.spark)
        if way == "the JVM alone":
            result = stream.rows.repartition(SOURCES, "key").selectExpr("key", "at", "at AS rows")
        else:
            result = timerheap.spark.process(
                stream.rows,
                key="key",
                function=Timers(),
                output_schema="key long, at long, rows long",
                event_time="at",
                watermark=WatermarkStrategy.for_monotonous_timestamps(),
                real_time=way == "real time",
            )
        result = result.where("key >= 0").withColumn(
            "there", F.expr("reflect('java.lang.System', 'nanoTime')")
        )
        table = "results_" + "".join(filter(str.isalnum, name))
        checkpoint = self.folder / table
        writer = result.writeStream.format("memory").queryName(table)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if way == "micro-batches":
            query = writer.outputMode("append").start()
        elif way == "real time":
            query = timerheap.spark.start_real_time(
                writer.outputMode("update"), epoch=self.options.epoch * 1000
            )
        else:
            query = writer.outputMode("update").trigger(realTime=f"{self.options.epoch} seconds").start()
        time.sleep(5)
        if way != "the JVM alone":
            stream.fill(self.options.keys)
            until = time.time() + 300
            while not self.spark.table(table).limit(1).count():  # behind them
                if query.exception() or time.time() > until:
                    raise TimeoutError(f"{name}: no result: {query.exception()}")
                stream.run(20.0, 1.0)
        used, began = cpu(self.jvm), time.time()
        stream.run(rate, seconds)
        used, lasted = cpu(self.jvm).since(used), time.time() - began
        time.sleep(2)
        failure = query.exception()
        found = self.spark.table(table).select("at", "there").toPandas()
        query.stop()
        if failure:
            raise failure
        there = found["there"].astype("int64").to_numpy() / 1e6 + self.offset
        at = found["at"].to_numpy()
        due = at.astype(float) if way == "the JVM alone" else stream.due(at)
        counts = (due > (began + min(WARM_UP, seconds / 3)) * 1000) & (due < (began + seconds) * 1000)
        latencies = (there - due)[counts]
        commits = [file.stat().st_mtime for file in (checkpoint / "commits").glob("[0-9]*")]
        inside = np.ones(len(latencies), bool)
        for end in commits:
            inside &= (due[counts] < (end - 1) * 1000) | (due[counts] > (end + AFTER_PAUSE) * 1000)
        last = float(there.max()) - (began + seconds) * 1000 if len(there) else None
        return {
            "case": name,
            "rows a second": rate,
            "inside": percentiles(latencies[inside]) if way != "micro-batches" else [],
            "all": percentiles(latencies),
            "results": len(latencies),
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
    parser.add_argument("--keys", type=int, default=100_000, help="that have timers all the time")
    parser.add_argument("--beside", nargs="*", default=["micro-batches", "the JVM alone"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [(f"real time, {rate:,.0f}", rate, "real time", options.seconds) for rate in options.rates]
    cases += [("a lone row in 2 s", 1.0, "real time", options.seconds), ("idle", 0.0, "real time", 20.0)]
    cases += [(way, 1_000.0, way, options.seconds) for way in options.beside]
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = timerheap.spark.settings(real_time=True) | {
            "spark.master": "local[4]",
            "spark.sql.shuffle.partitions": SOURCES,
        }
        with spark_session(Path(scratch) / "log", settings) as spark:
            bench = Bench(spark, Path(scratch), options)
            for case in cases:
                figures.append(bench.run(*case))
                print(*(f"{name}: {value}" for name, value in figures[-1].items()), sep="; ", flush=True)
    write_json(options.json, {"epoch, s": options.epoch, "marks": MARKS, "cases": figures})


if __name__ == "__main__":
    main()
