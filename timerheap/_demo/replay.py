"""Replays the year's flights through a streaming query: the session, the query, and exact counts."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap._demo.flights import departures, read_replay
from timerheap._demo.overdue import Overdue, overdue
from timerheap.spark.java import ensure_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import Row
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


@contextmanager
def spark_session(log: Path, settings: Mapping[str, object] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Start a local Spark; the output of the JVM and the Python workers goes to the file ``log``."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    cores = min(os.cpu_count() or 1, 4)
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("timerheap demo")
        .config("spark.driver.host", "localhost")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.shuffle.partitions", cores)
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", True)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1_000_000)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config(map={name: str(value) for name, value in settings.items()})
    )
    interrupted = signal.getsignal(signal.SIGINT)
    own = os.dup(2)  # the JVM inherits standard error when it starts
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        spark = builder.getOrCreate()
        # Spark's own handler calls the JVM, possibly in the middle of another call.
        signal.signal(signal.SIGINT, interrupted)
    except Exception as error:
        error.add_note(log.read_text(errors="replace"))
        raise
    finally:
        os.dup2(own, 2)
        os.close(own)
    try:
        yield spark
    finally:
        spark.stop()


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
