"""From Kafka to Kafka: timerheap, Flink and Spark's own operator on the same rows.

Run as ``make bench-kafka``; ARGS may have ``--rates``, ``--variants``, ``--seconds`` and ``--rounds``. Needs
Maven Central, for a broker, Spark's connector and Flink, and a JDK, which compiles Flink's job.

A process sends rows to a topic of two partitions, `rate` of them a second. There are as many keys, each with
a row a second, and every second a twentieth of them falls silent for ever. Each row moves the timer of its
key to `GAP` ms of event time later. A timer that fires gives a result, and so does each tenth row. Event time
is the time at which a row was due to be sent, so a sender that is late cannot make an engine look fast.

A result is there when the broker has appended it to the other topic (``LogAppendTime``), so that no reader's
delay counts. The wait of a row's result begins when the row was due to be sent, that of a timer's when the
timer was due.

The variants take turns, in one Spark session and in one Java process with Flink. Each has a warm-up that does
not count, then `seconds` that do. CPU is that of all threads of a process, for each row that was processed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kafka_broker
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from connectors import connectors
from figures import write_json
from flights import spark_session
from jars import jars
from peers.flink import find_jdk
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime, ensure_java

GAP = 3_000  # ms of event time
PARTITIONS = 2  # of the topics, of Spark's shuffle and of Flink
RESULT = 10  # each row whose number is a multiple of it gives a result
SILENT = 20  # a part of the keys falls silent each second
SCHEMA = (
    "key string, value bigint"  # the value of a result is a time, and behind it 0 for a row, 1 for a timer
)
FLINK = (
    *("org.apache.flink:flink-streaming-java:2.3.0", "org.apache.flink:flink-clients:2.3.0"),
    *("org.apache.flink:flink-connector-kafka:5.0.0-2.2", "org.apache.flink:flink-connector-base:2.3.0"),
)
SOURCE = Path(__file__).with_name("peers") / "FlinkKafka.java"
HEAP = "3g"  # of both engines
_WARM_UP = 10.0  # seconds of rows that do not count
_AFTER = 1.5  # seconds of rows behind those that count, which let the watermark pass
_PATIENCE = 10.0  # seconds to wait for results when all rows have been sent

# What Flink's own scripts pass to Java.
_OPENS = [
    f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "io", "nio", "time", "util")
]


# ---- The rows


def send(address: str, topic: str, rate: int, seconds: float, begins: Any) -> None:
    """Send rows for so many seconds; tell when it begins, in seconds since the epoch."""
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 5_000_000}
    )
    producer.list_topics(topic, timeout=30)
    begun = time.time()
    begins.send(begun)
    sent, total = 0, int(rate * seconds)
    while sent < total:
        due = min(total, int((time.time() - begun) * rate))
        for low in range(sent, due, 10_000):
            producer.produce_batch(
                topic, [message(n, rate, begun) for n in range(low, min(due, low + 10_000))]
            )
        sent = due
        producer.poll(0)
        time.sleep(0.005)
    producer.flush()


def message(n: int, rate: int, begun: float) -> dict[str, bytes]:
    """Return a row: its key, and its time with a digit behind it, which is 0 if it gives a result."""
    key = n // rate * (rate // SILENT) + n * 7919 % rate
    return {"key": b"k%d" % key, "value": b"%d" % (int((begun + n / rate) * 1000) * 10 + n % RESULT)}


def silenced(rate: int, begun: float, first: float, last: float) -> int:
    """Return how many timers are due from a time to another, in seconds since the epoch."""
    low, high = (max(0, int((at - GAP / 1000 - begun) * rate)) for at in (first, last))
    return int((np.arange(low, high) * 7919 % rate < rate // SILENT).sum())


# ---- The job on Spark


class Rows(KeyedProcessFunction):
    """The job in timerheap, row by row."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[Any, ...]]:
        ctx.timer_service().register_event_time_timer(value.at + GAP, name="silent")
        if value.digit == 0:
            yield ctx.get_current_key(), value.at * 10

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp * 10 + 1


