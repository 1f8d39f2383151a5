"""Queries of Nexmark as changes, without windows and without a watermark: what Flink's SQL makes of them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from nexmark.streams import auctions, bids
from timerheap.spark import aggregate_changes, join_changes, top_changes

RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def won(events: DataFrame) -> DataFrame:
    """Return each auction with each bid on it in its time."""
    offers = bids(events).select(
        F.col("auction").alias("id"),
        "auction",
        "bidder",
        "price",
        F.col("dateTime").alias("bid_dateTime"),
        F.col("extra").alias("bid_extra"),
    )
    return join_changes(auctions(events), offers, "id").where("bid_dateTime BETWEEN dateTime AND expires")


def q4(events: DataFrame) -> DataFrame:
    # Flink's planner leaves out the other columns by itself.
    some = auctions(events).select("id", "category", "dateTime", "expires")
    offers = bids(events).select(F.col("auction").alias("id"), "price", F.col("dateTime").alias("at"))
    sold = join_changes(some, offers, "id").where("at BETWEEN dateTime AND expires")
    final = aggregate_changes(sold, ["id", "category"], F.max("price").alias("final"))
    totals = aggregate_changes(final, "category", F.sum("final").alias("total"), F.count("final").alias("n"))
    return totals.select("category", F.expr("total div n").alias("final"), "_change_type")


def q9(events: DataFrame) -> DataFrame:
    return top_changes(won(events), "id", 1, [F.desc("price"), F.asc("bid_dateTime")])


def q15(events: DataFrame) -> DataFrame:
    return aggregate_changes(by_day(events), "day", *ranked_counts())


def q16(events: DataFrame) -> DataFrame:
    minute = F.max("minute").alias("minute")
    return aggregate_changes(by_day(events), ["channel", "day"], minute, *ranked_counts())


def q17(events: DataFrame) -> DataFrame:
    counts = [F.count("*").alias("total_bids")]
    counts += [F.count(F.when(F.expr(where), 1)).alias(f"{name}_bids") for name, where in RANKS.items()]
    prices = [f("price").alias(f"{f.__name__}_price") for f in (F.min, F.max, F.sum)]
    found = aggregate_changes(by_day(events), ["auction", "day"], *counts, *prices)
    average = F.expr("sum_price div total_bids").alias("avg_price")
    first = ["auction", "day", "total_bids", *(f"{name}_bids" for name in RANKS)]
    return found.select(*first, "min_price", "max_price", average, "sum_price", "_change_type")


def q18(events: DataFrame) -> DataFrame:
    return top_changes(bids(events), ["bidder", "auction"], 1, F.desc("dateTime"))


def q19(events: DataFrame) -> DataFrame:
    return top_changes(bids(events), "auction", 10, F.desc("price"), number="rank_number")


def q20(events: DataFrame) -> DataFrame:
    some = (
        auctions(events)
        .where("category = 10")
        .withColumnsRenamed({"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"})
    )
    return join_changes(bids(events), some, "auction")


def by_day(events: DataFrame) -> DataFrame:
    return bids(events).withColumns(
        {"day": F.date_format("dateTime", "yyyy-MM-dd"), "minute": F.date_format("dateTime", "HH:mm")}
    )


def ranked_counts() -> list[Column]:
    """Return how many bids, bidders and auctions there are, of all prices and of three ranges."""
    found = []
    for what, count, counted in (
        ("bids", F.count, F.lit(1)),
        ("bidders", F.count_distinct, F.col("bidder")),
        ("auctions", F.count_distinct, F.col("auction")),
    ):
        found.append(count(counted).alias(f"total_{what}"))
        found += [
            count(F.when(F.expr(where), counted)).alias(f"{name}_{what}") for name, where in RANKS.items()
        ]
    return found


QUERIES = {query.__name__: query for query in (q4, q9, q15, q16, q17, q18, q19, q20)}
