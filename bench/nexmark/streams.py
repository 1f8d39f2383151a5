"""The tables of Nexmark in Spark: a stream of all events, and the bids, auctions and persons in it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from nexmark.generator import AUCTION, BID, PERSON, SCHEMA

WATERMARK = "4 seconds"

_TYPES = {"int32": "int", "int64": "bigint", "string": "string"}
_EVENTS = ", ".join(f"{field.name} {_TYPES[str(field.type)]}" for field in SCHEMA)

PERSONS = ("id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra")
AUCTIONS = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires")
AUCTIONS += ("seller", "category", "extra")
BIDS = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")


def events(spark: SparkSession, directory: Path, batch: bool = False) -> DataFrame:
    """Return all events, as a stream with a micro-batch for each file, or as a batch DataFrame."""
    reader = spark.read if batch else spark.readStream.option("maxFilesPerTrigger", 1)
    raw = reader.schema(_EVENTS).parquet(str(directory))
    times = {"dateTime": F.timestamp_millis("ms"), "expires": F.timestamp_millis("expires_ms")}
    return raw.withColumns(times).drop("ms", "expires_ms")


def persons(stream: DataFrame) -> DataFrame:
    return stream.where(F.col("event_type") == PERSON).select(*PERSONS)


def auctions(stream: DataFrame) -> DataFrame:
    return stream.where(F.col("event_type") == AUCTION).select(*AUCTIONS)


def bids(stream: DataFrame) -> DataFrame:
    return stream.where(F.col("event_type") == BID).select(*BIDS)
