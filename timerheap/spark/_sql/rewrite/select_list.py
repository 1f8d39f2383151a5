"""The select list: what a SELECT has of its rows, under which names, and which columns bound the window."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from timerheap.spark._columns import is_side
from timerheap.spark._sql.nodes import Node, Selected
from timerheap.spark._sql.read.clauses import LENGTHS
from timerheap.spark._sql.read.dialect import as_read, expect_only, refuse, text_of
from timerheap.spark._sql.rewrite.conjuncts import conjunction, sides_of


def projected(source: Node, conditions: list[exp.Expr], items: list[exp.Expr]) -> Selected:
    """Return the rows that meet all conditions, with the columns of a select list."""
    for item in items:
        if aggregate := item.find(exp.AggFunc):
            refuse(f"SELECT with {as_read(aggregate)}", "add GROUP BY window_start, window_end")
        for call in item.find_all(exp.Anonymous):
            if call.name.upper().rpartition("_")[0] in LENGTHS:
                window = call.name.upper().rpartition("_")[0]
                refuse(f"{as_read(call)} without its window", f"add GROUP BY {window}(ts, ...)")
    columns = tuple(map(item_of, items))
    return Selected(source, conjunction(conditions), columns, bounds_of(items, source.bounds))


def item_of(node: exp.Expr) -> tuple[str, str]:
    """Return the expression and the name of an item of a select list."""
    if node.is_star:
        expect_only(node, {"this", "table"})
        return text_of(node), "*"
    return text_of(node.unalias()), name_of(node)


def name_of(item: exp.Expr) -> str:
    """Return the name of an item of a select list; without one, it is the expression as the query has it."""
    if isinstance(item, (exp.Alias, exp.Column)):
        return item.alias_or_name
    return shown_text(item)


def shown_text(node: exp.Expr) -> str:
    """Return an expression in Spark's SQL; of the tables of a join, with the names that the query has."""
    return as_read(node) if any(map(is_side, sides_of(node))) else text_of(node)


def bound_of(node: exp.Expr, bounds: Mapping[str, str]) -> str | None:
    """Return which bound of the window an expression is, None if it is something else."""
    if isinstance(node, exp.Coalesce):  # of the two sides of an outer join
        found = {bound_of(one, bounds) for one in [node.this, *node.expressions]}
        return found.pop() if len(found) == 1 else None
    if not isinstance(node, exp.Column):
        return None
    return bounds.get(f"{node.table}.{node.name}" if node.table else node.name)


def bounds_of(items: list[exp.Expr], bounds: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a SELECT that have a bound of the window."""
    found: dict[str, str] = {}
    for item in items:
        if item.is_star:
            before = f"{item.table}." if isinstance(item, exp.Column) else ""
            found |= {
                name.removeprefix(before): which for name, which in bounds.items() if name.startswith(before)
            }
        elif which := bound_of(item.unalias(), bounds):
            found[item.alias_or_name] = which
    return found


def named(item: exp.Expr, computed: exp.Expr) -> exp.Expr:
    """Return what computes an item of a select list, with the name of the item."""
    return exp.alias_(computed.unalias(), name_of(item), quoted=True)
