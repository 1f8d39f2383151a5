"""Event time from a `TimestampAssigner`: a column that a Python stage adds to the rows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from timerheap.spark._plan.stages import map_batches
from timerheap.spark._query import TIME
from timerheap.spark._worker.assigned_times import AssignedTimes
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

__all__ = ["assigns_time", "with_assigned_time"]


def assigns_time(watermark: object) -> bool:
    """Return whether a strategy has a timestamp assigner."""
    return isinstance(watermark, WatermarkStrategy) and watermark.timestamp_assigner is not None


def with_assigned_time(df: DataFrame, assigner: TimestampAssigner) -> DataFrame:
    """Return the rows with the event time that an assigner computes, in the column `TIME`."""
    fields = [StructField(field.name, field.dataType) for field in df.schema]
    timed = StructType([*fields, StructField(TIME, LongType())])
    return map_batches(df, AssignedTimes(assigner, df.schema), timed)
