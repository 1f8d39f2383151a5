"""The clauses of MATCH_RECOGNIZE: what is found in rows, and what Spark computes before and after."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN
from timerheap.spark._order_by import Order
from timerheap.spark._patterns.conditions import COMPUTED, Term
from timerheap.spark._patterns.match_rules import EMPTY
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.pattern import Pattern, compiled
from timerheap.spark._sql.nodes import Matched, Node, Table
from timerheap.spark._sql.read.clauses import UNITS, column_name, interval_ms, is_proctime, time_of
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of
from timerheap.spark._sql.read.match_tokens import WITHIN
from timerheap.spark._sql.rewrite.match_failures import can_fail, failures, tried

_SEVERAL = (
    "of several rows there are comparisons, arithmetic, CASE, IF, COALESCE, NULLIF, LEAST, GREATEST, ABS, "
    "SIGN, ROUND, FLOOR, CEIL, MOD, DIV, SQRT, POWER, EXP, LN, CONCAT, TIMESTAMPDIFF and DATEDIFF; compute "
    "others of one row, inside PREV, NEXT, FIRST and LAST"
)
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge",
    exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div",
    exp.And: "and", exp.Or: "or", exp.Not: "not", exp.Neg: "neg",
    exp.NullSafeEQ: "same", exp.Mod: "mod", exp.IntDiv: "idiv", exp.Pow: "pow", exp.DPipe: "concat",
    exp.Abs: "abs", exp.Sign: "sign", exp.Floor: "floor", exp.Ceil: "ceil", exp.Round: "round",
    exp.Sqrt: "sqrt", exp.Exp: "exp", exp.Ln: "ln", exp.Concat: "concat", exp.Least: "least",
    exp.Greatest: "greatest", exp.Coalesce: "coalesce",
}  # fmt: skip
_OF_ANY_NUMBER = ("concat", "least", "greatest", "coalesce")
_LENIENT = (exp.And, exp.Or, exp.NullSafeEQ, exp.Least, exp.Greatest, exp.Coalesce)
_STRICT: tuple[Any, ...] = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Interval, exp.Var, exp.Paren, exp.Cast, exp.DataType),
    *(exp.Upper, exp.Lower, exp.Length, exp.TimestampDiff, exp.DateDiff, exp.TsOrDsToDate),
    exp.TryCast,
    *(one for one in _OPERATORS if one not in _LENIENT),
)
"""What is null if a column is: it can be computed before it is known whether there is a row."""

_NEIGHBOURS = ("PREV", "NEXT")
_NAVIGATIONS = ("FIRST", "LAST", *_NEIGHBOURS)

Place = tuple[Any, ...]
"""Where a value is read: ("row", back), ("nav", variables, "first" or "last", offset, back), or ("agg",)."""


def matched(source: Node, name: str, match: exp.Expr) -> Matched:
    """Return what a MATCH_RECOGNIZE of a table means, or of the rows of a query by some name."""
    names = ("partition_by", "order", "measures", "define")
    clause: dict[str, Any] = {name: match.args.get(name) for name in names}
    order = clause["order"].expressions if clause["order"] else []
    for one in order:
        known = isinstance(one.this, exp.Column) or (one is order[0] and is_proctime(one.this))
        if (one is order[0] and one.args.get("desc")) or not known:
            instead = "order by the time column, ascending, and further columns"
            refuse(f"ORDER BY {as_read(one)} in MATCH_RECOGNIZE", instead)
    if not order:
        refuse("MATCH_RECOGNIZE without ORDER BY", "write ORDER BY ts with the time column")
    if (alias := match.args.get("alias")) and alias.columns:
        refuse(f"{as_read(alias)} of MATCH_RECOGNIZE", "name the measures in MEASURES")
    if match.find(exp.Select):
        refuse("a subquery in MATCH_RECOGNIZE", "join the table with it in a view, or the matches")
    if match.args.get("pattern") is None:
        refuse("MATCH_RECOGNIZE without PATTERN", "write PATTERN (A B)")
    keys = tuple(column_name(one, "PARTITION BY") for one in clause["partition_by"] or [])
    time, *ties = (time_of(one.this, "ORDER BY") for one in order)
    by = tuple(
        Order(name, bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for name, one in zip(ties, order[1:], strict=True)
    )
    rows = match.args["rows"].name if match.args.get("rows") else "ONE ROW PER MATCH"
    if "UNMATCHED" in rows:
        refuse(rows, "join the result with the table in Spark")
    reading = _Reading(compiled(match.args["pattern"].name))
    for part, of in (("define", ""), ("measures", "FINAL_LAST")):
        clause[part] = [one.transform(_rowtime, time, of) for one in clause[part] or []]
    within = reading.definitions(clause["define"])
    defined = tuple(map(reading.terms.get, range(len(reading.pattern.variables))))
    all_rows = rows.startswith("ALL")
    items = [reading.measure_item(one) for one in clause["measures"]]
    if not (reading.measures or keys or all_rows):
        if not items:
            refuse("ONE ROW PER MATCH without MEASURES and PARTITION BY", "write MEASURES COUNT(*) AS n")
        reading.measures.append(Measure(f"{HIDDEN}measure", None, "count"))  # a match has a column
    table = source.table if isinstance(source, Table) else (name or "nested SELECT",)
    skip, target = reading.skip(match.args["after"].name if match.args.get("after") else "")
    return Matched(
        table, None, time, tuple(ties), keys, reading.pattern, defined, within, skip, target,
        reading.columns, tuple(reading.measures), tuple(items), all_rows, "OMIT" not in rows, reading.ahead,
        reading.before, by, None if isinstance(source, Table) else source,
    )  # fmt: skip


class _Reading:
    """Reads the expressions of one clause.

    columns: what is computed of each row beforehand, by the names of the columns
    ahead: how many rows behind a row NEXT looks
    before: whether there is PREV
    """

    def __init__(self, pattern: Pattern) -> None:
        if len(pattern.variables) > 62:
            refuse(f"PATTERN ({pattern.shown}) of {len(pattern.variables)} variables", "use at most 62")
        self.pattern = pattern
        self.columns: dict[str, str] = {}
        self.measures: list[Measure] = []
        self.ahead = 0
        self.before = False
        self._subsets: dict[str, frozenset[int]] = {}
        self._guards: dict[int, exp.Expr] = {}
        self.terms: dict[int, Term] = {}

    def definitions(self, define: list[exp.Expr]) -> int | None:
        """Read WITHIN, SUBSET and DEFINE; return what WITHIN says."""
        within, conditions = None, dict[int, exp.Expr]()
        for one in define:
            name, value = one.alias, one.this
            if not name:
                raise ArgumentValueError(
                    f"query: DEFINE must have a condition for each variable, got {as_read(one)}"
                )
            if [other.alias.lower() for other in define].count(name.lower()) > 1:
                raise ArgumentValueError(
                    f"query: MATCH_RECOGNIZE must define each name once, got {name} twice"
                )
            if name == WITHIN:
                within = interval_ms(value, "WITHIN")
                if within <= 0:
                    raise ArgumentValueError(f"query: WITHIN must be longer than 0, got {as_read(value)}")
            elif isinstance(value, exp.Anonymous) and value.name == "SUBSET_OF":
                numbers = [self._number(part.name, "SUBSET") for part in value.expressions]
                if self.pattern.number(name) is not None:
                    raise ArgumentValueError(
                        f"query: SUBSET must have a new name, got {name}, a variable of PATTERN"
                    )
                self._subsets[name.lower()] = frozenset(numbers)
            else:
                conditions[self._number(name, "DEFINE")] = value
        for number, value in conditions.items():
            if (guard := self._guard(value, number)) is not None:
                self._guards[number] = guard
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
            raise ArgumentValueError(
                f"query: {where} must name variables of PATTERN, got {name}; there are {known}"
            )
        return number

    def _group(self, name: str, where: str) -> frozenset[int]:
        return self._subsets.get(name.lower()) or frozenset([self._number(name, where)])

    def _variables(self, node: exp.Expr) -> frozenset[int] | None:
        """Return the variables whose rows an expression reads, None for all."""
        names = {one.parts[0].name if len(one.parts) > 1 else "" for one in node.find_all(exp.Column)}
        if len(names) > 1:
            refuse(f"{as_read(node)} of several variables", "write one function for each of them")
        name = names.pop() if names else ""
        return self._group(name, as_read(node)) if name else None

    def _part(self, node: exp.Expr, variables: frozenset[int] | None = None, *, empty: bool = False) -> str:
        """Return the column of an expression over one row, which Spark computes beforehand.

        variables: whose rows alone are read; None if others may be. Spark computes the column for all rows,
            so where it fails, or a row cannot be of these variables, it is null.
        empty: whether it is what the expression is of null columns
        """
        if node.is_star:
            refuse(as_read(node), "name a column")
        plain = _bare(node, empty)
        if not can_fail(plain):
            return self._column(plain, plain)
        return self._column(plain, self._guarded(tried(plain), variables))

    def _measured_part(self, node: exp.Expr, variables: frozenset[int] | None) -> tuple[str, str | None]:
        """Return the same for a measure, and the column that says for which rows it fails, if it can."""
        plain = _bare(node)
        if node.is_star or not can_fail(plain):
            return self._part(node), None
        fails = failures(plain)
        if fails is None:
            return self._column(plain, self._guarded(plain, variables)), None
        failed = self._column(exp.not_(exp.paren(plain)), self._guarded(fails, variables))
        return self._column(plain, self._guarded(tried(plain), variables)), failed

    def _column(self, shown: exp.Expr, computed: exp.Expr) -> str:
        """Return the column of an expression, named for how the query has it."""
        text = text_of(computed)
        name = COMPUTED + text_of(shown)
        while self.columns.setdefault(name, text) != text:  # under another condition
            name += " "
        return name

    def _guarded(self, node: exp.Expr, variables: frozenset[int] | None) -> exp.Expr:
        """Return an expression that is null for rows that cannot be of some variables."""
        guards = [self._guards.get(number) for number in sorted(variables or ())]
        if not guards or None in guards:
            return node
        return exp.Case().when(exp.or_(*(guard.copy() for guard in guards if guard)), node)

    def _guard(self, node: exp.Expr, number: int) -> exp.Expr | None:
        """Return what DEFINE asks of one row alone, None for nothing."""
        parts = node.unnest().flatten() if isinstance(node.unnest(), exp.And) else [node]
        alone = [part for part in parts if {*self._places(part, number)} <= {("row", 0)}]
        return exp.and_(*(exp.paren(tried(_bare(part))) for part in alone)) if alone else None

    def _navigated(self, node: exp.Expr, back: int = 0) -> tuple[exp.Expr, str, int, int]:
        """Return what PREV, NEXT, FIRST and LAST are of, "first" or "last", and the two offsets."""
        _, name = _function(node)
        if not name:
            return node, "last", 0, 0
        inner, *more = node.expressions or [exp.null()]
        offsets = [isinstance(one, exp.Literal) and one.is_int and int(one.name) < 2**31 for one in more]
        if not node.expressions or offsets not in ([], [True]):
            refuse(as_read(node), f"write {name}(A.x) or {name}(A.x, 2)")
        offset = int(more[0].name) if more else int(name in _NEIGHBOURS)
        near = {"PREV": offset, "NEXT": -offset}.get(name)
        self.ahead = max(self.ahead, -(near or 0))
        self.before |= (near or 0) > 0
        if near is not None and _function(inner)[1] in ("FIRST", "LAST"):
            return self._navigated(inner, near)
        if any(one is not node and _function(one)[1] for one in inner.walk()):
            refuse(as_read(node), "write PREV(LAST(A.x), 1) to combine both")
        return (inner, name.lower(), offset, back) if near is None else (inner, "last", 0, near)

    # DEFINE

    def _places(self, node: exp.Expr, number: int) -> Iterator[Place]:
        """Yield where the values in a condition on rows of a variable are read."""
        final, name = _function(node)
        if final:
            refuse(f"{as_read(node)} in DEFINE", "leave out FINAL: later rows of the match are not known yet")
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
            refuse(f"{as_read(node)} in DEFINE", "use it in MEASURES")
        elif name:
            yield ("agg",)
        else:
            for one in node.iter_expressions():
                yield from self._places(one, number)

    def _term(self, node: exp.Expr, number: int) -> Term:
        """Return a condition on rows of a variable, in which Spark computes what it can."""
        places = set(self._places(node, number)) or {("row", 0)}
        place = next(iter(places))
        simple = place == ("row", 0) or all(  # a subclass may be more: ConcatWs is a Concat
            type(one) in _STRICT or _function(one)[1] for one in node.walk()
        )
        if found := self._classified(node):
            return found
        if len(places) == 1 and place[0] in ("row", "nav") and simple:
            return self._at(place, node)
        if isinstance(node, exp.Paren):
            return self._term(node.this, number)
        _, name = _function(node)
        if name:
            kind, variables, inner = self._aggregate(node)
            return "agg", variables, kind, None if inner is None else self._part(inner, variables)
        if isinstance(node, exp.Between):
            low, high = exp.GTE(this=node.this, expression=node.args["low"]), node.args["high"]
            return self._term(exp.And(this=low, expression=exp.LTE(this=node.this, expression=high)), number)
        if isinstance(node, exp.In) and node.expressions:
            return self._term(exp.or_(*(node.this.eq(one) for one in node.expressions)), number)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return "null", self._term(node.this, number)
        if isinstance(node, exp.If):
            met = ("this", "true", "false")
            return "if", *(self._term(node.args.get(name) or exp.null(), number) for name in met)
        if (plain := self._plainer(node, number)) is not None:
            return self._term(plain, number)
        if type(node) not in _OPERATORS:
            if len(places) == 1 and place[0] in ("row", "nav"):  # a function that may not be null for null
                there, empty = (self._at(place, exp.true()), self._part(node, empty=True))
                return "if", ("null", there), ("row", empty, 0), self._at(place, node)
            refuse(f"{as_read(node)} of several rows in DEFINE", _SEVERAL)
        parts = [self._term(one, number) for one in node.iter_expressions()]
        name = _OPERATORS[type(node)]
        if name == "round" and len(parts) == 1:
            parts.append(("row", self._part(exp.Literal.number(0)), 0))
        if name in ("floor", "ceil") and len(parts) > 1:
            refuse(f"{as_read(node)} of several rows in DEFINE", f"write {name.upper()} of one argument")
        if name in _OF_ANY_NUMBER:
            return reduce(lambda one, other: (name, one, other), parts)
        return name, *parts

    def _at(self, place: Place, node: exp.Expr) -> Term:
        """Return what Spark computes of a row, where that is read."""
        if place[0] == "row":
            return "row", self._part(node), place[1]
        return *place[:4], self._part(node, None if place[4] else place[1]), place[4]

    def _plainer(self, node: exp.Expr, number: int) -> exp.Expr | None:
        """Return what a function stands for, None if it is plain."""
        if isinstance(node, exp.Case):
            found = node.args.get("default") or exp.null()
            for one in reversed(node.args["ifs"]):
                met = one.this if node.this is None else exp.EQ(this=node.this, expression=one.this)
                found = exp.If(this=met, true=one.args["true"], false=found)
            return found
        if isinstance(node, exp.Nullif):
            return exp.If(this=node.this.eq(node.expression), true=exp.null(), false=node.this)
        if isinstance(node, exp.NullSafeNEQ):
            return exp.Not(this=exp.NullSafeEQ(this=node.this, expression=node.expression))
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean):
            return exp.NullSafeEQ(this=node.this, expression=node.expression)
        unit = node.args.get("unit")
        ms = 1 / 1_000 if unit is None else UNITS.get(unit.name.upper().removesuffix("S"))
        if not isinstance(node, (exp.TimestampDiff, exp.DateDiff)) or ms is None:
            return None
        sides = [node.this, node.expression]
        if any(len(set(self._places(one, number))) > 1 for one in sides):
            return None
        begin = exp.cast(exp.Literal.string("1970-01-01"), "date" if unit is None else "timestamp")
        micro = {} if unit is None else {"unit": exp.var("MICROSECOND")}
        later, sooner = (type(node)(this=one, expression=begin, **micro) for one in sides)
        return exp.IntDiv(
            this=exp.Sub(this=later, expression=sooner), expression=exp.Literal.number(int(ms * 1_000))
        )

    def _aggregate(self, node: exp.Expr) -> tuple[str, frozenset[int] | None, exp.Expr | None]:
        """Return an aggregate, its variables, and its argument, None for rows."""
        _, name = _function(node)
        if isinstance(node, exp.AnonymousAggFunc):
            return self._aggregate_of_user(node)
        argument = node.expressions[0] if len(node.expressions) == 1 else exp.null()
        of_rows = argument.is_star and name != "COUNT"
        if name.lower() not in EMPTY or of_rows or isinstance(argument, (exp.Null, exp.Distinct)):
            refuse(as_read(node), f"the aggregates are {', '.join(EMPTY).upper()}, of one argument")
        if any(_function(one)[1] for one in argument.walk()):
            refuse(as_read(node), "aggregates are of columns")
        variables = self._variables(argument)
        return name.lower(), variables, None if argument.is_star else argument

    def _aggregate_of_user(self, node: exp.Expr) -> tuple[str, frozenset[int] | None, exp.Expr]:
        """Return the same for an aggregate of the user, whose arguments are the fields of a struct."""
        given = node.expressions
        if not given or any(one.is_star or isinstance(one, exp.Distinct) for one in given):
            refuse(f"{as_read(node)} in MATCH_RECOGNIZE", f"write {node.name}(A.x), of one column or more")
        if any(_function(one)[1] for argument in given for one in argument.walk()):
            refuse(as_read(node), "aggregates are of columns")
        fields = [(exp.Literal.string(str(at)), one.copy()) for at, one in enumerate(given)]
        struct = exp.Anonymous(this="named_struct", expressions=[part for pair in fields for part in pair])
        return node.name.lower(), self._variables(node), struct

    # MEASURES

    def measure_item(self, measure: exp.Expr) -> tuple[str, str]:
        """Return a measure in Spark's SQL over columns of the matches, and its name."""
        node = measure.this
        if frame := measure.args.get("window_frame"):
            refuse(f"{frame} {as_read(node.unalias())}", f"it is for FIRST, LAST, {', '.join(EMPTY).upper()}")
        if not isinstance(node, exp.Alias):
            refuse(f"the measure {as_read(node)} without a name", f"write {as_read(node)} AS x")
        return text_of(self._measured(node.this)), node.alias

    def _measured(self, node: exp.Expr) -> exp.Expr:
        final, name = _function(node)
        if name or isinstance(node, exp.Column):
            final |= any(_function(one)[0] for one in node.expressions)  # PREV(FINAL LAST(A.x))
            return exp.column(self._measure(node, final, name), quoted=True)
        if isinstance(node, (exp.Filter, exp.Window)):
            refuse(as_read(node), "write CASE in the aggregate, or query the matches")
        copy = node.copy()
        for one in list(copy.iter_expressions()):
            one.replace(self._measured(one))
        return copy

    def _measure(self, node: exp.Expr, final: bool, name: str) -> str:
        column, offset, failed = None, 0, None
        if name == "MATCH_NUMBER":
            kind, variables = "number", None
        elif found := self._classified(node):
            _, named, which, offset = found
            kind, variables = f"classifier {which}", frozenset(one for one, _ in named)
        elif name in (*_NAVIGATIONS, ""):
            inner, which, offset, back = self._navigated(node)
            kind, variables = which, self._variables(inner)
            name, failed = self._measured_part(inner, None if back else variables)
            column = name, back
        else:
            kind, variables, argument = self._aggregate(node)
            if argument is not None:
                name, failed = self._measured_part(argument, variables)
                column = name, 0
        name = f"{HIDDEN}measure{len(self.measures)}"
        made = Measure(name, None, kind, variables, offset, column, final, failed)
        self.measures.append(made)
        return made.name

    def _classified(self, node: exp.Expr) -> Term | None:
        """Return CLASSIFIER(), and FIRST or LAST of it, as a term."""
        inner, which, offset, name = node, "last", 0, _function(node)[1]
        if name in _NAVIGATIONS and node.expressions and _function(node.expressions[0])[1] == "CLASSIFIER":
            if name in _NEIGHBOURS:
                refuse(as_read(node), "write LAST(CLASSIFIER(), 1)")
            inner, plain = node.expressions[0], node.copy()
            plain.expressions[0].replace(exp.column("x"))
            _, which, offset, _ = self._navigated(plain)
        if _function(inner)[1] != "CLASSIFIER":
            return None
        names, (of,) = self.pattern.variables, inner.expressions or [None]
        group = range(len(names)) if of is None else sorted(self._group(of.name, as_read(inner)))
        return "class", tuple((one, names[one]) for one in group), which, offset


