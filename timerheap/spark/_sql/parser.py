"""Parses Flink SQL over windows into a plan, or says by name what it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from timerheap.spark._columns import RANK, SIDES, WINDOW, WINDOW_COLUMNS, computed_name
from timerheap.spark._sql.clauses import (
    EXAMPLE,
    LENGTHS,
    PATTERN,
    RANKS,
    Outside,
    at_most,
    descriptor,
    grouping_sets,
    milliseconds,
    name_of,
    named,
    nested_ranks,
    orders_of,
    over_call,
    partition_and_order,
    parts_of,
    time_of,
    window_arguments,
)
from timerheap.spark._sql.dialect import expect_only, parsed_select, refuse, rename, text_of, written
from timerheap.spark._sql.match_recognize import matched
from timerheap.spark._sql.nodes import (
    LEFT,
    RIGHT,
    Aggregated,
    AsOf,
    Call,
    Joined,
    Matched,
    Node,
    Over,
    Ranked,
    Selected,
    Table,
    Windowing,
)
from timerheap.spark._sql.over_columns import Frame, RowCall
from timerheap.spark._sql.ranking import Order

_READ = {"expressions", "from", "joins", "where", "group", "having", "with", "match"}
_ORDERS = (exp.GTE, exp.GT, exp.LTE, exp.LT)
_OF_GROUP_WINDOWS: dict[str, exp.Expr] = {
    **{end: exp.column(bound) for end, bound in zip(("START", "END", "ROWTIME"), WINDOW, strict=True)},
    "PROCTIME": exp.CurrentTimestamp(),
}
"""What TUMBLE_START and so on stand for, by the end of their names."""


def parsed(query: str) -> Node:
    """Parse a query; raise a ValueError that names what is unsupported."""
    return _limited(_query(parsed_select(query), {}))


def _query(select: exp.Expr, views: Mapping[str, Node]) -> Node:
    """Return the plan of a SELECT; `views` are the queries of WITH."""
    if not isinstance(select, exp.Select):
        refuse(select.key.upper(), "write one SELECT, and use union() and other methods of the DataFrame")
    _define_windows(select)
    select = nested_ranks(select)
    expect_only(select, _READ)
    if (with_ := select.args.get("with_")) is not None:
        for view in with_.expressions:
            views = {**views, view.alias: _query(view.this, views)}
    source, name, conditions = _from(select, views)
    subqueries = [one for one in conditions if one.find(exp.Query)]
    conditions = [one for one in conditions if one not in subqueries]
    if isinstance(source, Selected) and isinstance(source.source, Ranked):
        source, conditions = _first(source, source.source, conditions)
    if subqueries and conditions:  # first, since what is compared with a subquery may fail on other rows
        source, conditions = _projected(source, conditions, [exp.Star()]), []
    for one in subqueries:
        source = _subquery_join(source, name, one, views)
    if overs := [one for one in _own(select) if isinstance(one, exp.Window)]:
        if isinstance(source, Table):
            selected = _over(select, source, conditions, overs)
            return _first_of_keys(select, source, conditions, overs, selected) or selected
        if any(type(one.this) in RANKS for one in overs):
            return _ranked(select, source, conditions, overs)
        return _over(select, source, conditions, overs)
    if select.args.get("group") is not None:
        return _aggregated(select, source, conditions)
    if isinstance(source, Table) or (select.args.get("having") is not None):
        _refuse_table(select, source)
    return _projected(source, conditions, select.expressions)


def _define_windows(select: exp.Select) -> None:
    """Write the definitions of the WINDOW clause in place of their names, and check the select list."""
    defined = {one.name: one for one in select.args.get("windows") or []}
    select.set("windows", None)
    for over in [one for one in _own(select) if isinstance(one, exp.Window) and one.alias]:
        if over.alias not in defined:
            refuse(written(over), f"define it: WINDOW {over.alias} AS (PARTITION BY ... ORDER BY ...)")
        window = defined[over.alias].copy()
        window.set("this", over.this)
        for clause in filter(over.args.get, ("order", "spec")):
            window.set(clause, over.args[clause])
        over.replace(window)
    for node in [*select.expressions, *filter(None, [select.args.get("having")])]:
        if query := node.find(exp.Query):
            refuse(f"{written(query)} in this place", "write it as a window join, or in Spark")


def _own(select: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the nodes of a SELECT without those of the queries inside it."""
    return select.walk(prune=lambda node: node is not select and isinstance(node, exp.Query))


