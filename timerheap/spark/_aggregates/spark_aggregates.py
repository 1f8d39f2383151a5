"""Aggregates: Spark's functions, read off Columns, and aggregates written in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import AggregateFunction
from timerheap.spark._aggregates.accumulator_columns import AggregateCalls
from timerheap.spark._columns import AGGREGATED
from timerheap.spark._compat import FunctionCall, function_call, to_arrow_schema, to_arrow_type
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.named_columns import collation_of, is_atomic
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import BUILT_IN, Avg, Count, PythonAggregate
from timerheap.types import arrow_type

_INT64, _FLOAT64, _OBJECT = np.dtype(np.int64), np.dtype(np.float64), np.dtype(object)
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)
_FRACTIONS = (T.FloatType, T.DoubleType)
_SAME = {
    "mean": "avg",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "every": "bool_and",
    "any": "bool_or",
    "some": "bool_or",
}


@dataclass(frozen=True)
class UserAggregate:
    """A Python aggregate function as an argument of ``agg``, made by `udaf`."""

    function: AggregateFunction
    columns: tuple[str | Column, ...]
    returns: T.DataType
    accumulator: pa.DataType
    name: str


@dataclass(frozen=True)
class ResolvedAggregate:
    """One aggregate of a query."""

    field: T.StructField  # of the result
    aggregate: Aggregate
    inputs: dict[str, Column]
    object_type: pa.DataType | None  # in which accumulators that are objects are stored


def udaf(
    function: AggregateFunction,
    *columns: str | Column,
    returns: object,
    accumulator: object,
    name: str | None = None,
) -> UserAggregate:
    """Return a Python aggregate function in a form that ``agg`` accepts.

    Parameters
    ----------
    function : timerheap.AggregateFunction
        An object with ``create_accumulator``, ``add``, ``merge`` and ``get_result``; it is sent to the
        workers. `aggregate_changes` needs no ``merge``, but where rows may be taken back, ``retract(value,
        accumulator)``: it returns the accumulator without the value.
    *columns : str or Column
        Columns whose values ``add`` receives: a value for one column, a tuple for several; null is None. None
        of them for `sql`, whose query names them.
    returns, accumulator : Types, DDL string, Spark or pyarrow type
        Types of the result and of the accumulator.
    name : str, optional
        Name of the result column, by default the name of the class followed by the columns.
    """
    from pyspark.sql.pandas.types import from_arrow_type

    result = from_arrow_type(arrow_type(returns, "returns"))
    names = (repr(column)[8:-2] if isinstance(column, Column) else column for column in columns)
    shown = name or f"{type(function).__name__}({', '.join(names)})"
    return UserAggregate(function, columns, result, arrow_type(accumulator, "accumulator"), shown)


def resolve_aggregate(df: DataFrame, wanted: object, number: int) -> ResolvedAggregate:
    """Translate an argument of ``agg``; its `number` makes the names of its columns unique."""
    if isinstance(wanted, UserAggregate):
        expect_arguments(wanted)
        names = [f"{AGGREGATED}{number}_{at}" for at in range(len(wanted.columns))]
        of = ", ".join(df.select(*wanted.columns).columns)
        described = f"{wanted.name} = {type(wanted.function).__name__}({of})"
        python = PythonAggregate(wanted.function, *names).named(described)
        inputs = {
            name: column if isinstance(column, Column) else df[column]
            for name, column in zip(names, wanted.columns, strict=True)
        }
        field = T.StructField(wanted.name, wanted.returns)
        return ResolvedAggregate(field, python, inputs, wanted.accumulator)
    if not isinstance(wanted, Column):
        raise ArgumentTypeError(
            f"agg must receive a Column such as F.count('*'), or the result of "
            f"timerheap.spark.udaf(...), got {wanted!r}"
        )
    function, arguments, call = called_aggregate(wanted, df)
    # Spark's names and types; the call's name without an alias describes it in the checkpoint and in errors.
    field, unaliased = df.groupBy().agg(wanted, call.column).schema
    if function == "count" and call.of_rows:
        return ResolvedAggregate(field, Count(), {}, None)
    if len(arguments) != 1:
        raise ArgumentValueError(
            f"agg must receive aggregates of one column, got {call_text(wanted)}; aggregate one column"
        )
    name = f"{AGGREGATED}{number}"
    (argument,) = arguments
    type_ = df.select(argument).schema[0].dataType
    collation = collation_of(type_)
    if collation is not None and function != "count":
        raise ArgumentValueError(
            f"agg: {call_text(wanted)} must have the collation UTF8_BINARY, got {collation}; windows "
            "compare strings by their bytes: aggregate F.collate(column, 'UTF8_BINARY')"
        )
    make, dtype = _maker(function, type_, wanted, field.dataType)
    if function == "approx_count_distinct":
        stored = pa.binary()
    elif function == "avg" and dtype == _OBJECT:
        stored = to_arrow_type(df.select(F.sum(argument)).schema[0].dataType)
    else:
        stored = to_arrow_type(field.dataType if function == "sum" else type_)
    column = argument.cast("double") if isinstance(type_, T.DecimalType) and dtype == _FLOAT64 else argument
    return ResolvedAggregate(field, make(name, dtype).named(unaliased.name), {name: column}, stored)


def expect_arguments(wanted: UserAggregate) -> None:
    """Raise if an aggregate in Python has no columns."""
    if not wanted.columns:
        raise ArgumentValueError(
            f"columns must name at least one column of {wanted.name}, got none; the function receives their "
            "values"
        )


def input_columns(rows: DataFrame, computed: Sequence[ResolvedAggregate]) -> dict[str, Column]:
    """Return the columns that aggregates read; of rows that only advance the watermark they are null."""
    return {name: kept_only(rows, column) for one in computed for name, column in one.inputs.items()}


def calls_of(computed: Sequence[ResolvedAggregate]) -> AggregateCalls:
    """Return aggregates as tasks need them."""
    inputs = [(name, one) for one in computed for name in one.inputs]
    return AggregateCalls(
        aggregates=[one.aggregate for one in computed],
        inputs={name: one.aggregate.dtype for name, one in inputs},
        results=list(to_arrow_schema(T.StructType([one.field for one in computed]))),
        object_types={name: one.object_type for name, one in inputs if one.object_type is not None},
    )


def call_text(wanted: Column) -> str:
    return str(wanted).removeprefix("Column<'").removesuffix("'>")


def called_aggregate(
    wanted: Column, df: DataFrame, known: Iterable[str] = BUILT_IN, argument: str = "agg"
) -> tuple[str, list[Column], FunctionCall]:
    """Return the function, which is a known one, the columns that it aggregates, and its call."""
    call = function_call(wanted, df.sparkSession)
    if call is None:
        raise ArgumentValueError(
            f"{argument} must receive calls of aggregate functions, got {call_text(wanted)}; use one of "
            f"{', '.join(known)}"
        )
    function = _SAME.get(call.name, call.name)
    if call.is_distinct:
        function = f"{function}_distinct"
    if function not in known:
        raise ArgumentValueError(
            f"{argument}: {call_text(wanted)} is not supported; use one of {', '.join(known)}, or "
            "timerheap.spark.udaf(...) for your own function; to compute with aggregates, select() from "
            "the result"
        )
    arguments = call.arguments[:1] if function == "approx_count_distinct" else call.arguments
    return function, arguments, call


def _maker(
    function: str, type_: T.DataType, wanted: Column, result: T.DataType
) -> tuple[Callable[..., Aggregate], np.dtype[Any]]:
    make = BUILT_IN[function]
    if function in ("sum", "avg") or function.startswith(("var", "stddev")):
        if not isinstance(type_, (*_WHOLE, *_FRACTIONS, T.DecimalType)):
            raise ArgumentValueError(
                f"agg: {call_text(wanted)} must be of a numeric type, got {type_.simpleString()}; cast it"
            )
        if function == "avg" and isinstance(result, T.DecimalType):
            return partial(Avg, scale=result.scale), _OBJECT
        if function != "sum":
            return make, _FLOAT64  # like Spark
    if function in ("min", "max", "count_distinct", "approx_count_distinct") and not is_atomic(type_):
        raise ArgumentValueError(
            f"agg: {call_text(wanted)} must be of an atomic type, got {type_.simpleString()}; aggregate a "
            "field of it, or use timerheap.spark.udaf(...) with a function of your own"
        )
    if isinstance(type_, (*_WHOLE, *_TIMES)):
        return make, _INT64
    if isinstance(type_, T.BooleanType) and function == "count_distinct":
        return make, _INT64
    return make, _FLOAT64 if isinstance(type_, _FRACTIONS) else _OBJECT
