"""FROM: what a SELECT reads, which is a table, windows, a nested query, or a join of two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from timerheap.spark._columns import side_name
from timerheap.spark._sql.nodes import (
    CalledOnTables,
    IntervalJoined,
    Joined,
    JoinedRows,
    NestedQuery,
    Node,
    Selected,
    Table,
    Windowing,
)
from timerheap.spark._sql.read.clauses import (
    LENGTHS,
    column_name,
    descriptor,
    interval_ms,
    parts_of,
    window_arguments,
)
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse
from timerheap.spark._sql.read.select import SelectParts, conjuncts
from timerheap.spark._sql.rewrite.as_of_clause import (
    as_of,
    is_as_of,
    is_plain,
    shared_columns,
    with_left_columns,
)
from timerheap.spark._sql.rewrite.called_on_tables import called_on_tables
from timerheap.spark._sql.rewrite.column_names import ColumnsOf, columns_of, with_sides
from timerheap.spark._sql.rewrite.interval_joins import rows_joined
from timerheap.spark._sql.rewrite.match_recognize import matched
from timerheap.spark._sql.rewrite.nested_pairs import without_first_join, without_stars
from timerheap.spark._sql.rewrite.rank_instead_of_join import rank_instead_of
from timerheap.spark._sql.rewrite.ranks import limited
from timerheap.spark._sql.rewrite.row_joins import (
    conditions_of_joins,
    needs_of,
    row_join,
    with_conditions_of_using,
)
from timerheap.spark._sql.rewrite.unnested import (
    ONE_ROW,
    called,
    is_unnested,
    renamed,
    rows_of_values,
    with_unnested,
)
from timerheap.spark._sql.rewrite.window_joins import compares_windows, window_join
from timerheap.spark._sql.table_function import TableFunction

_OF_AS_OF = ("method", "match_condition")


@dataclass(frozen=True)
class NamedQueries:
    """What a query may name.

    views: the queries of WITH
    meaning: what a nested query means
    of_table: the columns of a table, if they are known
    nested: the queries that are tables of others, by the paths of these
    functions: those that may be called on tables, by their names in lower case
    """

    views: Mapping[str, Node]
    meaning: Callable[[exp.Expr, NamedQueries], Node]
    of_table: ColumnsOf | None
    nested: dict[tuple[str, ...], NestedQuery]
    functions: Mapping[str, TableFunction] = field(default_factory=dict)

    def with_view(self, name: str, node: Node) -> NamedQueries:
        return replace(self, views={**self.views, name: node})

    def as_table(self, node: Node, name: str) -> Table:
        """Return the result of a query as a table, of which windows and functions OVER rows are."""
        node = limited(node)
        if isinstance(node, Table) and node == Table(node.table):
            return node
        query = NestedQuery(name, node)
        known = next((path for path, one in self.nested.items() if one == query), None)
        path = known or (f"nested SELECT {len(self.nested) + 1}" + (f" ({name})" if name else ""),)
        self.nested[path] = query
        return Table(path)


@dataclass(frozen=True)
class Read:
    """What a SELECT reads: its rows, their name, the conditions of WHERE that remain, and the SELECT.

    Its columns have no names of tables before them, or those of the sides of a join.
    """

    node: Node
    name: str
    conditions: list[exp.Expr]
    select: SelectParts


def read_from(select: SelectParts, queries: NamedQueries) -> Read:
    """Return what a SELECT reads."""
    joins = select.joins
    as_ofs = _as_ofs(select)
    first = select.first
    source, name = (ONE_ROW, "") if first is None else relation(first, queries)
    if select.match is not None:
        source, name = matched(limited(source), name, select.match), select.match.alias
    if any(map(is_unnested, joins)):
        select, source = with_unnested(select, limited(source), name, queries.of_table)
        return Read(source, name, select.where, select)
    if not joins:
        select = select.with_names({name: None} if name else {})
        return Read(source, name, select.where, select)
    plain = not as_ofs or (len(joins) == 1 and is_plain(select))
    for join in joins:
        expect_only(join, {"this", "on", "side", "kind", "using", *(_OF_AS_OF if join in as_ofs else ())})
    others = [relation(join.this, queries) for join in joins]
    tables = [(source, name), *others]
    names = [one for _, one in tables]
    if queries.of_table is not None:  # then it is known of which table a column is
        names = [one or f"the table {at}" for at, one in enumerate(names)]
    if "" in names or len(set(names)) < len(names):
        refuse("a JOIN of tables without names of their own", "name them: FROM (...) AS L JOIN (...) AS R")
    if not (as_ofs and plain) and any(join.args.get("using") for join in joins):
        select = with_conditions_of_using(select, names)
    sides = {one: side_name(at) for at, one in enumerate(names)}
    select = select.with_names(sides)
    for join in select.joins:
        kind = str(join.args.get("kind") or "inner").lower()
        if kind not in ("inner", "outer", "cross"):
            refuse(as_read(join), "write JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, or [NOT] IN or [NOT] EXISTS")
    if any(one.find(exp.Query) for join in select.joins for one in conjuncts(join.args.get("on"))) or any(
        one.find(exp.Query) for one in select.where
    ):
        refuse("IN or EXISTS beside a JOIN", "write the JOIN as a nested SELECT")
    nodes = [limited(node) for node, _ in tables]
    if as_ofs and plain:
        select = with_left_columns(select, select.joins[0])
        return Read(_first_join(select, nodes, names), "", select.where, select)
    of_sides = dict(zip(sides.values(), nodes, strict=True))
    select = with_sides(select, of_sides, queries.of_table)
    if as_ofs:
        return _beside_as_ofs(without_stars(select, of_sides, queries.of_table), nodes, names, queries)
    return _joins(select, nodes, names)


def _as_ofs(select: SelectParts) -> list[exp.Join]:
    """Return the as-of joins of a SELECT."""
    pairs = zip(select.joins, select.versions, strict=True)
    return [join for join, version in pairs if is_as_of(join, version)]


def _beside_as_ofs(select: SelectParts, nodes: list[Node], names: list[str], queries: NamedQueries) -> Read:
    """Return what as-of joins and others find; what one has found is the left table of the next."""
    while (as_ofs := _as_ofs(select)) and not (
        as_ofs == select.joins[:1] == select.joins and is_plain(select)
    ):
        left = None if queries.of_table is None else columns_of(nodes[0], queries.of_table)
        select, pairs = without_first_join(select, _first_join(select, nodes, names), [], left)
        name = f"{names[0]} JOIN {names[1]}"
        nodes, names = [queries.as_table(pairs, name), *nodes[2:]], [name, *names[2:]]
    if as_ofs:
        return Read(_first_join(select, nodes, names), "", select.where, select)
    return _joins(select, nodes, names) if select.joins else Read(nodes[0], "", select.where, select)


def _first_join(select: SelectParts, nodes: list[Node], names: list[str]) -> Node:
    """Return the pairs of the first join of a SELECT; `names` are those of the tables."""
    join, version, (left, right) = select.joins[0], select.versions[0], nodes[:2]
    how, conditions = str(join.args.get("side") or "inner").lower(), conjuncts(join.args.get("on"))
    if not is_as_of(join, version):
        return join_of(left, right, how, conditions, names=(names[0], names[1]))
    of_left, of_right = (
        ".".join(side.table) if isinstance(side, Table) else name
        for side, name in zip((left, right), names, strict=False)
    )
    conditions += shared_columns(join)
    match = join.args.get("match_condition")
    return as_of(left, right, (of_left, of_right), how, conditions, version, match)


def _joins(select: SelectParts, nodes: list[Node], names: list[str]) -> Read:
    """Return the rows of several tables, joined one after the other."""
    hows = [str(join.args.get("side") or "inner").lower() for join in select.joins]
    ons = [conjuncts(join.args.get("on")) for join in select.joins]
    ons, conditions = conditions_of_joins(hows, ons, select.where)
    found, *others = nodes
    needs = needs_of(select, [side_name(at) for at in range(len(nodes))])
    for number, (right, how, on) in enumerate(zip(others, hows, ons, strict=True), 2):
        found = join_of(found, right, how, on, needs[:number], (names[0], names[1]))
    return Read(found, "", conditions, select)


def join_of(
    left: Node,
    right: Node,
    how: str,
    conditions: list[exp.Expr],
    needs: tuple[tuple[str, ...] | None, ...] = (None, None),
    names: tuple[str, str] = ("", ""),
) -> Joined | JoinedRows | IntervalJoined | Selected:
    """Return the join of two sides: of their windows if these are compared, else of their rows.

    needs: the columns of each table that the result must have, None for all
    names: of the tables, or of nested queries
    """
    if len(needs) == 2 and compares_windows(left, right, conditions):
        joined = window_join(left, right, how, conditions)
        return rank_instead_of(joined) or joined
    if len(needs) > 2:
        return row_join(left, right, len(needs), how, conditions, needs)
    return rows_joined(left, right, names, how, conditions, needs)


def relation(item: exp.Expr, queries: NamedQueries) -> tuple[Node, str]:
    """Return an element of FROM, and its name."""
    if isinstance(item, exp.Values):
        return rows_of_values(item), item.alias
    if isinstance(item, exp.Lateral):
        return called(item), item.alias
    if not isinstance(item, (exp.Subquery, exp.Table)):
        refuse(f"{item.key.upper()} in FROM", "write the same in Spark, as a view")
    if columns := item.alias_column_names:
        plain = item.copy()
        plain.args["alias"].set("columns", None)
        node, shown = relation(plain, queries)
        return renamed(limited(node), columns, shown, queries.of_table), shown
    if isinstance(item, exp.Subquery):
        expect_only(item, {"this", "alias"})
        return queries.meaning(item.this, queries), item.alias
    expect_only(item, {"this", "alias", "db", "catalog"})
    call = item.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        (call,) = call.expressions
    if isinstance(call, exp.Identifier):
        name = tuple(part.name for part in item.parts)
        found = queries.views.get(name[0]) if len(name) == 1 else None
        return found or Table(name), item.alias_or_name
    if isinstance(call, exp.Anonymous) and call.name.upper() in LENGTHS:
        return _windowing(call, queries), item.alias
    function = queries.functions.get(call.name.lower()) if isinstance(call, exp.Anonymous) else None
    if function is None:
        refuse(
            f"the table function {call.name}",
            f"use one of {', '.join(LENGTHS)}, or pass your own: functions={{{call.name!r}: "
            "timerheap.spark.table_function(...)}",
        )
    found = called_on_tables(
        call, function, lambda one: _named_table(one, "the table", queries), queries.of_table
    )
    same = [
        one.node
        for one in queries.nested.values()
        if isinstance(one.node, CalledOnTables) and found.uid is not None and one.node.uid == found.uid
    ]
    if any(one != found for one in same):
        refuse(
            f"the uid {found.uid!r} of two calls",
            "give each its own: it names the operator, and so its state",
        )
    return queries.as_table(found, call.name), item.alias or call.name


def _named_table(data: exp.Expr, what: str, queries: NamedQueries) -> tuple[str, ...]:
    """Return the table that an argument of a call is: one with a name, or the result of a query."""
    if isinstance(data, (exp.Subquery, exp.Select)):
        return queries.as_table(queries.meaning(data, queries), data.alias_or_name).table
    if not isinstance(data, exp.Column):
        refuse(f"{what} {as_read(data)}", "write a table, a view or a SELECT: TABLE t, or (SELECT ...)")
    table = tuple(part.name for part in data.parts)
    if table[0] in queries.views and len(table) == 1:
        return queries.as_table(queries.views[table[0]], table[0]).table
    return table


def _windowing(call: exp.Anonymous, queries: NamedQueries) -> Windowing:
    windows, given = window_arguments(call)
    partition = given.get("PARTITION_BY")
    lengths = LENGTHS[windows] | {"OFFSET": "offset"}
    keys = parts_of(partition) if partition else []
    return Windowing(
        function=windows.lower(),
        table=_named_table(given["DATA"], "DATA", queries),
        time=descriptor(given["TIMECOL"]),
        lengths={to: interval_ms(given[name], name) for name, to in lengths.items() if name in given},
        partition=tuple(column_name(part, "PARTITION BY") for part in keys),
    )
