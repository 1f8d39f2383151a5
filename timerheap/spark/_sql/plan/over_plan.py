"""Plans functions OVER the rows of a table: the columns that they read, and the fields of their results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import (
    ResolvedAggregate,
    calls_of,
    input_columns,
    resolve_aggregate,
)
from timerheap.spark._columns import computed_name
from timerheap.spark._compat import with_columns
from timerheap.spark._order_by import Order
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.named_columns import backticks, is_atomic
from timerheap.spark._sql.nodes import PROCTIME, Over
from timerheap.spark._sql.over_calls import Frame, RowCall
from timerheap.spark._sql.plan.called_aggregates import Functions, aggregate_of_call
from timerheap.spark._sql.plan.processed import processed
from timerheap.spark._sql.plan.relations import Relation, visible_columns
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.run.over_runner import OverWork


class AddedColumns:
    """Rows, with a column for each expression that is asked for.

    names: those of the columns before
    inputs: columns that they have, too
    computed: all columns that have been added
    """

    def __init__(self, df: DataFrame, names: Sequence[str], inputs: dict[str, Column]) -> None:
        self.df, self._names = with_columns(df, inputs), names
        self.computed = {**inputs}
        self._added: dict[str, str] = {}

    @property
    def added(self) -> list[str]:
        return [*self._added.values()]

    def column(self, text: str, type_: T.DataType | None = None) -> str:
        """Return the column that has an expression, perhaps cast."""
        if type_ is None and re.fullmatch(r"\w+|`[^`]*`", text) and text.strip("`") in self._names:
            return text.strip("`")
        text = text if type_ is None else f"CAST({text} AS {type_.simpleString()})"
        if text not in self._added:
            name = self._added[text] = computed_name(1, text)
            self.computed[name] = kept_only(self.df, F.expr(text))
            self.df = with_columns(self.df, {name: self.computed[name]})
        return self._added[text]

    def type_of(self, name: str) -> T.DataType:
        return self.df.schema[name].dataType


@dataclass(frozen=True)
class OverAggregate:
    """An aggregate of the rows in a frame, and the name of its result."""

    name: str
    frame: Frame
    resolved: ResolvedAggregate


@dataclass(frozen=True)
class OverPlan:
    """The functions of a SELECT on the columns that they read.

    calls: ranks and functions of other rows, by the names of their results
    results: the fields of the results of all functions, in their order
    """

    rows: AddedColumns
    calls: dict[str, RowCall]
    aggregates: list[OverAggregate]
    order: tuple[Order, ...]
    results: list[T.StructField]

    @classmethod
    def of(
        cls, node: Over, df: DataFrame, names: Sequence[str], source: DataFrame, functions: Functions
    ) -> OverPlan:
        """Add what functions read to the rows of a table, whose columns and their `names` `source` has."""
        aggregates = _aggregates(node, source, functions)
        inputs = input_columns(df, [one.resolved for one in aggregates])
        rows = AddedColumns(df, names, inputs)
        aggregates = [replace(one, frame=_since(one.frame, node.time, rows)) for one in aggregates]
        results = {one.name: one.resolved.field for one in aggregates}
        calls = {}
        for name, call in node.calls.items():
            if isinstance(call, RowCall):
                calls[name], type_ = _on_columns(call, rows)
                calls[name] = replace(calls[name], frame=_since(call.frame, node.time, rows))
                results[name] = T.StructField(name, type_)
        order = tuple(replace(one, by=rows.column(one.by)) for one in node.order)
        for one, given in zip(order, node.order, strict=True):
            if not is_atomic(type_ := rows.type_of(one.by)):
                raise ArgumentValueError(
                    f"query: ORDER BY {given.by} must be of an atomic type, got {type_.simpleString()}; name "
                    "a field of it"
                )
        return cls(rows, calls, aggregates, order, [results[name] for name in node.calls])

    def work(self, columns: Sequence[str], lead_within: int | None) -> OverWork:
        """Return what tasks do; `columns` are those of the table."""
        by_frame: dict[Frame, list[OverAggregate]] = {}
        for one in self.aggregates:
            by_frame.setdefault(one.frame, []).append(one)
        aggregates = {
            frame: (calls_of([one.resolved for one in some]), tuple(one.name for one in some))
            for frame, some in by_frame.items()
        }
        return OverWork(tuple(columns), self.calls, aggregates, self.order, lead_within)


def _aggregates(node: Over, source: DataFrame, functions: Functions) -> list[OverAggregate]:
    found: list[OverAggregate] = []
    for name, call in node.calls.items():
        if isinstance(call, tuple):
            aggregate, frame = call
            wanted = aggregate_of_call(aggregate, name, source, functions)
            found.append(OverAggregate(name, frame, resolve_aggregate(source, wanted, len(found))))
    return found


def _since(frame: Frame, time: str, rows: AddedColumns) -> Frame:
    """Return a frame of some months with a column that says from when it is, in the session's time zone."""
    if not frame.since:
        return frame
    at = backticks(time)
    if isinstance(rows.type_of(time), T.LongType):
        return replace(frame, since=rows.column(f"unix_millis(timestamp_millis({at}) - {frame.since})"))
    return replace(frame, since=rows.column(f"{at} - {frame.since}"))


def _on_columns(call: RowCall, rows: AddedColumns) -> tuple[RowCall, T.DataType]:
    """Return a rank or a function of other rows on columns in place of expressions, and its type."""
    if not call.argument:
        return call, T.LongType()
    argument = rows.column(call.argument)
    type_, default = rows.type_of(argument), call.default
    default = None if default is None else rows.column(default, type_)
    return replace(call, argument=argument, default=default), type_


def over_rows_of_table(node: Over, tables: Tables) -> Relation:
    """Return the rows of a table, each with functions of the rows of its key."""
    df, table = tables.rows(node)
    source = table.source
    names = [name for name in visible_columns(source.df) if name != PROCTIME]
    plan = OverPlan.of(node, df, names, source.df, tables.functions)
    work = plan.work(names, tables.lead_within)
    inputs = [name for calls, _ in work.aggregates.values() for name in calls.inputs]
    df = plan.rows.df
    return processed(
        work,
        df,
        node.keys,
        [*names, *inputs, *plan.rows.added],
        [*(df.schema[name] for name in names), *plan.results],
        (table,),
        time=source.event_time,
        order="arrival" if table.arrives else "event_time",
        late="process" if table.arrives else source.late,
    )
