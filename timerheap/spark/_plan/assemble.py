"""What users say of a query: its columns, found, and its inputs, checked; each error names the argument."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._columns import FOLLOWED, distinct, shown_name
from timerheap.spark._exchange.placement import MAX_KEY_GROUPS
from timerheap.spark._plan.event_time import late_choice, row_order, time_mode
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.operator_names import checked_name
from timerheap.spark._query import Query


def key_groups(max_parallelism: object) -> int | None:
    """Return `max_parallelism`, checked to be a valid number of key groups, or None for the default."""
    if max_parallelism is None:
        return None
    if not isinstance(max_parallelism, int) or isinstance(max_parallelism, bool):
        raise ArgumentTypeError(f"max_parallelism must be an int or None, got {max_parallelism!r}")
    if not 1 <= max_parallelism <= MAX_KEY_GROUPS:
        raise ArgumentValueError(
            f"max_parallelism must be between 1 and {MAX_KEY_GROUPS}, got {max_parallelism}"
        )
    return max_parallelism


def query_of(
    work: Any,
    result: T.StructType,
    *inputs: Input,
    order: object = None,
    late: object = None,
    processing_time: bool = False,
    max_parallelism: object = None,
    name: object = None,
    **fields: Any,
) -> Query:
    """Return the query of some inputs, given what users say of it.

    **fields: other fields of the `Query`, or in place of those of the first input
    """
    first, strategies = inputs[0], tuple(one.strategy for one in inputs)
    rows_order = row_order(order, first.df, first.event_time, *strategies)
    of_first: dict[str, Any] = {
        "key": first.key,
        "rows": first.df.schema,
        "event_time": first.event_time,
        "ties": first.ties,
        "late_row": first.rows,
        "late_columns": tuple(first.rows.names),
        "key_names": first.key,
    }
    known = {**of_first, **fields}
    known["key_names"] = distinct(map(shown_name, known["key_names"]))
    if late != "emit":
        known["late_row"] = None
    return Query(
        work=work,
        result=result,
        null_time=first.null_time,
        watermarks=strategies,
        channels=tuple(one.channel if one.strategy._is_own else FOLLOWED for one in inputs),
        order=rows_order,
        time_mode=time_mode(first.df, processing_time, *strategies),
        max_parallelism=key_groups(max_parallelism),
        name=checked_name(name),
        late=late_choice(late, rows_order),
        **known,
    )
