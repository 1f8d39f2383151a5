"""Time zones in Spark's columns: local times and instants, as `timerheap.tvf.zone` has them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from timerheap.tvf.zone import TimeZone


def local_of(millis: Column, zone: TimeZone) -> Column:
    """Return the local times of instants, both in ms; as `TimeZone.to_local`."""
    if zone.fixed_offset is not None:
        return millis + zone.fixed_offset
    return F.unix_millis(F.from_utc_timestamp(F.timestamp_millis(millis), F.lit(zone.name)))


def instant_of(local: Column, zone: TimeZone) -> Column:
    """Return the instants of local times, both in ms; as `TimeZone.to_epoch`."""
    if zone.fixed_offset is not None:
        return local - zone.fixed_offset
    return F.unix_millis(F.to_utc_timestamp(F.timestamp_millis(local), F.lit(zone.name)))


def end_of(last: Column, zone: TimeZone) -> Column:
    """Return when a window ends, given its `last` local ms; where clocks go back, after the repeated hour."""
    first, day = instant_of(last, zone), 86_400_000
    if zone.fixed_offset is not None:
        return first
    again = last - (local_of(first + day, zone) - first - day)  # by the offset of a day later
    return F.when((again > first) & (local_of(again, zone) == last), again).otherwise(first)
