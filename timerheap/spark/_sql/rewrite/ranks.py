"""Ranks: the first rows of windows and keys, which ROW_NUMBER, RANK and DENSE_RANK with a limit ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from sqlglot import exp

from timerheap.spark._columns import RANK, WINDOW_COLUMNS
from timerheap.spark._order_by import Order
from timerheap.spark._sql.nodes import Node, Over, Ranked, Selected, Table, TopRows, Windowing
from timerheap.spark._sql.read.clauses import column_name
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse
from timerheap.spark._sql.read.over_clause import RANKS, orders_of
from timerheap.spark._sql.read.select import SelectParts, all_comparisons
from timerheap.spark._sql.rewrite.select_list import projected

PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end [, k] "
    "ORDER BY x) AS rownum FROM ...) WHERE rownum <= 3"
)


def ranks_windows(source: Node, overs: list[exp.Window]) -> bool:
    """Return whether ranks are of windows: of rows of windows, or of results by a bound of theirs."""
    inner = source
    while isinstance(inner, Selected):
        inner = inner.source
    if isinstance(inner, Windowing):
        return True
    names = [one.name for over in overs for one in over.args.get("partition_by") or []]
    return any(name in source.bounds for name in names)


def ranked(
    select: SelectParts, source: Node, conditions: list[exp.Expr], overs: list[exp.Window]
) -> Selected:
    """Return the plan of a SELECT with a rank of rows of windows; the next one has the limit."""
    over, order = overs[0], overs[0].args.get("order")
    function, alias = RANKS.get(type(over.this)), over.parent
    alone = len(overs) == 1 and not (select.group or select.having)
    if function is None or order is None or not (alone and isinstance(alias, exp.Alias)):
        refuse(
            f"{' and '.join(map(as_read, overs))} in this place",
            f"give one rank an order and a name, without GROUP BY in its SELECT: {PATTERN}",
        )
    expect_only(over, {"this", "partition_by", "order", "over"})
    partition = [column_name(node, "PARTITION BY") for node in over.args.get("partition_by") or []]
    if not set(WINDOW_COLUMNS[:2]) <= {source.bounds.get(name) for name in partition}:
        refuse(f"{as_read(over)} (a Top-N of all rows, not of windows)", PATTERN)
    keys = tuple(name for name in partition if name not in source.bounds)
    if conditions:
        source = projected(source, conditions, [exp.Star()])
    rank = Ranked(source, function, alias.alias, keys, orders_of(order.expressions))
    return _with_rank(select, rank, alias)


def first_of_keys(
    select: SelectParts, table: Table, overs: list[exp.Window], selected: Selected
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


def _with_rank(select: SelectParts, rank: Ranked, alias: exp.Expr) -> Selected:
    number = exp.alias_(exp.column(RANK, quoted=True), rank.name, quoted=True)
    items = [number if one is alias else one for one in select.items]
    if rank.name == RANK:  # of QUALIFY, which does not show it
        items.remove(number)
    return projected(rank, [], items)


def limited(node: Node) -> Node:
    """Return a node, or if it is a rank without a limit, all rows; raise for a rank not by time."""
    rank = node.source if isinstance(node, Selected) else node
    if not isinstance(rank, (Ranked, TopRows)) or rank.limit:
        return node
    if rank.otherwise is None:
        _refuse_rank(rank)
    return limited(rank.otherwise)


def _refuse_rank(rank: Ranked | TopRows) -> NoReturn:
    name, clause = rank.name, "WHERE"
    if name == RANK:
        name, clause = f"{rank.function.upper()}() OVER (...)", "QUALIFY"
    refuse(f"a Top-N without exactly one limit of {name}", f"write {clause} {name} <= 3, or {name} = 1")


def up_to_limit(
    source: Selected, rank: Ranked, conditions: list[exp.Expr]
) -> tuple[Selected, list[exp.Expr]]:
    """Return the ranked rows up to the limit that is among the conditions, and the others."""
    if rank.limit:
        return source, conditions
    conditions = all_comparisons(conditions)
    limits = [(one, n) for one in conditions if (n := at_most(one, rank.name)) is not None]
    n = min((n for _, n in limits), default=0)
    if isinstance(rank.otherwise, Selected) and n != 1:
        return rank.otherwise, conditions
    if n < 1:
        _refuse_rank(rank)
    said = [one for one, of in limits if n == 1 or not isinstance(one, exp.EQ)]
    return replace(source, source=replace(rank, limit=n)), [one for one in conditions if one not in said]


def at_most(condition: exp.Expr, name: str) -> int | None:
    """Return n of ``rownum <= n``, ``rownum < n + 1``, ``rownum = n`` or the flipped forms; else None."""
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(condition, exp.Binary):
        return None
    kind, left, right = type(condition), condition.left, condition.right
    if isinstance(left, exp.Literal):
        kind, left, right = flipped.get(kind, exp.Binary), right, left
    if not (isinstance(left, exp.Column) and left.name == name):
        return None
    if not isinstance(right, exp.Literal) or not right.is_int:  # a negative number is no literal
        return None
    n = int(right.name)
    if kind in (exp.LTE, exp.EQ):
        return n
    return n - 1 if kind is exp.LT else None