def _conjuncts(clause: exp.Expr | None) -> list[exp.Expr]:
    if clause is None:
        return []
    condition = clause.this if isinstance(clause, exp.Where) else clause
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition.unnest()]


def _conjunction(conditions: list[exp.Expr]) -> str | None:
    for one in conditions:
        if aggregate := one.find(exp.AggFunc):
            refuse(f"a condition with {written(aggregate)}", "group by windows, and use HAVING")
    return text_of(exp.and_(*conditions)) if conditions else None


def _from(select: exp.Select, views: Mapping[str, Node]) -> tuple[Node, str, list[exp.Expr]]:
    """Return what a SELECT reads, its name, and the conditions of its WHERE that remain.

    Names of tables before columns are removed, or are replaced by those of the sides of a join.
    """
    if (from_ := select.args.get("from_")) is None:
        refuse("a SELECT without a window function", f"write {EXAMPLE}")
    source, name = _relation(from_.this, views)
    if (match := select.args.get("match")) is not None:
        if not isinstance(source, Table):
            refuse("MATCH_RECOGNIZE of a nested query", "make a view of it, and match its rows")
        select.set("match", None)
        source, name = matched(source.table, match), match.alias
    conditions = _conjuncts(select.args.get("where"))
    joins = select.args.get("joins") or []
    if not joins:
        _rename(select, {name: None} if name else {})
        return source, name, conditions
    if len(joins) > 1:
        refuse("more than one JOIN in a SELECT", "join the result of a nested SELECT with the next table")
    (join,) = joins
    version, match = join.this.args.get("version"), join.args.get("match_condition")
    is_as_of = bool(version or match or join.args.get("method") == "ASOF")
    more = {"method", "match_condition", "using"} if is_as_of else set()
    expect_only(join, {"this", "on", "side", "kind", *more})
    join.this.set("version", None)
    right, other = _relation(join.this, views)
    if not name or not other:
        refuse("a JOIN of tables without names", "name both: FROM (...) AS L JOIN (...) AS R")
    names = {name: LEFT, other: RIGHT}
    _rename(select, names)
    if version is not None:
        _rename(version, names)
    how, on = str(join.args.get("side") or "inner").lower(), _conjuncts(join.args.get("on"))
    kind = str(join.args.get("kind") or "inner").lower()
    if kind not in ("inner", "outer", "cross"):
        refuse(written(join), "write JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, or [NOT] IN or [NOT] EXISTS")
    if any(one.find(exp.Query) for one in on + conditions):
        refuse("IN or EXISTS beside a JOIN", "write the JOIN as a nested SELECT")
    if is_as_of:
        _expect_plain(select)
        same = [one.name for one in join.args.get("using") or []]
        for column in _own(select):
            if isinstance(column, exp.Column) and not column.table and column.name in same:
                rename(column, LEFT)
        on += [exp.EQ(this=exp.column(one, LEFT), expression=exp.column(one, RIGHT)) for one in same]
        return _as_of(source, right, how, on, version, match), "", conditions
    if how == "inner":  # it does not matter which of its conditions are in WHERE
        on, conditions = conditions + on, []
    joined = _join(_limited(source), _limited(right), how, on)
    return _most(joined) or joined, "", conditions


def _expect_plain(select: exp.Select) -> None:
    """Raise unless a SELECT with an as-of join only projects and filters what that finds."""
    found = next((one for one in _own(select) if isinstance(one, (exp.AggFunc, exp.Window))), None)
    clause = select.args.get("group") or select.args.get("having") or found
    if clause is not None:
        refuse(
            f"{written(clause)} beside an as-of join", "make a view of the result of the join, and query it"
        )


