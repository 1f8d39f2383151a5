"""The dialect: reads the text of a query in Flink's SQL, and shows parts of it in refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, UnsupportedError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

_OURS = "__timerheap"  # begins the names of our columns
_TEXT, _TABLE = "text", "table"  # what a node had in the query, in its metadata

WITHIN = "WITHIN of MATCH_RECOGNIZE"
_NAVIGATIONS = ("FIRST", "LAST", "COUNT", "SUM", "MIN", "MAX", "AVG")

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


def written(node: exp.Expr) -> str:
    """Return a node as the query has it, as far as that is known."""
    if _TEXT in node.meta:
        return str(node.meta[_TEXT])
    shown = node.copy()
    for column in shown.find_all(exp.Column):
        if _TABLE in column.meta:
            column.set("table", exp.to_identifier(column.meta[_TABLE]))
    for type_ in list(shown.find_all(exp.DataType)):
        if type_.is_type("time"):  # sqlglot would write TIMESTAMP
            type_.replace(exp.var("TIME"))
    return shown.sql(dialect=Spark, comments=False).strip()


def show_as(node: exp.Expr, text: str) -> None:
    """Show a text instead of a node."""
    node.meta[_TEXT] = text


def rename(column: exp.Column, table: str | None) -> None:
    """Replace the name of the table before a column; errors show the first one."""
    column.meta.setdefault(_TABLE, column.table)
    column.set("table", None if table is None else exp.to_identifier(table))


def _refuse_expression(node: exp.Expr) -> NoReturn:
    refuse(written(node), "compute it in a view of the table, in Spark's SQL")


def expect_only(node: exp.Expr, read: set[str]) -> None:
    """Raise for a clause of a node that is not in `read`."""
    for name, value in node.args.items():
        clause = name.removesuffix("_")
        if value and clause not in read:
            shown = written(value) if isinstance(value, exp.Expr) else clause.upper().replace("_", " ")
            refuse(*_INSTEAD.get(clause, (shown, "write it in Spark: in a view, or on the result")))


class _Flink(Spark):
    """Spark's dialect with what differs in Flink.

    In strings, quotes are doubled and backslashes are literal. A TIMESTAMP has no time zone.
    """

    class Tokenizer(Spark.Tokenizer):
        KEYWORDS = {  # noqa: RUF012
            **Spark.Tokenizer.KEYWORDS,
            "TIMESTAMP": TokenType.TIMESTAMPNTZ,
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,  # of Spark's ASOF JOIN
            "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE,
        }
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012


def parsed_select(query: str) -> exp.Select:
    """Parse the text of a query, one SELECT; raise ValueError for anything else."""
    dialect = _Flink()
    try:
        tokens = list(_rewritten(_with_plain_clauses(dialect.tokenize(query))))
        trees = [tree for tree in dialect.parser().parse(tokens, query) if tree is not None]
    except ParseError as error:
        first = error.errors[0]
        where = f"line {first.get('line')}, column {first.get('col')}, at {first.get('highlight')!r}"
        raise ValueError(f"query must be valid SQL: {first.get('description')} ({where})") from None
    except SqlglotError as error:
        raise ValueError(f"query must be valid SQL: {error}") from None
    if len(trees) != 1:
        raise ValueError(f"query must be one SELECT, got {len(trees)} statements")
    (tree,) = trees
    for node in tree.find_all(exp.Func):
        if "start" in node.meta:
            show_as(node, _call_at(query, node.meta["start"]))
    for name in (node.name for node in tree.find_all(exp.Identifier)):
        if name.startswith(_OURS):
            refuse(f"the name {name}", f"use names that do not begin with {_OURS}")
    if not isinstance(tree, exp.Select):
        refuse(
            (tree.name if isinstance(tree, exp.Command) else tree.key).upper(),
            "write one SELECT, and continue with the DataFrame: union(), writeStream, a view",
        )
    return tree


def _call_at(query: str, start: int) -> str:
    """Return the text of the call of a function, without comments and lines."""
    depth = 0
    for token in _Flink().tokenize(query[start:]):
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if not depth and kind is TokenType.R_PAREN:
            return " ".join(query[start : start + token.end + 1].split())
    return query[start:]


def _rewritten(tokens: list[Token]) -> Iterator[Token]:
    """Rewrite Flink's ``TABLE t PARTITION BY k`` to ``t, PARTITION_BY => k``, which sqlglot can parse.

    Likewise Spark's ``LEFT OUTER ASOF JOIN`` to ``ASOF LEFT OUTER JOIN``.
    """
    in_table = False
    sides = (TokenType.LEFT, TokenType.INNER, TokenType.OUTER)
    for at in [at for at, token in enumerate(tokens) if token.token_type is TokenType.ASOF]:
        while at and tokens[at - 1].token_type in sides:
            tokens[at - 1 : at + 1] = tokens[at - 1 : at + 1][::-1]
            at -= 1
    for token, after in zip(tokens, [*tokens[1:], None], strict=False):
        kind, opens = token.token_type, after is not None and after.token_type is TokenType.L_PAREN
        if kind is TokenType.TABLE and not opens:
            in_table = True
        elif kind is TokenType.SESSION and opens:
            yield _like(token, TokenType.VAR, token.text)
        elif kind is TokenType.PARTITION_BY and in_table:
            yield _like(token, TokenType.COMMA, ",")
            yield _like(token, TokenType.VAR, "PARTITION_BY")
            yield _like(token, TokenType.FARROW, "=>")
        else:
            in_table = in_table and kind not in (TokenType.COMMA, TokenType.R_PAREN)
            yield token


def _with_plain_clauses(tokens: list[Token]) -> list[Token]:
    """Rewrite what sqlglot does not parse of MATCH_RECOGNIZE, each as what it parses.

    WITHIN is a definition of the name `WITHIN`, ``SUBSET u = (a, b)`` is ``u AS SUBSET_OF(a, b)``, ``FINAL
    LAST(x)`` is ``FINAL_LAST(x)``, and ``SKIP TO a`` is ``SKIP TO LAST a``.
    """
    found: list[Token] = []
    depth, clause, defines = 0, "", False  # the clause of MATCH_RECOGNIZE, in whose parentheses we are
    for at, token in enumerate(tokens):
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        text = "" if quoted else token.text.upper()
        after = tokens[at + 1].text.upper() if at + 1 < len(tokens) else ""
        if token.token_type is TokenType.MATCH_RECOGNIZE:
            depth, clause, defines = 0, "MATCH_RECOGNIZE", False
        elif clause:
            depth += (text == "(") - (text == ")")
            if text == "PATTERN" and [one.text for one in tokens[at + 1 : at + 3]] == ["(", ")"]:
                raise ValueError("query: PATTERN () must have a variable")
            if depth == 1 and text in ("PATTERN", "WITHIN", "SUBSET", "DEFINE", "SKIP"):
                clause = text
                if text in ("WITHIN", "SUBSET", "DEFINE"):
                    define = _like(token, TokenType.VAR, "DEFINE")
                    found.append(_like(token, TokenType.COMMA, ",") if defines else define)
                    defines = True
                    if text == "WITHIN":
                        found.append(_like(token, TokenType.IDENTIFIER, WITHIN))
                        found.append(_like(token, TokenType.ALIAS, "AS"))
                    continue
            elif depth == 1 and clause == "SUBSET" and text == "=":
                found.append(_like(token, TokenType.ALIAS, "AS"))
                token = _like(token, TokenType.VAR, "SUBSET_OF")
            elif clause == "PATTERN":
                clause = "MATCH_RECOGNIZE" if depth == 1 and text == ")" else clause
            elif text in ("FINAL", "RUNNING") and after in _NAVIGATIONS:
                continue
            elif text in _NAVIGATIONS and after == "(":
                before = tokens[at - 1].text.upper()
                before = f"{before}_" if before in ("FINAL", "RUNNING") else "MATCH_"
                token = _like(token, TokenType.VAR, before + text)
            elif clause == "SKIP" and text == "TO" and after not in ("NEXT", "FIRST", "LAST"):
                found.append(token)
                token = _like(token, TokenType.VAR, "LAST")
            elif depth == 0:
                clause = ""
        found.append(token)
    return found


def _like(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)
