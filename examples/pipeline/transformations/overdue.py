"""Orders that have not been paid within an hour: a process function over a table of the pipeline."""

from collections.abc import Iterable
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction

spark = SparkSession.active()
HOUR = 3_600_000  # ms


def placed_orders() -> DataFrame:
    """Return the rows of `orders`: a plain function, since Spark has no views of streams below Python."""
    return timerheap.spark.pipeline_table(
        spark, "default.orders", "id string, customer string, event string, at timestamp"
    )


class Overdue(KeyedProcessFunction):
    """Has one timer for each order, an hour after it was placed, which a payment deletes."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        if value.event == "placed":
            timers.register_event_time_timer(ctx.timestamp() + HOUR, name="overdue")
        else:
            timers.delete_event_time_timer(name="overdue")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp


@dp.table
def overdue() -> DataFrame:
    """Orders that are not paid, and when they should have been."""
    late = timerheap.spark.process(
        placed_orders(),
        "id",
        Overdue(),
        "id string, due bigint",
        event_time="at",
        watermark="5 minutes",
        name="overdue",
    )
    return late.selectExpr("id", "timestamp_millis(due) AS due")


@dp.table
def orders_per_hour() -> DataFrame:
    """How many orders were placed in each hour."""
    return timerheap.spark.sql(
        spark,
        """
        SELECT window_start AS hour, COUNT(*) AS placed
        FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' HOUR))
        WHERE event = 'placed'
        GROUP BY window_start, window_end
        """,
        tables={"orders": placed_orders()},
        watermark={"orders": "5 minutes"},
        name="orders_per_hour",
    )


@dp.table
def orders_of_customers() -> DataFrame:
    """How the number of orders of each customer changes, as create_auto_cdc_flow() takes it."""
    placed = placed_orders().where("event = 'placed'")
    changes = timerheap.spark.aggregate_changes(
        placed, "customer", F.count("*").alias("orders"), name="orders_of_customers"
    )
    return changes.withColumn("changed_at", F.current_timestamp()).where("_change_type <> 'update_preimage'")
