"""Parses window Top-N and window deduplication in Flink's SQL: ROW_NUMBER() over a window, with a limit."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from timerheap.spark._plan.flink_nodes import BOUNDS, expect_only, name_of, refuse, text_of

__all__ = ["Order", "Rank", "rank_of"]

_PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end [, k] "
    "ORDER BY x) AS rownum FROM ...) WHERE rownum <= 3"
)


@dataclass(frozen=True)
class Order:
    """One ORDER BY expression, in Spark's SQL."""

    text: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Rank:
    """A parsed Top-N: the first rows of each window and key.

    Parameters
    ----------
    name : str
        Name of the column with the row number.
    keys : tuple of str
        The PARTITION BY columns, without those of the window.
    order : tuple of Order
    limit : int
        Number of rows to keep.
    items : tuple of (str, str)
        Expression and name of each column of the inner query; ``("*", "*")`` for all columns, and
        ``(name, name)`` for the row number.
    where : str or None
        Further conditions on the ranked rows.
    columns : tuple of (str, str)
        Expression and name of each column of the outer query; ``("*", "*")`` for all columns.
    """

    name: str
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int
    items: tuple[tuple[str, str], ...]
    where: str | None
    columns: tuple[tuple[str, str], ...]


def rank_of(select: exp.Select) -> tuple[Rank, exp.Select] | None:
    """Return the rank of a query and the inner query with ROW_NUMBER(); None without OVER."""
    overs = list(select.find_all(exp.Window))
    if not overs:
        return None
    middle = _subquery(select)
    over = overs[0]
    if len(overs) > 1 or not isinstance(over.this, exp.RowNumber):
        refuse(f"{text_of(overs[-1])} (OVER)", f"only the ROW_NUMBER() of a window Top-N is: {_PATTERN}")
    if middle is None or over.find_ancestor(exp.Select) is not middle:
        refuse(f"{text_of(over)} (Top-N, deduplication) in this place", _PATTERN)
    expect_only(select, {"expressions", "from", "where"})
    _strip_names(select)
    alias = over.parent
    if not isinstance(alias, exp.Alias):
        refuse(f"{text_of(over)} without a name", _PATTERN)
    expect_only(over, {"this", "partition_by", "order", "over"})
    partition = [name_of(node, "PARTITION BY") for node in over.args.get("partition_by") or []]
    if not set(BOUNDS[:2]) <= set(partition):
        refuse(f"{text_of(over)} (a Top-N of all rows, not of windows)", _PATTERN)
    if over.args.get("order") is None:
        refuse(f"{text_of(over)} without ORDER BY", _PATTERN)
    order = [
        Order(text_of(one.this), bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for one in over.args["order"].expressions
    ]
    rank = alias.alias
    limit, where = _limit(select, rank)
    found = Rank(
        name=rank,
        keys=tuple(name for name in partition if name not in BOUNDS),
        order=tuple(order),
        limit=limit,
        items=tuple((rank, rank) if item is alias else _item(item) for item in middle.expressions),
        where=where,
        columns=tuple(map(_item, select.expressions)),
    )
    return found, middle


def _subquery(select: exp.Select) -> exp.Select | None:
    source = select.args.get("from_")
    inner = None if source is None else source.this
    return inner.this if isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Select) else None


def _strip_names(select: exp.Select) -> None:
    """Remove table names from columns, since each level has only one table."""
    names = {source.alias for source in select.find_all(exp.Subquery, exp.Table)} - {""}
    for column in select.find_all(exp.Column):
        if column.table in names:
            column.set("table", None)


def _item(node: exp.Expr) -> tuple[str, str]:
    if isinstance(node, exp.Star):
        expect_only(node, set())
        return "*", "*"
    if isinstance(node, exp.Alias):
        return text_of(node.this), node.alias
    return text_of(node), node.name if isinstance(node, exp.Column) else text_of(node)


def _limit(select: exp.Select, name: str) -> tuple[int, str | None]:
    """Return the number of rows to keep and the other conditions."""
    where = select.args.get("where")
    conditions: list[exp.Expr] = []
    if where is not None:
        conditions = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    limits = [n for n in (_at_most(one, name) for one in conditions) if n is not None]
    others = [one for one in conditions if _at_most(one, name) is None]
    if len(limits) != 1 or limits[0] < 1:
        refuse(f"a Top-N without exactly one limit of {name}", f"write WHERE {name} <= 3, or {name} = 1")
    return limits[0], text_of(exp.and_(*others)) if others else None


def _at_most(condition: exp.Expr, name: str) -> int | None:
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
