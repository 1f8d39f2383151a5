"""Orders counted and summed by the hour, with totals that grow through the day.

    pip install "timerheap[spark]"
    python examples/orders_per_hour.py

`tumble` gives each hour once; `cumulate` gives the day so far, each hour:

+-------------------+------+------+
|hour               |orders|amount|
+-------------------+------+------+
|2026-03-01 09:00:00|2     |30    |
|2026-03-01 10:00:00|1     |5     |
+-------------------+------+------+

+-------------------+------+------+
|until              |orders|amount|
+-------------------+------+------+
|2026-03-01 10:00:00|2     |30    |
|2026-03-01 11:00:00|3     |35    |
+-------------------+------+------+
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy
from timerheap.spark import ensure_java, settings

HOUR = 3_600_000  # milliseconds
DAY = 24 * HOUR

# In order of arrival; the second order is late by ten minutes, and the last one ends the hours before it.
ORDERS = [("09:20", 10), ("10:05", 5), ("09:55", 20), ("11:30", 40)]
WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(HOUR // 4)


def write_orders(folder: Path) -> None:
    """Write the orders as a file of JSON lines."""
    folder.mkdir()
    rows = [{"at": f"2026-03-01T{time}:00Z", "amount": amount} for time, amount in ORDERS]
    (folder / "orders.json").write_text("\n".join(map(json.dumps, rows)))


def by_hour(orders: DataFrame) -> DataFrame:
    """Count and sum the orders of each hour."""
    windows = timerheap.spark.tumble(orders, "at", size=HOUR, watermark=WATERMARK)
    hours = windows.groupBy().agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    return hours.select(F.col("window_start").alias("hour"), "orders", "amount")


def through_the_day(orders: DataFrame) -> DataFrame:
    """Count and sum the orders since midnight, at the end of each hour."""
    windows = timerheap.spark.cumulate(orders, "at", step=HOUR, max_size=DAY, watermark=WATERMARK)
    totals = windows.groupBy().agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    return totals.select(F.col("window_end").alias("until"), "orders", "amount")


def run(spark: SparkSession, folder: Path) -> list[DataFrame]:
    """Run both queries over all orders to their ends; return what they have written."""
    write_orders(folder / "input")
    results = []
    for query in (by_hour, through_the_day):
        orders = spark.readStream.schema("at timestamp, amount bigint").json(str(folder / "input"))
        work = folder / query.__name__
        writer = query(orders).writeStream.option("checkpointLocation", str(work / "checkpoint"))
        writer.trigger(availableNow=True).start(str(work / "output"), format="parquet").awaitTermination()
        written = spark.read.parquet(str(work / "output"))
        results.append(written.orderBy(written.columns[0]))
    return results


def show(spark: SparkSession) -> None:
    """Run the queries in a temporary folder and show the rows."""
    with tempfile.TemporaryDirectory() as folder:
        for result in run(spark, Path(folder)):
            result.show(truncate=False)


def main() -> None:
    """Start a local Spark for the query."""
    ensure_java()
    builder = SparkSession.builder.master("local[2]").config(map=settings())
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    show(spark)
    spark.stop()


if __name__ == "__main__":
    main()
