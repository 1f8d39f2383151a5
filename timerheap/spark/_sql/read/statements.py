"""The statements of a text: queries, INSERT INTO and the tables and views that CREATE names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.read.dialect import refuse, text_of
from timerheap.spark._sql.read.parser import parsed_tokens, tokens_of

_INSTEAD = {
    "SET": "pass options to the function, and Spark's settings to spark.conf.set()",
    "ADD": "add the jar to Spark's configuration",
    "DROP": "leave it out: each call knows the tables that it is given",
    "USE": "write the catalog and the database before names of tables",
}
_STATEMENT_SETS = ("EXECUTE STATEMENT SET BEGIN", "BEGIN STATEMENT SET", "EXECUTE STATEMENT SET")


@dataclass(frozen=True)
class Insert:
    """INSERT INTO: a query for a table, and its columns if they are listed."""

    target: str
    columns: tuple[str, ...]
    query: exp.Query


@dataclass(frozen=True)
class View:
    """CREATE VIEW: a query with a name, and its columns if they are listed."""

    name: str
    columns: tuple[str, ...]
    query: exp.Query


@dataclass(frozen=True)
class Declared:
    """CREATE TABLE: what is known of a table.

    columns: the names of those that it stores
    computed: the others: names, and expressions in the text of the query
    watermark: what WATERMARK says, None without it
    connector: what WITH says of it, "" if it says nothing
    """

    name: str
    columns: tuple[str, ...] = ()
    computed: dict[str, str] = field(default_factory=dict)
    watermark: str | None = None
    connector: str = ""


@dataclass(frozen=True)
class Select:
    """A query that is no part of another statement."""

    query: exp.Query


Statement = Insert | View | Declared | Select


def statements_of(text: str) -> list[Statement]:
    """Return the statements of a text, in their order."""
    return [_statement(tokens, text) for tokens in _split(tokens_of(text))]


def _split(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each statement, without those that make a set of statements."""
    found: list[Token] = []
    for token in [*tokens, None]:
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            found.append(token)
            continue
        for words in _STATEMENT_SETS:
            width = len(words.split())
            if _first_words(found, width) == words:
                found = found[width:]
                break
        if found and _first_words(found, len(found)) not in ("END", "COMPILE AND EXECUTE PLAN"):
            yield found
        found = []


def _first_words(tokens: list[Token], count: int) -> str:
    return " ".join(token.text.upper() for token in tokens[:count])


def _statement(tokens: list[Token], text: str) -> Statement:
    """Return what one statement says."""
    kind = _first_words(tokens, 1)
    if kind == "INSERT":
        return _insert(tokens, text)
    if kind != "CREATE":
        if kind in _INSTEAD:
            refuse(kind, _INSTEAD[kind])
        return Select(parsed_tokens(tokens, text))
    at = 1
    while _first_words(tokens[at:], 1) in ("TEMPORARY", "OR", "REPLACE"):
        at += 1
    what = _first_words(tokens[at:], 1)
    if what not in ("TABLE", "VIEW"):
        refuse(f"CREATE {what}", "write CREATE TABLE or CREATE VIEW; register a function in Spark")
    at += 1
    if _first_words(tokens[at:], 3) == "IF NOT EXISTS":
        at += 3
    name, at = _name(tokens, at)
    if what == "TABLE":
        return _declared(name, tokens[at:], text)
    columns, at = _listed_columns(tokens, at)
    if _first_words(tokens[at:], 1) == "COMMENT":
        at += 2
    if _first_words(tokens[at:], 1) != "AS":
        raise ArgumentValueError(f"query must be valid SQL: CREATE VIEW {name} must be followed by AS SELECT")
    return View(name, columns, parsed_tokens(tokens[at + 1 :], text))


def _insert(tokens: list[Token], text: str) -> Insert:
    if _first_words(tokens, 2) != "INSERT INTO":
        refuse(
            _first_words(tokens, 2),
            "write INSERT INTO, and choose how the result is written with writeStream",
        )
    name, at = _name(tokens, 3 if _first_words(tokens[2:], 1) == "TABLE" else 2)
    if _first_words(tokens[at:], 1) == "PARTITION":
        refuse("INSERT INTO with PARTITION", "select the column, and use partitionBy() of writeStream")
    columns, at = _listed_columns(tokens, at)
    if _first_words(tokens[at:], 1) == "VALUES":
        refuse("INSERT INTO with VALUES", "make a DataFrame with spark.createDataFrame()")
    return Insert(name, columns, parsed_tokens(tokens[at:], text))