def _rowtime(node: exp.Expr, time: str, of: str) -> exp.Expr:
    """Return what ``MATCH_ROWTIME()`` stands for: the time of the last row, or of that in question."""
    if not isinstance(node, exp.Anonymous) or node.name.upper() != "MATCH_ROWTIME":
        return node
    if [one.sql() for one in node.expressions] not in ([], [time]):
        refuse(as_read(node), f"write MATCH_ROWTIME(), which is of {time}, the time of ORDER BY")
    column = exp.column(time)
    return exp.Anonymous(this=of, expressions=[column]) if of else column


def _bare(node: exp.Expr, empty: bool = False) -> exp.Expr:
    """Return an expression over a row of a variable as one over a row of the table, or over null columns."""

    def bare(one: exp.Expr) -> exp.Expr:
        if isinstance(one, exp.Anonymous) and _function(one)[1] in _NAVIGATIONS:
            return exp.paren(one.expressions[0].transform(bare))
        if not isinstance(one, exp.Column):
            return one
        first, *more = (part.copy() for part in one.parts[len(one.parts) > 1 :])
        plain = exp.Dot.build([exp.Column(this=first), *more]) if more else exp.Column(this=first)
        return exp.If(this=exp.false(), true=plain, false=exp.null()) if empty else plain

    return node.copy().transform(bare).unnest()


def _function(node: exp.Expr) -> tuple[bool, str]:
    """Return whether a function of a match is FINAL, and its name; "" for everything else."""
    if isinstance(node, exp.AnonymousAggFunc):
        return False, node.name.upper()
    if isinstance(node, exp.AggFunc):
        return False, node.sql_name()
    if not isinstance(node, exp.Anonymous):
        return False, ""
    name = node.name.upper()
    if name == "MATCH_PROCTIME":
        refuse(as_read(node), "write MATCH_ROWTIME(), or current_timestamp() in the select list")
    if name in (*_NEIGHBOURS, "CLASSIFIER", "MATCH_NUMBER"):
        return False, name
    final, _, rest = name.partition("_")
    known = final in ("FINAL", "RUNNING", "MATCH") and rest in ("FIRST", "LAST", *map(str.upper, EMPTY))
    return (final == "FINAL", rest) if known else (False, "")
