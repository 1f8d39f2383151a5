"""Plans the interval joins of `sql`: the rows of both sides, and which pairs and rows alone are results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from timerheap.interval_join import IntervalJoin
from timerheap.spark._columns import HIDDEN, SIDES, distinct
from timerheap.spark._compat import nullable
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import RightInput, two_inputs
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._process.process import columns_of_two, tagged
from timerheap.spark._sql.nodes import IntervalJoined
from timerheap.spark._sql.plan.changing_plan import expect_same_kind, of_one_type
from timerheap.spark._sql.plan.relations import pairs_of_sides
from timerheap.spark._sql.plan.timed_sides import TimedSide
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.run.near_rows import NEAR, NearRows, both

_ALONE = {  # the sides whose rows are decided on once no row near them can come any more
    "inner": (False, False),
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    "semi": (True, False),
    "anti": (True, False),
}


def interval_pairs(node: IntervalJoined, left: TimedSide, right: TimedSide, tables: Tables) -> DataFrame:
    """Return the rows of both sides of an interval join as structs of the names `SIDES`.

    Those of a semi-join or an anti-join have the columns of the left side.
    """
    expect_same_kind(left.df, right.df)
    how = node.rows.how
    outer = _ALONE[how]
    columns = [_needed(side, needed) for side, needed in zip((left, right), node.rows.needs, strict=True)]
    keyed, keys = _keyed(node, (left, right), outer)
    named = []
    for side, of_side in zip(keyed, columns, strict=True):
        names = distinct([*of_side, *(f"key {at}" for at in range(len(keys)))])
        df, kept = side.named(dict(zip([*of_side, *keys], names, strict=True)))
        named.append((df, names[len(of_side) :], kept))
    (left_df, left_key, left_kept), (right_df, right_key, right_kept) = named
    one, two = two_inputs(
        left_df,
        RightInput(right_df, key=right_key, event_time=quoted(right.time), watermark=right.strategy),
        left_key,
        EventTime(left.time, channel=tables.channel),
        left.strategy,
        order="arrival",
    )
    one, two = (
        replace(each, rows=StructType([each.df.schema[name] for name in names]))
        for each, names in zip((one, two), columns, strict=True)
    )
    one.expect_to_match(two)
    fields = columns_of_two(one, two)
    marks: list[Column | None] = [None, None]
    if left_kept or right_kept:
        marks = [F.lit(True) if kept is None else quoted(kept) for kept in (left_kept, right_kept)]
    rows = tagged(0, one, two, fields["rows"], marks[0]).unionAll(
        tagged(1, two, one, fields["rows"], marks[1])
    )
    types = [one.rows, two.rows]
    result = [StructField(name, type_) for name, type_ in zip(SIDES, types, strict=True)]
    function: Any
    if how in ("semi", "anti") or (how != "inner" and node.rows.condition is not None):
        result += [StructField(name, ArrayType(type_)) for name, type_ in zip(NEAR, types, strict=True)]
        function = NearRows(*node.bounds_ms, outer, how not in ("semi", "anti"), *types)
    else:
        lower, upper = node.bounds_ms
        function = IntervalJoin(lower, upper, both, how=how, left_type=types[0], right_type=types[1])
    query = query_of(
        work_of(function),
        nullable(StructType(result)),
        one,
        two,
        order="arrival",
        max_parallelism=tables.max_parallelism,
        **fields,
    )
    return _joined_rows(node, build(query, rows))


def _needed(side: TimedSide, needed: tuple[str, ...] | None) -> list[str]:
    """Return the columns of a side that the result or a condition has, and its time."""
    wanted = None if needed is None else {one.lower() for one in (*needed, side.time)}
    return [name for name in side.names if wanted is None or name.lower() in wanted]


def _keyed(
    node: IntervalJoined, sides: Sequence[TimedSide], outer: tuple[bool, bool]
) -> tuple[list[TimedSide], list[str]]:
    """Return the rows of both sides that can be in the result, and the names of their columns with the key.

    Null equals no key: rows with null have one of their own in an outer join, and are left out else.
    """
    left, right = (
        side if condition is None else side.where(F.expr(condition))
        for side, condition in zip(sides, node.rows.filters, strict=True)
    )
    keys = [f"{HIDDEN}key{at}" for at in range(len(node.rows.keys) + 1)]
    found = []
    for number, (side, alone) in enumerate(zip((left, right), outer, strict=True)):
        df, null = side.df, F.lit(False)
        for key, (*texts, null_safe) in zip(keys, node.rows.keys, strict=False):
            column = of_one_type(left.df, right.df, *texts)[number]
            df = df.withColumn(key, kept_only(side.df, column))
            null = null if null_safe else null | quoted(key).isNull()
        df = df.withColumn(keys[-1], F.when(null & F.lit(alone), number + 1).otherwise(0))
        side = replace(side, df=df)
        found.append(side if alone else side.where(~null))
    return found, keys


def _joined_rows(node: IntervalJoined, df: DataFrame) -> DataFrame:
    """Return the pairs that meet the condition, and the rows without one."""
    left, right = SIDES
    lefts, rights = NEAR
    met, how = node.rows.condition or "true", node.rows.how
    if lefts in df.columns:
        of_left = f"coalesce(exists(`{rights}`, {right} -> {met}), false)"
        if how in ("semi", "anti"):
            return df.where(F.expr(of_left if how == "semi" else f"NOT {of_left}")).select(f"{left}.*")
        of_right = f"coalesce(exists(`{lefts}`, {left} -> {met}), false)"
        alone = F.when(quoted(right).isNull(), ~F.expr(of_left)).when(
            quoted(left).isNull(), ~F.expr(of_right)
        )
        df = df.where(alone.otherwise(F.expr(met)))
    elif node.rows.condition is not None:
        df = df.where(F.expr(met))
    return pairs_of_sides(df)
