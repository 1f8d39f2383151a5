"""Tokens of tables and joins that sqlglot does not parse, each rewritten to what it parses."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from timerheap.spark._sql.read.dialect import refuse


def token_like(token: Token, kind: TokenType, text: str) -> Token:
    """Return another token in the place of one."""
    return Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)


def with_plain_tables(tokens: list[Token]) -> Iterator[Token]:
    """Rewrite Flink's ``TABLE t PARTITION BY k`` to ``t, PARTITION_BY => k``, which sqlglot can parse.

    Likewise ``(SELECT ...) PARTITION BY k``, and Spark's ``LEFT OUTER ASOF JOIN`` to
    ``ASOF LEFT OUTER JOIN``.
    """
    in_table = False
    tokens = _side_after_asof(tokens)
    for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        of_select = before is not None and before.token_type is TokenType.R_PAREN
        kind, opens = token.token_type, after is not None and after.token_type is TokenType.L_PAREN
        if kind is TokenType.TABLE and not opens:
            in_table = True
        elif kind is TokenType.SESSION and opens:
            yield token_like(token, TokenType.VAR, token.text)
        elif kind is TokenType.PARTITION_BY and (in_table or of_select):
            in_table = True
            yield token_like(token, TokenType.COMMA, ",")
            yield token_like(token, TokenType.VAR, "PARTITION_BY")
            yield token_like(token, TokenType.FARROW, "=>")
        elif kind is TokenType.ORDER_BY and in_table:
            refuse("ORDER BY of a table in a call", "leave it out: rows come in the order of on_time")
        else:
            in_table = in_table and kind not in (TokenType.COMMA, TokenType.R_PAREN)
            yield token


def _side_after_asof(tokens: list[Token]) -> list[Token]:
    """Return the tokens with the side of an ASOF JOIN behind its ASOF."""
    sides = (TokenType.LEFT, TokenType.INNER, TokenType.OUTER)
    moved: list[Token] = []
    for token in tokens:
        at = len(moved)
        while token.token_type is TokenType.ASOF and at and moved[at - 1].token_type in sides:
            at -= 1
        moved.insert(at, token)
    return moved
