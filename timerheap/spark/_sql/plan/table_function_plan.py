"""Plans the call of a function on tables: the process function, the rows of its tables, and its results."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.functions import KeyedCoProcessFunction
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import build, marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime
from timerheap.spark._plan.inputs import Input
from timerheap.spark._process.process import columns_of_two, tagged
from timerheap.spark._sql.nodes import CalledOnTables, Table, TableArgument
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.run.table_function_runner import CalledOnRow, CalledOnTable, CalledOnTwoTables
from timerheap.spark._sql.table_function import ROWTIME, TableFunction

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
    inputs = [_called_table(one, node, tables) for one in node.tables]
    result = _result(node, called, inputs)
    options: dict[str, Any] = {"max_parallelism": tables.max_parallelism, "name": node.uid}
    schema, timed = to_arrow_schema(called.results), bool(node.times)
    if len(inputs) == 1:
        (one,) = inputs
        kind = CalledOnRow if called.passes_columns else CalledOnTable
        work = work_of(kind(function, schema, len(one.key), 1, timed))
        return build(query_of(work, result, one, **options), marked(one))
    one, two = inputs
    one.expect_to_match(two)
    columns = columns_of_two(one, two)
    both = tagged(0, one, two, columns["rows"]).unionAll(tagged(1, two, one, columns["rows"]))
    work = work_of(CalledOnTwoTables(function, schema, len(one.key), 2, timed))
    return build(query_of(work, result, one, two, **columns, **options), both)


def _expect_tables(node: CalledOnTables, function: object) -> None:
    """Raise unless a call has as many tables as the kind of its function takes."""
    of_two = isinstance(function, KeyedCoProcessFunction)
    if len(node.tables) != 1 + of_two:
        base, wanted = ("KeyedCoProcessFunction", "two") if of_two else ("KeyedProcessFunction", "one")
        raise ArgumentValueError(
            f"query: {node.function}, a {base}, must be called on {wanted}, got {len(node.tables)}; a "
            "KeyedCoProcessFunction is called on two tables, a KeyedProcessFunction on one"
        )


def _called_table(argument: TableArgument, node: CalledOnTables, tables: Tables) -> Input:
    """Return a table of a call, with the column of ``on_time`` that it has."""
    name = ".".join(argument.table)
    df = tables.growing(f"{node.function}()", argument.table)
    for key in argument.keys:
        if key not in df.columns:
            raise ArgumentValueError(
                f"query: PARTITION BY must name columns of table {name}, got {key}; the columns are "
                f"{df.columns}"
            )
    if not node.times:
        return Input.checked(Columns(f"table {name}", df), [*argument.keys], timed=False)
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
        Columns(f"table {name}", df), [*argument.keys], EventTime(time, channel=tables.channel), strategy
    )


def _result(node: CalledOnTables, called: TableFunction, inputs: list[Input]) -> T.StructType:
    """Return the columns of the result with their types."""
    first = inputs[0]
    if called.passes_columns:
        before = [*first.rows]
    else:  # in which a key of the second table may have another name than there
        keys = [one.df.schema[key].dataType for one in inputs for key in one.key]
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
