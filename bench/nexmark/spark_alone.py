"""What plain Spark can say of the queries that timerheap answers: q3, q5, q7, q8, q11, q18 and q20.

They are here to be compared. The others need what Spark's streams do not have: distinct counts (q15, q16),
the first rows of a group (q9, q19), an aggregation over them (q4, q6) and windows of processing time (q12).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from nexmark.streams import WATERMARK, auctions, bids, persons
from nexmark.texts import in_spark


def q3(events: DataFrame) -> DataFrame:
    """Join two streams, both of which are kept for ever; the text is the published one."""
    return in_spark(events, "q3")


def q5(events: DataFrame) -> DataFrame:
    """Collect the counts of a window in one row, to find those that equal the largest."""
    window = F.window("dateTime", "10 seconds", "2 seconds")
    counted = bids(_timed(events)).groupBy(window.alias("w"), "auction").agg(F.count("*").alias("num"))
    collected = counted.groupBy("w").agg(
        F.collect_list(F.struct("auction", "num")).alias("all"), F.max("num")
    )
    largest = F.filter("all", lambda one: one["num"] == F.col("max(num)"))
    return collected.select(F.inline(largest))


def q7(events: DataFrame) -> DataFrame:
    """Find one of the highest bids of each 10 seconds: Spark has no aggregate that keeps equal ones."""
    columns = ("auction", "bidder", "price", "dateTime", "extra")
    highest = F.max_by(F.struct(*columns), "price").alias("bid")
    return bids(_timed(events)).groupBy(_ten_seconds()).agg(highest).select("bid.*")


def q8(events: DataFrame) -> DataFrame:
    """Join persons and sellers that are the first of their window."""
    people = persons(_timed(events)).select(_ten_seconds(), "id", "name", "dateTime")
    sellers = auctions(_timed(events)).select(_ten_seconds().alias("w2"), "seller", "dateTime")
    joined = people.dropDuplicates(["w", "id", "name"]).join(
        sellers.dropDuplicates(["w2", "seller"]),
        (F.col("id") == F.col("seller")) & (F.col("w") == F.col("w2")),
    )
    return joined.select("id", "name", F.col("w.start").alias("stime"))


def q11(events: DataFrame) -> DataFrame:
    """Count bids in Spark's own session windows."""
    session = F.session_window("dateTime", "10 seconds").alias("w")
    counted = bids(_timed(events)).groupBy("bidder", session).agg(F.count("*").alias("bid_count"))
    return counted.select(
        "bidder", "bid_count", F.col("w.start").alias("starttime"), F.col("w.end").alias("endtime")
    )


def q18(events: DataFrame) -> DataFrame:
    """Keep the latest bid in an aggregation, in update mode."""
    latest = F.max_by(F.struct("price", "channel", "url", "dateTime", "extra"), "dateTime").alias("bid")
    return bids(events).groupBy("auction", "bidder").agg(latest).select("auction", "bidder", "bid.*")


def q20(events: DataFrame) -> DataFrame:
    """Join two streams, both of which are kept for ever; the text is the published one."""
    return in_spark(events, "q20")


def _timed(events: DataFrame) -> DataFrame:
    return events.withWatermark("dateTime", WATERMARK)


def _ten_seconds() -> Column:
    return F.window("dateTime", "10 seconds").alias("w")