def _as_of(
    left: Node,
    right: Node,
    how: str,
    conditions: list[exp.Expr],
    version: exp.Expr | None,
    match: exp.Expr | None,
) -> AsOf:
    """Return an as-of join.

    version, match: what FOR SYSTEM_TIME and MATCH_CONDITION say; without them one of the `conditions` is the
        order of the two times
    """
    if not isinstance(left, Table) or not isinstance(right, Table):
        refuse("an as-of join of nested queries", "make views of them, and join these")
    if how not in ("inner", "left"):
        refuse(f"an as-of {how.upper()} JOIN", "write JOIN or LEFT JOIN")
    pairs = [(one, _pair(one)) for one in map(_null_safe, conditions)]
    keys = []
    for one, pair in pairs:
        if pair is not None:
            x, y = (text_of(_without_side(node)) for node in pair)
            keys.append((x, y, isinstance(one, exp.NullSafeEQ)))
    rest = [one for one, pair in pairs if pair is None]
    order = match
    if version is not None:
        order = exp.GTE(this=version.expression, expression=exp.column("", RIGHT))
    elif match is None:
        order = next((one for one in rest if isinstance(one, _ORDERS)), None)
        rest = [one for one in rest if one is not order]
    times = [order.this, order.expression] if isinstance(order, _ORDERS) else []
    if isinstance(order, (exp.LTE, exp.LT)):
        times.reverse()
    if [isinstance(one, exp.Column) and one.table for one in times] != [LEFT, RIGHT]:
        shown = "an as-of join without the order of two times" if order is None else written(order)
        if version is not None:
            shown = f"FOR SYSTEM_TIME AS OF {written(version.expression)}"
        refuse(shown, "write FOR SYSTEM_TIME AS OF L.ts, or MATCH_CONDITION (L.ts >= R.ts), or L.ts > R.ts")
    if rest and version is None:  # in other dialects such a condition changes which row is the newest
        refuse(f"{written(rest[0])} in an as-of join", "write it in WHERE, or in a view of the table")
    if not keys:
        refuse("an as-of join without a key", "write ON L.k = R.k")
    exact, (time, right_time) = isinstance(order, (exp.GTE, exp.LTE)), (one.name for one in times)
    return AsOf(left.table, right.table, how, tuple(keys), time, right_time, exact, _conjunction(rest))


def _relation(item: exp.Expr, views: Mapping[str, Node]) -> tuple[Node, str]:
    """Return an element of FROM, and its name."""
    if not isinstance(item, (exp.Subquery, exp.Table)):
        refuse(f"{item.key.upper()} in FROM", "write the same in Spark, as a view")
    if columns := item.alias_column_names:
        refuse(f"renaming columns with {item.alias} ({', '.join(columns)})", "rename them in SELECT")
    if isinstance(item, exp.Subquery):
        expect_only(item, {"this", "alias"})
        return _unjoined(_query(item.this, views)), item.alias
    expect_only(item, {"this", "alias", "db", "catalog"})
    call = item.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        (call,) = call.expressions
    if isinstance(call, exp.Identifier):
        name = tuple(part.name for part in item.parts)
        found = views.get(name[0]) if len(name) == 1 else None
        return _unjoined(found or Table(name)), item.alias_or_name
    if not isinstance(call, exp.Anonymous) or call.name.upper() not in LENGTHS:
        refuse(f"the table function {call.name}", f"use one of {', '.join(LENGTHS)}")
    return _windowing(call), item.alias


def _unjoined(node: Node) -> Node:
    """Return a node in FROM; raise if it is an as-of join, perhaps projected."""
    source = node
    while isinstance(source, Selected):
        source = source.source
    if isinstance(source, AsOf):
        refuse("a query of the result of an as-of join", "make a view of the result, and query that")
    return node


