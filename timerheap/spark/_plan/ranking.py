"""Computes window Top-N: the first results, or the first rows, of each window."""

from __future__ import annotations

from bisect import insort_left, insort_right
from collections.abc import Callable
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from timerheap.functions import AggregateFunction
from timerheap.spark._compat import to_arrow_type
from timerheap.spark._plan.aggregates import UserAggregate
from timerheap.spark._plan.arguments import quoted
from timerheap.spark._plan.grouped_windows import Windows
from timerheap.spark._worker.window_columns import WINDOW_COLUMNS

if TYPE_CHECKING:
    from timerheap.spark._plan.flink_ranks import Order, Rank

__all__ = ["RANKED_TIME", "first_results", "first_rows", "with_order"]

RANKED_TIME = "time of the ranked window"
"""Name of a column with the window's time, last in the results that `first_results` ranks."""

_ORDER, _BY = "order of the rank ", "key of the rank "  # followed by a number


def first_results(results: DataFrame, rank: Rank) -> DataFrame:
    """Return the first results of each window, with their ranks.

    Needs no state, since all results of a window are in one micro-batch. Where clocks go forward, windows
    of the same start and end differ in `RANKED_TIME`.
    """
    by = {
        f"{_BY}{at}": quoted(name) for at, name in enumerate([*WINDOW_COLUMNS[:2], RANKED_TIME, *rank.keys])
    }
    order = _order(rank)
    rows = results.withColumns(by | order)
    names = list(map(quoted, by))
    if not rows.isStreaming:
        columns = [_sorted(quoted(name), one) for name, one in zip(order, rank.order, strict=True)]
        number = F.row_number().over(Window.partitionBy(*names).orderBy(*columns))
        ranked = rows.withColumn(rank.name, number.cast("bigint")).where(quoted(rank.name) <= rank.limit)
    else:
        first = _first(list(order), rank)
        schema = StructType([*rows.schema, StructField(rank.name, LongType())])
        ranked = rows.groupBy(*names).applyInArrow(
            lambda table: first(table), schema
        )  # Spark counts the parameters
    return _selected(ranked, results.columns[:-1], rank)


def with_order(df: DataFrame, rank: Rank) -> DataFrame:
    """Add the columns by which rows are ranked."""
    return df.withColumns(_order(rank))


def first_rows(windows: Windows, rank: Rank) -> DataFrame:
    """Return the first rows of each window, with their ranks; the DataFrame must come from `with_order`."""
    rows = windows.source.df
    names = [name for name in rows.columns if name not in _order(rank)]
    type_ = ArrayType(rows.schema)
    called = f"first {rank.limit} by {', '.join(map(repr, rank.order))}"  # part of the checkpoint
    by = [(one.text.strip("`").lower(), one.descending) for one in rank.order]
    keeps_last = rank.limit == 1 and by == [(str(windows.source.time).lower(), True)]  # a deduplication
    function, accumulator = TopRows(rows.columns, rank, keeps_last), to_arrow_type(type_)
    top = UserAggregate(function, tuple(rows.columns), type_, accumulator, called)
    result = windows.groupBy(*rank.keys).agg(top)
    exploded = result.select(*WINDOW_COLUMNS, F.posexplode(quoted(called)).alias("at", "row"))
    flat = exploded.select(
        *(F.col("row").getField(name).alias(name) for name in names),
        *WINDOW_COLUMNS,
        (F.col("at") + 1).cast("bigint").alias(rank.name),
    )
    return _selected(flat, [*names, *WINDOW_COLUMNS], rank)


def _selected(ranked: DataFrame, names: list[str], rank: Rank) -> DataFrame:
    """Apply the SELECT lists of the inner and the outer query, and the WHERE of the outer."""
    columns: list[Column] = []
    for text, name in rank.items:
        if text == "*":
            columns += map(quoted, names)
        else:
            columns.append(quoted(name) if name == rank.name else F.expr(text).alias(name))
    result = ranked.select(*columns)
    if rank.where is not None:
        result = result.where(F.expr(rank.where))
    return result.select(*("*" if text == "*" else F.expr(text).alias(name) for text, name in rank.columns))


def _order(rank: Rank) -> dict[str, Column]:
    return {f"{_ORDER}{at}": F.expr(one.text) for at, one in enumerate(rank.order)}


def _sorted(column: Column, order: Order) -> Column:
    if order.descending:
        return column.desc_nulls_first() if order.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if order.nulls_first else column.asc_nulls_last()


def _first(names: list[str], rank: Rank) -> Callable[[pa.Table], pa.Table]:
    """Return a function that ranks the first rows of a table, with nulls and NaN sorted as in Spark."""
    orders, limit, name = rank.order, rank.limit, rank.name

    def first(table: pa.Table) -> pa.Table:
        columns: dict[str, Any] = {}
        keys = []
        for at, (column, order) in enumerate(zip(names, orders, strict=True)):
            values = table.column(column)
            columns[f"null{at}"] = values.is_null()
            keys.append((f"null{at}", "descending" if order.nulls_first else "ascending"))
            direction = "descending" if order.descending else "ascending"
            if pa.types.is_floating(values.type):
                columns[f"nan{at}"] = pc.is_nan(values)
                keys.append((f"nan{at}", direction))
            columns[f"value{at}"] = values
            keys.append((f"value{at}", direction))
        chosen = table.take(pc.sort_indices(pa.table(columns), keys)[:limit])
        return chosen.append_column(pa.field(name, pa.int64()), pa.array(np.arange(1, len(chosen) + 1)))

    return first


class TopRows(AggregateFunction):
    """Keeps the first rows of a window, as a sorted list of structs.

    Parameters
    ----------
    names : list of str
        Column names of the rows; the columns by which they are ranked are last.
    rank : Rank
    keeps_last : bool
        Which of equal rows comes first: the last to arrive, as in Flink's deduplication by descending time,
        or the first.
    """

    def __init__(self, names: list[str], rank: Rank, keeps_last: bool) -> None:
        self._names, self._limit = names, rank.limit
        self._insort = insort_left if keeps_last else insort_right
        self._orders = list(zip(names[-len(rank.order) :], rank.order, strict=True))

    def create_accumulator(self) -> list[dict[str, Any]]:
        """Return an empty list."""
        return []

    def add(self, value: tuple[Any, ...], accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Insert a row in order."""
        return self._put([dict(zip(self._names, value, strict=True))], accumulator)

    def merge(self, acc_a: list[dict[str, Any]], acc_b: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the first rows of both."""
        return self._put(acc_b, acc_a)

    def get_result(self, accumulator: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows."""
        return accumulator

    def _put(self, rows: list[dict[str, Any]], into: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kept = list(into)
        for row in rows:
            self._insort(kept, row, key=cmp_to_key(self._compare))
        return kept[: self._limit]

    def _compare(self, one: dict[str, Any], other: dict[str, Any]) -> int:
        for name, order in self._orders:
            left, right = one[name], other[name]
            if left is None or right is None:
                found = (left is not None) - (right is not None)
                if not order.nulls_first:
                    found = -found
            else:
                found = (_number(left) > _number(right)) - (_number(left) < _number(right))
                if order.descending:
                    found = -found
            if found:
                return found
        return 0


def _number(value: Any) -> Any:
    """Return a value that compares as in Spark, where NaN is the largest number."""
    return (1, 0.0) if value != value else (0, value)
