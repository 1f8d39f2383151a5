"""Expressions of one row in MATCH_RECOGNIZE that fail for rows of other variables, such as CAST(P.s AS INT).

Spark computes them for all rows, before it is known which variable a row is. So they are null where they
fail, and a second column says where, so that a measure that needs such a row is an error.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

_SAFE = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Dot, exp.Star, exp.Null, exp.Boolean),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Is),
    *(exp.Between, exp.In, exp.Var, exp.DataType, exp.DataTypeParam, exp.Interval),
)
_CHOOSING = (exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.And, exp.Or)
_TRIED: dict[type[exp.Expr], str] = {
    exp.Add: "try_add", exp.Sub: "try_subtract", exp.Mul: "try_multiply", exp.Div: "try_divide",
    exp.Mod: "try_mod",
}  # fmt: skip


def can_fail(node: exp.Expr) -> bool:
    """Return whether an expression may be an error for some rows."""
    return not all(isinstance(one, _SAFE) for one in node.walk())


def tried(node: exp.Expr) -> exp.Expr:
    """Return an expression that is null where casts and arithmetic fail."""

    def one(part: exp.Expr) -> exp.Expr:
        if _is_cast(part):
            return exp.TryCast(**{**part.args, "safe": True})  # else it is written as CAST
        name = _TRIED.get(type(part))
        return part if name is None else exp.func(name, part.this, part.expression)

    return _bottom_up(node.copy(), one)


def failures(node: exp.Expr) -> exp.Expr | None:
    """Return the condition that an expression fails for a row; None if that cannot be said."""
    if any(isinstance(one, _CHOOSING) for one in node.walk()):
        return None
    found: list[exp.Expr] = []
    for part in node.walk():
        if _is_cast(part) or type(part) in _TRIED:
            given = [part.this] if isinstance(part, exp.Cast) else [part.this, part.expression]
            there = [exp.paren(tried(one)).is_(exp.null()).not_() for one in given]
            found.append(exp.and_(*there, exp.paren(tried(part)).is_(exp.null())))
    return exp.or_(*found) if found else None


def _is_cast(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and not node.args.get("safe")


def _bottom_up(node: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    for part in list(node.iter_expressions()):
        part.replace(_bottom_up(part, change))
    return change(node)