def _windowing(call: exp.Anonymous) -> Windowing:
    windows, given = window_arguments(call)
    data, partition = given["DATA"], given.get("PARTITION_BY")
    if not isinstance(data, exp.Column):
        refuse(f"DATA {written(data)}", "write the name of a table or a view: TABLE t")
    lengths = LENGTHS[windows] | {"OFFSET": "offset"}
    return Windowing(
        function=windows.lower(),
        table=tuple(part.name for part in data.parts),
        time=descriptor(given["TIMECOL"]),
        lengths={to: milliseconds(given[name], name) for name, to in lengths.items() if name in given},
        partition=tuple(name_of(part, "PARTITION BY") for part in parts_of(partition)) if partition else (),
    )


def _rename(node: exp.Expr, names: Mapping[str, str | None]) -> None:
    """Replace the names of tables before columns; "" stands for none, and so does None."""
    for column in _own(node):
        if isinstance(column, exp.Column) and column.table in names:
            rename(column, names[column.table])


def _refuse_table(select: exp.Select, source: Node) -> None:
    if not isinstance(source, Table):
        refuse("HAVING without GROUP BY", "use WHERE, or add GROUP BY window_start, window_end")
    refuse(f"a query of {'.'.join(source.table)} without windows", f"use spark.sql(), or write {EXAMPLE}")


def _bound(node: exp.Expr, bounds: Mapping[str, str]) -> str | None:
    """Return which bound of the window an expression is, None if it is something else."""
    if isinstance(node, exp.Coalesce):  # of the two sides of an outer join
        found = {_bound(one, bounds) for one in [node.this, *node.expressions]}
        return found.pop() if len(found) == 1 else None
    if not isinstance(node, exp.Column):
        return None
    return bounds.get(f"{node.table}.{node.name}" if node.table else node.name)


def _bounds(items: list[exp.Expr], bounds: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a SELECT that have a bound of the window."""
    found: dict[str, str] = {}
    for item in items:
        if item.is_star:
            before = f"{item.table}." if isinstance(item, exp.Column) else ""
            found |= {
                name.removeprefix(before): which for name, which in bounds.items() if name.startswith(before)
            }
        elif which := _bound(item.unalias(), bounds):
            found[item.alias_or_name] = which
    return found


def _item(node: exp.Expr) -> tuple[str, str]:
    if node.is_star:
        expect_only(node, {"this", "table"})
        return text_of(node), "*"
    if isinstance(node, exp.Alias):
        return text_of(node.this), node.alias
    return text_of(node), node.name if isinstance(node, exp.Column) else text_of(node)


def _projected(source: Node, conditions: list[exp.Expr], items: list[exp.Expr]) -> Selected:
    for item in items:
        if aggregate := item.find(exp.AggFunc):
            refuse(f"SELECT with {written(aggregate)}", "add GROUP BY window_start, window_end")
    columns = tuple(map(_item, items))
    return Selected(source, _conjunction(conditions), columns, _bounds(items, source.bounds))


def _aggregated(select: exp.Select, source: Node, conditions: list[exp.Expr]) -> Aggregated:
    bounds = source.bounds
    group = select.args["group"]
    if isinstance(source, Table):
        source = _of_group_windows(select, source)
        bounds = source.bounds
    if isinstance(source, Joined) and source.how not in ("semi", "anti"):
        refuse("GROUP BY of a JOIN", "write the JOIN as a nested SELECT: FROM (SELECT ... JOIN ...) GROUP BY")
    if isinstance(source, Selected) and isinstance(source.source, Windowing):
        refuse(
            "GROUP BY of a nested SELECT of the rows of windows",
            "write FROM TABLE(...) and GROUP BY in one SELECT, with its expressions in the aggregates",
        )
    sets = grouping_sets(group, bounds)
    keys = tuple(dict.fromkeys(name for one in sets for name in one))
    if isinstance(source, Windowing):
        _expect_keys_of_rows(source, conditions, keys, sets)
    outside = Outside({*bounds, *keys}, sets)
    columns = tuple(outside.column(item) for item in select.expressions)
    having = select.args.get("having")
    return Aggregated(
        source=source,
        where=_conjunction(conditions),
        keys=keys,
        sets=tuple(sets),
        calls=outside.calls,
        having=None if having is None else outside.text(having.this, "HAVING"),
        columns=columns,
        bounds=_bounds(select.expressions, bounds),
    )


def _of_group_windows(select: exp.Select, table: Table) -> Windowing:
    """Rewrite ``GROUP BY TUMBLE(ts, ...)``, Flink's older form of windows, in place; return the windows."""
    terms = select.args["group"].expressions
    calls = [one for one in terms if isinstance(one, exp.Anonymous) and one.name.upper() in LENGTHS]
    if not calls:
        _refuse_table(select, table)
    if len(calls) > 1:
        refuse(f"GROUP BY {', '.join(map(written, calls))}", "write one window in a SELECT")
    (call,) = calls
    function, windows = call.name.upper(), _group_window(call)

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Anonymous):
            return node
        kind, _, end = node.name.upper().rpartition("_")
        if kind not in LENGTHS or end not in _OF_GROUP_WINDOWS:
            return node
        if kind != function or _group_window(node, kind) != windows:
            refuse(f"{written(node)} with GROUP BY {written(call)}", "write the same window in both")
        return _OF_GROUP_WINDOWS[end].copy()

    keys = [one for one in terms if one is not call]
    select.args["group"].set("expressions", [*keys, *(exp.column(bound) for bound in WINDOW[:2])])
    items = [(one, one.transform(replaced)) for one in select.expressions]
    select.set("expressions", [one if one == new else named(one, new) for one, new in items])
    if having := select.args.get("having"):
        having.transform(replaced, copy=False)
    by = tuple(name_of(key, "GROUP BY") for key in keys) if function == "SESSION" else ()
    time, lengths = windows
    return Windowing(function.lower(), table.table, time, lengths, by, tuple(WINDOW))


