"""Plans ranks: the first row of each key of a table, and the first rows of each window and key."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.spark._columns import ARRIVAL, ENDS, ORDER, RANK, WINDOW, WINDOW_COLUMNS, name_without_number
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._order_by import Order, Ranking
from timerheap.spark._plan.build import kept_only
from timerheap.spark._process.drop_duplicates_runner import OneOfRun
from timerheap.spark._sql.nodes import Node, Ranked, Selected, Table, Windowing
from timerheap.spark._sql.plan.processed import processed
from timerheap.spark._sql.plan.relations import PlanOf, Relation, unique_names, visible_columns
from timerheap.spark._sql.plan.timed_tables import Tables
from timerheap.spark._sql.run.first_rows_runner import FirstRows, LocalFirstRows


def first_rows_of_keys(node: Ranked, source: Table, tables: Tables) -> Relation:
    """Return the first row of each key of a table."""
    df, table = tables.rows(source)
    names = visible_columns(table.source.df)
    result = [*(df.schema[name] for name in names), T.StructField(RANK, T.LongType(), False)]
    return processed(
        OneOfRun(to_arrow_schema(T.StructType(result[:-1])), number=RANK),
        df,
        node.keys,
        names,
        result,
        (table,),
        time=table.source.event_time,
        late=table.source.late,
    )


def first_rows_of_windows(node: Ranked, relation: PlanOf) -> Relation:
    """Return the first rows of each window and key, with their rank."""
    found = relation(node.source)
    orders = [replace(one, by=f"{ORDER}{at}") for at, one in enumerate(node.order)]
    added = {
        there.by: kept_only(found.df, F.expr(one.by)) for there, one in zip(orders, node.order, strict=True)
    }
    arrival: list[Order] = []
    if not found.ended and node.function == "row_number":
        by, *others = node.order
        # As Flink's deduplication: of rows of one time, the last row by time is the last to arrive.
        keeps_last = node.limit == 1 and not others and by.descending and _is_time(by.by, node.source)
        arrival = [Order(name, keeps_last, nulls_first=False) for name in ARRIVAL]
    ranking = Ranking(node.function, RANK, tuple(orders), tuple(arrival), node.limit)
    df = unique_names(found.timed.withColumns(added))
    names = [*visible_columns(df), *WINDOW]
    result = [*(df.schema[name] for name in names), T.StructField(RANK, T.LongType(), False)]
    ranked = processed(
        FirstRows(ranking, names),
        df if found.ended else df.withColumn(ENDS, found.ends),
        node.keys,
        [*names, *added],
        result,
        found.tables,
        ended=found.ended,
        local=None if found.ended else partial(LocalFirstRows, ranking, [*node.keys]),
    )
    return replace(ranked, df=ranked.df.toDF(*map(name_without_number, names), RANK))


def _is_time(column: str, node: Node) -> bool:
    """Return whether a column of rows of windows is their time, or that of their windows."""
    name = column.strip("`").lower()
    while isinstance(node, Selected):
        name = next((text for text, shown in node.columns if shown.lower() == name), name).strip("`").lower()
        node = node.source
    return isinstance(node, Windowing) and name in (node.time.lower(), WINDOW_COLUMNS[-1])
