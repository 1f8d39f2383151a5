"""The dialect: the words of Flink's SQL, how an expression is shown, and what is refused."""

from __future__ import annotations

from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, UnsupportedError
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from timerheap.errors import ArgumentValueError

_TEXT, _TABLE = "text", "table"  # what a node had in the query, in its metadata

_INSTEAD = {
    "all": ("GROUP BY ALL", "list the columns"),
    "distinct": ("SELECT DISTINCT", "group by the same columns, window_start and window_end"),
    "except": ("* EXCEPT", "list the columns"),
    "group": ("GROUP BY in IN or EXISTS", "nest it: FROM (SELECT ... GROUP BY ...) AS R WHERE ..."),
    "having": ("HAVING in IN or EXISTS", "nest it: FROM (SELECT ... HAVING ...) AS R WHERE ..."),
    "hint": ("a hint", "leave it out"),
    "joins": ("JOIN", "join DataFrames in Spark, before the windows or after them"),
    "laterals": ("LATERAL", "write the same in Spark, as a view"),
    "limit": (
        "LIMIT",
        "rank the rows of each window with ROW_NUMBER(), or use limit() on the result of a batch",
    ),
    "method": ("NATURAL", "write L JOIN R ON L.k = R.k AND ..."),
    "offset": ("OFFSET", "use offset() on the result of a batch"),
    "order": ("ORDER BY", "use orderBy() on the result of a batch; a stream returns windows as they end"),
    "pivots": ("PIVOT", "use pivot() on the result of a batch"),
    "spec": ("a frame of a rank, LAG or LEAD", "leave it out: they have none"),
    "sample": ("TABLESAMPLE", "make a view with sample()"),
    "using": ("USING", "write L JOIN R ON L.k = R.k AND ..."),
    "version": ("FOR SYSTEM_TIME AS OF", "write it behind the second table of a JOIN: the versions"),
}


def refuse(what: str, instead: str) -> NoReturn:
    """Raise an error that names the unsupported feature and an alternative."""
    raise ArgumentValueError(f"query: {what} is not supported; {instead}")


def text_of(node: exp.Expr) -> str:
    """Return a node in Spark's SQL; raise if Spark has no such function, argument or type."""
    if node.find(exp.ArraySlice) or any(type_.is_type("time") for type_ in node.find_all(exp.DataType)):
        _refuse_expression(node)  # sqlglot would write SLICE with a length, and TIMESTAMP
    try:
        return node.sql(dialect=Spark, comments=False, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError:
        _refuse_expression(node)


def as_read(node: exp.Expr) -> str:
    """Return a node as the query has it, as far as that is known."""
    if _TEXT in node.meta:
        return str(node.meta[_TEXT])
    shown = node.copy()
    for column in shown.find_all(exp.Column):
        if _TABLE in column.meta:
            column.set("table", exp.to_identifier(column.meta[_TABLE] or None))
    for type_ in list(shown.find_all(exp.DataType)):
        if type_.is_type("time"):  # sqlglot would write TIMESTAMP
            type_.replace(exp.var("TIME"))
    return shown.sql(dialect=Spark, comments=False).strip()


def show_as(node: exp.Expr, text: str) -> None:
    """Show a text instead of a node."""
    node.meta[_TEXT] = text


def rename(column: exp.Column, table: str | None) -> None:
    """Replace the name of the table before a column of a copy; errors show the first one."""
    column.meta.setdefault(_TABLE, column.table)
    column.set("table", None if table is None else exp.to_identifier(table))


def _refuse_expression(node: exp.Expr) -> NoReturn:
    refuse(as_read(node), "compute it in a view of the table, in Spark's SQL")


def expect_only(node: exp.Expr, read: set[str]) -> None:
    """Raise for a clause of a node that is not in `read`."""
    for name, value in node.args.items():
        clause = name.removesuffix("_")
        if value and clause not in read:
            shown = as_read(value) if isinstance(value, exp.Expr) else clause.upper().replace("_", " ")
            refuse(*_INSTEAD.get(clause, (shown, "write it in Spark: in a view, or on the result")))


class Flink(Spark):
    """Spark's dialect with what differs in Flink.

    In strings, quotes are doubled and backslashes are literal. A TIMESTAMP has no time zone.
    """

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS = {  # noqa: RUF012
            **Spark.Tokenizer.KEYWORDS,
            "TIMESTAMP": TokenType.TIMESTAMPNTZ,
            "EXECUTE": TokenType.VAR,  # of STATEMENT SET; else the rest of the text would be one token
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,  # of Spark's ASOF JOIN
            "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE,
        }
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012