def _group_window(call: exp.Anonymous, function: str = "") -> tuple[str, dict[str, int]]:
    """Return the time and the lengths of ``TUMBLE(ts, ...)`` or of ``TUMBLE_START(ts, ...)``."""
    names, (time, *lengths) = LENGTHS[function or call.name.upper()], call.expressions or [exp.null()]
    if len(lengths) != len(names):
        refuse(written(call), f"write {call.name.upper()}(ts, {', '.join(names)})")
    pairs = zip(names.items(), lengths, strict=True)
    return time_of(time, call.name), {to: milliseconds(length, name) for (name, to), length in pairs}


def _expect_keys_of_rows(
    source: Windowing, conditions: list[exp.Expr], keys: tuple[str, ...], sets: list[tuple[str, ...]]
) -> None:
    """Raise unless the rows of windows can be aggregated so: their windows are not known yet."""
    for node in conditions:
        for column in node.find_all(exp.Column):
            if column.name in source.bounds:
                refuse(f"WHERE with {column.name}", "move conditions on windows to HAVING")
    if source.function == "session" and len(sets) > 1:
        refuse(
            "SESSION with GROUPING SETS, CUBE or ROLLUP",
            "write one query per grouping set and union() the results, since each set has its own sessions",
        )
    if source.function == "session" and set(source.partition) != set(keys):
        refuse(
            f"SESSION partitioned by ({', '.join(source.partition)}) and grouped by ({', '.join(keys)})",
            "use the same columns in both: SESSION(TABLE t PARTITION BY k, ...) with GROUP BY k",
        )


def _ranked(
    select: exp.Select, source: Node, conditions: list[exp.Expr], overs: list[exp.Window]
) -> Selected:
    """Return the plan of a SELECT with a rank of rows of windows; the next one has the limit."""
    over, order = overs[0], overs[0].args.get("order")
    function, alias = RANKS.get(type(over.this)), over.parent
    alone = len(overs) == 1 and not (select.args.get("group") or select.args.get("having"))
    if function is None or order is None or not (alone and isinstance(alias, exp.Alias)):
        refuse(
            f"{' and '.join(map(written, overs))} in this place",
            f"give one rank an order and a name, without GROUP BY in its SELECT: {PATTERN}",
        )
    expect_only(over, {"this", "partition_by", "order", "over"})
    partition = [name_of(node, "PARTITION BY") for node in over.args.get("partition_by") or []]
    if not set(WINDOW_COLUMNS[:2]) <= {source.bounds.get(name) for name in partition}:
        refuse(f"{written(over)} (a Top-N of all rows, not of windows)", PATTERN)
    keys = tuple(name for name in partition if name not in source.bounds)
    if conditions:
        source = _projected(source, conditions, [exp.Star()])
    rank = Ranked(source, function, alias.alias, keys, orders_of(order.expressions))
    return _with_rank(select, rank, alias)


