"""What a user waits for: small micro-batches, micro-batches after a pause, the time from a row to its result.

Run as ``python bench/latency.py [--rows N ...] [--rates N ...] [--seconds N] [--json FILE]``.

Small micro-batches, and those after a pause, are those of small_batches.py. Then rows arrive steadily from a
process that sends them through a socket, and each query runs its micro-batches as fast as it can. All queries
do the same job: they count the rows of each key, and return for each key of a micro-batch the count and its
newest row; timerheap does so for each row. Every tenth row sets a timer of processing time a second ahead,
which returns its due time; groupBy().count() has none.

A row arrives when it was due to be sent, so a sender that is late cannot make a query look fast. Its result
is there when ``foreachBatch`` has the results of its micro-batch on the driver.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import small_batches
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor

KEYS = 1_000
WITH_TIMER = 10  # each row whose number is a multiple of it sets a timer
AHEAD = 1_000  # ms
SCHEMA = "key bigint, count bigint, newest bigint, due bigint"
_WARM_UP = 8.0  # seconds of rows that do not count
_PATIENCE = 30.0  # seconds to wait for the results of the last row


# ---- The sender


def _send(listener: socket.socket, rate: int, begins: Any) -> None:
    """Send the numbers from 0, `rate` of them a second, until the receiver goes; tell when it begins."""
    connection, _ = listener.accept()
    begun = time.time()
    begins.send(begun)
    sent = 0
    while True:
        due = int((time.time() - begun) * rate)
        lines = "".join(f"{n}\n" for n in range(sent, due))
        try:
            connection.sendall(lines.encode())
        except OSError:
            return
        sent = due
        time.sleep(0.005)


class Sender:
    """A process that sends rows to the first that connects to `port`."""

    def __init__(self, rate: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self._begins, begins = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.Process(target=_send, args=(listener, rate, begins), daemon=True)
        self._process.start()
        listener.close()

    def begun(self) -> float:
        """Wait until it begins; return when that is, in seconds since the epoch."""
        begun: float = self._begins.recv()
        return begun

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


# ---- The queries


class Counts(KeyedProcessFunction):
    """The job in timerheap."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if value.n % WITH_TIMER == 0:
            timers = ctx.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + AHEAD)
        yield value.key, count, value.n, None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), None, None, timestamp


