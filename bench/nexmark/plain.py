"""The queries that Spark answers by itself: q0, q1, q2, q10, q13, q14, q17, q21 and q22.

Spark's SQL runs the published text of q0, q1, q2, q10 and q14 as it is. None keeps state but q17, an
aggregation that emits what has changed.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from nexmark.generator import SIDE_ROWS
from nexmark.streams import bids
from nexmark.texts import in_spark

_PRICE_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}


def q0(events: DataFrame) -> DataFrame:
    """Pass bids through."""
    return in_spark(events, "q0")


def q1(events: DataFrame) -> DataFrame:
    """Convert the price from dollars to euros."""
    return in_spark(events, "q1")


def q2(events: DataFrame) -> DataFrame:
    """Select the bids on some auctions."""
    return in_spark(events, "q2")


def q10(events: DataFrame) -> DataFrame:
    """Write bids to files, by day and minute: the sink is partitioned by `dt` and `hm`."""
    return in_spark(events, "q10")


def q13(events: DataFrame) -> DataFrame:
    """Look up a bounded side input."""
    side = events.sparkSession.range(SIDE_ROWS).selectExpr("id as key", "cast(id as string) as value")
    rows = bids(events).select("auction", "bidder", "price", "dateTime")
    found = rows.join(F.broadcast(side), F.expr(f"mod(auction, {SIDE_ROWS}) = key"))
    return found.select("auction", "bidder", "price", "dateTime", "value")


def q14(events: DataFrame) -> DataFrame:
    """Compute the kind of the day and count a letter; the published function counts bytes, as this does."""
    return in_spark(events, "q14")


def q17(events: DataFrame) -> DataFrame:
    """Count and sum up the bids on each auction and day; in update mode, each micro-batch's changes."""
    day = F.date_format("dateTime", "yyyy-MM-dd").alias("day")
    statistics = [
        F.min("price").alias("min_price"),
        F.max("price").alias("max_price"),
        F.expr("sum(price) div count(price)").alias("avg_price"),
        F.sum("price").alias("sum_price"),
    ]
    return bids(events).groupBy("auction", day).agg(*_counts(), *statistics)


def q21(events: DataFrame) -> DataFrame:
    """Add the channel's number, from its name or else from the URL."""
    number = F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    by_name = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    name, known = F.lower("channel"), number
    for channel, value in by_name.items():
        known = F.when(name == channel, value).otherwise(known)
    chosen = bids(events).where((number != "") | name.isin(*by_name))
    return chosen.select("auction", "bidder", "price", "channel", known.alias("channel_id"))


def q22(events: DataFrame) -> DataFrame:
    """Cut the folders out of the URL."""
    folders = [F.split_part("url", F.lit("/"), F.lit(at + 4)).alias(f"dir{at + 1}") for at in range(3)]
    return bids(events).select("auction", "bidder", "price", "channel", *folders)


def _counts() -> list[Column]:
    total = F.count("*").alias("total_bids")
    return [total, *(F.expr(f"count_if({of})").alias(f"{rank}_bids") for rank, of in _PRICE_RANKS.items())]
