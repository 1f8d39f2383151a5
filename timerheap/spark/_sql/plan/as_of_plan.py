"""Plans the as-of joins of `sql`: the tables or nested queries of both sides, their times, and the match."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.spark._asof.asof_inputs import AsofArguments, AsofInputs
from timerheap.spark._asof.newest_plan import newest_joined
from timerheap.spark._asof.table_on_the_right import joined_with_table
from timerheap.spark._asof.versions_plan import newest_that_meets
from timerheap.spark._changes.change_rows import DELETE
from timerheap.spark._columns import CHANGE_TYPE, ENDED, HIDDEN, SIDES
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import RightInput
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import COLUMN, AsOf, Table, plain_table
from timerheap.spark._sql.plan.relations import pairs_of_sides
from timerheap.spark._sql.plan.timed_sides import RowsOfSide, TimedSide, timed_side
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.plan.versioned_views import rows_of_view
from timerheap.spark._sql.read.dialect import refuse
from timerheap.tvf.zone import TimeZone

_DELETED = "right deleted"
_APART = 26 * 3_600_000
"""The most by which the clocks of two zones differ, in ms: at most so far a local time jumps."""


def as_of_pairs(node: AsOf, tables: Tables, rows: RowsOfSide) -> DataFrame:
    """Return the rows of both sides of an as-of join as structs of the names `SIDES`."""
    left, right = timed_side(node.left, node.names[0], node.time, tables, rows), _versions(node, tables, rows)
    if not node.keys:
        refuse("an as-of join without a key", "write ON L.k = R.k")
    of_left, of_right = left.names, right.names
    keys = [f"{HIDDEN}right_key{at}" for at in range(len(node.keys))]
    for key, (_, text, null_safe) in zip(keys, node.keys, strict=True):
        right = right.with_column(key, text)
        if not null_safe:
            right = right.where(quoted(key).isNotNull())
    names = {name: f"right.{name}" for name in of_right}
    shown_keys = [f"right key {at}" for at in range(len(keys))]
    hidden = dict(zip(keys, shown_keys, strict=True))
    if ENDED in right.df.columns:
        hidden[ENDED] = _DELETED
    left_df, left_kept = left.named({name: name for name in of_left})
    right_df, right_kept = right.named({**names, **hidden})
    of_table = left_df.isStreaming and not right_df.isStreaming
    of_join = isinstance(node.left, Table) and node.left.table in tables.nested  # whose watermark is its own
    inputs = AsofInputs.checked(
        left_df,
        RightInput(right_df, key=shown_keys, event_time=quoted(names[right.time]), watermark=right.strategy),
        [_of_kept(F.expr(text), text, left_kept) for text, *_ in node.keys],
        EventTime(left.time, channel=None if of_join else tables.channel),
        left.strategy,
        _DELETED if ENDED in hidden else None,
        kept=(left_kept, right_kept),
        table=of_table,
    )
    arguments = AsofArguments(
        node.how == "inner", _tolerance(node, right), node.exact, max_parallelism=tables.max_parallelism
    )
    if node.match is not None and of_table:
        refuse(
            f"a further condition that chooses the row of {node.names[1]}, a table beside a stream,",
            f"read {node.names[1]} as a stream, or leave out other rows of it by WHERE in a nested query",
        )
    if node.match is not None:
        shown = {there: name for name, there in names.items()}
        joined = newest_that_meets(inputs, arguments, node.match, shown)
        sides = []
        for side, own in zip(SIDES, (of_left, of_right), strict=True):
            fields = F.struct(*(quoted(side).getField(name).alias(name) for name in own))
            sides.append(F.when(quoted(side).isNotNull(), fields))
    else:
        joined = (joined_with_table if of_table else newest_joined)(inputs, arguments)
        columns = [
            quoted(there).alias(name)
            for name, there in zip([*of_left, *of_right], joined.columns, strict=False)
        ]
        n = len(of_left)
        sides = [F.struct(*columns[:n]), F.struct(*columns[n:])]
    df = joined.select(*(column.alias(side) for column, side in zip(sides, SIDES, strict=True)))
    if node.condition is not None:
        met, row = F.expr(node.condition), quoted(SIDES[1])
        df = df.where(met) if node.how == "inner" else df.withColumn(SIDES[1], F.when(met, row))
    return pairs_of_sides(df)


def _of_kept(column: Column, text: str, kept: str | None) -> Column:
    """Return a key, which is not computed for rows that only advance the watermark: it may fail there."""
    return column if kept is None or COLUMN.fullmatch(text) else F.when(quoted(kept), column)


def _versions(node: AsOf, tables: Tables, rows: RowsOfSide) -> TimedSide:
    """Return the right rows that may be a match, and those that only end one."""
    of_rows, order = rows_of_view(node.right, [text for _, text, _ in node.keys])
    table, of_side = plain_table(of_rows), tables.deleted_of(node.names[1])
    of_table = None if table is None else tables.deleted_of(".".join(table.table))
    of_table = None if of_side is not None else of_table
    if table is not None and tables.is_changelog(table.table):
        of_table = f"{CHANGE_TYPE} = '{DELETE}'" + (f" OR {of_table}" if of_table else "")
    right = timed_side(of_rows, node.names[1], node.right_time or order, tables, rows, of_table, node.time)
    if order not in (None, right.time):
        refuse(
            f"an as-of join with {node.names[1]}, the last rows by {order},",
            f"order them by {right.time}, the time of the table",
        )
    if of_side is not None:
        right = right.with_column(ENDED, f"coalesce({of_side}, false)")
    if node.candidates is not None:
        met = F.expr(node.candidates)
        right = right.where(met if ENDED not in right.df.columns else met | quoted(ENDED))
    return right


def _tolerance(node: AsOf, right: TimedSide) -> int | None:
    """Return how many ms at most a match is behind the left row, None if no condition says it.

    Spark computes the condition, on local times if these are timestamps; so that no version is dropped that
    meets it, versions stay longer where clocks change.
    """
    ages = [age for name, age in node.ages if name == right.time]
    if not ages:
        return None
    zone = TimeZone(str(right.df.sparkSession.conf.get("spark.sql.session.timeZone")))
    local = isinstance(right.df.schema[right.time].dataType, T.TimestampType) and zone.fixed_offset is None
    return min(ages) + (_APART if local else 0)
