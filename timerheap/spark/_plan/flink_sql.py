"""Parses the window queries of Flink SQL, or says by name what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, combinations, product
from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, UnsupportedError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from timerheap.spark._worker.window_runner import GROUPING_SET

BOUNDS = ("window_start", "window_end", "window_time")

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
    if joined and sum(name in _LENGTHS for name in names) > 1:
        refuse(
            "a window join (JOIN)",
            "join the rows in timerheap.spark.process_connected(), with a timer at the window's end; of "
            "batches, the results of two queries with DataFrame.join()",
        )
    if where is not None and where.find(exp.Query) is not None:
        refuse(
            "a window join by IN or EXISTS (SEMI JOIN, ANTI JOIN)",
            "join the rows in timerheap.spark.process_connected(), with a timer at the window's end; of "
            "batches, the results of two queries with DataFrame.join(how='left_semi')",
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


_MAX_SETS = 64

Keys = tuple[str, ...]


def grouping_sets(select: exp.Select) -> list[Keys]:
    """Return the keys of each grouping set, without the window's bounds; a plain GROUP BY has one set.

    ValueError: if a set lacks window_start or window_end, or contains anything but columns
    """
    group = select.args.get("group")
    if group is None:
        refuse("a query without GROUP BY", "group by window_start, window_end and the keys")
    expect_only(group, {"expressions"})
    choices = [_choices(node) for node in group.expressions]
    sets = [tuple(dict.fromkeys(chain.from_iterable(chosen))) for chosen in product(*choices)]
    if len(sets) > _MAX_SETS:
        refuse(f"GROUP BY of {len(sets)} grouping sets", f"write at most {_MAX_SETS} with GROUPING SETS")
    for bound in BOUNDS[:2]:
        if not all(bound in names for names in sets):
            raise ValueError(
                f"query: GROUP BY must have window_start and window_end, in or beside each grouping set; "
                f"{bound} is missing"
            )
    return [tuple(name for name in names if name not in BOUNDS) for names in sets]


def _choices(node: exp.Expr) -> list[Keys]:
    """Return the columns that an element of GROUP BY contributes, for each of its grouping sets."""
    if isinstance(node, exp.GroupingSets):
        return [keys for element in node.expressions for keys in _choices(element)]
    if isinstance(node, (exp.Cube, exp.Rollup)):
        parts = [_columns(element) for element in node.expressions]
        if isinstance(node, exp.Cube):
            chosen = [some for n in range(len(parts), -1, -1) for some in combinations(parts, n)]
        else:
            chosen = [tuple(parts[:n]) for n in range(len(parts), -1, -1)]
        return [tuple(chain.from_iterable(some)) for some in chosen]
    return [_columns(node)]


def _columns(node: exp.Expr) -> Keys:
    return tuple(name_of(part, "GROUP BY") for part in parts_of(node))


def grouping_value(node: exp.Grouping | exp.GroupingId, sets: list[Keys]) -> exp.Expr:
    """Return the value of GROUPING or GROUPING_ID: one bit per column, set if its grouping set lacks it."""
    names = [name_of(column, text_of(node)) for column in node.expressions]
    keys = list(dict.fromkeys(chain.from_iterable(sets)))
    for name in names:
        if name not in keys:
            refuse(text_of(node), f"use columns of GROUP BY: {', '.join(keys) or 'none'}")
    if not names or (isinstance(node, exp.Grouping) and len(names) > 1):
        refuse(text_of(node), "write GROUPING(k) or GROUPING_ID(k, ...) with columns of GROUP BY")
    values = [sum((name not in keys) << at for at, name in enumerate(reversed(names))) for keys in sets]
    if len(sets) == 1:
        return exp.cast(exp.Literal.number(values[0]), "bigint")
    case = exp.Case(this=exp.column(GROUPING_SET, quoted=True))
    for number, value in enumerate(values):
        case = case.when(exp.Literal.number(number), exp.Literal.number(value))
    return exp.cast(case, "bigint")


_PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end [, k] "
    "ORDER BY x) AS rownum FROM ...) WHERE rownum <= 3"
)


@dataclass(frozen=True)
class Order:
    """One ORDER BY expression, in Spark's SQL."""

    text: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Rank:
    """A parsed Top-N: the first rows of each window and key.

    `items` and `columns` have the expression and the name of each column of the inner and the outer query:
    ``("*", "*")`` for all columns, and in `items` ``(name, name)`` for the row number.
    """

    name: str  # of the row number
    keys: tuple[str, ...]  # of PARTITION BY, without those of the window
    order: tuple[Order, ...]
    limit: int
    items: tuple[tuple[str, str], ...]
    where: str | None  # further conditions on the ranked rows
    columns: tuple[tuple[str, str], ...]


