"""The argument ``order_by``: columns with directions, as PySpark says them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column

from timerheap.errors import ArgumentTypeError
from timerheap.spark._compat import sort_order
from timerheap.spark._order_by import Order
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.named_columns import ColumnOrName, expect_comparable, named_column

OrderBy = ColumnOrName | Sequence[ColumnOrName]


def ordered_by(columns: Columns, argument: str, given: Any) -> tuple[Order, ...]:
    """Return by which columns rows are ordered; expressions become computed columns of `columns`."""
    given = [given] if isinstance(given, str | Column) else given
    if not isinstance(given, Sequence) or not given:
        raise ArgumentTypeError(
            f"{argument} must be a column or a list of columns, got {given!r}; pass for example "
            'F.col("at").desc()'
        )
    orders: dict[str, Order] = {}
    for one in given:
        column, descending, nulls_first = one, False, True
        if isinstance(one, Column):
            column, descending, nulls_first = sort_order(one, columns.df.sparkSession)
        name = columns.one(argument, column)
        expect_comparable(argument, name, named_column(columns.df, argument, name))
        orders.setdefault(name, Order(name, descending, nulls_first))  # a later one decides nothing
    return tuple(orders.values())
