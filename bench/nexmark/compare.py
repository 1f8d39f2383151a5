"""Compares the rows of a query with Flink's, and those of q6, which Flink cannot run, with a model's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from nexmark import generator, streams

# Where SQL lets rows that are equal in these columns have any order, only these columns can be compared.
DETERMINED = {
    "q9": ["id", "price", "bid_dateTime"],
    "q18": ["auction", "bidder", "dateTime"],
    "q19": ["auction", "rank_number", "price"],
}
# The key of the rows that a query updates, and what grows from one row of a key to the next.
UPDATED = {
    "q4": (["id"], "auctions"),
    "q17": (["auction", "day"], "batch"),
    "q18": (["auction", "bidder"], "batch"),
    "q19": (["auction", "rank_number"], "batch"),
}


def final(name: str, rows: DataFrame) -> DataFrame:
    """Return what a query has said at its end, of the rows that its micro-batches have emitted."""
    if name in UPDATED:
        key, newest = UPDATED[name]
        number = F.row_number().over(Window.partitionBy(*key).orderBy(F.desc(newest)))
        rows = rows.withColumn("number", number).where("number = 1").drop("number", "auctions")
    if name == "q12":
        rows = rows.groupBy("bidder").agg(F.sum("bid_count").alias("bid_count"))
    return rows.drop("batch")


def flink_rows(spark: SparkSession, folder: Path, like: DataFrame) -> DataFrame:
    """Return rows that Flink has written as CSV, with the columns of a DataFrame."""
    reader = spark.read.schema(like.schema).option("recursiveFileLookup", "dt" not in like.columns)
    return reader.csv(str(folder))


def equal(name: str, ours: DataFrame, theirs: DataFrame) -> bool:
    """Whether two DataFrames have the same rows, in any order."""
    columns = DETERMINED.get(name, ours.columns)
    return _digest(ours.select(*columns)) == _digest(theirs.select(*columns))


def _digest(df: DataFrame) -> list[object]:
    hashes = F.sum(F.xxhash64(*df.columns).cast("decimal(38, 0)"))
    return list(df.agg(F.count("*"), hashes).first() or [])


def invented(name: str, ours: DataFrame, events: DataFrame) -> int:
    """Count the rows with a bid that is none of the input's, where not all columns are compared."""
    if name not in DETERMINED:
        return 0
    renamed = {"bid_dateTime": "dateTime", "bid_extra": "extra"} if name == "q9" else {}
    bids = streams.bids(events).select("auction", "bidder", "price", "dateTime", "extra")
    columns = [F.col(old).alias(new) for old, new in renamed.items()]
    kept = [column for column in bids.columns if column not in renamed.values()]
    return ours.select(*kept, *columns).join(bids, bids.columns, "left_anti").count()


def model_of_q6(won: DataFrame) -> pd.DataFrame:
    """Return q6's rows from the winning bids: each seller's last 10 are averaged, in order of their ends."""
    frame = won.selectExpr("id", "seller", "price", "unix_millis(expires) as ms").toPandas()
    frame = frame.sort_values(["ms", "id"])
    totals = frame.groupby("seller")["price"].rolling(10, min_periods=1)
    frame["avg_price"] = (totals.sum() // totals.count()).droplevel(0).astype("int64")
    return frame[["seller", "avg_price", "ms", "id"]].reset_index(drop=True)


def write_small(directory: Path) -> None:
    """Write the events of the tests: 3,000 in 30 seconds, in two micro-batches."""
    slow = generator.Configuration(first_event_rate=100, out_of_order_group_size=100)
    generator.write(directory, 3_000, 2_000, slow)


def recorded(name: str, df: DataFrame) -> dict[str, Any]:
    """Return what is recorded of rows: the rows if they are few, else their number and their digest."""
    columns = DETERMINED.get(name, df.columns)
    texts = df.select(*(F.col(column).cast("string") for column in columns))
    rows = sorted(" | ".join(map(str, row)) for row in texts.collect())
    text = "\n".join(rows)
    found: dict[str, Any] = {"count": len(rows), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return found | ({"rows": rows} if len(text) < 4_000 else {"first": rows[0]})