def rank_of(select: exp.Select) -> tuple[Rank, exp.Select] | None:
    """Return the rank of a query and the inner query with ROW_NUMBER(); None without OVER."""
    overs = list(select.find_all(exp.Window))
    if not overs:
        return None
    middle = _subquery(select)
    over = overs[0]
    if len(overs) > 1 or not isinstance(over.this, exp.RowNumber):
        refuse(f"{text_of(overs[-1])} (OVER)", f"only the ROW_NUMBER() of a window Top-N is: {_PATTERN}")
    if middle is None or over.find_ancestor(exp.Select) is not middle:
        refuse(f"{text_of(over)} (Top-N, deduplication) in this place", _PATTERN)
    expect_only(select, {"expressions", "from", "where"})
    _strip_names(select)
    alias = over.parent
    if not isinstance(alias, exp.Alias):
        refuse(f"{text_of(over)} without a name", _PATTERN)
    expect_only(over, {"this", "partition_by", "order", "over"})
    partition = [name_of(node, "PARTITION BY") for node in over.args.get("partition_by") or []]
    if not set(BOUNDS[:2]) <= set(partition):
        refuse(f"{text_of(over)} (a Top-N of all rows, not of windows)", _PATTERN)
    if over.args.get("order") is None:
        refuse(f"{text_of(over)} without ORDER BY", _PATTERN)
    order = [
        Order(text_of(one.this), bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for one in over.args["order"].expressions
    ]
    rank = alias.alias
    limit, where = _limit(select, rank)
    found = Rank(
        name=rank,
        keys=tuple(name for name in partition if name not in BOUNDS),
        order=tuple(order),
        limit=limit,
        items=tuple((rank, rank) if item is alias else _item(item) for item in middle.expressions),
        where=where,
        columns=tuple(map(_item, select.expressions)),
    )
    return found, middle


def _subquery(select: exp.Select) -> exp.Select | None:
    source = select.args.get("from_")
    inner = None if source is None else source.this
    return inner.this if isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Select) else None


def _strip_names(select: exp.Select) -> None:
    """Remove table names from columns, since each level has only one table."""
    names = {source.alias for source in select.find_all(exp.Subquery, exp.Table)} - {""}
    for column in select.find_all(exp.Column):
        if column.table in names:
            column.set("table", None)


def _item(node: exp.Expr) -> tuple[str, str]:
    if isinstance(node, exp.Star):
        expect_only(node, set())
        return "*", "*"
    if isinstance(node, exp.Alias):
        return text_of(node.this), node.alias
    return text_of(node), node.name if isinstance(node, exp.Column) else text_of(node)


def _limit(select: exp.Select, name: str) -> tuple[int, str | None]:
    """Return the number of rows to keep and the other conditions."""
    where = select.args.get("where")
    conditions: list[exp.Expr] = []
    if where is not None:
        conditions = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    limits = [n for n in (_at_most(one, name) for one in conditions) if n is not None]
    others = [one for one in conditions if _at_most(one, name) is None]
    if len(limits) != 1 or limits[0] < 1:
        refuse(f"a Top-N without exactly one limit of {name}", f"write WHERE {name} <= 3, or {name} = 1")
    return limits[0], text_of(exp.and_(*others)) if others else None


def _at_most(condition: exp.Expr, name: str) -> int | None:
    """Return n of ``rownum <= n``, ``rownum < n + 1``, ``rownum = 1`` or the flipped forms; else None."""
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(condition, exp.Binary):
        return None
    kind, left, right = type(condition), condition.left, condition.right
    if isinstance(left, exp.Literal):
        kind, left, right = flipped.get(kind, exp.Binary), right, left
    if not isinstance(left, exp.Column) or left.name != name:
        return None
    if not isinstance(right, exp.Literal) or not right.is_int:
        return None
    n = int(right.name)
    if kind is exp.LTE or (kind is exp.EQ and n == 1):
        return n
    return n - 1 if kind is exp.LT else None


_EXAMPLE = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"

