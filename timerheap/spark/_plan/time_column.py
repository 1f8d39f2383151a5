"""Event time from a `TimestampAssigner`: a column that a Python stage adds to the rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from timerheap.spark._group.query import TIME
from timerheap.spark._worker.assigned_times import AssignedTimes
from timerheap.watermarks import WatermarkStrategy

__all__ = ["assigns_time", "with_assigned_time"]


def assigns_time(watermark: object) -> bool:
    """Return whether a strategy has a timestamp assigner."""
    return isinstance(watermark, WatermarkStrategy) and watermark.timestamp_assigner is not None


def with_assigned_time(
    df: DataFrame, event_time: str | None, watermark: object
) -> tuple[DataFrame, str | None]:
    """Return the rows and their event-time column, which is added if only the strategy knows event time."""
    if event_time is not None or not isinstance(watermark, WatermarkStrategy):
        return df, event_time
    if watermark.timestamp_assigner is None:
        return df, None
    assigned = AssignedTimes(watermark.timestamp_assigner, df.schema)
    names = [f"c{i}" for i in range(len(df.columns))]  # mapInArrow() takes no dots in names
    fields = [StructField(name, field.dataType) for name, field in zip(names, df.schema, strict=True)]
    rows = df.toDF(*names).mapInArrow(
        lambda batches: assigned(batches), StructType([*fields, StructField(TIME, LongType())])
    )
    return rows.toDF(*df.columns, TIME), TIME
