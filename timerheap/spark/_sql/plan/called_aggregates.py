"""Which aggregate a call of a query is: one of Spark's functions, one that keeps values, or the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.util import PythonEvalType

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import AggregateFunction
from timerheap.spark._aggregates.collected_values import (
    AveragedValues,
    Collected,
    FilteredFunction,
    JoinedTexts,
    ListedValues,
    OfDifferent,
    OfSeries,
    Percentile,
    PickedValue,
    SummedValues,
)
from timerheap.spark._aggregates.spark_aggregates import UserAggregate
from timerheap.spark._compat import to_arrow_type
from timerheap.spark._sql.nodes import Call
from timerheap.spark._sql.table_function import TableFunction

_PANDAS = PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF
_KEEPING = ("listagg", "array_agg", "percentile", "first_value", "last_value")

Functions = Mapping[str, Any]
"""The user's aggregates by their names in lower case, as `udaf` returns them, or pandas UDFs."""


def checked_functions(given: object) -> tuple[dict[str, Any], dict[str, TableFunction]]:
    """Return the aggregates that a query may call, and the functions on tables."""
    example = 'such as {"vwap": udaf(Vwap(), returns="double", accumulator="array<double>")}'
    if given is None:
        return {}, {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"functions must be a dict {example}, got {given!r}")
    aggregates, on_tables = {}, {}
    for name, one in given.items():
        lower = str(name).lower()
        if isinstance(one, TableFunction):
            on_tables[lower] = one
            continue
        if not isinstance(one, UserAggregate) and getattr(one, "evalType", None) != _PANDAS:
            raise ArgumentTypeError(
                f"functions[{name!r}] must be an aggregate {example}, a pandas_udf from a series to a value, "
                f"or a table_function(), got {one!r}; register other functions: "
                f"spark.udf.register({name!r}, ...)"
            )
        if isinstance(one, UserAggregate) and one.columns:
            raise ArgumentValueError(
                f"functions[{name!r}] must be without columns, got {list(one.columns)}; the query names them"
            )
        aggregates[lower] = one
    return aggregates, on_tables


def aggregate_of_call(
    call: Call, name: str, df: DataFrame, functions: Functions, wanted: Column | None = None
) -> Column | UserAggregate:
    """Return an aggregate of rows with its name, which computes nothing for rows that are not `wanted`."""
    in_python = aggregate_in_python(call, name, df, functions, wanted)
    return aggregate_column(call, wanted).alias(name) if in_python is None else in_python


def aggregate_in_python(
    call: Call, name: str, df: DataFrame, functions: Functions, wanted: Column | None = None
) -> UserAggregate | None:
    """Return an aggregate that keeps values, or is the user's, with its name; None for those of Spark."""
    if call.function not in functions and call.function not in _KEEPING and not call.distinct:
        return None
    columns = [F.expr(text) for text in (call.argument, *call.others) if text is not None]
    conditions = [one for one in (call.condition and F.expr(call.condition), wanted) if one is not None]
    made = functions.get(call.function)
    if made is None:
        columns, made = _keeping_values(call, columns[0], df)
    elif not isinstance(made, UserAggregate):
        made = _of_series(call, made, columns, df)
    elif call.distinct:
        kept = columns[0] if len(columns) == 1 else F.struct(*columns)
        made = _collecting(OfDifferent(made.function), made.returns, df.select(kept).schema[0].dataType)
    if conditions:
        met = reduce(Column.__and__, (F.coalesce(one, F.lit(False)) for one in conditions))
        columns, made = [*columns, met], replace(made, function=FilteredFunction(made.function))
    return replace(made, columns=tuple(columns), name=name)


def _keeping_values(call: Call, column: Column, df: DataFrame) -> tuple[list[Column], UserAggregate]:
    """Return an aggregate that keeps all values, and what it keeps of each row."""
    type_ = df.select(column).schema[0].dataType
    result = type_
    function: Collected
    if call.function == "listagg":
        column, result = column.cast("string"), T.StringType()
        function = JoinedTexts(str(call.parameter), call.distinct)
    elif call.function == "array_agg":
        function, result = ListedValues(call.distinct), T.ArrayType(type_, containsNull=False)
    elif call.function == "percentile":
        column, result = column.cast("double"), T.DoubleType()
        function = Percentile(float(call.parameter or 0), call.distinct)
    elif call.function in ("sum", "avg"):
        if not isinstance(type_, T.NumericType):
            raise ArgumentValueError(
                f"query: {call.function.upper()}(DISTINCT {call.argument}) must be of a numeric type, got "
                f"{type_.simpleString()}; cast it"
            )
        result = df.groupBy().agg((F.sum if call.function == "sum" else F.avg)(column)).schema[0].dataType
        scale = result.scale if isinstance(result, T.DecimalType) else None
        function = (
            SummedValues(call.distinct) if call.function == "sum" else AveragedValues(scale, call.distinct)
        )
    else:
        function = PickedValue(0 if call.function == "first_value" else -1)
    kept = df.select(column).schema[0].dataType
    return [column], _collecting(function, result, kept)


def _of_series(call: Call, udf: Any, columns: list[Column], df: DataFrame) -> UserAggregate:
    if len(columns) != 1:
        raise ArgumentValueError(
            f"query: {call.function} must be called with one column, got {len(columns)}; write a udaf"
        )
    return _collecting(
        OfSeries(udf.func, call.distinct), udf.returnType, df.select(columns[0]).schema[0].dataType
    )


def _collecting(function: AggregateFunction, result: T.DataType, kept: T.DataType) -> UserAggregate:
    return UserAggregate(function, (), result, pa.list_(to_arrow_type(kept)), "")


def aggregate_column(call: Call, wanted: Column | None = None) -> Column:
    """Return an aggregate of Spark, which computes nothing for rows that are not `wanted`."""
    function: Callable[[Column | str], Column] = getattr(F, call.function)
    value = aggregated_value(call, wanted)
    return function("*" if value is None else value)


def aggregated_value(call: Call, wanted: Column | None = None) -> Column | None:
    """Return what an aggregate takes of each row, None for the row itself."""
    value = None if call.argument is None else F.expr(call.argument)
    for condition in (None if call.condition is None else F.expr(call.condition), wanted):
        if condition is not None:
            value = F.when(condition, F.lit(1) if value is None else value)
    return value
