"""Ranks of rows without windows: the first rows of each key by any order, which change as rows come."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from timerheap.spark._columns import RANK
from timerheap.spark._order_by import Order
from timerheap.spark._sql.nodes import Either, Items, Node, Ranked, Selected, Table, TopRows
from timerheap.spark._sql.read.clauses import is_proctime
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse, text_of
from timerheap.spark._sql.read.over_clause import RANKS, orders_of
from timerheap.spark._sql.read.select import SelectParts, all_comparisons, own_nodes
from timerheap.spark._sql.rewrite.conjuncts import conjunction
from timerheap.spark._sql.rewrite.ranks import at_most, limited, up_to_limit
from timerheap.spark._sql.rewrite.select_list import item_of, projected

PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY x DESC) AS rownum FROM ...) "
    "WHERE rownum <= 3"
)


def is_alone(select: SelectParts, overs: list[exp.Window]) -> bool:
    """Return whether the one function OVER rows of a SELECT is a rank with an order and a name."""
    over = overs[0]
    named = isinstance(over.parent, exp.Alias) and type(over.this) in RANKS
    return named and len(overs) == 1 and bool(over.args.get("order")) and not (select.group or select.having)


def begins_with_time(over: exp.Window) -> bool:
    """Return whether rows of keys may be ordered by their time: by columns, the first one ascending."""
    if not all(_column(one) for one in over.args.get("partition_by") or []):
        return False
    first = over.args["order"].expressions[0] if over.args.get("order") else None
    return first is None or (not first.args.get("desc") and (_column(first.this) or is_proctime(first.this)))


def _column(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and not node.table


def ranked_rows(
    select: SelectParts,
    source: Node,
    conditions: list[exp.Expr],
    overs: list[exp.Window],
    otherwise: Node | None = None,
) -> TopRows:
    """Return the plan of a SELECT with a rank; the next one has the limit."""
    if not is_alone(select, overs):
        shown = " and ".join(map(as_read, overs))
        refuse(f"{shown} in this place", f"give one rank an order and a name, without GROUP BY: {PATTERN}")
    (over,), alias = overs, overs[0].parent
    assert isinstance(alias, exp.Alias)
    expect_only(over, {"this", "partition_by", "order", "over"})
    terms = over.args["order"].expressions
    if any(is_proctime(one.this) for one in terms) and otherwise is None:
        refuse(f"{as_read(over)} (of processing time)", "order by a column, such as a version or a time")
    at = next(at for at, one in enumerate(select.items) if one is alias)
    before, behind = (tuple(map(item_of, some)) for some in (select.items[:at], select.items[at + 1 :]))
    keys = tuple(text_of(one) for one in over.args.get("partition_by") or [])
    return TopRows(
        source, conjunction(conditions), RANKS[type(over.this)], alias.alias, keys, orders_of(terms),
        before, behind, otherwise=otherwise,
    )  # fmt: skip


def top_up_to_limit(
    rank: TopRows, conditions: list[exp.Expr], select: SelectParts
) -> tuple[Node, list[exp.Expr]]:
    """Return the ranked rows up to the limit that is among the conditions, and the others."""
    conditions = all_comparisons(conditions)
    limits = [(one, n) for one in conditions if (n := at_most(one, rank.name)) is not None]
    n = min((n for _, n in limits), default=0)
    if n < 1:
        return limited(rank), conditions
    said = [one for one, n_of in limits if not isinstance(one, exp.EQ) and n_of == n]
    said += [one for one, _ in limits if isinstance(one, exp.EQ) and n == 1]
    rest = [one for one in conditions if one not in said]
    found: Node = replace(
        _pruned(rank, select), limit=n, numbered=_is_used(rank.name, select, rest), otherwise=None
    )
    if rank.otherwise is None:
        return found, rest
    by_time, others = rank.otherwise, conditions
    if isinstance(by_time, Selected) and isinstance(by_time.source, Ranked):
        by_time, others = up_to_limit(by_time, by_time.source, conditions)
    everything: list[exp.Expr] = [exp.Star()]
    if rest:
        found = projected(found, rest, everything)
    if others:
        by_time = projected(by_time, others, everything)
    table = Table(_table(rank.source), None, rank.order[0].by.strip("`"))
    return Either(table, by_time, found), []


def _table(node: Node) -> tuple[str, ...]:
    assert isinstance(node, Table)
    return node.table


def _pruned(rank: TopRows, select: SelectParts) -> TopRows:
    """Return a rank of all columns of the rows with those alone that a SELECT reads, if that is known."""
    columns = [one for one in own_nodes(select.tree) if isinstance(one, exp.Column)]
    stars = [one for one in own_nodes(select.tree) if isinstance(one, exp.Star)]
    if (rank.before, rank.behind) != ((("*", "*"),), ()) or not all(
        isinstance(one.parent, exp.Count) for one in stars
    ):
        return rank
    if any(column.table for column in columns) or any(one.find(exp.Query) for one in select.where):
        return rank
    names = dict.fromkeys(column.name for column in columns if column.name != rank.name)
    return replace(rank, before=tuple((text_of(exp.column(name, quoted=True)), name) for name in names))


def _is_used(name: str, select: SelectParts, conditions: list[exp.Expr]) -> bool:
    """Return whether a SELECT reads the rank of the rows."""
    clauses = [*select.items, *conditions, *filter(None, (select.group, select.having)), *select.overs]
    if name != RANK and any(one.is_star for one in select.items):
        return True
    return any(column.name == name for one in clauses for column in one.find_all(exp.Column))


def first_rows(source: Node, order: tuple[Order, ...], limit: int) -> TopRows:
    """Return the first rows of all: ORDER BY ... LIMIT."""
    everything: Items = (("*", "*"),)
    return TopRows(source, None, "row_number", RANK, (), order, everything, (), limit, numbered=False)
