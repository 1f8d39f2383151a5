"""Silent sensors from a Kafka topic: its rows, a plain model of its alerts, and its queries to several sinks.

The topic has six partitions. `LAGGING` has rows of minutes ago, and the last one is empty.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, WatermarkStrategy

__all__ = ["PARTITIONS", "QUERIES", "Gate", "Reading", "alerts", "feed", "silences"]

PARTITIONS = 6
LAGGING = 4
MINUTE = 60_000
STEP = 10_000  # event time of a round, ms
LAG = 18  # rounds: three minutes
BEGIN = 1_767_268_800_000  # 2026-01-01 12:00 in UTC


class Reading(NamedTuple):
    """A message of the topic."""

    partition: int
    sensor: str
    at: int

    def value(self) -> str:
        at = datetime.fromtimestamp(self.at / 1000, UTC)
        return json.dumps({"sensor": self.sensor, "at": at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]})


def feed(seed: int, rounds: int, sensors: int = 60) -> list[list[Reading]]:
    """Return messages in the rounds in which they are sent; none is late, the last ones fire all timers."""
    draw = random.Random(seed)
    sent: list[list[tuple[float, Reading]]] = [[] for _ in range(rounds + LAG + 1)]

    def send(partition: int, sensor: str, at: int) -> None:
        round_ = (at - BEGIN) // STEP + LAG * (partition == LAGGING and at > BEGIN)
        # Rows are out of order by less than the five seconds that the watermark allows.
        sent[round_].append((at + draw.uniform(0, 4_000), Reading(partition, sensor, at)))

    for partition in range(PARTITIONS - 1):
        send(partition, f"first-{partition}", BEGIN)  # each channel is known from the first micro-batch on
    for number in range(sensors):
        home = number % (PARTITIONS - 1)
        at = BEGIN + draw.randrange(MINUTE)
        while at < BEGIN + rounds * STEP:
            partition = home if draw.randrange(10) else draw.randrange(PARTITIONS - 1)
            send(partition, f"s{number}", at)
            at += draw.randrange(5_000, 20_000) if draw.randrange(5) else draw.randrange(65_000, 200_000)
    for partition in range(PARTITIONS - 1):
        sent[-1].append((float("inf"), Reading(partition, "end", BEGIN + 24 * 60 * MINUTE)))
    return [[reading for _, reading in sorted(one)] for one in sent]


def silences(readings: Iterable[Reading]) -> list[tuple[str, int]]:
    """Return the alerts by a plain model: a minute after each reading that has no successor by then."""
    times = defaultdict(list)
    for _, sensor, at in readings:
        if sensor != "end":
            times[sensor].append(at)
    return sorted(
        (sensor, at + MINUTE)
        for sensor, of_sensor in times.items()
        for at, after in zip(sorted(of_sensor), [*sorted(of_sensor)[1:], float("inf")], strict=True)
        if after > at + MINUTE
    )


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + MINUTE, name="silent")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class SilentColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + MINUTE, name="silent")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        sensors = ctx.keys(due.ids).column("sensor")
        yield pa.record_batch([sensors, pa.array(due.timestamps)], names=["sensor", "silent_at"])


def alerts(
    spark: SparkSession, address: str, topic: str, function: Any, at_most: int, max_parallelism: int = 8
) -> DataFrame:
    """Return the alerts of a topic, at most so many messages in a micro-batch."""
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", at_most)
        .load()
    )
    value = F.from_json(F.col("value").cast("string"), "sensor string, at timestamp")
    readings = messages.select(value.alias("reading"), "partition").select("reading.*", "partition")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
    return timerheap.spark.process(
        readings,
        key="sensor",
        function=function,
        output_schema="sensor string, silent_at timestamp",
        event_time=timerheap.spark.EventTime("at", channel="partition"),
        # It never comes to that, but a micro-batch runs at every trigger, as in production.
        watermark=strategy.with_wall_clock(after=timedelta(days=1), lag="5 seconds"),
        max_parallelism=max_parallelism,
    )


class Gate:
    """Holds back one of two tasks of a micro-batch while `closed` exists.

    A function for mapInArrow before a sink. The other task ends, and its rows are written, but the
    micro-batch is not committed, and one of them is in `passed`, as JSON. A micro-batch in which the other
    task has no rows passes the gate.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.closed, self.passed = folder / "closed", folder / "passed"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        nothing = self.closed.with_name(f"nothing-in-{task.getLocalProperty('streaming.sql.batchId')}")
        if task.partitionId() == 0:
            rows = 0
            for batch in batches:
                rows += batch.num_rows
                if batch.num_rows and self.closed.exists() and not self.passed.exists():
                    self.passed.with_suffix(".draft").write_text(batch.column("value").to_pylist()[0])
                    self.passed.with_suffix(".draft").rename(self.passed)
                yield batch
            if not rows:
                nothing.touch()
            return
        yield from batches
        while self.closed.exists() and not nothing.exists():
            time.sleep(0.05)


QUERIES = {
    "rows to Delta": (Silent, "delta"),
    "columns to Delta": (SilentColumns, "delta"),
    "rows to Iceberg": (Silent, "iceberg"),
    "columns to Iceberg": (SilentColumns, "iceberg"),
    "rows to Kafka": (Silent, "kafka"),
    "rows once to Kafka": (Silent, "kafka, once"),
}
"""By name: the function, and the format of the sink."""