def _first_of_keys(
    select: exp.Select, table: Table, conditions: list[exp.Expr], overs: list[exp.Window], selected: Selected
) -> Selected | None:
    """Return the plan of a SELECT with ROW_NUMBER by time alone, of which the next may take the first."""
    over, alias, rows = overs[0], overs[0].parent, selected.source
    assert isinstance(rows, Over)
    if (
        len(overs) > 1
        or rows.order
        or not (isinstance(over.this, exp.RowNumber) and isinstance(alias, exp.Alias))
    ):
        return None
    source = Table(table.table, rows.where, rows.time)
    by_time = (Order(rows.time, False, nulls_first=False),)
    rank = Ranked(source, "row_number", alias.alias, rows.keys, by_time, otherwise=selected)
    return _with_rank(select, rank, alias)


def _with_rank(select: exp.Select, rank: Ranked, alias: exp.Expr) -> Selected:
    items = [exp.column(rank.name, quoted=True) if one is alias else one for one in select.expressions]
    if any(isinstance(one, exp.Star) for one in items):  # which then has the rank, as the last column
        items.remove(exp.column(rank.name, quoted=True))
    return _projected(rank, [], items)


def _over(select: exp.Select, source: Node, conditions: list[exp.Expr], overs: list[exp.Window]) -> Selected:
    """Return the plan of a SELECT with functions OVER the rows of a table."""
    if not isinstance(source, Table) or select.args.get("group") is not None:
        refuse(f"{written(overs[0])} of windows or groups", "compute it from a table or a view")
    keys, time, order = partition_and_order(overs)
    calls: dict[str, RowCall | tuple[Call, Frame]] = {}

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        name = computed_name(0, text_of(node))
        calls[name] = over_call(node)
        return exp.column(name, quoted=True)

    items = [item if item.is_star else named(item, item.transform(replaced)) for item in select.expressions]
    over_rows = Over(source.table, _conjunction(conditions), keys, time, order, calls)
    return _projected(over_rows, [], items)


def _limited(node: Node) -> Node:
    """Return a node, or if it is a rank without a limit, all rows; raise for a rank of rows of windows."""
    rank = node.source if isinstance(node, Selected) else None
    if not isinstance(rank, Ranked) or rank.limit:
        return node
    if rank.otherwise is None:
        _refuse_rank(rank)
    return rank.otherwise


def _refuse_rank(rank: Ranked) -> NoReturn:
    name, clause = rank.name, "WHERE"
    if name == RANK:
        name, clause = f"{rank.function.upper()}() OVER (...)", "QUALIFY"
    refuse(f"a Top-N without exactly one limit of {name}", f"write {clause} {name} <= 3, or {name} = 1")


def _first(source: Selected, rank: Ranked, conditions: list[exp.Expr]) -> tuple[Selected, list[exp.Expr]]:
    """Return the ranked rows up to the limit that is among the conditions, and the others."""
    if rank.limit:
        return source, conditions
    limits = [n for n in (at_most(one, rank.name) for one in conditions) if n is not None]
    if isinstance(rank.otherwise, Selected) and limits != [1]:
        return rank.otherwise, conditions
    if len(limits) != 1 or limits[0] < 1:
        _refuse_rank(rank)
    others = [one for one in conditions if at_most(one, rank.name) is None]
    return replace(source, source=replace(rank, limit=limits[0])), others


