"""Plans MATCH_RECOGNIZE: its rows, the columns that Spark computes of them, and the columns of matches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap.spark._plan.build import kept_only
from timerheap.spark._sql.nodes import PROCTIME, Items, Matched, Node
from timerheap.spark._sql.plan.match_columns import expect_bounded, matching, shown_columns
from timerheap.spark._sql.plan.processed import processed
from timerheap.spark._sql.plan.relations import Relation, hidden_columns, select_items, visible_columns
from timerheap.spark._sql.plan.timed_tables import Tables, TimedTable

Nested: TypeAlias = Callable[[Matched, Node], tuple[DataFrame, TimedTable]]
"""Returns the rows of a query, with their marks, and the table that has their time."""


def matches(node: Matched, tables: Tables, nested: Nested) -> Relation:
    """Return the matches of a pattern in the rows of a table, or of a `nested` query."""
    df, table = tables.rows(node) if node.source is None else nested(node, node.source)
    source = table.source
    expect_bounded(node, df, tables.unbounded_matches)
    visible = visible_columns(df)
    names = [name for name in shown_columns(node, visible) if name != PROCTIME]
    df = df.withColumns({name: kept_only(df, F.expr(text)) for name, text in node.columns.items()})
    ansi = tables.spark.conf.get("spark.sql.ansi.enabled") == "true"
    limits = tables.lead_within, tables.timed_out, tables.lag_within
    work, result = matching(node, df, names, *limits, ansi, tables.functions)
    found = processed(
        work,
        df,
        node.keys,
        [*names, *node.ties, *node.columns, *visible],
        result,
        (table,),
        time=node.time,
        order="arrival" if table.arrives else "event_time",
        late="process" if table.arrives else source.late,
        ties=(*node.ties, *visible),
    )
    return replace(found, df=select_items(found.df, match_items(node, names), hidden_columns(found.df)))


def match_items(node: Matched, names: list[str]) -> Items:
    """Return the columns of matches in their order, given the names of those that are of the rows."""
    first = [*node.keys, node.time, *node.ties] if node.all_rows else names
    before, after = (
        [(f"`{name}`", name) for name in names if (name in first) == here] for here in (True, False)
    )
    return (*before, *node.items, *after)
