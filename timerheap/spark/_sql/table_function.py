"""`table_function`: a process function that queries of `sql` call by name, on tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql.types import StructType

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._plan.schemas import parsed_schema

PARTITIONS = "required", "optional", "none"
"""What a function says of PARTITION BY."""

ROWTIME = "rowtime"
"""The column with the time of a function's row: that of the row or the timer for which it is."""


@dataclass(frozen=True)
class TableFunction:
    """A function that a query calls on tables; see `table_function`.

    make: returns the process function, given the scalar arguments of the call
    output_schema: the columns of its rows; parsed in a query, since Spark needs a session for that
    passes_columns: whether all columns of the row that it is called with are before them
    partition_by: one of `PARTITIONS`
    change_type: the column of its rows that says what becomes of them, if its tables may change
    processing_time: whether it has timers of processing time
    """

    make: Callable[..., KeyedProcessFunction | KeyedCoProcessFunction]
    output_schema: str | StructType
    passes_columns: bool
    partition_by: str = "required"
    change_type: str | None = None
    processing_time: bool = False

    @cached_property
    def results(self) -> StructType:
        """The columns of its rows."""
        return parsed_schema(self.output_schema)

    def made(
        self, name: str, positional: Sequence[Any], named: Mapping[str, Any]
    ) -> KeyedProcessFunction | KeyedCoProcessFunction:
        """Return the process function of a call with scalar arguments; errors call it by its `name`."""
        signature = inspect.signature(self.make).replace(return_annotation=inspect.Signature.empty)
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            given = [*map(repr, positional), *(f"{key} => {value!r}" for key, value in named.items())]
            raise ArgumentValueError(
                f"query: {name} must be called with its arguments {signature}, got ({', '.join(given)}): "
                f"{error}"
            ) from None
        kinds = KeyedProcessFunction, KeyedCoProcessFunction
        made: KeyedProcessFunction | KeyedCoProcessFunction = sendable(
            self.make(*positional, **named), *kinds, argument=f"functions[{name!r}]"
        )
        return made


def table_function(
    function: Callable[..., KeyedProcessFunction | KeyedCoProcessFunction],
    output_schema: str | StructType,
    *,
    pass_columns_through: bool = False,
    partition_by: str = "required",
    change_type: str | None = None,
    processing_time: bool = False,
) -> TableFunction:
    """Return a process function in a form that `sql` takes as one of its `functions`.

    A query calls it on the rows of a table, as Flink's process table functions are called::

        SELECT * FROM silence(
            input => TABLE readings PARTITION BY sensor, on_time => DESCRIPTOR(at), minutes => 10)

    Parameters
    ----------
    function : class or callable
        A `KeyedProcessFunction`, or what returns one: it is called with the scalar arguments of the query, by
        the names that they have there, such as ``minutes=10``. Numbers are int and float; other constants are
        what Spark computes, such as a timedelta of ``INTERVAL '10' MINUTE``. A `KeyedCoProcessFunction` is
        called on two tables: ``process_element1`` with the rows of the first one of the call.
    output_schema : str or pyspark.sql.types.StructType
        The columns of the rows that it yields. In the query the columns of PARTITION BY are before them, and
        with ``on_time`` the column ``rowtime`` is behind them.
    pass_columns_through : bool, default False
        Whether all columns of the row that the function is called with are before those that it yields, in
        place of those of PARTITION BY: Flink's ``PASS_COLUMNS_THROUGH``. Timers then yield no rows.
    partition_by : {"required", "optional", "none"}, default "required"
        Whether the query says PARTITION BY. With "optional" it need not, and then all rows are one partition,
        in one task: Flink's ``OPTIONAL_PARTITION_BY``. With "none" it must not: the function is called for
        each row by itself, in any task, and as the rows arrive. It has neither state nor timers: Flink's row
        semantics.
    change_type : str, optional
        Lets the tables of a call change, as results of GROUP BY or a changelog: Flink's ``SUPPORT_UPDATES``.
        It is the name of one more column of the rows that the function is called with: "insert",
        "update_preimage", "update_postimage" or "delete". Such rows have no ``on_time``.
    processing_time : bool, default False
        Whether the function has timers of processing time, on streams. Then it has no ``on_time``.

    Returns
    -------
    TableFunction
        For ``sql(..., functions={"silence": ...})``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    Notes
    -----
    A call is a `process`, or a `process_two`, with the watermark that the table has in the query: rows and
    timers of a key come in the order of ``on_time``. ``rowtime`` is the time of the row, or that of the
    timer, and has the watermark of the operator. There are no side outputs. If the function yields a column
    ``_change_type``, its results change as that says.

    Examples
    --------
    ::

        class Silence(KeyedProcessFunction):
            def __init__(self, minutes):
                self.after = minutes * 60_000

            def process_element(self, value, ctx):
                timers = ctx.timer_service()
                timers.register_event_time_timer(ctx.timestamp() + self.after, name="silence")

            def on_timer(self, timestamp, ctx):
                yield (timestamp - self.after,)

        silence = timerheap.spark.table_function(Silence, "last_at timestamp")
    """
    instance("output_schema", output_schema, str, StructType)
    if not callable(function):
        raise ArgumentTypeError(
            "function must be a class, or a callable that returns a process function, which receives the "
            f"scalar arguments of a query, got {function!r}; pass {type(function).__name__}, without ()"
        )
    instance("pass_columns_through", pass_columns_through, bool)
    instance("processing_time", processing_time, bool)
    if partition_by not in PARTITIONS:
        raise ArgumentValueError(
            f"partition_by must be one of {', '.join(map(repr, PARTITIONS))}, got {partition_by!r}"
        )
    if change_type is not None:
        instance("change_type", change_type, str)
    if change_type is not None and pass_columns_through:
        raise ArgumentValueError(
            f"pass_columns_through must be False with change_type, got change_type={change_type!r}; yield "
            "the columns that are wanted"
        )
    if partition_by == "none" and processing_time:
        raise ArgumentValueError(
            'processing_time must be False with partition_by="none", whose rows have no timers, got True; '
            'pass partition_by="optional"'
        )
    return TableFunction(
        function, output_schema, pass_columns_through, partition_by, change_type, processing_time
    )