def _name(tokens: list[Token], at: int) -> tuple[str, int]:
    """Return the name that begins at a token, and where it ends."""
    parts = [token.text for token in tokens[at : at + 1]]
    at += 1
    while at + 1 < len(tokens) and tokens[at].token_type is TokenType.DOT:
        parts.append(tokens[at + 1].text)
        at += 2
    return ".".join(parts), at


def _listed_columns(tokens: list[Token], at: int) -> tuple[tuple[str, ...], int]:
    """Return the columns in parentheses, if there are any, and where they end."""
    if at >= len(tokens) or tokens[at].token_type is not TokenType.L_PAREN:
        return (), at
    if _first_words(tokens[at + 1 :], 1) in ("SELECT", "WITH", "("):  # the query is in parentheses
        return (), at
    end = _closing(tokens, at)
    parts = [part[0].text for part in _between_commas(tokens[at + 1 : end])]
    return tuple(parts), end + 1


def _closing(tokens: list[Token], at: int) -> int:
    depth = 0
    for end in range(at, len(tokens)):
        kind = tokens[end].token_type
        depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
        if not depth:
            return end
    raise ArgumentValueError("query must be valid SQL: a parenthesis is not closed")


def _between_commas(tokens: list[Token]) -> list[list[Token]]:
    """Return what commas separate, outside of parentheses."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        kind = token.token_type
        depth += (kind in (TokenType.L_PAREN, TokenType.LT)) - (kind in (TokenType.R_PAREN, TokenType.GT))
        if kind is TokenType.COMMA and not depth:
            found.append([])
        else:
            found[-1].append(token)
    return [one for one in found if one]


def _declared(name: str, tokens: list[Token], text: str) -> Declared:
    """Return what CREATE TABLE says of a table."""
    if not tokens or tokens[0].token_type is not TokenType.L_PAREN:
        refuse(
            f"CREATE TABLE {name} without columns", "list them: CREATE TABLE t (k STRING, ts TIMESTAMP(3))"
        )
    end = _closing(tokens, 0)
    columns, computed, watermark = [], {}, None
    for element in _between_commas(tokens[1:end]):
        first = element[0].text
        if _first_words(element, 2) == "WATERMARK FOR":
            watermark = text[element[0].start : element[-1].end + 1]
        elif element[0].token_type in (TokenType.PRIMARY_KEY, TokenType.CONSTRAINT, TokenType.UNIQUE):
            continue
        elif _first_words(element[1:], 1) == "AS":
            computed[first] = text[element[2].start : element[-1].end + 1]
        else:
            columns.append(first)
    return Declared(name, tuple(columns), computed, watermark, _connector(tokens[end + 1 :]))


def _connector(tokens: list[Token]) -> str:
    """Return the connector that WITH names."""
    for key, _, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if key.token_type is TokenType.STRING and key.text == "connector":
            return value.text
    return ""


def only_query(text: str) -> tuple[exp.Query, tuple[str, ...]]:
    """Return the one query of a text, and the columns of INSERT INTO that it is for."""
    found = statements_of(text)
    (one,) = found if len(found) == 1 else (None,)
    if not isinstance(one, (Select, Insert)):
        count = "CREATE" if one is not None else f"{len(found)} statements"
        raise ArgumentValueError(
            f"query must be one SELECT or one INSERT INTO, got {count}; run several with sql_script()"
        )
    return one.query, one.columns if isinstance(one, Insert) else ()


def identifiers(query: exp.Query) -> frozenset[str]:
    """Return all names in a query: of tables, columns and functions."""
    return frozenset(found.name for found in query.find_all(exp.Identifier))


def expression_of(text: str) -> str:
    """Return an expression of Flink's SQL in Spark's."""
    tree = parsed_tokens(tokens_of(f"SELECT {text}"), f"SELECT {text}")
    (item,) = tree.selects
    return text_of(item)


def with_names(view: View) -> exp.Query:
    """Return the query of a view with the names of its columns."""
    if not view.columns:
        return view.query
    query = view.query.copy()
    first: exp.Query = query
    while isinstance(first, exp.SetOperation):
        first = first.left.unnest()  # type: ignore[assignment]
    items = first.selects
    if len(items) != len(view.columns) or any(one.is_star for one in items):
        refuse(
            f"CREATE VIEW {view.name} with {len(view.columns)} columns of {len(items)}",
            "list a column in SELECT for each",
        )
    named = [
        exp.alias_(one.unalias(), name, quoted=True) for one, name in zip(items, view.columns, strict=True)
    ]
    first.set("expressions", named)
    return query