def _join(left: Node, right: Node, how: str, conditions: list[exp.Expr]) -> Joined:
    if bare := [one for one in conditions if "" in _sides(one)]:
        refuse(f"the condition {written(bare[0])} of a JOIN", "write the name of a table before each column")
    conditions = [_null_safe(one) for one in conditions]
    rest = sorted((one for one in conditions if _pair(one) is None), key=lambda one: len(_sides(one)))
    filters = [[_without_side(one) for one in rest if _sides(one) == {side}] for side in SIDES]
    keys: list[tuple[str, str, bool]] = []
    same: set[str] = set()
    for one, pair in ((one, pair) for one in conditions if (pair := _pair(one))):
        of_left, of_right = (_without_side(node) for node in pair)
        which = _bound(of_left, left.bounds)
        if which is not None and which == _bound(of_right, right.bounds):
            same.add(which)
        else:
            texts = _where_met(of_left, filters[0]), _where_met(of_right, filters[1])
            keys.append((*texts, isinstance(one, exp.NullSafeEQ)))
    windows = [_windows_of(node) for node in (left, right)]
    if None in windows or not same >= set(WINDOW_COLUMNS[:2]):
        refuse(
            f"{'IN or EXISTS' if how in ('semi', 'anti') else 'a JOIN'} without windows",
            "select from windows on both sides, and write L.window_start = R.window_start AND L.window_end = "
            "R.window_end AND ... in ON, or in the WHERE of the inner SELECT; for an interval join use "
            "timerheap.IntervalJoin in timerheap.spark.process_two(), with its how= and condition=",
        )
    shapes = [(found.function, found.lengths) for found in windows if found is not None]
    if shapes[0] != shapes[1]:
        shown = " and ".join(_shown(*shape) for shape in shapes)
        refuse(f"a window join of {shown}", "use the same windows on both sides")
    return Joined(left, right, how, tuple(keys), _conjunction(rest))


def _where_met(key: exp.Expr, conditions: list[exp.Expr]) -> str:
    """Return the text of a key, null where the conditions on its side are not met: it may fail there."""
    if not conditions or isinstance(key, exp.Column):
        return text_of(key)
    return f"CASE WHEN {_conjunction(conditions)} THEN {text_of(key)} END"


def _most(join: Joined) -> Selected | None:
    """Return the rows with the most of a column in each window, if that is what a join finds.

    Its right side then has the maximum over the very results that are its left side. To rank these needs them
    once; Flink's planner, too, reuses what is the same on both sides.
    """
    left, right = join.left, join.right
    if join.how != "inner" or not isinstance(left, Aggregated) or not isinstance(right, Aggregated):
        return None
    results, calls = right.source, [*right.calls.items()]
    if right.keys or (right.where, right.having) != (None, None) or len(calls) != 1:
        return None
    if not isinstance(results, Aggregated) or replace(left, columns=results.columns, bounds={}) != replace(
        results, bounds={}
    ):
        return None
    here, there, most = ({name: text for text, name in node.columns} for node in (left, results, right))
    pairs = [(x, y, False) for x in here for y in most if join.condition == f"{LEFT}.{x} >= {RIGHT}.{y}"]
    ((name, call),) = calls
    keys = [*join.keys, *pairs] if pairs or join.condition is None else []
    (x, y, null_safe), *more = keys or [("", "", True)]
    maximum = call.function == "max" and call.condition is None and most.get(y) == f"`{name}`"
    if more or null_safe or not maximum or x not in here or there.get(str(call.argument)) != here[x]:
        return None
    bounds = {which: name for name, which in left.bounds.items()}
    values = {
        one: x if text == most[y] else bounds.get(right.bounds.get(one, "")) for one, text in most.items()
    }
    if None in values.values():
        return None
    fields = [
        f"named_struct({', '.join(f'{name!r}, `{value}`' for name, value in row.items())})"
        for row in (dict(zip(here, here, strict=True)), values)
    ]
    rows = Selected(left, f"`{x}` IS NOT NULL", (("*", "*"),), left.bounds)
    ranked = Ranked(rows, "rank", "rank of the row", (), (Order(f"`{x}`", True, nulls_first=False),), limit=1)
    return Selected(ranked, None, tuple(zip(fields, SIDES, strict=True)), join.bounds)


