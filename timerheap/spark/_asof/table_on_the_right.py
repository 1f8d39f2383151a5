"""As-of joins of a stream with a table: Spark's own join of a stream with a batch, without state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._asof.asof_inputs import AsofArguments, AsofInputs
from timerheap.spark._asof.newest_plan import result_columns
from timerheap.spark._columns import KEPT, TIME, added_name, shown_name
from timerheap.spark._plan.inputs import Input, RightInput
from timerheap.spark._plan.named_columns import (
    ColumnOrName,
    backticks,
    data_frame,
    quoted,
    ungrouped,
)
from timerheap.spark._plan.upstream import is_result
from timerheap.watermarks import WatermarkStrategy


def is_table(left: Any, right: Any) -> bool:
    """Return whether the left rows are a stream, and the right ones are not."""
    rows = right.rows if isinstance(right, RightInput) else right
    stream, table = (
        ungrouped(name, some, "key", None)[0] for name, some in (("left", left), ("right", rows))
    )
    return data_frame("left", stream).isStreaming and not data_frame("right", table).isStreaming


def table_inputs(
    left: Any, right: Any, key: Any, event_time: Any, deleted: ColumnOrName | None, **given: Any
) -> AsofInputs:
    """Check a stream and a table.

    **given: arguments that only a join of two streams has
    """
    table = right if isinstance(right, RightInput) else RightInput(right)
    for name, value in {**given, "right.watermark": table.watermark}.items():
        if value is not None:
            raise ArgumentValueError(
                f"{name} must be left out if left is a stream and right a table, got {value!r}: each row is "
                "answered in its own micro-batch, and nothing is kept"
            )
    none = WatermarkStrategy.no_watermarks()  # for there is nothing to wait for
    of_left = None if is_result(ungrouped("left", left, "key", key)[0]) else none
    return AsofInputs.checked(
        left, replace(table, watermark=none), key, event_time, of_left, deleted, table=True
    )


def joined_with_table(inputs: AsofInputs, arguments: AsofArguments) -> DataFrame:
    """Return what `join_asof` does with a stream and a table.

    Each version holds from its time until that of the next one of its key, so a row meets at most one.
    """
    sides = [
        _with_times(side, inputs.carried(number)) for number, side in enumerate((inputs.one, inputs.two))
    ]
    key, columns = inputs.key_carriers, result_columns(inputs, arguments.suffix)
    until = added_name("until", sides[1].columns)
    orders = [TIME, *(name for name in inputs.order if _has_order(inputs.rows[name].dataType))]
    by_time = Window.partitionBy(*map(quoted, key)).orderBy(*(quoted(one).asc_nulls_last() for one in orders))
    versions = sides[1].withColumn(until, F.lead(quoted(TIME)).over(by_time))
    if inputs.deleted is not None:
        versions = versions.where(~F.coalesce(quoted(inputs.deleted), F.lit(False)))
    left, right = sides[0].alias("left"), versions.alias("right")

    def of(side: int, name: str) -> Column:
        return F.col(f"{('left', 'right')[side]}.{backticks(name)}")

    at, since, end = of(0, TIME), of(1, TIME), of(1, until)
    met = (since <= at) & (end.isNull() | (at < end))
    if not arguments.exact:
        met = (since < at) & (end.isNull() | (at <= end))
    if arguments.tolerance is not None:
        met &= since >= _time_before(at, inputs.one, arguments.tolerance)
    for name in key:
        met &= of(0, name).eqNullSafe(of(1, name))
    joined = left.join(right, met, "inner" if arguments.inner else "left")
    return joined.select(*(of(column.side, column.carrier).alias(column.name) for column in columns))


def _with_times(side: Input, rows: DataFrame) -> DataFrame:
    """Return rows without those that have no event time, which are an error unless it is to drop them."""
    if KEPT in rows.columns:
        rows = rows.where(quoted(KEPT))
    if side.null_time == "drop":
        return rows.where(quoted(TIME).isNotNull())
    time = side.time_column()
    message = (
        f"{time.argument} must not be null, got a row with null in column {shown_name(time.column)!r} of "
        f"{time.df}; filter them out, fill in a value, or pass EventTime(column, null='drop')"
    )
    missing = F.raise_error(F.lit(message)).cast(rows.schema[TIME].dataType)
    return rows.withColumn(TIME, F.coalesce(quoted(TIME), missing))


def _has_order(type_: T.DataType) -> bool:
    """Return whether Spark sorts by values of a type; it does not by those with maps."""
    if isinstance(type_, T.StructType):
        return all(_has_order(field.dataType) for field in type_)
    if isinstance(type_, T.ArrayType):
        return _has_order(type_.elementType)
    return not isinstance(type_, T.MapType | T.VariantType)


def _time_before(at: Column, side: Input, ms: int) -> Column:
    """Return a time some milliseconds before another one."""
    if isinstance(side.df.schema[str(side.event_time)].dataType, T.LongType):
        return at - F.lit(ms)
    return at - F.expr(f"INTERVAL '{ms // 1000}.{ms % 1000:03}' SECOND")
