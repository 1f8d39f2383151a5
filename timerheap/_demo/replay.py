"""Replays the year's flights through a streaming query: the session, the query, and exact counts."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from timerheap._demo.flights import departures, read_replay
from timerheap._demo.overdue import Overdue, overdue
from timerheap._local_spark import CORES, local_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

TIMERS = ("registered", "moved", "fired")


class Counted(Overdue):
    """`Overdue` with a row for each timer operation, so that counts stay exact when Spark retries a task."""

    output_schema = Overdue.output_schema + ", timer string"

    def process_element(  # type: ignore[override]
        self, value: Row, ctx: Overdue.Context
    ) -> Iterator[tuple[Any, ...]]:
        """Yield a row for the timer that a departure registers or moves."""
        timer = "registered" if self.last.value() is None else "moved"
        super().process_element(value, ctx)
        yield None, None, None, None, timer

    def on_timer(self, timestamp: int, ctx: Overdue.OnTimerContext) -> Iterator[tuple[Any, ...]]:
        """Mark the alert as a fired timer."""
        for alert in super().on_timer(timestamp, ctx):
            yield *alert, "fired"


def spark_session(
    log: Path, settings: Mapping[str, object] = MappingProxyType({})
) -> AbstractContextManager[SparkSession]:
    """Start a local Spark for the replay; its output goes to the file `log`."""
    own = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": CORES,
        "spark.sql.execution.arrow.maxBytesPerBatch": (1 << 31) - 1,  # else each query warns
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
        "spark.sql.streaming.numRecentProgressUpdates": 1_000_000,
    }
    return local_spark("timerheap demo", log, {**own, **settings})


def start_replay(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start the query on the files in ``directory``/flights; it writes to ``directory``/alerts."""
    flights = read_replay(spark, directory / "flights").observe(
        "flights",
        F.count("*").alias("scheduled"),
        F.count("dep_delay").alias("departed"),
        F.date_format(F.max("time_hour"), "MMM d").alias("day"),
    )
    counted = overdue(departures(flights), Counted()).observe(
        "timers", *(F.count_if(F.col("timer") == timer).alias(timer) for timer in TIMERS)
    )
    return (
        counted.where("timer = 'fired'")
        .drop("timer")
        .writeStream.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "alerts"), format="parquet")
    )


def micro_batches(query: StreamingQuery) -> Iterator[StreamingQueryProgress]:
    """Yield the progress of each micro-batch as soon as it is known, until the query ends.

    Raises
    ------
    pyspark.errors.StreamingQueryException
        If the query fails.
    """
    seen = 0
    active = True
    while active:
        time.sleep(0.3)  # not awaitTermination(), since Ctrl-C during a call to the JVM does not end cleanly
        active = query.isActive
        progress = query.recentProgress
        yield from progress[seen:]
        seen = len(progress)
    query.awaitTermination()