def _shown(function: str, lengths: Mapping[str, int]) -> str:
    return f"{function.upper()}({', '.join(f'{name} {ms} ms' for name, ms in lengths.items())})"


def _windows_of(node: Node) -> Windowing | None:
    """Return the window function of the rows, None if they have no windows."""
    while not isinstance(node, (Windowing, Table, Over, AsOf, Matched)):
        node = node.left if isinstance(node, Joined) else node.source
    return node if isinstance(node, Windowing) else None


def _null_safe(condition: exp.Expr) -> exp.Expr:
    """Return ``x IS NOT DISTINCT FROM y`` for other conditions that say the same."""
    if isinstance(condition, exp.Not) and isinstance(differ := condition.this.unnest(), exp.NullSafeNEQ):
        return exp.NullSafeEQ(this=differ.this, expression=differ.expression)
    parts = list(condition.flatten()) if isinstance(condition, exp.Or) else []
    equal = [one for one in parts if isinstance(one, exp.EQ)]
    nulls = [one for other in parts if isinstance(other, exp.And) for one in other.flatten()]
    if len(parts) == 2 and len(equal) == 1 and all(isinstance(one, exp.Is) for one in nulls):
        x, y = equal[0].left, equal[0].right
        if {one.sql() for one in nulls} == {exp.Is(this=one, expression=exp.Null()).sql() for one in (x, y)}:
            return exp.NullSafeEQ(this=x, expression=y)
    return condition


def _pair(condition: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the expressions of the left and the right side that must be equal; None for other conditions."""
    if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        return None
    sides = [_sides(node) for node in (condition.left, condition.right)]
    if sides == [{LEFT}, {RIGHT}]:
        return condition.left, condition.right
    return (condition.right, condition.left) if sides == [{RIGHT}, {LEFT}] else None


def _sides(node: exp.Expr) -> set[str]:
    """Return the names before the columns of an expression, "" for none."""
    return {column.table for column in node.find_all(exp.Column)}


def _without_side(node: exp.Expr) -> exp.Expr:
    node = node.copy()
    _rename(node, {LEFT: None, RIGHT: None})
    return node


def _subquery_join(source: Node, name: str, condition: exp.Expr, views: Mapping[str, Node]) -> Joined:
    """Return the semi-join or anti-join of a condition with IN or EXISTS; `name` is that of the source."""
    negated = isinstance(condition, exp.Not)
    test = condition.this.unnest() if negated else condition
    select = test.args["query"].this if isinstance(test, exp.In) else test.this
    if not isinstance(test, (exp.In, exp.Exists)) or not isinstance(select, exp.Select):
        refuse(f"WHERE {written(condition)}", "use x [NOT] IN (SELECT ...) and [NOT] EXISTS (SELECT ...)")
    expect_only(select, {"expressions", "from", "where"})
    select = select.copy()
    right, other = _relation(select.args["from_"].this, views)
    _rename(select, {name: LEFT, other: RIGHT, "": RIGHT})
    inside = _conjuncts(select.args.get("where"))
    on = [one for one in inside if any(column.table == LEFT for column in one.find_all(exp.Column))]
    if rest := [_without_side(one) for one in inside if one not in on]:
        right = _projected(right, rest, [exp.Star()])
    equal = None
    if isinstance(test, exp.In):
        if len(select.expressions) != 1:
            refuse(f"IN with {len(select.expressions)} columns", "select the one column to compare with")
        value = test.this.copy()
        _rename(value, {"": LEFT})
        equal = exp.EQ(this=value, expression=select.expressions[0].unalias())
    if negated and equal is not None:  # with null, NOT IN is neither true nor false
        joined = _join(source, right, "anti", on)
        parts = [] if joined.condition is None else [f"COALESCE({joined.condition}, FALSE)"]
        return replace(joined, condition=" AND ".join([*parts, f"({text_of(equal)})"]), null_aware=True)
    return _join(source, right, "anti" if negated else "semi", on if equal is None else [equal, *on])
