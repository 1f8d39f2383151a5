"""Columns of rows of windows in SQL: windows, grouping sets, names that occur twice, pairs of a join."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampNTZType

from timerheap.spark._columns import GROUPING_SET, SIDES, WINDOW, WINDOW_COLUMNS
from timerheap.spark._compat import with_columns
from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._plan.build import naive_millis
from timerheap.spark._sql.nodes import Joined, Node, Selected, Windowing
from timerheap.spark._sql.row_functions import GROUPED
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, SliceAssigner
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


def unique_names(df: DataFrame) -> DataFrame:
    """Rename columns whose names occur twice; `name_of_column` returns their names."""
    names = [name.lower() for name in df.columns]
    if len(set(names)) == len(names):
        return df
    pairs = enumerate(zip(df.columns, names, strict=True))
    return df.toDF(
        *(f"__timerheap:{at}:{name}" if names.count(lower) > 1 else name for at, (name, lower) in pairs)
    )


def name_of_column(name: str) -> str:
    return re.sub(r"^__timerheap:\d+:", "", name)


def fields_of(df: DataFrame, side: str) -> list[str]:
    type_ = df.schema[side].dataType
    assert isinstance(type_, StructType)
    return type_.names


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


def pairs_of(grouped: DataFrame, node: Joined) -> DataFrame:
    """Return the pairs of the rows of each group, as a join of its kind has them."""
    for name in GROUPED:
        type_: Any = grouped.schema[name].dataType
        fields = [StructField(name_of_column(field.name), field.dataType) for field in type_.elementType]
        grouped = grouped.withColumn(name, quoted(name).cast(ArrayType(StructType(fields))))
    left, right = SIDES
    lefts, rights = (f"`{name}`" for name in GROUPED)
    that = node.condition
    of_left = rights if that is None else f"filter({rights}, {right} -> {that})"
    windows = list(map(quoted, WINDOW))
    if node.how in ("semi", "anti"):
        found = f"exists({rights}, {right} -> {that or 'true'})"
        if node.how == "anti":
            found = f"NOT {found if node.null_aware else f'coalesce({found}, false)'}"
        kept = grouped.select(F.explode(F.expr(f"filter({lefts}, {left} -> {found})")).alias(left), *windows)
        return kept.select(f"{left}.*", *windows)
    first, second, firsts, found = left, right, lefts, of_left
    if node.how == "right":
        first, second, firsts = right, left, rights
        found = lefts if that is None else f"filter({lefts}, {left} -> {that})"
    elif node.how == "full":  # a last row that is null stands for the right rows without a match
        firsts = f"array_append({lefts}, null)"
        matched = f"coalesce(exists({lefts}, {left} -> {that or 'true'}), false)"
        alone = f"filter({rights}, {right} -> NOT {matched})"
        found = f"if({left} IS NULL, {alone}, {of_left})"
    pairs = grouped.select(F.explode(F.expr(firsts)).alias(first), *map(quoted, GROUPED), *windows)
    explode = F.explode if node.how == "inner" else F.explode_outer
    pairs = pairs.select(first, explode(F.expr(found)).alias(second), *windows)
    if node.how == "full":
        pairs = pairs.where(quoted(left).isNotNull() | quoted(right).isNotNull())
    fields_of_sides = [(side, name) for side in SIDES for name in fields_of(pairs, side)]
    names = [name.lower() for _, name in fields_of_sides]
    once = {name: quoted(side)[name] for side, name in fields_of_sides if names.count(name.lower()) == 1}
    return with_columns(pairs, once)


def is_time(column: str, node: Node) -> bool:
    """Return whether a column of rows of windows is their time, or that of their windows."""
    name = column.strip("`").lower()
    while isinstance(node, Selected):
        name = next((text for text, shown in node.columns if shown.lower() == name), name).strip("`").lower()
        node = node.source
    return isinstance(node, Windowing) and name in (node.time.lower(), WINDOW_COLUMNS[-1])


def expanded(df: DataFrame, numbers: Column, keys: Mapping[str, tuple[str, list[int]]]) -> DataFrame:
    """Copy each row into the grouping sets of its `numbers`, an array, with the number of the set.

    keys: for each new key column the column, and the sets that have it; in others the key is null
    """
    df = df.withColumn(GROUPING_SET, F.explode(numbers))
    columns = {}
    for there, (name, having) in keys.items():
        named_column(df, "GROUP BY", name)
        columns[there] = F.when(quoted(GROUPING_SET).isin(having), quoted(name))
    return with_columns(df, columns)
