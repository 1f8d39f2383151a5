"""How long rows wait while very many timers are due, in real-time mode; and how many fire in a second.

Run as ``python bench/many_timers.py [--timers N] [--within SECONDS] [--pending N] [--json FILE]``. Each of so
many keys has a timer in one and the same second, or `--within` so many; and `--pending` others have one in an
hour. Rows of other keys, some hundred a second, are answered as soon as they come, before it, meanwhile and
after it: how long they wait for that is what counts, and how late the timers are.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from figures import write_json
from flights import spark_session
from pyspark.sql import functions as F
from real_time import HOUR, NANOS, SOURCES, Stream, compile_scala, offset_of_nanos, percentiles
from usage import cpu

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, WatermarkStrategy

RESULT = "key long, at long"
AHEAD = 15.0  # seconds from the first row to the timers
LASTS = 30.0  # seconds in which there are rows
EPOCH = 20  # seconds


class Times(NamedTuple):
    """When the timers are due.

    last: when the last one is, epoch ms
    timers: how many they are; keys behind these have one an hour later
    span: ms from the first to the last
    """

    last: int
    timers: int
    span: int

    def of(self, keys: Any) -> Any:
        """Return the time of the timer of a key, which is -1, -2 and so on, or those of an array of keys."""
        return self.last - keys % self.span + HOUR * (-keys > self.timers)


class Rows(KeyedProcessFunction):
    """Each timer of its key has a result, and so has each row of another key."""

    def __init__(self, times: Times) -> None:
        self.times = times

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.key < 0:
            ctx.timer_service().register_event_time_timer(self.times.of(value.key))
        else:
            yield value.key, value.at

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


class Columns(BatchProcessFunction):
    """The same in the vectorized API."""

    def __init__(self, times: Times) -> None:
        self.times = times

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = batch.column("key").to_numpy()
        waits = keys < 0
        if waits.any():
            ctx.timer_service().register_event_time_timers(ctx.ids[waits], self.times.of(keys[waits]))
        yield batch.filter(pa.array(~waits))

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("key")
        yield pa.record_batch([keys, pa.array(due.timestamps)], names=["key", "at"])


WAYS = {"rows": Rows, "columns": Columns}


def run(spark: Any, folder: Path, function: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Run a query, and return its figures."""
    jvm, offset = spark.sparkContext._gateway.proc.pid, offset_of_nanos(spark)
    name = function.__name__.lower()
    at = round((time.time() + options.load + AHEAD) * 1000)
    stream = Stream(spark, name, options.timers + options.pending)
    result = timerheap.spark.process(
        timerheap.spark.in_real_time(stream.rows),
        "key",
        function(Times(at, options.timers, round(options.within * 1000))),
        RESULT,
        "at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        order="arrival",
    )
    result = result.withColumn("there", F.expr(NANOS))
    writer = result.writeStream.format("memory").queryName(name).outputMode("update")
    writer = writer.option("checkpointLocation", str(folder / name))
    query = timerheap.spark.start_real_time(writer, epoch=EPOCH * 1000)
    while not spark.table(name).limit(1).count():
        if query.exception() or time.time() * 1000 > at:
            raise TimeoutError(f"{name}: the timers are due before all are registered: {query.exception()}")
        time.sleep(1)
    time.sleep(max(0.0, at / 1000 - AHEAD - time.time()))
    began = stream.run(options.rate, LASTS)
    used = cpu(jvm)
    time.sleep(LASTS + 5)
    used = cpu(jvm).since(used)
    found = spark.table(name).toPandas()
    query.stop()
    there = found["there"].astype("int64").to_numpy() / 1e6 + offset
    key, due = found["key"].to_numpy(), found["at"].to_numpy()
    waits, rows = there - due, (key >= 0) & (due >= began * 1000 + 3000)
    fired = there[key < 0]
    within = rows & (due > at - 100) & (due < fired.max())
    ends = sorted(file.stat().st_mtime * 1000 for file in (folder / name / "commits").glob("[0-9]*"))
    return {
        "case": name,
        "an epoch ended meanwhile": any(at - 1000 < end < fired.max() + 1000 for end in ends),
        "timers": len(fired),
        "fired in s": round(float(fired.max() - fired.min()) / 1000, 2),
        "waits of rows meanwhile, ms": percentiles(waits[within]),
        "others, ms": percentiles(waits[rows & ~within]),
        "timers late, ms": percentiles(waits[key < 0]),
        "cores, JVM": round(used.jvm / LASTS, 2),
        "cores, Python": round(used.python / LASTS, 2),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--within", type=float, default=1.0, help="seconds in which they are due")
    parser.add_argument("--pending", type=int, default=0, help="other keys, whose timers are not due")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS])
    parser.add_argument("--rate", type=float, default=200, help="rows a second")
    parser.add_argument("--load", type=float, default=120, help="seconds in which all timers are registered")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = timerheap.spark.settings(real_time=True) | {
            "spark.master": "local[6]",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": SOURCES,
            "spark.sql.leafNodeDefaultParallelism": 1,
            "spark.driver.extraClassPath": Path(scratch) / "classes",
        }
        compile_scala(Path(scratch) / "classes")
        with spark_session(Path(scratch) / "log", settings) as spark:
            for way in options.ways:
                figures.append(run(spark, Path(scratch), WAYS[way], options))
                print(figures[-1], flush=True)
    write_json(options, {"cases": figures, "pending": options.pending, "within": options.within})


if __name__ == "__main__":
    main()