# Flink's names of the length arguments, in order, and the names in this package's functions.
_LENGTHS = {
    "TUMBLE": {"SIZE": "size"},
    "HOP": {"SLIDE": "slide", "SIZE": "size"},
    "CUMULATE": {"STEP": "step", "SIZE": "max_size"},
    "SESSION": {"GAP": "gap"},
}

_UNITS = {
    "WEEK": 604_800_000,
    "DAY": 86_400_000,
    "HOUR": 3_600_000,
    "MINUTE": 60_000,
    "SECOND": 1_000,
    "MILLISECOND": 1,
}

_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    exp.ApproxDistinct: "approx_count_distinct",
}
_KNOWN = (
    "COUNT, COUNT(DISTINCT), SUM, AVG, MIN, MAX, STDDEV_SAMP, STDDEV_POP, VAR_SAMP, VAR_POP and "
    "APPROX_COUNT_DISTINCT; for your own function use timerheap.spark.aggregate(...) with "
    "tumble(), hop() or cumulate()"
)

_READ = {"expressions", "from", "where", "group", "having"}


@dataclass(frozen=True)
class Call:
    """An aggregate: the function's name in Spark, and its argument and FILTER in Spark's SQL."""

    function: str
    argument: str | None
    condition: str | None


@dataclass(frozen=True)
class WindowSelect:
    """A parsed window query; expressions are in Spark's SQL."""

    windows: str  # the name of the function that makes them, in lower case
    table: tuple[str, ...]  # the parts of its name
    time: str
    lengths: dict[str, int]  # arguments of the function, ms
    where: str | None
    keys: tuple[str, ...]  # of GROUP BY, without those of the window
    sets: tuple[tuple[str, ...], ...]  # the keys of each grouping set
    calls: dict[str, Call]  # by the names that `having` and `columns` use
    having: str | None
    columns: tuple[tuple[str, str], ...]  # expression and name


@dataclass(frozen=True)
class Ranked:
    """A parsed window Top-N, over the results of windows or over their rows."""

    windows: WindowSelect
    rank: Rank
    of_rows: bool


class _Flink(Spark):
    """Spark's dialect with standard strings, as in Flink: quotes are doubled, backslashes are literal."""

    class Tokenizer(Spark.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012


def parsed(query: str) -> WindowSelect | Ranked:
    """Parse a query.

    ValueError: if the query is invalid or uses an unsupported feature; the message names it
    """
    select = _select(query)
    expect_known_queries(select)
    if (found := rank_of(select)) is None:
        return _window_select(select)
    rank, middle = found
    source = middle.args["from_"].this
    if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select):
        expect_only(middle, {"expressions", "from"})
        return Ranked(_window_select(source.this), rank, of_rows=False)
    expect_only(middle, {"expressions", "from", "where"})
    if any(call.name.upper() == "SESSION" for call in middle.find_all(exp.Anonymous)):
        refuse("a Top-N of the rows of SESSION", "rank the aggregates of sessions, as in Flink")
    rows = middle.copy()
    rows.set("expressions", [])
    rows.set("group", exp.Group(expressions=[exp.column(name) for name in BOUNDS[:2]]))
    return Ranked(_window_select(rows), rank, of_rows=True)


def _window_select(select: exp.Select) -> WindowSelect:
    expect_only(select, _READ)
    call, alias = _window_function(select)
    for column in select.find_all(exp.Column):
        if alias and column.table == alias:
            column.set("table", None)
    windows, given = _arguments(call)
    data, partition = given["DATA"], given.get("PARTITION_BY")
    if not isinstance(data, exp.Column):
        refuse(f"DATA {text_of(data)}", "write the name of a table or a view: TABLE t")
    lengths = _LENGTHS[windows] | {"OFFSET": "offset"}
    sets = grouping_sets(select)
    keys = tuple(dict.fromkeys(name for one in sets for name in one))
    by = None if partition is None else tuple(name_of(part, "PARTITION BY") for part in parts_of(partition))
    if windows == "SESSION" and len(sets) > 1:
        refuse(
            "SESSION with GROUPING SETS, CUBE or ROLLUP",
            "write one query per grouping set and union() the results, since each set has its own sessions",
        )
    if windows == "SESSION" and set(by or ()) != set(keys):
        refuse(
            f"SESSION partitioned by ({', '.join(by or ())}) and grouped by ({', '.join(keys)})",
            "use the same columns in both: SESSION(TABLE t PARTITION BY k, ...) with GROUP BY k",
        )
    outside = _Outside({*BOUNDS, *keys}, sets)
    columns = tuple(outside.column(item) for item in select.expressions)
    having = select.args.get("having")
    return WindowSelect(
        windows=windows.lower(),
        table=tuple(part.name for part in data.parts),
        time=_descriptor(given["TIMECOL"]),
        lengths={to: _milliseconds(given[name], name) for name, to in lengths.items() if name in given},
        where=_where(select),
        keys=keys,
        sets=tuple(sets),
        having=None if having is None else outside.text(having.this, "HAVING"),
        columns=columns,
        calls=outside.calls,
    )