class SparksCounts(StatefulProcessor):
    """The job in Spark's own operator."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[Any]:
        numbers = np.concatenate([df["n"].to_numpy() for df in rows])
        before = self._count.get()
        count = (0 if before is None else before[0]) + len(numbers)
        self._count.update((count,))
        if (numbers % WITH_TIMER == 0).any():
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + AHEAD)
        yield _frame(key[0], count, int(numbers.max()), None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield _frame(key[0], None, None, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


def _frame(*values: Any) -> pd.DataFrame:
    names = [column.split()[0] for column in SCHEMA.split(", ")]
    return pd.DataFrame({name: pd.array([v], "Int64") for name, v in zip(names, values, strict=True)})


def _timerheap(rows: DataFrame) -> DataFrame:
    return timerheap.spark.process(rows, "key", Counts(), SCHEMA, processing_time=True)


def _sparks(rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy("key")
    return grouped.transformWithStateInPandas(SparksCounts(), SCHEMA, "Append", "ProcessingTime")


def _group_by(rows: DataFrame) -> DataFrame:
    counted = rows.groupBy("key").agg(F.count("*").alias("count"), F.max("n").alias("newest"))
    return counted.withColumn("due", F.lit(None).cast("bigint"))


VARIANTS: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "timerheap": ("append", _timerheap),
    "transformWithState": ("append", _sparks),
    "groupBy": ("update", _group_by),
}


# ---- Measuring


class Sink:
    """Notes when results are on the driver: the newest row of all so far, and how late timers were."""

    def __init__(self) -> None:
        self.newest: list[tuple[float, int]] = []
        self.timers: list[tuple[float, np.ndarray]] = []

    def __call__(self, df: DataFrame, _: int) -> None:
        results = df.select("newest", "due").toArrow()
        now = time.time()
        newest, due = (results.column(name).drop_null().to_numpy() for name in ("newest", "due"))
        if len(newest):
            self.newest.append((now, int(newest.max())))
        if len(due):
            self.timers.append((now, now * 1000 - due))


def arrivals(spark: SparkSession, name: str, rate: int, seconds: float, work: Path) -> dict[str, Any]:
    """Run one query on rows that arrive steadily; return the quantiles of what they took, in ms."""
    mode, variant = VARIANTS[name]
    sender, sink = Sender(rate), Sink()
    lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", sender.port).load()
    rows = lines.select(F.col("value").cast("bigint").alias("n")).withColumn("key", F.col("n") % KEYS)
    writer = variant(rows).writeStream.outputMode(mode).foreachBatch(sink)
    query = writer.option("checkpointLocation", str(work)).start()
    jvm = jvm_of(spark)
    try:
        begun = sender.begun()
        time.sleep(max(0.0, begun + _WARM_UP - time.time()))
        before = cpu(jvm)
        time.sleep(max(0.0, begun + _WARM_UP + seconds - time.time()))
        spent = cpu(jvm).since(before)
        first, last = int(_WARM_UP * rate), int((_WARM_UP + seconds) * rate)
        while not sink.newest or sink.newest[-1][1] < last:
            if query.exception() is not None:
                raise query.exception()
            if time.time() > begun + _WARM_UP + seconds + _PATIENCE:
                break
            time.sleep(0.05)
        batches = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows]
    finally:
        query.stop()
        sender.stop()
    waits, missing = _waits(sink.newest, begun, rate, first, last)
    ended = begun + _WARM_UP + seconds
    late = [each for now, each in sink.timers if begun + _WARM_UP <= now < ended]
    return {
        "rows": _quantiles(waits),
        "timers": _quantiles(np.concatenate(late)) if late else None,
        "missing": missing,
        "batch": float(np.median(batches)) if batches else None,
        "jvm": spent.jvm / seconds,
        "python": spent.python / seconds,
    }


def _waits(
    results: list[tuple[float, int]], begun: float, rate: int, first: int, last: int
) -> tuple[np.ndarray, int]:
    """Return the ms from arrival to result of the rows from `first` to `last`, and how many have none yet."""
    at, newest = (
        (np.array(column) for column in zip(*results, strict=True)) if results else (np.empty(0),) * 2
    )
    rows = np.arange(first, last)
    found = np.searchsorted(newest, rows)  # rows come in order, so the newest of results is a running maximum
    there = found < len(newest)
    waits = at[found[there]] - (begun + rows[there] / rate)
    return waits * 1000, int(len(rows) - there.sum())


def _quantiles(waits: np.ndarray) -> dict[str, float] | None:
    if not len(waits):
        return None
    p50, p99 = np.quantile(waits, [0.5, 0.99])
    return {"p50": float(p50), "p99": float(p99)}


def table(result: dict[str, Any]) -> str:
    """Return the report of the arrivals as text."""
    lines = []
    for rate, variants in result["arrivals"].items():
        lines.append(f"{int(rate):,} rows a second, {result['partitions']} shuffle partitions, ms")
        heads = (
            f"{'row p50':>9}{'p99':>9}{'timer p50':>11}{'p99':>9}{'batch':>9}{'JVM cores':>11}{'Python':>8}"
        )
        lines.append(f"{'':20}{heads}")
        for name, v in variants.items():
            rows, timers = (_pair(v[what]) for what in ("rows", "timers"))
            batch = "-" if v["batch"] is None else f"{v['batch']:,.0f}"
            line = f"{name:20}{rows[0]:>9}{rows[1]:>9}{timers[0]:>11}{timers[1]:>9}{batch:>9}"
            missing = f"  {v['missing']:,} rows without a result" if v["missing"] else ""
            lines.append(f"{line}{v['jvm']:11.2f}{v['python']:8.2f}{missing}")
    return "\n".join(lines)


def _pair(quantiles: dict[str, float] | None) -> tuple[str, str]:
    return ("-", "-") if quantiles is None else (f"{quantiles['p50']:,.0f}", f"{quantiles['p99']:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 10_000], help="rows a second")
    parser.add_argument(
        "--seconds", type=float, default=12, help="how long rows count, for each query and rate"
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[200, 10_000], help="rows a small micro-batch")
    parser.add_argument("--batches", type=int, default=30, help="small micro-batches of each query")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=small_batches.VARIANTS,
        default=["groupBy", "mapInArrow", "columns", "rows"],
        help="queries of the small micro-batches; groupBy, which they are compared with, is always one",
    )
    parser.add_argument("--partitions", type=int, default=2, help="shuffle partitions")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    names = list(dict.fromkeys(["groupBy", *arguments.variants]))
    result: dict[str, Any] = {
        "partitions": arguments.partitions,
        "batches": arguments.batches,
        "cores": os.cpu_count(),
        "rows": {},
        "arrivals": {},
    }
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
        scratch = Path(directory)
        with spark_session(scratch / "spark.log") as spark:
            spark.conf.set("spark.sql.shuffle.partitions", arguments.partitions)
            for rows in arguments.rows:
                result["rows"][str(rows)] = small_batches.measure(
                    spark, rows, arguments.batches, scratch / str(rows), names
                )
            if result["rows"]:
                print(small_batches.table(result), flush=True)
            for name in VARIANTS if arguments.rates else ():  # the JVM compiles
                arrivals(spark, name, min(arguments.rates), 4.0, scratch / f"{name}-warm-up")
            for rate in arguments.rates:
                of_rate = result["arrivals"][str(rate)] = {}
                for name in VARIANTS:
                    work = scratch / f"{name}-{rate}"
                    of_rate[name] = arrivals(spark, name, rate, arguments.seconds, work)
                    print(f"{rate:,} rows a second, {name}: {of_rate[name]}", file=sys.stderr, flush=True)
    if result["arrivals"]:
        print(table(result))
    write_json(arguments, result)


if __name__ == "__main__":
    main()
