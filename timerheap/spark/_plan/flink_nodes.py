"""Helpers of the parser of Flink's SQL: the text and the columns of a node, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, UnsupportedError

__all__ = ["BOUNDS", "expect_known_queries", "expect_only", "name_of", "parts_of", "refuse", "text_of"]

BOUNDS = ("window_start", "window_end", "window_time")

_WINDOWS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")

_INSTEAD = {
    "distinct": ("SELECT DISTINCT", "a group has one row; use distinct() on the result of a batch"),
    "hint": ("a hint", "leave it out"),
    "joins": ("JOIN", "join DataFrames in Spark, before the windows or after them"),
    "laterals": ("LATERAL", "write the same in Spark, as a view"),
    "limit": ("LIMIT", "use limit() on the result of a batch"),
    "offset": ("OFFSET", "use offset() on the result of a batch"),
    "order": ("ORDER BY", "use orderBy() on the result of a batch; a stream returns windows as they end"),
    "pivots": ("PIVOT", "use pivot() on the result of a batch"),
    "sample": ("TABLESAMPLE", "make a view with sample()"),
    "version": ("FOR SYSTEM_TIME AS OF", "join the versions in Spark and make a view of the result"),
    "with": ("WITH", "make a view of it: createOrReplaceTempView()"),
}


def refuse(what: str, instead: str) -> NoReturn:
    """Raise a ValueError that names the unsupported feature and an alternative."""
    raise ValueError(f"query: {what} is not supported; {instead}")


def text_of(node: exp.Expr) -> str:
    """Return a node in Spark's SQL; raise if Spark has no such function, argument or type."""
    if node.find(exp.ArraySlice) or any(type_.is_type("time") for type_ in node.find_all(exp.DataType)):
        _refuse_expression(node)  # sqlglot would write SLICE with a length, and TIMESTAMP
    try:
        return node.sql(dialect=Spark, comments=False, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError:
        _refuse_expression(node)


def _refuse_expression(node: exp.Expr) -> NoReturn:
    refuse(node.sql(), "compute it in a view of the table, in Spark's SQL")


def expect_only(node: exp.Expr, read: set[str]) -> None:
    """Raise for a clause of a node that is not in `read`."""
    for name, value in node.args.items():
        clause = name.removesuffix("_")
        if value and clause not in read:
            refuse(*_INSTEAD.get(clause, (clause.upper().replace("_", " "), "leave it out")))


def expect_known_queries(select: exp.Select) -> None:
    """Raise for nested queries, by their names in Flink's documentation; a window Top-N is allowed."""
    if select.args.get("with_"):
        refuse(*_INSTEAD["with"])
    where = select.args.get("where")
    names = [call.name.upper() for call in select.find_all(exp.Anonymous)]
    joined = any(one.args.get("joins") for one in select.find_all(exp.Select))
    if joined and sum(name in _WINDOWS for name in names) > 1:
        refuse(
            "a window join (JOIN)",
            "join the rows in timerheap.spark.process_two(), with a timer at the window's end; of batches, "
            "the results of two queries with DataFrame.join()",
        )
    if where is not None and where.find(exp.Query) is not None:
        refuse(
            "a window join by IN or EXISTS (SEMI JOIN, ANTI JOIN)",
            "join the rows in timerheap.spark.process_two(), with a timer at the window's end; of batches, "
            "the results of two queries with DataFrame.join(how='left_semi')",
        )
    if _is_grouped(select) and any(one.args.get("group") for one in _within(select)):
        refuse(
            "a window aggregation of a window aggregation",
            "make a view of the inner query's result with window_time AS rowtime, and aggregate "
            "TABLE(TUMBLE(TABLE view, DESCRIPTOR(rowtime), ...))",
        )
    if list(_within(select)) and select.find(exp.Window) is None:
        refuse("a nested query", "make a view of the inner query: createOrReplaceTempView()")


def _is_grouped(select: exp.Select) -> bool:
    return select.args.get("group") is not None


def _within(select: exp.Select) -> Iterator[exp.Select]:
    return (one for one in select.find_all(exp.Select) if one is not select)


def parts_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the elements of a tuple or of parentheses; any other node as the only element."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this if isinstance(node, exp.Paren) else node]


def name_of(node: exp.Expr, clause: str) -> str:
    """Return the name of a column; raise for any other node."""
    if not isinstance(node, exp.Column) or node.table:
        refuse(f"{clause} {text_of(node)}", "use columns of the table; make a view that has it as a column")
    return node.name
