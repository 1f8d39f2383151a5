"""The year's flights through a real streaming query: session, replay, and counts that can be trusted."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap._demo.flights import departures, read_replay
from timerheap._demo.overdue import Overdue, overdue
from timerheap.spark.java import ensure_java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Row
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

TIMERS = ("registered", "moved", "fired")


class Counted(Overdue):
    """Overdue, and a row for each thing done to a timer: counts that are data stay exact under retries."""

    output_schema = Overdue.output_schema + ", timer string"

    def process_element(  # type: ignore[override]
        self, value: Row, ctx: Overdue.Context
    ) -> Iterator[tuple[Any, ...]]:
        """Count the timer that a departure registers or moves."""
        timer = "registered" if self.last.value() is None else "moved"
        super().process_element(value, ctx)
        yield None, None, None, None, timer

    def on_timer(self, timestamp: int, ctx: Overdue.OnTimerContext) -> Iterator[tuple[Any, ...]]:
        """Count the timer that fires."""
        for alert in super().on_timer(timestamp, ctx):
            yield *alert, "fired"


@contextmanager
def spark_session(log: Path) -> Iterator[SparkSession]:
    """A local Spark that keeps quiet: what the JVM and its Python workers say goes to the file ``log``."""
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
    )
    interrupted = signal.getsignal(signal.SIGINT)
    own = os.dup(2)  # the JVM inherits the standard error that it is started with
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
    """Start the query over the files in ``directory``/flights; alerts go to ``directory``/alerts."""
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
    """The progress of each micro-batch as soon as it is known, until the query ends.

    Raises
    ------
    pyspark.errors.StreamingQueryException
        The query failed.
    """
    seen = 0
    active = True
    while active:
        time.sleep(0.3)  # and not awaitTermination: Ctrl-C in the middle of a call to the JVM is no clean end
        active = query.isActive
        progress = query.recentProgress
        yield from progress[seen:]
        seen = len(progress)
    query.awaitTermination()
