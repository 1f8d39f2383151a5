"""Four queries on one topic, and a run of each as a schedule starts it: in a driver of its own, which ends.

The argument is a JSON file: `work`, for checkpoints and Spark's files, `settings` of Spark, `servers` and
`topic` to read from, and `sinks`, a topic for each job of `JOBS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from local_spark import start_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime

__all__ = ["AFTER", "JOBS", "LAG", "WAIT", "alerts", "run"]

WAIT = 500  # ms of event time until a row's timer
AFTER, LAG = 60_000, 1_000  # ms; a run on busy cores ends before AFTER
ROWS = 4  # of a micro-batch
ALERT = "key string, at bigint"
PLAIN = WatermarkStrategy.for_monotonous_timestamps()


class Silence(KeyedProcessFunction):
    """Reports each row after `WAIT` ms of event time."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + WAIT)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class Alarm(KeyedProcessFunction):
    """Reports each row when the clock has passed the time of its micro-batch by the wait that it names."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + value.wait)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


def _silence(strategy: WatermarkStrategy) -> Callable[[DataFrame], DataFrame]:
    def job(rows: DataFrame) -> DataFrame:
        event_time = EventTime("at", channel="partition")
        return timerheap.spark.process(
            rows, "key", Silence(), ALERT, event_time, watermark=strategy, max_parallelism=4
        )

    return job


def _alarm(rows: DataFrame) -> DataFrame:
    return timerheap.spark.process(rows, "key", Alarm(), ALERT, processing_time=True, max_parallelism=4)


JOBS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "event time": _silence(PLAIN),
    "clock": _alarm,
    "with_wall_clock": _silence(PLAIN.with_wall_clock(AFTER, LAG)),
    "with_idleness": _silence(PLAIN.with_idleness(AFTER)),
}


def alerts(spark: SparkSession, job: str, servers: str, topic: str) -> DataFrame:
    """Return what a job makes of the rows of a topic, a few in each micro-batch."""
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger=ROWS).load()
    value = F.from_json(F.col("value").cast("string"), "key string, at bigint, wait bigint")
    return JOBS[job](rows.select(value.alias("value"), "partition").select("value.*", "partition"))


def run(job: str, started: DataStreamWriter, path: str | None = None) -> None:
    """Run a job as the documentation has it: one with a clock by `run_available_now`."""
    if job == "event time":
        started.trigger(availableNow=True).start(path).awaitTermination()
    else:
        timerheap.spark.run_available_now(started, path)


def main(spec: dict[str, Any]) -> None:
    work = Path(spec["work"])
    spark = start_spark(work / "spark", settings=spec["settings"])

    def run_one(job: str) -> None:
        found = alerts(spark, job, spec["servers"], spec["topic"]).select(
            F.to_json(F.struct("*")).alias("value")
        )
        kafka = {"kafka.bootstrap.servers": spec["servers"], "topic": spec["sinks"][job]}
        out = found.writeStream.format("kafka").options(**kafka)
        run(job, out.option("checkpointLocation", str(work / job)))

    with ThreadPoolExecutor() as threads:
        list(threads.map(run_one, JOBS))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
