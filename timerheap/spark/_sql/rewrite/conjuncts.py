"""Conditions of a query's text: their parts, and which sides of a join their columns are of."""

from __future__ import annotations

from sqlglot import exp

from timerheap.spark._columns import is_side
from timerheap.spark._sql.nodes import RIGHT
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.read.select import with_tables


def conjunction(conditions: list[exp.Expr]) -> str | None:
    """Return the text of conditions that must all be true, None if there are none."""
    for one in conditions:
        if aggregate := one.find(exp.AggFunc):
            refuse(f"a condition with {as_read(aggregate)}", "group the rows, and use HAVING")
    return text_of(exp.and_(*conditions)) if conditions else None


def null_safe(condition: exp.Expr) -> exp.Expr:
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


def equal_pair(condition: exp.Expr, right: str = RIGHT) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the expressions of the left and the right side that must be equal; None for other conditions.

    right: the name of the right side; all others are those of the left
    """
    if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        return None
    one, other = (sides_of(node) for node in (condition.left, condition.right))
    if one == {right}:
        one, other, pair = other, one, (condition.right, condition.left)
    else:
        pair = (condition.left, condition.right)
    return pair if other == {right} and one and not one & {right, ""} else None


def sides_of(node: exp.Expr) -> set[str]:
    """Return the names before the columns of an expression, "" for none."""
    return {column.table for column in node.find_all(exp.Column)}


def without_side(node: exp.Expr) -> exp.Expr:
    """Return an expression without the names of the sides before its columns."""
    return with_tables(node, {side: None for side in sides_of(node) if is_side(side)})
