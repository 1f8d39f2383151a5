"""The rows of a query while it is planned: their columns and marks, and what SELECT and WHERE make of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import (
    AHEAD,
    CHANGED,
    CHANNEL,
    ENDED,
    ENDS,
    HIDDEN,
    KEPT,
    LATE_ROWS,
    LATE_SIDE,
    RANK,
    SEEN,
    SIDE_OUTPUT,
    SIDES,
    TIMED_OUT,
    WINDOW,
    WINDOW_BOUND,
    is_side,
    numbered_name,
)
from timerheap.spark._plan.build import kept_only, naive_millis
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._side_outputs import outputs_of
from timerheap.spark._sql.nodes import Items, Node
from timerheap.spark._sql.plan.timed_tables import TimedTable
from timerheap.spark._tvf.zone_columns import end_of

MARKS = (SEEN, KEPT, CHANNEL, AHEAD)
_HIDDEN = (*WINDOW, ENDS, *MARKS, RANK, LATE_SIDE, TIMED_OUT, ENDED, CHANGED)


@dataclass(frozen=True)
class Relation:
    """The rows of a query: its columns, those of `WINDOW`, and marks as long as windows have not ended."""

    df: DataFrame
    tables: tuple[TimedTable, ...]  # those whose watermarks end the windows
    ended: bool  # whether each micro-batch has all rows of the windows that end in it, and no others

    @property
    def timed(self) -> DataFrame:
        """The rows, with an error for one that is kept and has no time, and so no window."""
        if self.ended:
            return self.df
        time = self.tables[0].source.event_time
        null = f"time must not be null, got a row with null in column {time!r}; filter such rows out (WHERE "
        null += f"{time} IS NOT NULL), or fill in a value"
        has_time = quoted(WINDOW[0]).isNotNull() | F.raise_error(F.lit(null)).cast("boolean")
        kept = F.when(quoted(KEPT), has_time).otherwise(False)
        return self.df.withColumn(KEPT, kept) if self.df.isStreaming else self.df.where(kept)

    @property
    def ends(self) -> Column:
        """When the window of a row ends, in epoch ms."""
        if ENDS in self.df.columns:
            return quoted(ENDS)
        return end_of(naive_millis(quoted(WINDOW[1])) - 1, self.tables[0].source.assigner.zone)


PlanOf: TypeAlias = Callable[[Node], Relation]
"""Returns the plan of a node inside another one."""


def visible_columns(df: DataFrame) -> list[str]:
    return [name for name in df.columns if not name.startswith(HIDDEN)]


def hidden_columns(df: DataFrame) -> list[str]:
    return [name for name in df.columns if name in _HIDDEN]


def with_late(result: DataFrame) -> DataFrame:
    """Return results with the late rows beside them, which are not kept."""
    outputs = outputs_of(result).withColumnRenamed(SIDE_OUTPUT, LATE_SIDE)
    return outputs.withColumn(KEPT, quoted(LATE_SIDE).isNull())


def timed_out_aside(df: DataFrame) -> DataFrame:
    """Return results with the rows of timed-out matches beside them, as late rows are."""
    names = visible_columns(df)
    out, late = F.coalesce(quoted(TIMED_OUT), F.lit(False)), LATE_SIDE in df.columns
    fields = [F.when(out, F.struct(*map(quoted, names))).alias("timed_out")]
    if late:
        fields.append(quoted(LATE_SIDE).getField(LATE_ROWS).alias(LATE_ROWS))
    beside = F.when(out | quoted(LATE_SIDE).isNotNull() if late else out, F.struct(*fields))
    return df.select(*(F.when(~out, quoted(name)).alias(name) for name in names), beside.alias(LATE_SIDE))


def rows_where(found: Relation, condition: str | None) -> Relation:
    """Return the rows that meet a condition; the others advance the watermark until windows have ended."""
    if condition is None:
        return found
    met = F.expr(condition)
    if ENDED in found.df.columns:  # what ends a version ends it whether or not it meets the condition
        met |= quoted(ENDED)
    if KEPT not in found.df.columns or not (found.ended or found.df.isStreaming):
        return replace(found, df=found.df.where(met))
    kept = F.coalesce(kept_only(found.df, met), F.lit(False))
    return replace(found, df=found.df.withColumn(KEPT, kept))


def select_items(
    df: DataFrame,
    items: Items,
    others: Sequence[str] = (),
    wanted: Column | None = None,
    bounds: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return the columns of a SELECT, whose names may occur twice, and `others`.

    What it computes is null in rows that are not kept, or not `wanted`. Its `bounds` of windows are marked.
    """
    columns: list[Column] = []
    names: list[str | None] = []
    for text, name in items:
        if name == "*":
            sides = [side for side in df.columns if is_side(side) and text in ("*", f"{side}.*")]
            columns += [F.col(f"{side}.*") for side in sides] or [F.col("*")]
            visible = visible_columns(df)
            names += [field for side in sides for field in side_fields(df, side)] or [
                name if name in visible else None for name in df.columns
            ]
            continue
        column = F.expr(text)
        if not re.fullmatch(r"\w+|`[^`]*`", text):  # a column as it is keeps its metadata
            column = kept_only(df, column) if wanted is None else F.when(wanted, column)
        mark = {"metadata": {WINDOW_BOUND: bounds[name]}} if name in bounds else {}
        columns.append(column.alias(name, **mark))
        names.append(name)
    try:
        result = df.select(*columns, *map(quoted, others))
    except AnalysisException as error:
        if error.getCondition() != "MISSING_GROUP_BY":
            raise
        raise ArgumentValueError(
            f"query: one of {[name for _, name in items]} is an aggregate of rows that are not grouped; add "
            "GROUP BY, and pass an aggregate of your own to sql(): functions={...}"
        ) from None
    names += others
    if None in names:
        result = result.toDF(*map(str, range(len(names))))
        kept = {str(at): name for at, name in enumerate(names) if name is not None}
        result = result.select(*map(quoted, kept)).toDF(*kept.values())
    return result


def unique_names(df: DataFrame) -> DataFrame:
    """Number columns whose names occur twice; `name_without_number` returns their names."""
    names = [name.lower() for name in df.columns]
    if len(set(names)) == len(names):
        return df
    pairs = enumerate(zip(df.columns, names, strict=True))
    return df.toDF(
        *(numbered_name(at, name) if names.count(lower) > 1 else name for at, (name, lower) in pairs)
    )


def side_fields(df: DataFrame, side: str) -> list[str]:
    """Return the names of the columns of a side of a join."""
    type_ = df.schema[side].dataType
    assert isinstance(type_, StructType)
    return type_.names


def pairs_of_sides(df: DataFrame, sides: Sequence[str] = SIDES, others: Sequence[str] = ()) -> DataFrame:
    """Return the structs of all sides, the columns that need no name of a table before them, and `others`."""
    fields = [(side, name) for side in sides for name in side_fields(df, side)]
    names = [name.lower() for _, name in fields]
    once = [quoted(side)[name].alias(name) for side, name in fields if names.count(name.lower()) == 1]
    return df.select(*map(quoted, sides), *once, *map(quoted, others))
