"""QUALIFY and DISTINCT ON: functions OVER rows become columns of a nested query, and conditions its WHERE."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from timerheap.spark._columns import RANK, computed_name, group_item
from timerheap.spark._sql.read.clauses import parts_of
from timerheap.spark._sql.read.dialect import as_read, refuse, show_as, text_of
from timerheap.spark._sql.read.over_clause import RANKS
from timerheap.spark._sql.read.select import own_nodes
from timerheap.spark._sql.rewrite.ranks import PATTERN
from timerheap.spark._sql.rewrite.select_list import named


def expect_no_windows(select: exp.Select) -> None:
    """Raise for a function OVER rows in a clause that is computed before these functions are."""
    joins = [join.args.get("on") for join in select.args.get("joins") or []]
    for clause in (select.args.get("where"), select.args.get("having"), *joins):
        for one in [] if clause is None else own_nodes(clause):
            if isinstance(one, exp.Window):
                name = "ON" if clause in joins else clause.key.upper()
                refuse(
                    f"{name} with {as_read(one)}",
                    "use QUALIFY or a subquery: SELECT ... FROM (SELECT *, LAG(x) OVER (...) AS before "
                    "FROM t) WHERE before <> x",
                )


def nested_windows(select: exp.Select) -> exp.Select:
    """Return a SELECT whose functions OVER rows are of a nested query, with WHERE in place of QUALIFY.

    Also DISTINCT ON becomes a rank, and ranks of groups become those of a query of the groups.
    """
    select = _with_rank_of_distinct(select)
    qualify = select.args.get("qualify")
    if qualify is not None:
        select = _with_clause(select, "qualify", _without_aliases(select, qualify))
    windows = list(dict.fromkeys(_windows_in(select)))
    if qualify is not None and not windows:
        refuse(f"{as_read(qualify).strip()} without a function OVER rows", "use WHERE")
    ranks = [one for one in windows if type(one.this) in RANKS]
    if select.args.get("group") is not None:
        if qualify is not None and (not ranks or windows[1:]):
            refuse(f"{as_read(qualify).strip()} of groups (a condition on anything but one rank)", PATTERN)
        if ranks:
            select = _ranks_of_groups(select)
    return select if qualify is None else _conditions_on_windows_in(select)


def _with_rank_of_distinct(select: exp.Select) -> exp.Select:
    """Return a SELECT with the first row of QUALIFY in place of DISTINCT ON with its ORDER BY."""
    on = select.args["distinct"].args.get("on") if select.args.get("distinct") else None
    if on is None:
        return select
    shown = f"SELECT DISTINCT ON ({', '.join(map(as_read, parts_of(on)))})"
    if select.args.get("qualify") is not None or next(_windows_in(select), None) is not None:
        refuse(f"{shown} beside OVER or QUALIFY", "make a view of one of the two, and query that")
    order = _without_aliases(select, select.args.get("order") or exp.Order())
    terms = order.expressions
    while terms and terms[0].this.name in [one.name for one in parts_of(on)]:  # PostgreSQL wants them first
        terms = terms[1:]
    if not terms:
        refuse(f"{shown} without an order of the rows of a key", "write ORDER BY ts behind FROM")
    keys = [one.copy() for one in parts_of(on)]
    first = exp.Window(this=exp.RowNumber(), partition_by=keys, order=exp.Order(expressions=terms))
    show_as(first, f"{shown} ... ORDER BY {', '.join(map(as_read, terms))}")
    for clause in ("distinct", "order"):
        select = _with_clause(select, clause, None)
    is_first = exp.EQ(this=first, expression=exp.Literal.number(1))
    return _with_clause(select, "qualify", exp.Qualify(this=is_first))


def _with_clause(select: exp.Select, name: str, clause: exp.Expr | None) -> exp.Select:
    copy = select.copy()
    copy.set(name, clause)
    return copy


def _windows_in(select: exp.Select) -> Iterator[exp.Window]:
    for node in (*select.expressions, select.args.get("qualify")):
        yield from () if node is None else node.find_all(exp.Window)


def _without_aliases(select: exp.Select, clause: exp.Expr) -> exp.Expr:
    """Return a clause with what names of the select list stand for in their place."""
    named = {one.alias: one.this for one in select.expressions if isinstance(one, exp.Alias)}
    clause = clause.copy()
    for column in list(clause.find_all(exp.Column)):
        if not column.table and column.name in named and column.find_ancestor(exp.Window) is None:
            column.replace(named[column.name].copy())
    return clause


def _ranks_of_groups(select: exp.Select) -> exp.Select:
    """Return a SELECT of ranks from a nested query of the groups, which has all that they refer to."""
    groups, ranks = select.copy(), exp.Select()
    groups.set("qualify", None)
    items: dict[exp.Expr, str] = {}

    def there(node: exp.Expr) -> exp.Expr:
        name = items.setdefault(node.unalias().copy(), group_item(len(items)))
        return exp.column(name, quoted=True)

    for item in select.expressions:
        if item.is_star or item.find(exp.Window):
            ranks.append("expressions", item.copy())
        else:
            ranks.append("expressions", named(item, there(item)))
    if (qualify := select.args.get("qualify")) is not None:
        ranks.set("qualify", qualify.copy())
        conditions = qualify.this
        for one in conditions.flatten() if isinstance(conditions, exp.And) else [conditions]:
            if not one.find(exp.Window):
                refuse(f"QUALIFY {as_read(one)} of groups", "move conditions without a rank to HAVING")
    for window in _windows_in(ranks):
        terms = [one.this for one in window.args["order"].expressions] if window.args.get("order") else []
        for node in [*(window.args.get("partition_by") or []), *terms]:
            node.replace(there(node))
    groups.set("expressions", [exp.alias_(node, name, quoted=True) for node, name in items.items()])
    return ranks.from_(groups.subquery(copy=False))


def _conditions_on_windows_in(select: exp.Select) -> exp.Select:
    """Return a SELECT with a condition on functions of a nested query, instead of one with QUALIFY."""
    inner, condition = select.copy(), select.args["qualify"].this
    inner.set("qualify", None)
    windows = list(dict.fromkeys(_windows_in(select)))
    if windows[1:] or type(windows[0].this) not in RANKS:
        names = {one: computed_name(number, text_of(one)) for number, one in enumerate(windows)}
    else:  # errors know a rank by its name
        names = {windows[0]: RANK}
    computed = [exp.alias_(one.copy(), name, quoted=True) for one, name in names.items()]
    inner.set("expressions", [exp.Star(), *computed])

    def outside(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Window):
            return exp.column(names[node], quoted=True)
        if isinstance(node, exp.Column) and node.table:
            node.set("table", None)  # of the copy that `transform` makes
        return node

    items = [
        one if one.is_star or isinstance(one, exp.Column) else named(one, one) for one in select.expressions
    ]
    return (
        exp.Select(expressions=[one.transform(outside) for one in items])
        .from_(inner.subquery(copy=False))
        .where(condition.transform(outside))
    )
