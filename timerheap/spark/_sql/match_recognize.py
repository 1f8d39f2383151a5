"""The clauses of MATCH_RECOGNIZE: what is found in rows, and what Spark computes before and after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from sqlglot import exp

from timerheap.spark._columns import HIDDEN
from timerheap.spark._patterns.conditions import Term
from timerheap.spark._patterns.matcher import EMPTY
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.pattern import Pattern, compiled
from timerheap.spark._sql.clauses import milliseconds, name_of
from timerheap.spark._sql.dialect import WITHIN, refuse, text_of, written
from timerheap.spark._sql.nodes import Matched

_VIEW = "compute it in a view of the table, in Spark's SQL"
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge",
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div",
    exp.And: "and", exp.Or: "or", exp.Not: "not", exp.Neg: "neg",
}  # fmt: skip
_STRICT: tuple[Any, ...] = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Interval, exp.Var, exp.Paren, exp.Cast, exp.DataType),
    *(exp.Abs, exp.Upper, exp.Lower, exp.Length, exp.Round, exp.Floor, exp.Ceil, exp.Mod),
    *(one for one in _OPERATORS if one not in (exp.And, exp.Or)),
)
"""What is null if a column is: it can be computed before it is known whether there is a row."""

_NEIGHBOURS = ("PREV", "NEXT")
_NAVIGATIONS = ("FIRST", "LAST", *_NEIGHBOURS)

Place = tuple[Any, ...]
"""Where a value is read: ("row", back), ("nav", variables, "first" or "last", offset, back), or ("agg",)."""


def matched(table: tuple[str, ...], match: exp.Expr) -> Matched:
    """Return what a MATCH_RECOGNIZE of a table means."""
    clause = {name: match.args.get(name) for name in ("partition_by", "order", "measures", "define")}
    order = clause["order"].expressions if clause["order"] else []
    for one in order:
        if one.args.get("desc") or not isinstance(one.this, exp.Column):
            refuse(f"ORDER BY {written(one)} in MATCH_RECOGNIZE", "order by columns, ascending")
    if not order:
        refuse("MATCH_RECOGNIZE without ORDER BY", "write ORDER BY ts with the time column")
    if (alias := match.args.get("alias")) and alias.columns:
        refuse(f"{written(alias)} of MATCH_RECOGNIZE", "name the measures in MEASURES")
    if match.find(exp.Select):
        refuse("a subquery in MATCH_RECOGNIZE", "join the table with it in a view, or the matches")
    if match.args.get("pattern") is None:
        refuse("MATCH_RECOGNIZE without PATTERN", "write PATTERN (A B)")
    keys = tuple(name_of(one, "PARTITION BY") for one in clause["partition_by"] or [])
    time, *ties = (name_of(one.this, "ORDER BY") for one in order)
    rows = match.args["rows"].name if match.args.get("rows") else "ONE ROW PER MATCH"
    if "UNMATCHED" in rows:
        refuse(rows, "join the result with the table in Spark")
    reading = _Reading(compiled(match.args["pattern"].name))
    within = reading.definitions(clause["define"] or [])
    defined = tuple(map(reading.terms.get, range(len(reading.pattern.variables))))
    all_rows = rows.startswith("ALL")
    items = [reading.measure_item(one) for one in clause["measures"] or []]
    if not (reading.measures or keys or all_rows):
        if not items:
            refuse("ONE ROW PER MATCH without MEASURES and PARTITION BY", "write MEASURES COUNT(*) AS n")
        reading.measures.append(Measure(f"{HIDDEN}measure", None, "count"))  # a match has a column
    skip, target = reading.skip(match.args["after"].name if match.args.get("after") else "")
    return Matched(
        table, None, time, tuple(ties), keys, reading.pattern, defined, within, skip, target,
        reading.columns, tuple(reading.measures), tuple(items), all_rows, "OMIT" not in rows, reading.ahead,
    )  # fmt: skip


class _Reading:
    """Reads the expressions of one clause.

    columns: what is computed of each row beforehand, by the names of the columns
    ahead: how many rows behind a row NEXT looks
    """

    def __init__(self, pattern: Pattern) -> None:
        if len(pattern.variables) > 62:
            refuse(f"PATTERN ({pattern.text}) of {len(pattern.variables)} variables", "use at most 62")
        self.pattern = pattern
        self.columns: dict[str, str] = {}
        self.measures: list[Measure] = []
        self.ahead = 0
        self._subsets: dict[str, frozenset[int]] = {}
        self.terms: dict[int, Term] = {}

    def definitions(self, define: list[exp.Expr]) -> int | None:
        """Read WITHIN, SUBSET and DEFINE; return what WITHIN says."""
        within, conditions = None, dict[int, exp.Expr]()
        for one in define:
            name, value = one.alias, one.this
            if not name:
                raise ValueError(f"query: DEFINE must have a condition for each variable, got {written(one)}")
            if [other.alias.lower() for other in define].count(name.lower()) > 1:
                raise ValueError(f"query: MATCH_RECOGNIZE must define each name once, got {name} twice")
            if name == WITHIN:
                within = milliseconds(value, "WITHIN")
                if within <= 0:
                    raise ValueError(f"query: WITHIN must be longer than 0, got {written(value)}")
            elif isinstance(value, exp.Anonymous) and value.name == "SUBSET_OF":
                numbers = [self._number(part.name, "SUBSET") for part in value.expressions]
                if self.pattern.number(name) is not None:
                    raise ValueError(f"query: SUBSET must have a new name, got {name}, a variable of PATTERN")
                self._subsets[name.lower()] = frozenset(numbers)
            else:
                conditions[self._number(name, "DEFINE")] = value
        self.terms = {number: self._term(value, number) for number, value in conditions.items()}
        return within

    def skip(self, text: str) -> tuple[str, frozenset[int]]:
        """Read AFTER MATCH."""
        words = text.removeprefix("AFTER MATCH SKIP").split()
        if words[:1] == ["TO"] and words[1] != "NEXT":
            return f"to {words[1].lower()}", self._group(words[2], "AFTER MATCH SKIP")
        return (" ".join(words).lower() or "past last row"), frozenset()

    def _number(self, name: str, where: str) -> int:
        number = self.pattern.number(name)
        if number is None:
            known = ", ".join(self.pattern.variables)
            raise ValueError(f"query: {where} must name variables of PATTERN, got {name}; there are {known}")
        return number

    def _group(self, name: str, where: str) -> frozenset[int]:
        return self._subsets.get(name.lower()) or frozenset([self._number(name, where)])

    def _variables(self, node: exp.Expr) -> frozenset[int] | None:
        """Return the variables whose rows an expression reads, None for all."""
        names = {one.parts[0].name if len(one.parts) > 1 else "" for one in node.find_all(exp.Column)}
        if len(names) > 1:
            refuse(f"{written(node)} of several variables", "write one function for each of them")
        name = names.pop() if names else ""
        return self._group(name, written(node)) if name else None

    def _part(self, node: exp.Expr) -> str:
        """Return the column of an expression over one row, which Spark computes beforehand."""
        if node.is_star:
            refuse(written(node), "name a column")

        def bare(one: exp.Expr) -> exp.Expr:
            if isinstance(one, exp.Anonymous) and _function(one)[1] in _NAVIGATIONS:
                return exp.paren(one.expressions[0].transform(bare))
            if isinstance(one, exp.Column) and len(one.parts) > 1:
                first, *more = (part.copy() for part in one.parts[1:])
                return exp.Dot.build([exp.Column(this=first), *more]) if more else exp.Column(this=first)
            return one

        text = text_of(node.copy().transform(bare).unnest())
        self.columns[name := f"{HIDDEN}of:{text}"] = text
        return name

    def _navigated(self, node: exp.Expr, back: int = 0) -> tuple[exp.Expr, str, int, int]:
        """Return what PREV, NEXT, FIRST and LAST are of, "first" or "last", and the two offsets."""
        _, name = _function(node)
        if not name:
            return node, "last", 0, 0
        inner, *more = node.expressions or [exp.null()]
        offsets = [isinstance(one, exp.Literal) and one.is_int and int(one.name) < 2**31 for one in more]
        if not node.expressions or offsets not in ([], [True]):
            refuse(written(node), f"write {name}(A.x) or {name}(A.x, 2)")
        offset = int(more[0].name) if more else int(name in _NEIGHBOURS)
        near = {"PREV": offset, "NEXT": -offset}.get(name)
        self.ahead = max(self.ahead, -(near or 0))
        if near is not None and _function(inner)[1] in ("FIRST", "LAST"):
            return self._navigated(inner, near)
        if any(one is not node and _function(one)[1] for one in inner.walk()):
            refuse(written(node), "write PREV(LAST(A.x), 1) to combine both")
        return (inner, name.lower(), offset, back) if near is None else (inner, "last", 0, near)

    # DEFINE

    def _places(self, node: exp.Expr, number: int) -> Iterator[Place]:
        """Yield where the values in a condition on rows of a variable are read."""
        final, name = _function(node)
        if final:
            refuse(f"{written(node)} in DEFINE", "leave out FINAL: later rows of the match are not known yet")
        if self._classified(node):
            yield ("class",)
        elif name in _NAVIGATIONS or isinstance(node, exp.Column):
            inner, which, offset, back = self._navigated(node)
            variables = self._variables(inner)
            if which == "last" and not offset and (variables is None or number in variables):
                yield "row", back
            else:
                yield "nav", variables, which, offset, back
        elif name == "MATCH_NUMBER":
            refuse(f"{written(node)} in DEFINE", "use it in MEASURES")
        elif name:
            yield ("agg",)
        else:
            for one in node.iter_expressions():
                yield from self._places(one, number)

    def _term(self, node: exp.Expr, number: int) -> Term:
        """Return a condition on rows of a variable, in which Spark computes what it can."""
        places = set(self._places(node, number)) or {("row", 0)}
        place = next(iter(places))
        simple = place == ("row", 0) or all(
            isinstance(one, _STRICT) or _function(one)[1] for one in node.walk()
        )
        if found := self._classified(node):
            return found
        if len(places) == 1 and place[0] in ("row", "nav") and simple:
            if place[0] == "row":
                return "row", self._part(node), place[1]
            return *place[:4], self._part(node), place[4]
        if isinstance(node, exp.Paren):
            return self._term(node.this, number)
        _, name = _function(node)
        if name:
            kind, variables, inner = self._aggregate(node)
            return "agg", variables, kind, None if inner is None else self._part(inner)
        if isinstance(node, exp.Between):
            low, high = exp.GTE(this=node.this, expression=node.args["low"]), node.args["high"]
            return self._term(exp.And(this=low, expression=exp.LTE(this=node.this, expression=high)), number)
        if isinstance(node, exp.In) and node.expressions:
            return self._term(exp.or_(*(node.this.eq(one) for one in node.expressions)), number)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return "null", self._term(node.this, number)
        if isinstance(node, exp.Coalesce):
            parts = [self._term(one, number) for one in (node.this, *node.expressions)]
            return reduce(lambda one, other: ("coalesce", one, other), parts)
        if type(node) not in _OPERATORS:
            refuse(f"{written(node)} of several rows in DEFINE", _VIEW)
        return _OPERATORS[type(node)], *(self._term(one, number) for one in node.iter_expressions())

    def _aggregate(self, node: exp.Expr) -> tuple[str, frozenset[int] | None, exp.Expr | None]:
        """Return an aggregate, its variables, and its argument, None for rows."""
        _, name = _function(node)
        argument = node.expressions[0] if len(node.expressions) == 1 else exp.null()
        of_rows = argument.is_star and name != "COUNT"
        if name.lower() not in EMPTY or of_rows or isinstance(argument, (exp.Null, exp.Distinct)):
            refuse(written(node), f"the aggregates are {', '.join(EMPTY).upper()}, of one argument")
        if any(_function(one)[1] for one in argument.walk()):
            refuse(written(node), "aggregates are of columns")
        variables = self._variables(argument)
        return name.lower(), variables, None if argument.is_star else argument

    # MEASURES

    def measure_item(self, measure: exp.Expr) -> tuple[str, str]:
        """Return a measure in Spark's SQL over columns of the matches, and its name."""
        node = measure.this
        if frame := measure.args.get("window_frame"):
            refuse(f"{frame} {written(node.unalias())}", f"it is for FIRST, LAST, {', '.join(EMPTY).upper()}")
        if not isinstance(node, exp.Alias):
            refuse(f"the measure {written(node)} without a name", f"write {written(node)} AS x")
        return text_of(self._measured(node.this)), node.alias

    def _measured(self, node: exp.Expr) -> exp.Expr:
        final, name = _function(node)
        if name or isinstance(node, exp.Column):
            final |= any(_function(one)[0] for one in node.expressions)  # PREV(FINAL LAST(A.x))
            return exp.column(self._measure(node, final, name), quoted=True)
        if isinstance(node, (exp.Filter, exp.Window)):
            refuse(written(node), "write CASE in the aggregate, or query the matches")
        copy = node.copy()
        for one in list(copy.iter_expressions()):
            one.replace(self._measured(one))
        return copy

    def _measure(self, node: exp.Expr, final: bool, name: str) -> str:
        column, offset = None, 0
        if name == "MATCH_NUMBER":
            kind, variables = "number", None
        elif found := self._classified(node):
            _, named, which, offset = found
            kind, variables = f"classifier {which}", frozenset(one for one, _ in named)
        elif name in (*_NAVIGATIONS, ""):
            inner, which, offset, back = self._navigated(node)
            kind, variables, column = which, self._variables(inner), (self._part(inner), back)
        else:
            kind, variables, argument = self._aggregate(node)
            column = None if argument is None else (self._part(argument), 0)
        made = Measure(f"{HIDDEN}measure{len(self.measures)}", None, kind, variables, offset, column, final)
        self.measures.append(made)
        return made.name

    def _classified(self, node: exp.Expr) -> Term | None:
        """Return CLASSIFIER(), and FIRST or LAST of it, as a term."""
        inner, which, offset, name = node, "last", 0, _function(node)[1]
        if name in _NAVIGATIONS and node.expressions and _function(node.expressions[0])[1] == "CLASSIFIER":
            if name in _NEIGHBOURS:
                refuse(written(node), "write LAST(CLASSIFIER(), 1)")
            inner, plain = node.expressions[0], node.copy()
            plain.expressions[0].replace(exp.column("x"))
            _, which, offset, _ = self._navigated(plain)
        if _function(inner)[1] != "CLASSIFIER":
            return None
        names, (of,) = self.pattern.variables, inner.expressions or [None]
        group = range(len(names)) if of is None else sorted(self._group(of.name, written(inner)))
        return "class", tuple((one, names[one]) for one in group), which, offset


def _function(node: exp.Expr) -> tuple[bool, str]:
    """Return whether a function of a match is FINAL, and its name; "" for everything else."""
    if isinstance(node, exp.AggFunc):
        return False, node.sql_name()
    if not isinstance(node, exp.Anonymous):
        return False, ""
    name = node.name.upper()
    if name in ("MATCH_ROWTIME", "MATCH_PROCTIME"):
        refuse(written(node), "write LAST(ts)")
    if name in (*_NEIGHBOURS, "CLASSIFIER", "MATCH_NUMBER"):
        return False, name
    final, _, rest = name.partition("_")
    known = final in ("FINAL", "RUNNING", "MATCH") and rest in ("FIRST", "LAST", *map(str.upper, EMPTY))
    return (final == "FINAL", rest) if known else (False, "")