def _select(query: str) -> exp.Select:
    dialect = _Flink()
    try:
        tokens = list(_rewritten(dialect.tokenize(query)))
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
    if not isinstance(tree, exp.Select):
        refuse(
            (tree.name if isinstance(tree, exp.Command) else tree.key).upper(),
            "write one SELECT, and continue with the DataFrame: union(), writeStream, a view",
        )
    return tree


def _rewritten(tokens: list[Token]) -> Iterator[Token]:
    """Rewrite Flink's ``TABLE t PARTITION BY k`` to ``t, PARTITION_BY => k``, which sqlglot can parse."""
    in_table = False
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


def _like(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)


def _window_function(select: exp.Select) -> tuple[exp.Anonymous, str]:
    """Return the call of the window function and the alias of its rows."""
    source = select.find(exp.From)
    table = None if source is None else source.this
    if not isinstance(table, exp.Table):
        refuse("a SELECT without a window function", f"write {_EXAMPLE}")
    expect_only(table, {"this", "alias"})
    if columns := table.alias_column_names:
        refuse(f"renaming columns with {table.alias} ({', '.join(columns)})", "rename them in SELECT")
    call = table.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        (call,) = call.expressions
    if not isinstance(call, exp.Anonymous):
        names = (each.name.upper() for each in select.find_all(exp.Anonymous))
        if grouped := [name for name in names if name in _LENGTHS]:
            refuse(f"GROUP BY {grouped[0]}(...), Flink's legacy windows,", f"write {_EXAMPLE}")
        refuse(f"a query of {text_of(table)} without windows", f"use spark.sql(), or write {_EXAMPLE}")
    if call.name.upper() not in _LENGTHS:
        refuse(f"the table function {call.name}", f"use one of {', '.join(_LENGTHS)}")
    return call, table.alias


def _arguments(call: exp.Anonymous) -> tuple[str, dict[str, exp.Expr]]:
    """Return the name of a window function and its arguments by name."""
    windows = call.name.upper()
    more = "PARTITION_BY" if windows == "SESSION" else "OFFSET"
    needed = ["DATA", "TIMECOL", *_LENGTHS[windows]]
    given: dict[str, exp.Expr] = {}
    takes, free = f"{windows} takes {', '.join(needed)}", list(needed)
    if more == "OFFSET":
        takes, free = f"{takes} and optionally OFFSET", [*needed, more]
    for argument in call.expressions:
        if isinstance(argument, exp.Kwarg):
            name, value = argument.this.name.upper(), argument.expression
        elif free:
            name, value = free[0], argument
        else:
            refuse(f"the argument {text_of(argument)}", takes)
        if name in given or name not in (*needed, more):
            refuse(f"the argument {name}" + (", given twice," if name in given else ""), takes)
        given[name] = value
        free = [one for one in free if one != name]
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(f"query: {takes}; {missing[0]} is missing")
    return windows, given


