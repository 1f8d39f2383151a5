"""The published texts of the queries, from flink.sql, and those that Spark's own SQL runs as they are."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import DataFrame

from nexmark import streams

QUERIES = dict(
    re.findall(r"^-- (q\d+)\b[^\n]*\n(.*?);$", Path(__file__).with_name("flink.sql").read_text(), re.M | re.S)
)


def create_views(events: DataFrame) -> None:
    """Create the published views bid, auction and person."""
    for view in (streams.bids, streams.auctions, streams.persons):
        view(events).createOrReplaceTempView(view.__name__.removesuffix("s"))


def in_spark(events: DataFrame, name: str) -> DataFrame:
    """Run a published text, without a change, by Spark's own SQL."""
    create_views(events)
    return events.sparkSession.sql(QUERIES[name])
