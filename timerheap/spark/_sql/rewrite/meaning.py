"""What a query in Flink's SQL means: of the clauses of each SELECT, the nodes that are planned.

`read` parses the text, and each module here is about one clause. This one decides which of them a SELECT is.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.nodes import (
    Aggregated,
    Combined,
    Distinct,
    Either,
    Grouped,
    IntervalJoined,
    Matched,
    NestedQuery,
    Node,
    Ranked,
    Selected,
    Table,
    TopRows,
    United,
)
from timerheap.spark._sql.read.dialect import refuse
from timerheap.spark._sql.read.over_clause import RANKS
from timerheap.spark._sql.read.parser import TOO_DEEP
from timerheap.spark._sql.read.select import SelectParts
from timerheap.spark._sql.rewrite.column_names import ColumnsOf, columns_of
from timerheap.spark._sql.rewrite.distinct_rows import rows_once, without_distinct, without_first_rows
from timerheap.spark._sql.rewrite.from_clause import NamedQueries, read_from
from timerheap.spark._sql.rewrite.group_windows import group_windows
from timerheap.spark._sql.rewrite.groups import is_aggregated, select_of_groups
from timerheap.spark._sql.rewrite.nested_pairs import nested_pairs
from timerheap.spark._sql.rewrite.over_rows import over_rows
from timerheap.spark._sql.rewrite.qualify import expect_no_windows, nested_windows
from timerheap.spark._sql.rewrite.ranks import (
    first_of_keys,
    limited,
    ranked,
    ranks_windows,
    up_to_limit,
)
from timerheap.spark._sql.rewrite.select_list import projected
from timerheap.spark._sql.rewrite.set_operations import set_operation
from timerheap.spark._sql.rewrite.subqueries import subquery_join
from timerheap.spark._sql.rewrite.top_rows import (
    begins_with_time,
    first_rows,
    is_alone,
    ranked_rows,
    top_up_to_limit,
)
from timerheap.spark._sql.rewrite.window_clause import with_defined_windows
from timerheap.spark._sql.table_function import TableFunction

_RESULTS = Selected, Aggregated, Grouped, Distinct, TopRows, United, Combined, Either, Ranked
"""What a nested SELECT means."""


def meaning_of(
    query: exp.Expr,
    of_table: ColumnsOf | None = None,
    views: Mapping[str, Node] | None = None,
    nested: dict[tuple[str, ...], NestedQuery] | None = None,
    functions: Mapping[str, TableFunction] | None = None,
) -> Node:
    """Return what a query means; raise an error that names what is unsupported.

    of_table: the columns of a table, if they are known: columns of a JOIN then need no name of a table
    views: what the queries mean that it may name
    nested: receives the queries whose results are tables of others
    functions: those that may be called on tables, by their names in lower case
    """
    nested = {} if nested is None else nested

    def columns(table: tuple[str, ...]) -> list[str]:
        if table in nested:
            return columns_of(nested[table].node, columns)
        assert of_table is not None
        return of_table(table)

    known = None if of_table is None else columns
    queries = NamedQueries(views or {}, _meaning, known, nested, functions or {})
    try:
        return limited(_meaning(query, queries))
    except RecursionError:
        raise ArgumentValueError(TOO_DEEP) from None


def _meaning(tree: exp.Expr, queries: NamedQueries) -> Node:
    """Return what a query means: of one SELECT, or several with UNION and so on."""
    tree = tree.unnest() if isinstance(tree, exp.Subquery) else tree
    if not isinstance(tree, (exp.Select, exp.SetOperation)):
        refuse(tree.key.upper(), "write one SELECT, and use methods of the DataFrame")
    tree, first = without_first_rows(tree)
    if isinstance(tree, exp.SetOperation):
        for view in tree.args["with_"].expressions if tree.args.get("with_") else []:
            queries = queries.with_view(view.alias, _meaning(view.this, queries))
        found = set_operation(tree, queries)
    else:
        found = _of_select(tree, queries)
    return found if first is None else first_rows(limited(found), *first)


def _of_select(tree: exp.Select, queries: NamedQueries) -> Node:
    """Return what a SELECT means."""
    tree, once = without_distinct(with_defined_windows(tree))
    expect_no_windows(tree)
    select = SelectParts.of(nested_windows(tree))
    for view in select.views:
        queries = queries.with_view(view.alias, _meaning(view.this, queries))
    read = read_from(select, queries)
    source, select = read.node, read.select
    subqueries = [one for one in read.conditions if one.find(exp.Query)]
    conditions = [one for one in read.conditions if one not in subqueries]
    if isinstance(source, Selected) and isinstance(source.source, Ranked):
        source, conditions = up_to_limit(source, source.source, conditions)
    elif isinstance(source, TopRows) and not source.limit:
        source, conditions = top_up_to_limit(source, conditions, select)
    if subqueries and conditions:  # first, since what is compared with a subquery may fail on other rows
        source, conditions = projected(source, conditions, [exp.Star()]), []
    for one in subqueries:
        source = subquery_join(source, read.name, one, queries)
    found = _selected(select, source, conditions, read.name, queries)
    return rows_once(limited(found)) if once else found


def _selected(
    select: SelectParts, source: Node, conditions: list[exp.Expr], name: str, queries: NamedQueries
) -> Node:
    """Return what the select list makes of rows, or of groups of them; `name` is that of the rows."""
    overs = select.overs
    if not overs:
        if is_aggregated(select):
            if group_windows(select) and isinstance(source, IntervalJoined):
                select, source = nested_pairs(select, source, conditions)
                conditions = []
            if group_windows(select) and isinstance(source, (*_RESULTS, Matched)):
                source = queries.as_table(source, name)
            return select_of_groups(select, source, conditions, queries.of_table)
        if select.having is not None:
            refuse("HAVING without GROUP BY", "use WHERE, or add GROUP BY")
        return projected(source, conditions, select.items)
    ranks = any(type(one.this) in RANKS for one in overs)
    if isinstance(source, Table):
        if not ranks or begins_with_time(overs[0]):
            selected = over_rows(select, source, conditions, overs)
            by_time = first_of_keys(select, source, overs, selected) or selected
            if not is_alone(select, overs):
                return by_time
            return ranked_rows(select, source, conditions, overs, by_time)
        return ranked_rows(select, source, conditions, overs)
    if not ranks:
        if select.group is None and isinstance(source, _RESULTS):
            source = queries.as_table(source, name)
        return over_rows(select, source, conditions, overs)
    if ranks_windows(source, overs):
        return ranked(select, source, conditions, overs)
    return ranked_rows(select, source, conditions, overs)
