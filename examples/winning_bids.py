"""Winning bids: the highest bid on each auction, at the moment when the auction ends.

    pip install "timerheap[spark]"
    python examples/winning_bids.py

An auction sets a timer to its end. Bids before its begin or after its end do not count:

+-------+-------+-----+-------------------+
|auction|bidder |price|ended              |
+-------+-------+-----+-------------------+
|lamp   |charles|40   |2026-03-01 09:20:00|
|chair  |ada    |15   |2026-03-01 09:30:00|
+-------+-------+-----+-------------------+
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor

# The rows of an auction have an end, those of a bid a price. The last row only moves the watermark.
EVENTS = """
{"auction": "lamp",  "at": "2026-03-01T09:00:00Z", "ends": "2026-03-01T09:20:00Z"}
{"auction": "chair", "at": "2026-03-01T09:04:00Z", "bidder": "bob", "price": 90}
{"auction": "chair", "at": "2026-03-01T09:05:00Z", "ends": "2026-03-01T09:30:00Z"}
{"auction": "lamp",  "at": "2026-03-01T09:20:00Z", "bidder": "charles", "price": 40}
{"auction": "lamp",  "at": "2026-03-01T09:10:00Z", "bidder": "ada", "price": 35}
{"auction": "chair", "at": "2026-03-01T09:12:00Z", "bidder": "ada", "price": 15}
{"auction": "lamp",  "at": "2026-03-01T09:21:00Z", "bidder": "ada", "price": 70}
{"auction": "sofa",  "at": "2026-03-01T10:00:00Z", "bidder": "bob", "price": 5}
"""


class WinningBids(KeyedProcessFunction):
    """Emits the winner of each auction; in event-time order, a row of 9:20 comes before a timer of 9:20."""

    def open(self, runtime_context: Any) -> None:
        """Get the states: the best bid so far, which has the price 0 while there is none."""
        self.bidder = runtime_context.get_state(ValueStateDescriptor("bidder", Types.STRING()))
        self.price = runtime_context.get_state(ValueStateDescriptor("price", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> None:
        """Open an auction, or compare a bid with the best one if its auction is open."""
        if value.ends is not None:
            self.price.update(0)
            ctx.timer_service().register_event_time_timer(value.ends, name="ends")
        elif self.price.value() is not None and value.price > self.price.value():
            self.bidder.update(value.bidder)
            self.price.update(value.price)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """Emit the best bid, and close the auction."""
        if self.price.value():
            ended = datetime.fromtimestamp(timestamp / 1000, UTC)
            yield ctx.get_current_key(), self.bidder.value(), self.price.value(), ended
        self.bidder.clear()
        self.price.clear()


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Run the query over all files to its end; return what it has written."""
    (folder / "events").mkdir()
    (folder / "events" / "events.json").write_text(EVENTS.strip())
    schema = "auction string, at timestamp, ends timestamp, bidder string, price long"
    events = spark.readStream.schema(schema).json(str(folder / "events"))
    winners = timerheap.spark.process(
        events.selectExpr("auction", "at", "unix_millis(ends) as ends", "bidder", "price"),
        key="auction",
        function=WinningBids(),
        output_schema="auction string, bidder string, price long, ended timestamp",
        event_time="at",
        watermark="15 minutes",
    )
    writer = winners.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "winners"), format="parquet").awaitTermination()
    return spark.read.parquet(str(folder / "winners")).orderBy("ended")


def show(spark: SparkSession) -> None:
    """Run the query in a temporary folder and show the rows."""
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show(truncate=False)


def main() -> None:
    """Start a local Spark for the query."""
    timerheap.spark.ensure_java()
    builder = SparkSession.builder.master("local[2]").config(map=timerheap.spark.settings())
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    show(spark)
    spark.stop()


if __name__ == "__main__":
    main()
