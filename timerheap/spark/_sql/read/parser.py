"""Parses a query: as a tree, of which nothing is decided yet."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import OURS
from timerheap.spark._sql.read.dialect import Flink, expect_only, refuse, show_as
from timerheap.spark._sql.read.flink_calls import with_spark_calls
from timerheap.spark._sql.read.match_tokens import with_plain_clauses
from timerheap.spark._sql.read.tokens import with_plain_tables

TOO_DEEP = (
    "query must have fewer expressions in each other, such as parentheses or a long chain of AND; compute "
    "parts of them in a view"
)


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text; raise ArgumentValueError if it is not valid SQL."""
    try:
        return list(Flink().tokenize(text))
    except SqlglotError as error:
        raise ArgumentValueError(f"query must be valid SQL: {error}") from None


def parsed_tokens(tokens: list[Token], text: str) -> exp.Query:
    """Parse the tokens of one query, one SELECT or several with UNION and so on; raise for anything else.

    text: that of which they are a part
    """
    try:
        tokens = list(with_plain_tables(with_plain_clauses(tokens)))
        (tree,) = Flink().parser().parse(tokens, text) or [None]
    except ParseError as error:
        first = error.errors[0]
        where = f"line {first.get('line')}, column {first.get('col')}, at {first.get('highlight')!r}"
        raise ArgumentValueError(f"query must be valid SQL: {first.get('description')} ({where})") from None
    except SqlglotError as error:
        raise ArgumentValueError(f"query must be valid SQL: {error}") from None
    except RecursionError:
        raise ArgumentValueError(TOO_DEEP) from None
    if tree is None:
        raise ArgumentValueError("query must be one SELECT, got none")
    for node in tree.find_all(exp.Func):
        if "start" in node.meta:
            show_as(node, _call_at(text, node.meta["start"]))
    with_spark_calls(tree)
    for name in (node.name for node in tree.find_all(exp.Identifier)):
        if name.startswith(OURS):
            refuse(f"the name {name}", f"use names that do not begin with {OURS}")
    if isinstance(tree, exp.Subquery):
        expect_only(tree, {"this"})
        tree = tree.unnest()
    if not isinstance(tree, (exp.Select, exp.SetOperation)):
        refuse(
            (tree.name if isinstance(tree, exp.Command) else tree.key).upper(),
            "write one SELECT, and continue with the DataFrame: union(), writeStream, a view",
        )
    return tree


def _call_at(query: str, start: int) -> str:
    """Return the text of the call of a function, without comments and lines."""
    depth = 0
    for token in Flink().tokenize(query[start:]):
        kind = token.token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if not depth and kind is TokenType.R_PAREN:
            return " ".join(query[start : start + token.end + 1].split())
    return query[start:]
