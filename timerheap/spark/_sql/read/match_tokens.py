"""The grammar of MATCH_RECOGNIZE where sqlglot has none: its tokens, each rewritten to what sqlglot parses.

WITHIN becomes a definition of the name `WITHIN`, ``SUBSET u = (a, b)`` is ``u AS SUBSET_OF(a, b)``, ``FINAL
LAST(x)`` is ``FINAL_LAST(x)``, and ``SKIP TO a`` is ``SKIP TO LAST a``. `rewrite.match_recognize` says what
the clauses mean, and `_patterns` what a PATTERN is.
"""

from __future__ import annotations

from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.read.tokens import token_like

WITHIN = "WITHIN of MATCH_RECOGNIZE"

_DEFINING = ("WITHIN", "SUBSET", "DEFINE")  # the clauses that become definitions
_CLAUSES = ("PATTERN", "SKIP", *_DEFINING)
_WHICH = ("FINAL", "RUNNING")
_FUNCTIONS = ("FIRST", "LAST", "COUNT", "SUM", "MIN", "MAX", "AVG")


def with_plain_clauses(tokens: list[Token]) -> list[Token]:
    """Return the tokens of a query with plain ones in each MATCH_RECOGNIZE."""
    found: list[Token] = []
    match = _Match()
    for at, token in enumerate(tokens):
        if token.token_type is TokenType.MATCH_RECOGNIZE:
            match = _Match(clause="MATCH_RECOGNIZE")
        elif match.clause:
            before, *after = [tokens[at - 1], *tokens[at + 1 : at + 3]]
            found += match.rewritten(token, before.text.upper(), [one.text.upper() for one in after])
            continue
        found.append(token)
    return found


class _Match:
    """Where we are in a MATCH_RECOGNIZE.

    clause: the one of its clauses that we are in; "" outside of all
    depth: how many of its parentheses are open
    defines: whether there has been a definition
    """

    def __init__(self, clause: str = "") -> None:
        self.clause = clause
        self._depth = 0
        self._defines = False

    def rewritten(self, token: Token, before: str, after: list[str]) -> list[Token]:
        """Return what a token becomes.

        before, after: the text of the token before it, and of the two after it, in upper case
        """
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        text = "" if quoted else token.text.upper()
        self._depth += (text == "(") - (text == ")")
        if text == "PATTERN" and after == ["(", ")"]:
            raise ArgumentValueError("query: PATTERN () must have a variable")
        if self._depth == 1 and text in _CLAUSES:
            self.clause = text
            return self._definition(token, text) if text in _DEFINING else [token]
        if self._depth == 1 and self.clause == "SUBSET" and text == "=":
            return [token_like(token, TokenType.ALIAS, "AS"), token_like(token, TokenType.VAR, "SUBSET_OF")]
        if self.clause == "PATTERN":
            self.clause = "MATCH_RECOGNIZE" if self._depth == 1 and text == ")" else self.clause
            return [token]
        following = after[0] if after else ""
        if text in _WHICH and following in _FUNCTIONS:
            return []
        if text in _FUNCTIONS and following == "(":
            which = before if before in _WHICH else "MATCH"
            return [token_like(token, TokenType.VAR, f"{which}_{text}")]
        if self.clause == "SKIP" and text == "TO" and following not in ("NEXT", "FIRST", "LAST"):
            return [token, token_like(token, TokenType.VAR, "LAST")]
        if self._depth == 0:
            self.clause = ""
        return [token]

    def _definition(self, token: Token, text: str) -> list[Token]:
        """Return what begins a definition: DEFINE for the first one, a comma for those after it."""
        first = token_like(token, TokenType.VAR, "DEFINE")
        begun = [token_like(token, TokenType.COMMA, ",") if self._defines else first]
        self._defines = True
        if text == "WITHIN":
            begun.append(token_like(token, TokenType.IDENTIFIER, WITHIN))
            begun.append(token_like(token, TokenType.ALIAS, "AS"))
        return begun
