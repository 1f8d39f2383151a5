"""Plans GROUP BY: aggregates of the rows of a table, or again of the results of windows, and HAVING."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.spark._aggregates.spark_aggregates import UserAggregate, resolve_aggregate
from timerheap.spark._columns import (
    BATCH_WINDOW,
    COUNT,
    ENDS,
    GROUPING_SET,
    KEPT,
    LATE_SIDE,
    SIDE_OUTPUT,
    WINDOW,
    WINDOW_COLUMNS,
    computed_name,
)
from timerheap.spark._compat import with_columns
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.named_columns import key_columns, named_column, quoted
from timerheap.spark._side_outputs import outputs_of
from timerheap.spark._sql.nodes import Aggregated, Windowing
from timerheap.spark._sql.plan.called_aggregates import aggregate_of_call
from timerheap.spark._sql.plan.relations import PlanOf, Relation, rows_where, select_items, with_late
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._tvf.window_plan import Source, WindowPlan
from timerheap.tvf.slices import TumblingSliceAssigner
from timerheap.watermarks import WatermarkStrategy


def aggregates_of_windows(node: Aggregated, tables: Tables, relation: PlanOf) -> Relation:
    """Return the aggregates of each window, key and grouping set."""
    if isinstance(node.source, Windowing):
        table = tables.cut(node.source)
        source = table.source if node.where is None else filtered(table.source, F.expr(node.where))
        source = replace(source, df=_with_computed(node, source.df))
        found = Relation(source.df, (table,), ended=True)
    else:
        found = rows_where(relation(node.source), node.where)
        found = replace(found, df=_with_computed(node, found.df))
        source = _of_each_batch(found)
    df, by = source.df, {name: name for name in node.keys}
    numbers = [GROUPING_SET] if len(node.sets) > 1 else []
    if numbers:
        by = {name: computed_name(1, name) for name in node.keys}  # aggregates see the row's own
        sets = {
            there: (name, [at for at, names in enumerate(node.sets) if name in names])
            for name, there in by.items()
        }
        df = expanded(df, F.array(*map(F.lit, range(len(node.sets)))), sets)
    windows, bounds = (WINDOW, BATCH_WINDOW) if source.each_batch else ([], WINDOW)
    calls = [aggregate_of_call(call, name, df, tables.functions) for name, call in node.calls.items()]
    plan = window_plan(replace(source, df=df), [*windows, *by.values(), *numbers], calls)
    named = [*windows, *node.keys, *numbers, *bounds, *(node.calls or [COUNT])]
    if source.late != "emit":
        return replace(found, df=select_list(plan.result().toDF(*named), node))
    result = with_late(outputs_of(plan.result()).toDF(*named, SIDE_OUTPUT))
    return replace(found, df=select_list(result, node, [KEPT, LATE_SIDE], quoted(KEPT)))


def _with_computed(node: Aggregated, df: DataFrame) -> DataFrame:
    """Return rows with the keys that are expressions."""
    return with_columns(df, {name: kept_only(df, F.expr(text)) for text, name in node.computed})


def _of_each_batch(found: Relation) -> Source:
    """Return how the rows of windows that have ended are aggregated again: their windows are keys."""
    return replace(
        found.tables[0].source,
        df=found.df.withColumn(ENDS, F.lit(0).cast("bigint")),
        event_time=ENDS,
        assigner=TumblingSliceAssigner(1),
        strategy=WatermarkStrategy.for_monotonous_timestamps(),
        channel=None,
        where=None,
        each_batch=True,
    )


def filtered(source: Source, condition: Column) -> Source:
    """Return the rows of a source that meet a condition; the others only advance the watermark, if any."""
    if source.df.isStreaming and source.event_time is not None:
        return replace(source, where=condition)
    return replace(source, df=source.df.where(condition))


def window_plan(source: Source, keys: list[str], calls: Sequence[Column | UserAggregate]) -> WindowPlan:
    """Return the plan of aggregates, or of a count where there are none: windows need one."""
    df, calls = source.df, calls or [F.count("*")]
    keys = key_columns(df, "GROUP BY", keys) if keys else []
    return WindowPlan(source, keys, [resolve_aggregate(df, one, at) for at, one in enumerate(calls)])


def select_list(
    result: DataFrame, node: Aggregated, others: Sequence[str] = (), of_side: Column | None = None
) -> DataFrame:
    """Return the columns of an aggregation's SELECT, and `others`, where HAVING is true.

    In rows that are not `of_side` the columns are null, and HAVING does not matter.
    """
    places = dict(zip(WINDOW_COLUMNS, WINDOW, strict=True))
    result = result.withColumns({name: quoted(places[which]) for name, which in node.source.bounds.items()})
    if node.having is not None:
        having = F.expr(node.having)
        result = result.where(having if of_side is None else F.when(of_side, having).otherwise(True))
    return select_items(result, node.columns, [*others, *WINDOW], of_side, node.bounds)


def expanded(df: DataFrame, numbers: Column, keys: Mapping[str, tuple[str, list[int]]]) -> DataFrame:
    """Copy each row into the grouping sets of its `numbers`, an array, with the number of the set.

    keys: for each new key column the column, and the sets that have it; in others the key is null
    """
    df = df.withColumn(GROUPING_SET, F.explode(numbers))
    columns = {}
    for there, (name, having) in keys.items():
        named_column(df, "GROUP BY", name)
        columns[there] = F.when(quoted(GROUPING_SET).isin(having), quoted(name))
    return with_columns(df, columns)
