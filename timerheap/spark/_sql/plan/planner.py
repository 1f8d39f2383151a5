"""Plans the queries of `sql` on DataFrames: which module plans a node, and which columns the result has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import (
    CHANGE_TYPE,
    CHANGED,
    COMMIT,
    ENDED,
    ENDS,
    KEPT,
    LATE_SIDE,
    SEEN,
    SIDE_OUTPUT,
    TIMED_OUT,
    WINDOW,
    WINDOW_COLUMNS,
)
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._plan.outputs import results_of
from timerheap.spark._sql.nodes import (
    Aggregated,
    AsOf,
    CalledOnTables,
    Combined,
    Distinct,
    Either,
    Exploded,
    Grouped,
    IntervalJoined,
    Items,
    Joined,
    JoinedRows,
    Listed,
    Matched,
    Node,
    Over,
    Ranked,
    Selected,
    Table,
    TopRows,
    United,
    Windowing,
    plain_table,
)
from timerheap.spark._sql.plan.aggregate_plan import aggregates_of_windows
from timerheap.spark._sql.plan.as_of_plan import as_of_pairs
from timerheap.spark._sql.plan.changing_plan import (
    distinct_plan,
    first_rows_plan,
    groups_plan,
    joins_plan,
    set_operations_plan,
    unions_plan,
)
from timerheap.spark._sql.plan.exploded_plan import exploded_rows, listed_rows
from timerheap.spark._sql.plan.interval_plan import interval_pairs
from timerheap.spark._sql.plan.join_plan import window_joined
from timerheap.spark._sql.plan.lookup_plan import looked_up_pairs
from timerheap.spark._sql.plan.match_inputs import comes_in_order, origin_of, with_origin
from timerheap.spark._sql.plan.over_plan import over_rows_of_table
from timerheap.spark._sql.plan.pattern_plan import matches
from timerheap.spark._sql.plan.processed import processed
from timerheap.spark._sql.plan.rank_plan import first_rows_of_keys, first_rows_of_windows
from timerheap.spark._sql.plan.relations import (
    Relation,
    hidden_columns,
    rows_where,
    select_items,
    timed_out_aside,
    visible_columns,
)
from timerheap.spark._sql.plan.table_function_plan import rows_of_call
from timerheap.spark._sql.plan.timed_sides import has_time, take_clock, timed_side
from timerheap.spark._sql.plan.timed_tables import Tables, TimedTable, growing
from timerheap.spark._sql.run.session_rows_runner import SessionRows
from timerheap.spark._tvf.slice_columns import windows_of
from timerheap.tvf.slices import SessionUnsliceAssigner, SliceAssigner

_EVERYTHING: Items = (("*", "*"),)


_CHANGING: dict[type, Callable[..., DataFrame]] = {
    Distinct: distinct_plan,
    TopRows: first_rows_plan,
    JoinedRows: joins_plan,
    Combined: set_operations_plan,
}


def _rows_kept(found: Relation) -> DataFrame:
    """Return rows without those that only advance the watermark."""
    return found.timed.where(quoted(KEPT)) if KEPT in found.df.columns else found.df


def _changelog(df: DataFrame) -> DataFrame:
    """Return the result of a query whose rows change."""
    result = select_items(df, _EVERYTHING, [CHANGED])
    if CHANGE_TYPE in result.columns:
        raise ArgumentValueError(
            f"query: the result must not have a column {CHANGE_TYPE}, which says what becomes of a row; "
            f"rename it: SELECT {CHANGE_TYPE} AS ..."
        )
    return result.withColumnRenamed(CHANGED, CHANGE_TYPE)


class Planner:
    """Plans the nodes of one query."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._sides: dict[int, Relation] = {}  # of joins, planned before it is known what join it is

    def result(self, node: Node) -> DataFrame:
        """Return the result of a query, with late rows and partial matches aside if it emits them."""
        found = self.relation(node)
        df = found.df
        if CHANGED in df.columns:
            return _changelog(df)
        if LATE_SIDE in df.columns:
            df = df.where(quoted(KEPT) | quoted(LATE_SIDE).isNotNull())
        if TIMED_OUT in df.columns:
            df = timed_out_aside(df)
        if LATE_SIDE in df.columns:
            df = select_items(df, _EVERYTHING, [LATE_SIDE])
            return results_of(df.toDF(*df.columns[:-1], SIDE_OUTPUT))
        return select_items(_rows_kept(found), _EVERYTHING)

    def rows(self, node: Node) -> DataFrame:
        """Return the rows of a node that are in its result, with `CHANGED` if they are a changelog."""
        df = _rows_kept(self.relation(node))
        return df.drop(*(name for name in hidden_columns(df) if name != CHANGED))

    def relation(self, node: Node) -> Relation:
        """Return the rows of a node."""
        plans: dict[type, Callable[[Any], Relation]] = {
            Table: self._rows_of_table,
            Windowing: self._rows_of_windows,
            Selected: self._selected,
            Aggregated: lambda node: aggregates_of_windows(node, self._tables, self.relation),
            Ranked: self._ranked,
            Joined: lambda node: window_joined(node, self._tables, self.relation),
            Over: lambda node: over_rows_of_table(node, self._tables),
            AsOf: self._as_of,
            IntervalJoined: self._in_interval,
            Matched: lambda node: matches(node, self._tables, self._rows_to_match),
            **{kind: partial(self._changing, plan) for kind, plan in _CHANGING.items()},
            Grouped: partial(self._changing, partial(groups_plan, functions=self._tables.functions)),
            United: lambda node: Relation(unions_plan(node, self.rows), (), ended=True),
            Either: self._either,
            Exploded: lambda node: Relation(exploded_rows(node, self.rows(node.source)), (), ended=True),
            CalledOnTables: lambda node: Relation(rows_of_call(node, self._tables), (), ended=True),
            Listed: lambda node: Relation(listed_rows(node, self._tables.spark), (), ended=True),
        }
        return self._sides.get(id(node)) or plans[type(node)](node)

    def _rows_of_table(self, node: Table) -> Relation:
        """Return the rows of a table as they are; those that a condition drops advance the watermark."""
        if not node.time:
            return Relation(self._tables.changes(node.table), (), ended=True)
        df, table = self._tables.rows(node)
        return Relation(df.withColumn(KEPT, F.lit(True)), (table,), ended=False)

    def _rows_of_windows(self, node: Windowing) -> Relation:
        """Copy each row into all of its windows."""
        table = self._tables.cut(node)
        source, assigner = table.source, table.source.assigner
        if source.event_time is None:
            raise ArgumentValueError(
                "query: rows of windows of processing time are not supported; aggregate them with GROUP BY"
            )
        if isinstance(assigner, SliceAssigner):
            windows = F.inline_outer(windows_of(source.df, source.event_time, assigner)).alias(*WINDOW, ENDS)
            rows = table.rows.withColumn(KEPT, F.lit(True)).select("*", windows)
            found = Relation(rows, (table,), ended=False)
        else:
            found = _session_rows(node, table, assigner, source.event_time)
        bounds = {name: quoted(there) for name, there in zip(WINDOW_COLUMNS, WINDOW, strict=True)}
        return replace(found, df=found.df.withColumns(bounds))

    def _selected(self, node: Selected) -> Relation:
        found = self.relation(node.source)
        df = rows_where(found, node.where).df
        return replace(found, df=select_items(df, node.columns, hidden_columns(df)))

    def _ranked(self, node: Ranked) -> Relation:
        if isinstance(node.source, Table):
            return first_rows_of_keys(node, node.source, self._tables)
        return first_rows_of_windows(node, self.relation)

    def _changing(self, plan: Callable[..., DataFrame], node: Node) -> Relation:
        """Return what changes as rows come."""
        return Relation(plan(node, self.rows, self._tables.state_options), (), ended=True)

    def _either(self, node: Either) -> Relation:
        by_time = self._tables.grows_by_time(node.table)
        return self.relation(node.by_time if by_time else node.changing)

    def _as_of(self, node: AsOf) -> Relation:
        if not node.right_time and take_clock(node.left, node.time, self._tables):
            return Relation(looked_up_pairs(node, self._rows_of_side), (), ended=True)
        return Relation(as_of_pairs(node, self._tables, self._rows_of_side), (), ended=True)

    def _in_interval(self, node: IntervalJoined) -> Relation:
        """Return the pairs of an interval join, or those of all rows if a side has no time."""
        join = node.rows
        sides = list(zip((join.left, join.right), node.names, node.times, strict=True))
        for side, name, time in sides:
            if take_clock(side, time, self._tables):
                continue
            if plain_table(side) is None:
                self._sides[id(side)] = self.relation(side)
            df = None if plain_table(side) is not None else self.result(side)
            if not has_time(side, name, time, df, self._tables):
                return self.relation(node.otherwise)
        left, right = (timed_side(*side, self._tables, self._rows_of_side) for side in sides)
        return Relation(interval_pairs(node, left, right, self._tables), (), ended=True)

    def _rows_of_side(self, node: Node, deleted: str | None) -> DataFrame:
        """Return the rows of a side of a join by time; see `RowsOfSide`."""
        if plain_table(node) is not None:
            return self._plain(node, deleted).df
        return growing("an as-of join of a nested SELECT", self.result(node))

    def _plain(self, node: Node, deleted: str | None) -> Relation:
        """Return the rows of a query that projects and filters a table."""
        if isinstance(node, Selected):
            df = self._plain(node.source, deleted).df
            if df.isStreaming and KEPT not in df.columns:
                df = df.withColumn(KEPT, F.lit(True))
            df = rows_where(Relation(df, (), ended=False), node.where).df
            return Relation(select_items(df, node.columns, hidden_columns(df)), (), ended=False)
        assert isinstance(node, Table)
        if deleted is None:
            return Relation(self._tables.growing("an as-of join", node.table), (), ended=False)
        df = self._tables.versions(node.table).withColumn(ENDED, F.coalesce(F.expr(deleted), F.lit(False)))
        if self._tables.is_changelog(node.table):
            df = df.drop(CHANGE_TYPE, *COMMIT)
        return Relation(df, (), ended=False)

    def _rows_to_match(self, node: Matched, source: Node) -> tuple[DataFrame, TimedTable]:
        """Return the rows of a query, with their marks, and the table that has their time."""
        origin = origin_of(source, node.time)
        if origin is not None and self._tables.frame(origin.table).isStreaming:
            found = self.relation(with_origin(source, origin))
            return found.df.drop(SEEN), found.tables[0]
        inner = Planner(replace(self._tables, timed_out=False, late="drop"))
        rows = growing("MATCH_RECOGNIZE of a nested SELECT", inner.result(source))
        return self._tables.rows_of_nested(node, rows, comes_in_order(source, node.time))


def _session_rows(
    node: Windowing, table: TimedTable, assigner: SessionUnsliceAssigner, time: str
) -> Relation:
    """Return the rows of a table, and their sessions, once these have ended."""
    df, names = table.rows.drop(SEEN), visible_columns(table.source.df)
    naive, type_ = T.TimestampNTZType(), df.schema[time].dataType
    types = (naive, naive, type_ if type_ == naive else T.TimestampType())
    bounds = [T.StructField(name, type_) for name, type_ in zip(WINDOW, types, strict=True)]
    rows = [T.StructField(name, df.schema[name].dataType) for name in names]
    types_, bounds_ = (to_arrow_schema(T.StructType(fields)) for fields in (rows, bounds))
    work = SessionRows(types_, bounds_, assigner)
    result, keys = [*rows, *bounds], node.partition
    return processed(work, df, keys, names, result, (table,), time=time, order="arrival", late="process")
