"""Rewrites ranks in Flink SQL as nested queries: QUALIFY, and ranks of groups in their own SELECT."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from timerheap.spark._columns import RANK
from timerheap.spark._sql.text import refuse, text_of, written

RANKS = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end [, k] "
    "ORDER BY x) AS rownum FROM ...) WHERE rownum <= 3"
)
_ITEM = "__timerheap:item"  # begins the names of the columns of groups


def nested_ranks(select: exp.Select) -> exp.Select:
    """Return a SELECT whose ranks are of a nested query, with WHERE instead of QUALIFY."""
    qualify = select.args.get("qualify")
    if qualify is not None:
        select = select.copy()
        _without_aliases(select)
    ranks = [one for one in _windows(select) if type(one.this) in RANKS]
    if qualify is not None and (not ranks or any(one != ranks[0] for one in _windows(select))):
        refuse(f"{written(qualify).strip()} (a condition on anything but one rank)", PATTERN)
    if ranks and select.args.get("group") is not None:
        select = _ranks_of_groups(select)
    return select if qualify is None else _conditions_on_ranks(select)


def _windows(select: exp.Select) -> Iterator[exp.Window]:
    for node in (*select.expressions, select.args.get("qualify")):
        yield from () if node is None else node.find_all(exp.Window)


def _without_aliases(select: exp.Select) -> None:
    """Replace names of the select list in QUALIFY by what they stand for."""
    named = {one.alias: one.this for one in select.expressions if isinstance(one, exp.Alias)}
    for column in list(select.args["qualify"].find_all(exp.Column)):
        if not column.table and column.name in named and column.find_ancestor(exp.Window) is None:
            column.replace(named[column.name].copy())


def named(item: exp.Expr, computed: exp.Expr) -> exp.Expr:
    """Return what computes an item of a select list, with the name of the item."""
    name = item.alias_or_name if isinstance(item, (exp.Alias, exp.Column)) else text_of(item)
    return exp.alias_(computed.unalias(), name, quoted=True)


def _ranks_of_groups(select: exp.Select) -> exp.Select:
    """Return a SELECT of ranks from a nested query of the groups, which has all that they refer to."""
    groups, ranks = select.copy(), exp.Select()
    groups.set("qualify", None)
    items: dict[exp.Expr, str] = {}

    def there(node: exp.Expr) -> exp.Expr:
        name = items.setdefault(node.unalias().copy(), f"{_ITEM}{len(items)}")
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
                refuse(f"QUALIFY {written(one)} of groups", "move conditions without a rank to HAVING")
    for window in _windows(ranks):
        terms = [one.this for one in window.args["order"].expressions] if window.args.get("order") else []
        for node in [*(window.args.get("partition_by") or []), *terms]:
            node.replace(there(node))
    groups.set("expressions", [exp.alias_(node, name, quoted=True) for node, name in items.items()])
    return ranks.from_(groups.subquery(copy=False))


def _conditions_on_ranks(select: exp.Select) -> exp.Select:
    """Return a SELECT with a condition on the rank of a nested query, instead of one with QUALIFY."""
    ranks, condition = select.copy(), select.args["qualify"].this
    ranks.set("qualify", None)
    window = next(_windows(select))
    ranks.set("expressions", [exp.Star(), exp.alias_(window.copy(), RANK, quoted=True)])

    def outside(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Window):
            return exp.column(RANK, quoted=True)
        if isinstance(node, exp.Column) and node.table:
            node.set("table", None)
        return node

    items = [named(one, one) if isinstance(one, exp.Window) else one for one in select.expressions]
    return (
        exp.Select(expressions=[one.transform(outside) for one in items])
        .from_(ranks.subquery(copy=False))
        .where(condition.transform(outside))
    )


def at_most(condition: exp.Expr, name: str) -> int | None:
    """Return n of ``rownum <= n``, ``rownum < n + 1``, ``rownum = 1`` or the flipped forms; else None."""
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(condition, exp.Binary):
        return None
    kind, left, right = type(condition), condition.left, condition.right
    if isinstance(left, exp.Literal):
        kind, left, right = flipped.get(kind, exp.Binary), right, left
    if not isinstance(left, exp.Column) or left.name != name:
        return None
    if not isinstance(right, exp.Literal) or not right.is_int:
        return None
    n = int(right.name)
    if kind is exp.LTE or (kind is exp.EQ and n == 1):
        return n
    return n - 1 if kind is exp.LT else None
