"""Writes a description of windows into the state of Spark's own aggregation, for Spark to compare."""

from __future__ import annotations

from hashlib import sha256

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField, StructType

__all__ = ["with_description"]

_BYTES = 8  # of a digest


def with_description(rows: DataFrame, description: str) -> DataFrame:
    """Add a column of nulls named after a description, to group a stream by.

    A restarted query ends with an error that shows the names if the types of its state have changed. Spark
    compares the types alone, so the type of the column is made from the description. Null costs little.
    The rows must get their watermark afterwards, which keeps the optimizer from removing the column.
    """
    digest = sha256(description.encode()).digest()[:_BYTES]
    types = [DecimalType(20 + byte // 16, byte % 16) for byte in digest]
    fields = [StructField(f"byte{at}", type_) for at, type_ in enumerate(types)]
    return rows.withColumn(description, F.lit(None).cast(StructType(fields)))
