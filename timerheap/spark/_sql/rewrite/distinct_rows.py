"""SELECT DISTINCT, and ORDER BY with LIMIT: both are taken off a query before the rest of it is read."""

from __future__ import annotations

from typing import TypeVar

from sqlglot import exp

from timerheap.spark._columns import WINDOW_COLUMNS
from timerheap.spark._order_by import Order
from timerheap.spark._sql.nodes import Distinct, Node
from timerheap.spark._sql.read.dialect import as_read, refuse
from timerheap.spark._sql.read.over_clause import orders_of

Tree = TypeVar("Tree", bound=exp.Query)


def without_distinct(select: exp.Select) -> tuple[exp.Select, bool]:
    """Return a SELECT without DISTINCT, and whether it had that; DISTINCT ON is a rank."""
    clause = select.args.get("distinct")
    if clause is None or clause.args.get("on"):
        return select, False
    select = select.copy()
    select.set("distinct", None)
    return select, True


def rows_once(node: Node) -> Distinct:
    """Return the rows of a query, each once."""
    if set(WINDOW_COLUMNS[:2]) <= set(node.bounds.values()):
        refuse("SELECT DISTINCT of windows", "group by the same columns, window_start and window_end")
    return Distinct(node)


def without_first_rows(tree: Tree) -> tuple[Tree, tuple[tuple[Order, ...], int] | None]:
    """Return a query without ORDER BY and LIMIT, and what they say, if it has both."""
    order, limit = tree.args.get("order"), tree.args.get("limit")
    on = tree.args["distinct"].args.get("on") if isinstance(tree.args.get("distinct"), exp.Distinct) else None
    if order is None or limit is None or on is not None:
        return tree, None
    number = limit.expression
    if not isinstance(number, exp.Literal) or not number.is_int or not int(number.name):
        refuse(f"LIMIT {as_read(number)}", "write a whole number, 1 or more")
    for one in order.expressions:
        if isinstance(one.this, exp.Literal):
            refuse(f"ORDER BY {as_read(one.this)}", "write the column; a number is none")
    tree, order = tree.copy(), order.copy()
    for clause in ("order", "limit"):
        tree.set(clause, None)
    for column in order.find_all(exp.Column):
        column.set("table", None)
    return tree, (orders_of(order.expressions), int(number.name))
