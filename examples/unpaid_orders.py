"""Two inputs, one function: orders that are not paid within fifteen minutes.

    pip install "timerheap[spark]"
    python examples/unpaid_orders.py

Orders and payments meet by `order_id`. An order sets a timer and its payment deletes it; a timer that fires
is a reminder to be sent:

+--------+-------------------+
|order_id|overdue_since      |
+--------+-------------------+
|2       |2026-03-01 09:20:00|
|3       |2026-03-01 09:25:00|
+--------+-------------------+
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import KeyedCoProcessFunction, WatermarkStrategy
from timerheap.spark import ensure_java, settings

MINUTE = 60_000  # milliseconds

# Order 3 is paid too late. Order 4 and its payment only move the watermark past what was before.
ORDERS = [(1, "09:00"), (2, "09:05"), (3, "09:10"), (4, "11:00")]
PAYMENTS = [(1, "09:14"), (3, "10:00"), (4, "11:00")]


class Unpaid(KeyedCoProcessFunction):
    """Emits the number of each order that is overdue, and since when."""

    def process_element1(self, value: Row, ctx: Any) -> None:
        """Set the timer of an order."""
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 15 * MINUTE, name="unpaid")

    def process_element2(self, value: Row, ctx: Any) -> None:
        """Delete the timer of an order that is paid."""
        ctx.timer_service().delete_event_time_timer(name="unpaid")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """Emit an order that is overdue."""
        yield ctx.get_current_key(), datetime.fromtimestamp(timestamp / 1000, UTC)


def write_events(folder: Path, events: list[tuple[int, str]]) -> None:
    """Write a file of JSON lines."""
    folder.mkdir()
    rows = [{"order_id": order, "at": f"2026-03-01T{time}:00Z"} for order, time in events]
    (folder / "events.json").write_text("\n".join(map(json.dumps, rows)))


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Run the query over all files to its end; return what it has written."""
    write_events(folder / "orders", ORDERS)
    write_events(folder / "payments", PAYMENTS)
    reader = spark.readStream.schema("order_id int, at timestamp")
    unpaid = timerheap.spark.process_two(
        reader.json(str(folder / "orders")),
        reader.json(str(folder / "payments")),
        key="order_id",
        function=Unpaid(),
        output_schema="order_id int, overdue_since timestamp",
        event_time="at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(MINUTE),
    )
    writer = unpaid.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "unpaid"), format="parquet").awaitTermination()
    return spark.read.parquet(str(folder / "unpaid")).orderBy("order_id")


def show(spark: SparkSession) -> None:
    """Run the query in a temporary folder and show the rows."""
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show(truncate=False)


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
