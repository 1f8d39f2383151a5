"""Plans the call of a function on tables: the process function, the rows of its tables, and its results."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.spark._changes.change_rows import INSERT
from timerheap.spark._columns import CHANGE_TYPE, CHANGED
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import is_atomic, quoted
from timerheap.spark._process.process import columns_of_two, tagged
from timerheap.spark._sql.nodes import CalledOnTables, Table, TableArgument
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.run.table_function_runner import (
    CalledOnRow,
    CalledOnTable,
    CalledOnTwoTables,
    SingleRows,
)
from timerheap.spark._sql.table_function import ROWTIME, TableFunction

TAKES_CHANGES = (
    'pass table_function(..., change_type="kind"), and the function sees what becomes of each row; or query '
    "the table that the changes make"
)
_PARTITIONS = 1024  # of single rows
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?")


def rows_of_call(node: CalledOnTables, tables: Tables) -> DataFrame:
    """Return the rows that a function makes of tables, with the columns of the node."""
    called = tables.on_tables[node.function]
    positional, named = _values(node, tables)
    function = called.made(node.function, positional, named)
    _expect_tables(node, function)
    tags = side_tags(None, function)
    if tags:
        raise ArgumentValueError(
            f"functions[{node.function!r}] must not have side outputs, got {[tag.tag_id for tag in tags]}; "
            "yield rows with a column that says what they are, or call timerheap.spark.process()"
        )
    inputs = [_called_table(one, node, called, tables) for one in node.tables]
    result = _result(node, called, inputs)
    options: dict[str, Any] = {
        "max_parallelism": tables.max_parallelism,
        "name": node.uid,
        "processing_time": called.processing_time,
    }
    schema, timed, keys = to_arrow_schema(called.results), bool(node.times), len(node.tables[0].keys)
    if called.partition_by == "none":
        assert isinstance(function, KeyedProcessFunction)
        function, options["order"] = SingleRows(node.function, function), "arrival"
    if len(inputs) == 1:
        (one,) = inputs
        kind = CalledOnRow if called.passes_columns else CalledOnTable
        work = work_of(kind(function, schema, keys, 1, timed))
        return _with_changes(build(query_of(work, result, one, **options), marked(one)))
    one, two = inputs
    one.expect_to_match(two)
    columns = columns_of_two(one, two)
    both = tagged(0, one, two, columns["rows"]).unionAll(tagged(1, two, one, columns["rows"]))
    work = work_of(CalledOnTwoTables(function, schema, keys, 2, timed))
    return _with_changes(build(query_of(work, result, one, two, **columns, **options), both))


def _with_changes(df: DataFrame) -> DataFrame:
    """Return the rows of a function as a changelog, if they say what becomes of them."""
    if CHANGE_TYPE not in df.columns:
        return df
    names = [name for name in df.columns if name != CHANGE_TYPE]
    return df.select(*map(quoted, names), quoted(CHANGE_TYPE).alias(CHANGED))


def _expect_tables(node: CalledOnTables, function: object) -> None:
    """Raise unless a call has as many tables as the kind of its function takes."""
    of_two = isinstance(function, KeyedCoProcessFunction)
    if len(node.tables) != 1 + of_two:
        base, wanted = ("KeyedCoProcessFunction", "two") if of_two else ("KeyedProcessFunction", "one")
        raise ArgumentValueError(
            f"query: {node.function}, a {base}, must be called on {wanted}, got {len(node.tables)}; a "
            "KeyedCoProcessFunction is called on two tables, a KeyedProcessFunction on one"
        )


def _called_table(
    argument: TableArgument, node: CalledOnTables, called: TableFunction, tables: Tables
) -> Input:
    """Return a table of a call, with the column of ``on_time`` that it has."""
    name = ".".join(argument.table)
    df = _rows_of_table(argument, node, called, tables)
    for key in argument.keys:
        if key not in df.columns:
            raise ArgumentValueError(
                f"query: PARTITION BY must name columns of table {name}, got {key}; the columns are "
                f"{df.columns}"
            )
    keys: list[str | Column] = [*argument.keys]
    if not keys:
        keys = [_any_partition(df) if called.partition_by == "none" else F.lit(0)]
    if not node.times:
        return Input.checked(Columns(f"table {name}", df), keys, timed=False)
    if called.processing_time:
        raise ArgumentValueError(
            f"query: {node.function} must be called without on_time, got one for table {name}: it has "
            "processing_time=True, and rows of such timers have no event time; leave one of both out"
        )
    times = [time for time in node.times if time in df.columns]
    if len(times) != 1:
        raise ArgumentValueError(
            f"query: on_time must name one column of table {name}, got DESCRIPTOR({', '.join(node.times)}); "
            f"the columns are {df.columns}"
        )
    time, strategy = tables.time_of(df, Table(argument.table, time=times[0]))
    if time is None:
        raise ArgumentValueError(
            f"query: on_time must be an event time of table {name}, got {times[0]}, which is "
            "processing_time; give that another name"
        )
    return Input.checked(
        Columns(f"table {name}", df), keys, EventTime(time, channel=tables.channel), strategy
    )


def _rows_of_table(
    argument: TableArgument, node: CalledOnTables, called: TableFunction, tables: Tables
) -> DataFrame:
    """Return the rows of a table, and if the function takes changes, what becomes of each."""
    if called.change_type is None:
        return tables.growing(f"{node.function}()", argument.table, TAKES_CHANGES)
    df, name, column = tables.changes(argument.table), ".".join(argument.table), called.change_type
    if CHANGED in df.columns and node.times:
        raise ArgumentValueError(
            f"query: {node.function} must be called without on_time for table {name}, whose rows change and "
            "have no event time; leave it out, and they come as they arrive"
        )
    if column.lower() in map(str.lower, df.columns):
        raise ArgumentValueError(
            f"functions[{node.function!r}] must have a change_type that is no column of table {name}, got "
            f"{column!r}; give it a different name"
        )
    if CHANGED in df.columns:
        return df.withColumnRenamed(CHANGED, column)
    return df.withColumn(column, F.lit(INSERT))


def _any_partition(df: DataFrame) -> Column:
    """Return a key that spreads rows, of which it does not matter where they are."""
    of = [quoted(field.name) for field in df.schema if is_atomic(field.dataType)]
    return F.pmod(F.xxhash64(*of), F.lit(_PARTITIONS)) if of else F.lit(0)


def _result(node: CalledOnTables, called: TableFunction, inputs: list[Input]) -> T.StructType:
    """Return the columns of the result with their types."""
    first = inputs[0]
    if called.passes_columns:
        before = [*first.rows]
    else:  # in which a key of the second table may have another name than there
        keyed = bool(node.tables[0].keys)
        keys = [one.df.schema[key].dataType for one in inputs for key in one.key] if keyed else []
        before = [T.StructField(name, type_) for name, type_ in zip(node.columns, keys, strict=False)]
    times = [first.df.schema[str(first.event_time)].dataType] if node.times else []
    return T.StructType([*before, *called.results, *(T.StructField(ROWTIME, type_) for type_ in times)])


def _values(node: CalledOnTables, tables: Tables) -> tuple[list[Any], dict[str, Any]]:
    """Return the scalar arguments of a call: numbers as Python has them, and what Spark computes."""
    texts = [*node.positional, *(text for _, text in node.named)]
    computed = [text for text in texts if not _NUMBER.fullmatch(text)]
    values: dict[str, Any] = {}
    if computed:
        try:
            row = tables.spark.range(1).select(*(F.expr(text) for text in computed)).first()
        except AnalysisException as error:
            raise ArgumentValueError(
                f"query: the arguments of {node.function} must be constants, got {', '.join(computed)}: "
                f"{error}"
            ) from None
        values = dict(zip(computed, row or (), strict=True))
    found = [
        values[text] if text in values else float(text) if re.search("[.eE]", text) else int(text)
        for text in texts
    ]
    count = len(node.positional)
    return found[:count], {name: value for (name, _), value in zip(node.named, found[count:], strict=True)}
