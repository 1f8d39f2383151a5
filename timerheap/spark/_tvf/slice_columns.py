"""All windows of a row in Spark's columns, as the slices of `timerheap.tvf.slices` make them up."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, TimestampNTZType

from timerheap.spark._plan.build import naive_millis
from timerheap.spark._plan.named_columns import named_column, quoted
from timerheap.spark._tvf.zone_columns import end_of, instant_of, local_of
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, SliceAssigner


def windows_of(df: DataFrame, time: str, assigner: SliceAssigner) -> Column:
    """Return the windows of a row: an array of structs of start, end, time, and the ms when it ends."""
    type_, zone = named_column(df, "time", time), assigner.zone
    naive = isinstance(type_, TimestampNTZType)
    if naive:
        local = naive_millis(quoted(time))
    else:
        local = local_of(quoted(time) if isinstance(type_, LongType) else F.unix_millis(quoted(time)), zone)

    def bound(ms: Column) -> Column:
        return F.timestamp_add("MILLISECOND", ms, F.lit("1970-01-01").cast("timestamp_ntz"))

    step, start = assigner.interval, None
    if isinstance(assigner, HoppingSliceAssigner):
        step = assigner.slide
    begin = local - F.pmod(local - assigner.offset, F.lit(step))
    if isinstance(assigner, CumulativeSliceAssigner):
        start = local - F.pmod(local - assigner.offset, F.lit(assigner.size))
        ends = F.sequence(begin + step, start + assigner.size, F.lit(step))
    else:
        last_end = begin + assigner.size
        ends = F.sequence(last_end - (assigner.size - 1) // step * step, last_end, F.lit(step))
        if assigner.size % step:
            ends = F.filter(ends, lambda end: end > local)

    def window(end: Column) -> Column:
        begin = end - assigner.size if start is None else start
        last = bound(end - 1) if naive else F.timestamp_millis(instant_of(end - 1, zone))
        return F.struct(bound(begin), bound(end), last, end_of(end - 1, zone))

    return F.transform(ends, window)
