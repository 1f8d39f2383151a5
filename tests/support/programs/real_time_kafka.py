"""A query in real-time mode from Kafka to Kafka, which others kill.

Its argument is a JSON file: `work`, `checkpoint`, `broker`, `rows` and `results`, two topics, `epoch`, and
`settings` of Spark. Tells the JVM's process id on standard output. A result has the attempt that it is of, an
epoch and a run, and the file `attempts` in the folder `work` has all attempts in their order.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from local_spark import start_spark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy

GAP = 1000


def attempt() -> tuple[int, str]:
    """Return the epoch and the run that this task is of."""
    task: Any = TaskContext.get()
    return int(task.getLocalProperty("streaming.sql.batchId")), task.getLocalProperty("spark.jobGroup.id")


class Pauses(KeyedProcessFunction):
    """Yields the end of each pause of a key, how many rows it has had, and the attempt."""

    def __init__(self, attempts: Path) -> None:
        self.attempts = attempts

    def open(self, runtime_context: Any) -> None:
        if TaskContext.get() is not None:  # the driver opens it, too
            self.attempt = attempt()
            with self.attempts.open("a") as file:
                file.write(json.dumps(self.attempt) + "\n")
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP, name="pause")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value(), *self.attempt


def wanted(times: dict[str, list[int]]) -> set[tuple[str, int, int]]:
    """Return the results for the event times of each key, in order, but for those of its last row."""
    return {
        (key, at + GAP, number)
        for key, of_key in times.items()
        for number, (at, after) in enumerate(pairwise(of_key), 1)
        if after > at + GAP
    }


def pauses(spark: SparkSession, spec: dict[str, Any]) -> DataFrame:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", spec["broker"])
    kafka = source.option("subscribe", spec["rows"]).option("startingOffsets", "earliest").load()
    rows = kafka.select(F.col("key").cast("string").alias("key"), F.col("value").cast("string"))
    return timerheap.spark.process(
        timerheap.spark.in_real_time(rows.select("key", F.col("value").cast("long").alias("at"))),
        key="key",
        function=Pauses(Path(spec["work"]) / "attempts"),
        output_schema="key string, at long, rows long, epoch long, run string",
        event_time="at",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
    )


def main(spec: dict[str, Any]) -> None:
    logging.basicConfig()
    settings = timerheap.spark.settings(real_time=True) | spec["settings"]
    settings["spark.sql.streaming.realTimeMode.minBatchDuration"] = "1000"
    spark = start_spark(Path(spec["work"]) / "spark", cores=4, settings=settings)
    print(spark.sparkContext._gateway.proc.pid, flush=True)
    result = pauses(spark, spec).withColumn("id", F.sha2(F.to_json(F.struct("key", "at", "rows")), 256))
    result = result.select("key", F.to_json(F.struct("*")).alias("value"))
    writer = result.writeStream.format("kafka").option("kafka.bootstrap.servers", spec["broker"])
    writer = writer.option("topic", spec["results"]).outputMode("update")
    writer = writer.option("checkpointLocation", spec["checkpoint"])
    timerheap.spark.run_real_time(writer, epoch=spec["epoch"], restarts=20, backoff="100 milliseconds")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