class Columns(BatchProcessFunction):
    """The job in timerheap, vectorized."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + GAP, name="silent")
        chosen = batch.filter(pc.equal(batch.column("digit"), 0))
        yield pa.record_batch([chosen["key"], pc.multiply(chosen["at"], 10)], names=["key", "value"])

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("key")
        yield pa.record_batch([keys, pa.array(due.timestamps * 10 + 1)], names=["key", "value"])


class SparksRows(StatefulProcessor):
    """The job in Spark's own operator; a key's timer is moved once for all of its rows in a micro-batch."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._due = handle.getValueState("due", "due bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[Any]:
        df = pd.concat(rows)
        before, due = self._due.get(), int(df["at"].max()) + GAP
        if before is not None:
            self._handle.deleteTimer(before[0])
        self._handle.registerTimer(due)
        self._due.update((due,))
        chosen = df["at"][df["digit"] == 0]
        if len(chosen):
            yield pd.DataFrame({"key": key[0], "value": chosen * 10})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self._due.clear()
        yield pd.DataFrame({"key": [key[0]], "value": [expiredTimerInfo.getExpiryTimeInMs() * 10 + 1]})

    def close(self) -> None:
        pass


def _timerheap(
    function: KeyedProcessFunction | BatchProcessFunction, order: str, real_time: bool = False
) -> Callable[..., DataFrame]:
    # In real-time mode each task of the source, which is a partition of the topic, has a watermark anyway.
    event_time = EventTime("at", channel=None if real_time else "partition")

    def job(rows: DataFrame) -> DataFrame:
        return timerheap.spark.process(
            timerheap.spark.in_real_time(rows) if real_time else rows,
            "key",
            function,
            SCHEMA,
            event_time,
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            order=order,
        )

    return job


def _sparks(rows: DataFrame) -> DataFrame:
    # One watermark for both partitions: a tenth of a second for what one is ahead of the other.
    timed = rows.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "100 milliseconds")
    return timed.groupBy("key").transformWithStateInPandas(SparksRows(), SCHEMA, "Append", "EventTime")


JOBS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "rows-arrival": _timerheap(Rows(), "arrival"),
    "rows": _timerheap(Rows(), "event_time"),
    "columns-arrival": _timerheap(Columns(), "arrival"),
    "columns": _timerheap(Columns(), "event_time"),
    "spark": _sparks,
    "real-time-rows": _timerheap(Rows(), "arrival", real_time=True),
    "real-time-columns": _timerheap(Columns(), "arrival", real_time=True),
}
REAL_TIME = "real-time-rows", "real-time-columns"  # which need a session of their own
MICRO_BATCHES = [name for name in JOBS if name not in REAL_TIME]


class Spark:
    """The job in a Spark session; with several variants."""

    def __init__(self, spark: SparkSession, address: str, options: argparse.Namespace) -> None:
        self._spark, self._kafka, self._options = spark, {"kafka.bootstrap.servers": address}, options
        self._jvm = jvm_of(spark)

    def start(self, variant: str, source: str, sink: str, work: Path) -> None:
        reader = self._spark.readStream.format("kafka").options(**self._kafka, subscribe=source)
        value = F.col("value").cast("string").cast("bigint")
        rows = reader.option("startingOffsets", "earliest").load()
        rows = rows.select(F.col("key").cast("string").alias("key"), value.alias("value"), "partition")
        rows = rows.selectExpr("key", "value div 10 at", "value % 10 digit", "partition")
        results = JOBS[variant](rows).select("key", F.col("value").cast("string").alias("value"))
        writer = results.writeStream.format("kafka").options(**self._kafka, topic=sink)
        writer = writer.option("checkpointLocation", str(work))
        self._real_time = variant in REAL_TIME
        if self._real_time:
            self._query = timerheap.spark.start_real_time(
                writer.outputMode("update"),
                epoch=self._options.epoch * 1000,
                linger=self._options.linger,
            )
        else:
            self._query = writer.start()

    def stop(self) -> float | None:
        """Stop the query; return the median time of a micro-batch with rows, in ms."""
        if self._query.exception() is not None:
            raise self._query.exception()  # type: ignore[misc]
        progress = [] if self._real_time else self._query.recentProgress
        took = [p.durationMs["triggerExecution"] for p in progress if p.numInputRows]
        self._query.stop()
        return float(statistics.median(took)) if took else None

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds so far of the JVM, with programs that it ran for files, and of Python."""
        used = cpu(self._jvm)
        return used.jvm + used.others, used.python


class Flink:
    """The job in Flink, in a Java process."""

    def __init__(self, address: str, folder: Path) -> None:
        jdk = find_jdk()
        if jdk is None:
            raise RuntimeError("Flink's job needs a JDK to compile it: install one, such as openjdk-17-jdk")
        path = os.pathsep.join(map(str, jars(*FLINK, beside_spark=False)))
        subprocess.run([jdk / "javac", "-nowarn", "-cp", path, "-d", folder, SOURCE], check=True)
        java = [ensure_java() / "bin/java", *_OPENS, f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC"]
        self._process = subprocess.Popen(
            [*java, "-cp", f"{path}{os.pathsep}{folder}", "FlinkKafka", address, str(GAP), str(PARTITIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "flink.log").open("wb"),
            text=True,
        )

    def _ask(self, *words: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError(f"Flink has ended with {self._process.wait()} at {words}")

    def start(self, _: str, source: str, sink: str, work: Path) -> None:
        self._ask("start", source, sink, work)

    def stop(self) -> None:
        self._ask("stop")

    def cpu(self) -> tuple[float, float]:
        used = cpu(self._process.pid)
        return used.jvm, 0.0

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)


# ---- Measuring


class Topics:
    """The topics of a broker."""

    def __init__(self, broker: kafka_broker.Broker) -> None:
        self._admin = broker.admin()
        settings = {"bootstrap.servers": broker.address, "group.id": "bench", "enable.auto.commit": False}
        self._consumer = Consumer(settings | {"log_level": 0})

    def make(self, name: str, **config: str) -> str:
        made = self._admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)])
        made[name].result(30)
        return name

    def size(self, name: str) -> int:
        parts = [TopicPartition(name, number) for number in range(PARTITIONS)]
        return sum(self._consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts)

    def results(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of all results, and when the broker appended them, in ms since the epoch."""
        size, values, times = self.size(name), list[int](), list[int]()
        self._consumer.assign([TopicPartition(name, number, 0) for number in range(PARTITIONS)])
        while len(values) < size:
            for found in self._consumer.consume(min(10_000, size - len(values)), timeout=5):
                values.append(int(found.value()))
                times.append(found.timestamp()[1])
        self._consumer.unassign()
        return np.array(values, np.int64), np.array(times, np.int64)


