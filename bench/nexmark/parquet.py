"""What Flink needs to read Parquet."""

from __future__ import annotations

from pathlib import Path

import pyspark
from jars import jars
from peers.flink import VERSION


def parquet_jars() -> list[Path]:
    """Return Flink's jar for Parquet, from Maven Central, and the classes of Hadoop, which Spark brings."""
    hadoop = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar")
    return [*jars(f"org.apache.flink:flink-sql-parquet:{VERSION}"), *sorted(hadoop)]