def _descriptor(node: exp.Expr) -> str:
    if not (isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR" and node.expressions):
        refuse(f"TIMECOL {text_of(node)}", "write DESCRIPTOR(ts) with the time column")
    if len(node.expressions) > 1:
        refuse(f"TIMECOL {text_of(node)}", "write DESCRIPTOR with one column")
    return name_of(node.expressions[0], "DESCRIPTOR")


def _milliseconds(node: exp.Expr, argument: str) -> int:
    shown, sign = text_of(node), 1
    while isinstance(node, exp.Neg):
        node, sign = node.this, -sign
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal) or node.unit is None:
        refuse(f"{argument} {shown}", "write an interval such as INTERVAL '10' MINUTES")
    unit = node.unit
    ends = [unit.this, unit.expression] if isinstance(unit, exp.IntervalSpan) else [unit, unit]
    first, last = ((one.name if isinstance(one, exp.Var) else one.key).upper() for one in ends)
    known = list(_UNITS)
    for name in (first, last):
        if name.removesuffix("S") not in known:
            refuse(f"{argument} {shown}", f"the units are {', '.join(known)}")
    units = known[known.index(first.removesuffix("S")) : known.index(last.removesuffix("S")) + 1]
    match = re.fullmatch(r"\s*([+-]?)\s*(\d+(?:[ :]\d+)*(?:\.\d+)?)\s*", node.this.name)
    numbers = [] if match is None else re.split("[ :]", match[2])
    if match is None or not units or len(numbers) != len(units):
        raise ValueError(
            f"query: {argument} must be an interval such as INTERVAL '10' MINUTES, got {shown}; "
            f"{node.this.name!r} is not a number of {unit.sql()}"
        )
    length = sum(Decimal(number) * _UNITS[name] for number, name in zip(numbers, units, strict=True))
    if length != int(length):
        raise ValueError(f"query: {argument} must be a whole number of milliseconds, got {shown}")
    return int(length) * sign * (-1 if match[1] == "-" else 1)


def _where(select: exp.Select) -> str | None:
    where = select.args.get("where")
    if where is None:
        return None
    for column in where.find_all(exp.Column):
        if column.name in BOUNDS and not column.table:
            refuse(f"WHERE with {column.name}", "move conditions on windows to HAVING")
    if aggregate := where.find(exp.AggFunc):
        refuse(f"WHERE with {text_of(aggregate)}", "move conditions on aggregates to HAVING")
    return text_of(where.this)


class _Outside:
    """Rewrites expressions over groups: replaces each aggregate by a column and records it in `calls`."""

    def __init__(self, grouped: set[str], sets: list[tuple[str, ...]]) -> None:
        self._grouped = {*grouped, GROUPING_SET}
        self._sets = sets
        self.calls: dict[str, Call] = {}

    def column(self, item: exp.Expr) -> tuple[str, str]:
        """Return the expression and the name of an item of the SELECT list."""
        if isinstance(item, exp.Alias):
            return self.text(item.this, "SELECT"), item.alias
        return self.text(item, "SELECT"), item.name if isinstance(item, exp.Column) else text_of(item)

    def text(self, node: exp.Expr, clause: str) -> str:
        """Return an expression in Spark's SQL, with its aggregates replaced."""
        node = node.copy().transform(self._replaced)
        if node.find(exp.Star):
            refuse(f"{clause} *", "list the columns: keys, window_start, window_end and aggregates")
        for column in node.find_all(exp.Column):
            root = column.parts[0].name
            if root not in self._grouped and root not in self.calls:
                raise ValueError(
                    f"query: columns in {clause} must be in GROUP BY or inside an aggregate, got {root!r}; "
                    f"aggregates are {_KNOWN}"
                )
        return text_of(node)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, (exp.Grouping, exp.GroupingId)):
            return grouping_value(node, self._sets)
        if isinstance(node, exp.Anonymous) and node.name.upper() == "GROUP_ID":
            refuse("GROUP_ID()", "write GROUPING_ID(k, ...) with columns of GROUP BY")
        if not isinstance(node, (exp.AggFunc, exp.Filter)):
            return node
        name = text_of(node)
        self.calls[name] = _call(node)
        return exp.column(name, quoted=True)


def _call(node: exp.Expr) -> Call:
    shown, condition = text_of(node), None
    if isinstance(node, exp.Filter):
        node, condition = node.this, text_of(node.expression.this)
    function = _FUNCTIONS.get(type(node))
    if function is None:
        refuse(shown, f"aggregates are {_KNOWN}")
    if any(value for name, value in node.args.items() if name not in ("this", "big_int")):
        refuse(shown, "aggregates take one argument")
    argument = node.this
    if isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            refuse(shown, "count the distinct values of one column, or combine several columns in a view")
        if function not in ("count", "min", "max"):
            refuse(shown, "only COUNT takes DISTINCT")
        (argument,) = argument.expressions
        function = "count_distinct" if function == "count" else function
    if isinstance(argument, (exp.Star, exp.Literal)) and function == "count":
        return Call(function, None, condition)
    if argument.find(exp.AggFunc):
        refuse(shown, "aggregates cannot be nested")
    return Call(function, text_of(argument), condition)
