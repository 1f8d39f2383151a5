"""UNION, INTERSECT and EXCEPT of queries."""

from __future__ import annotations

from sqlglot import exp

from timerheap.spark._sql.nodes import Combined, Distinct, Node, United
from timerheap.spark._sql.read.dialect import expect_only
from timerheap.spark._sql.rewrite.from_clause import NamedQueries
from timerheap.spark._sql.rewrite.ranks import limited


def set_operation(tree: exp.SetOperation, queries: NamedQueries) -> Node:
    """Return the rows of two queries; their columns are compared by their places."""
    expect_only(tree, {"this", "expression", "distinct", "with"})
    left, right = (limited(queries.meaning(one, queries)) for one in (tree.this, tree.expression))
    once = bool(tree.args.get("distinct"))
    if not isinstance(tree, exp.Union):
        return Combined(left, right, "intersect" if isinstance(tree, exp.Intersect) else "except", not once)
    united = United((*(left.sources if isinstance(left, United) else [left]), right))
    return Distinct(united) if once else united