def measure(
    engine: Any,
    variant: str,
    rate: int,
    seconds: float,
    topics: Topics,
    broker: kafka_broker.Broker,
    work: Path,
) -> dict[str, Any]:
    """Run a variant on rows that arrive steadily; return the quantiles of what it took, and CPU a row."""
    source = topics.make(f"{work.name}-in")
    sink = topics.make(f"{work.name}-out", **{"message.timestamp.type": "LogAppendTime"})
    engine.start(variant, source, sink, work)
    context = multiprocessing.get_context("spawn")
    began, begins = context.Pipe(duplex=False)
    total = _WARM_UP + seconds + _AFTER
    sender = context.Process(target=send, args=(broker.address, source, rate, total, begins), daemon=True)
    sender.start()

    def used() -> np.ndarray:
        assert broker.process
        assert sender.pid
        return np.array([*engine.cpu(), cpu(broker.process.pid).jvm, cpu(sender.pid).jvm])

    begun: float = began.recv()
    first, last = begun + _WARM_UP, begun + _WARM_UP + seconds
    time.sleep(max(0.0, first - time.time()))
    before = used()
    time.sleep(max(0.0, last - time.time()))
    spent = used() - before
    sender.join()
    late = time.time() - begun - total
    settled = size = -1.0
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < min(until, settled + 4 if settled > 0 else until):
        time.sleep(0.25)
        if (now := topics.size(sink)) != size:
            size, settled = now, time.monotonic()
    batch = engine.stop()
    values, times = topics.results(sink)
    begin, end = (at * 1000 for at in (first, last))
    waits, missing, wanted = (
        {},
        {},
        {"rows": rate * seconds / RESULT, "timers": silenced(rate, begun, first, last)},
    )
    for digit, what in enumerate(wanted):
        chosen = (values % 10 == digit) & (values // 10 >= begin) & (values // 10 < end)
        waits[what] = _quantiles((times - values // 10)[chosen])
        missing[what] = max(0, int(wanted[what] - chosen.sum()))
    processed = int(((values % 10 == 0) & (times >= begin) & (times < end)).sum()) * RESULT
    names = ("jvm", "python", "broker", "sender")
    return {
        "variant": variant,
        "rate": rate,
        **waits,
        "missing": missing,
        "processed": processed / seconds,
        "batch": batch,
        "sender_late": late,
        "us_a_row": dict(zip(names, (spent / max(processed, 1) * 1e6).tolist(), strict=True)),
        "cores": dict(zip(names, (spent / seconds).tolist(), strict=True)),
        "load": os.getloadavg()[0],
    }


def _quantiles(waits: np.ndarray) -> dict[str, float] | None:
    if not len(waits):
        return None
    return {f"p{q}": float(np.quantile(waits, q / 100)) for q in (50, 90, 99)}


# ---- The report


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each number of some runs."""
    first = next((run for run in runs if run is not None), None)
    if isinstance(first, dict):
        return {name: medians([run[name] for run in runs if run is not None]) for name in first}
    return (
        statistics.median([run for run in runs if run is not None])
        if isinstance(first, (int, float))
        else first
    )


def table(runs: list[dict[str, Any]]) -> str:
    """Return the report as text: medians over the rounds."""
    lines = []
    for rate in dict.fromkeys(run["rate"] for run in runs):
        lines.append(f"{rate:,} rows a second")
        lines.append(
            f"{'':16}{'row p50':>9}{'p90':>8}{'p99':>8}{'timer p50':>11}{'p90':>8}{'p99':>8}{'batch':>7}"
            f"{'JVM us':>8}{'Python':>8}{'broker':>8}{'sender':>8}"
        )
        of_rate = [run for run in runs if run["rate"] == rate]
        for variant in dict.fromkeys(run["variant"] for run in of_rate):
            found = medians([run for run in of_rate if run["variant"] == variant])
            cells = [f"{variant:16}"]
            for what, width in (("rows", 9), ("timers", 11)):
                waits = found[what] or {}
                widths = {"p50": width, "p90": 8, "p99": 8}
                cells += [f"{waits.get(q, float('nan')):{w},.0f}" for q, w in widths.items()]
            cells.append(f"{found['batch']:7,.0f}" if found["batch"] else f"{'-':>7}")
            cells += [f"{us:8.1f}" for us in found["us_a_row"].values()]
            if any(found["missing"].values()):
                cells.append(f"  falls behind: {found['processed']:,.0f} rows a second")
            lines.append("".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="rows a second"
    )
    parser.add_argument("--variants", nargs="+", choices=[*JOBS, "flink"], default=[*MICRO_BATCHES, "flink"])
    parser.add_argument(
        "--sparks-most", type=int, default=10_000, help="the highest rate of Spark's own operator"
    )
    parser.add_argument(
        "--seconds", type=float, default=40, help="how long rows count, for each variant and rate"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epoch", type=int, default=60, help="of real-time mode, in seconds")
    parser.add_argument("--linger", type=int, default=30, help="how long rows wait for others there, in ms")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    jobs = {*arguments.variants} - {"flink"}
    if jobs & {*REAL_TIME} and not jobs <= {*REAL_TIME}:
        parser.error(f"--variants: {' and '.join(REAL_TIME)} need a run without the others, but flink")
    runs: list[dict[str, Any]] = []
    kafka_broker.JAVA_OPTIONS = ("-Xmx1g", "-XX:-UsePerfData")  # a long run, whose code is optimised
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timerheap-bench-")))
        broker = stack.enter_context(kafka_broker.Broker(scratch / "broker"))
        settings = {
            "spark.jars": ",".join(map(str, connectors("kafka"))),
            "spark.sql.shuffle.partitions": PARTITIONS,
            "spark.driver.memory": HEAP,
        }
        if jobs & {*REAL_TIME}:
            settings |= timerheap.spark.settings(real_time=True) | {"spark.master": "local[6]"}
        session = stack.enter_context(spark_session(scratch / "spark.log", settings))
        spark = Spark(session, broker.address, arguments)
        flink = Flink(broker.address, scratch)
        stack.callback(flink.close)
        topics = Topics(broker)
        for variant in arguments.variants:  # the JVMs compile
            engine = flink if variant == "flink" else spark
            measure(
                engine, variant, min(arguments.rates), 1.0, topics, broker, scratch / f"{variant}-warm-up"
            )
        for number in range(arguments.rounds):
            for rate in arguments.rates:
                for variant in arguments.variants:
                    if variant == "spark" and rate > arguments.sparks_most:
                        continue
                    engine = flink if variant == "flink" else spark
                    work = scratch / f"{variant}-{rate}-{number}"
                    done = measure(engine, variant, rate, arguments.seconds, topics, broker, work)
                    runs.append(done)
                    print(done, file=sys.stderr, flush=True)
                    write_json(arguments, {"runs": runs})
    print(table(runs))


if __name__ == "__main__":
    main()
