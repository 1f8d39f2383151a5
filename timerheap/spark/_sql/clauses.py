"""Clauses of Flink SQL: arguments of windows, intervals, GROUP BY, aggregates, OVER, QUALIFY."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import chain, combinations, product

from sqlglot import exp

from timerheap.spark._columns import GROUPING_SET, RANK, WINDOW_COLUMNS, computed_name
from timerheap.spark._sql.dialect import expect_only, refuse, show_as, text_of, written
from timerheap.spark._sql.nodes import PROCTIME, Call
from timerheap.spark._sql.over_columns import Frame, RowCall
from timerheap.spark._sql.ranking import Order
from timerheap.tvf.aggregates import BUILT_IN

_MAX_SETS = 64

Keys = tuple[str, ...]

EXAMPLE = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"

# Flink's names of the length arguments, in order, and the names in this package's functions.
LENGTHS = {
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

_SYNONYMS = {"stddev": "stddev_samp", "variance": "var_samp"}
_KNOWN = ", ".join(BUILT_IN).upper().replace("COUNT_DISTINCT,", "COUNT(DISTINCT),", 1)
_OTHERWISE = "for your own function use timerheap.spark.udaf(...) with tumble(), hop() or cumulate()"

RANKS = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
PATTERN = (
    "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end [, k] "
    "ORDER BY x) AS rownum FROM ...) WHERE rownum <= 3"
)
_PROCESS = "for other functions use timerheap.spark.process() with a state"
_FRAMES = (
    "write SUM(x) OVER (PARTITION BY k ORDER BY ts), or in it RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND "
    "CURRENT ROW, or ROWS BETWEEN 10 PRECEDING AND CURRENT ROW"
)
_PICKS = {
    exp.Lag: "lag",
    exp.Lead: "lead",
    exp.FirstValue: "first_value",
    exp.LastValue: "last_value",
    exp.NthValue: "nth_value",
}
_RUNNING = ("count", "sum", "avg", "min", "max")
_ITEM = "__timerheap:item"  # begins the names of the columns of groups


def parts_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the elements of a tuple or of parentheses; any other node as the only element."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this if isinstance(node, exp.Paren) else node]


def name_of(node: exp.Expr, clause: str) -> str:
    """Return the name of a column; raise for any other node."""
    if not isinstance(node, exp.Column) or node.table:
        refuse(f"{clause} {written(node)}", "use columns of the table; make a view that has it as a column")
    return node.name


def time_of(node: exp.Expr, clause: str) -> str:
    """Return the name of a time: of a column, or `PROCTIME`."""
    if isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME":
        return PROCTIME
    return name_of(node, clause)


def grouping_sets(group: exp.Expr, bounds: Mapping[str, str]) -> list[Keys]:
    """Return the keys of each grouping set, without the window's bounds; a plain GROUP BY has one set."""
    expect_only(group, {"expressions"})
    choices = [_choices(node) for node in group.expressions]
    sets = [tuple(dict.fromkeys(chain.from_iterable(chosen))) for chosen in product(*choices)]
    if len(sets) > _MAX_SETS:
        refuse(f"GROUP BY of {len(sets)} grouping sets", f"write at most {_MAX_SETS} with GROUPING SETS")
    for bound in WINDOW_COLUMNS[:2]:
        if not all(bound in [bounds.get(name) for name in names] for names in sets):
            raise ValueError(
                f"query: GROUP BY must have window_start and window_end, in or beside each grouping set; "
                f"{bound} is missing in {written(group).strip()}, where names are case-sensitive"
            )
    return [tuple(name for name in names if name not in bounds) for names in sets]


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
    if not names or not set(names) <= set(keys) or (isinstance(node, exp.Grouping) and len(names) > 1):
        columns = f"columns of GROUP BY: {', '.join(keys) or 'none'}"
        refuse(written(node), f"write GROUPING(k) or GROUPING_ID(k, ...) with {columns}")
    values = [sum((name not in keys) << at for at, name in enumerate(reversed(names))) for keys in sets]
    if len(sets) == 1:
        return exp.cast(exp.Literal.number(values[0]), "bigint")
    case = exp.Case(this=exp.column(GROUPING_SET, quoted=True))
    for number, value in enumerate(values):
        case = case.when(exp.Literal.number(number), exp.Literal.number(value))
    return exp.cast(case, "bigint")


def window_arguments(call: exp.Anonymous) -> tuple[str, dict[str, exp.Expr]]:
    """Return the name of a window function and its arguments by name."""
    windows = call.name.upper()
    more = "PARTITION_BY" if windows == "SESSION" else "OFFSET"
    needed = ["DATA", "TIMECOL", *LENGTHS[windows]]
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
            refuse(f"the argument {written(argument)}", takes)
        if name in given or name not in (*needed, more):
            shown = name.replace("_", " ") + ", given twice," * (name in given)
            refuse(f"the argument {shown}", takes)
        given[name] = value
        free = [one for one in free if one != name]
    missing = [name for name in needed if name not in given]
    if missing:
        raise ValueError(f"query: {takes}; {missing[0]} is missing")
    return windows, given


def descriptor(node: exp.Expr) -> str:
    is_descriptor = isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR"
    if not is_descriptor or len(node.expressions) != 1:
        refuse(f"TIMECOL {written(node)}", "write DESCRIPTOR(ts) with the time column")
    return name_of(node.expressions[0], "DESCRIPTOR")


def milliseconds(node: exp.Expr, argument: str) -> int:
    shown, sign = written(node), 1
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


class Outside:
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
        shown = written(node)
        node = node.copy().transform(self._replaced)
        if node.find(exp.Star):
            refuse(f"{clause} *", "list the columns: keys, window_start, window_end and aggregates")
        for column in node.find_all(exp.Column):
            root = column.parts[0].name
            if root not in self._grouped and root not in self.calls:
                raise ValueError(
                    f"query: columns in {clause} must be in GROUP BY or inside an aggregate, got {root!r} in "
                    f"{shown}; aggregates are {_KNOWN}; {_OTHERWISE}"
                )
        return text_of(node)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, (exp.Grouping, exp.GroupingId)):
            return grouping_value(node, self._sets)
        if isinstance(node, exp.Anonymous) and node.name.upper() == "GROUP_ID":
            refuse(written(node), "write GROUPING_ID(k, ...) with columns of GROUP BY")
        if isinstance(node, exp.Anonymous) and node.name.upper().rpartition("_")[0] in LENGTHS:
            refuse(f"{written(node)} with a window table function", f"write {', '.join(WINDOW_COLUMNS)}")
        if not isinstance(node, (exp.AggFunc, exp.Filter)):
            return node
        name = computed_name(0, text_of(node))
        self.calls[name] = call_of(node)
        return exp.column(name, quoted=True)


def call_of(node: exp.Expr, otherwise: str = _OTHERWISE) -> Call:
    """Return an aggregate; raise for others, which can be computed `otherwise`."""
    shown, condition = written(node), None
    if isinstance(node, exp.Filter):
        node, condition = node.this, text_of(node.expression.this)
    name = text_of(node).partition("(")[0].lower()
    function = _SYNONYMS.get(name, name)
    if function not in BUILT_IN:
        refuse(shown, f"aggregates are {_KNOWN}; {otherwise}")
    if any(value for name, value in node.args.items() if name not in ("this", "big_int")):
        refuse(shown, "aggregates take one argument; compute it in a view")
    argument = node.this
    if isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            refuse(shown, "count the distinct values of one column, or combine several columns in a view")
        if function not in ("count", "min", "max"):
            refuse(shown, f"only COUNT takes DISTINCT; {otherwise}")
        (argument,) = argument.expressions
        function = "count_distinct" if function == "count" else function
    if isinstance(argument, (exp.Star, exp.Literal)) and function == "count":
        return Call(function, None, condition)
    if argument.find(exp.AggFunc):
        refuse(shown, "aggregates cannot be nested; aggregate the result of a nested SELECT")
    return Call(function, text_of(argument), condition)


def nested_ranks(select: exp.Select) -> exp.Select:
    """Return a SELECT whose ranks are of a nested query, with WHERE instead of QUALIFY or DISTINCT ON."""
    _rank_distinct(select)
    qualify = select.args.get("qualify")
    if qualify is not None:
        select = select.copy()
        _without_aliases(select, select.args["qualify"])
    ranks = [one for one in _windows(select) if type(one.this) in RANKS]
    if qualify is not None and (not ranks or any(one != ranks[0] for one in _windows(select))):
        refuse(f"{written(qualify).strip()} (a condition on anything but one rank)", PATTERN)
    if ranks and select.args.get("group") is not None:
        select = _ranks_of_groups(select)
    return select if qualify is None else _conditions_on_ranks(select)


def _rank_distinct(select: exp.Select) -> None:
    """Write DISTINCT ON with its ORDER BY as the first row of QUALIFY."""
    on = select.args["distinct"].args.get("on") if select.args.get("distinct") else None
    if on is None:
        return
    shown = f"SELECT DISTINCT ON ({', '.join(map(written, parts_of(on)))})"
    if select.args.get("qualify") is not None or next(_windows(select), None) is not None:
        refuse(f"{shown} beside OVER or QUALIFY", "make a view of one of the two, and query that")
    order = select.args.get("order") or exp.Order()
    _without_aliases(select, order)
    terms = order.expressions
    while terms and terms[0].this.name in [one.name for one in parts_of(on)]:  # PostgreSQL wants them first
        terms = terms[1:]
    if not terms:
        refuse(f"{shown} without an order of the rows of a key", "write ORDER BY ts behind FROM")
    first = exp.Window(this=exp.RowNumber(), partition_by=parts_of(on), order=exp.Order(expressions=terms))
    show_as(first, f"{shown} ... ORDER BY {', '.join(map(written, terms))}")
    select.set("distinct", None)
    select.set("order", None)
    select.set("qualify", exp.Qualify(this=exp.EQ(this=first, expression=exp.Literal.number(1))))


def _windows(select: exp.Select) -> Iterator[exp.Window]:
    for node in (*select.expressions, select.args.get("qualify")):
        yield from () if node is None else node.find_all(exp.Window)


def _without_aliases(select: exp.Select, clause: exp.Expr) -> None:
    """Replace names of the select list in a clause by what they stand for."""
    named = {one.alias: one.this for one in select.expressions if isinstance(one, exp.Alias)}
    for column in list(clause.find_all(exp.Column)):
        if not column.table and column.name in named and column.find_ancestor(exp.Window) is None:
            column.replace(named[column.name].copy())


def named(item: exp.Expr, computed: exp.Expr) -> exp.Expr:
    """Return what computes an item of a select list, with the name of the item."""
    name = item.alias_or_name if isinstance(item, (exp.Alias, exp.Column)) else text_of(item)
    return exp.alias_(computed.unalias(), name, quoted=True)


def _ranks_of_groups(select: exp.Select) -> exp.Select:
    """Return a SELECT of ranks from a nested query of the groups, which has all that they refer to."""
    groups, ranks = select.copy(), exp.Select()
    groups.set("qualify", None)
    items: dict[exp.Expr, str] = {}

    def there(node: exp.Expr) -> exp.Expr:
        name = items.setdefault(node.unalias().copy(), f"{_ITEM}{len(items)}")
        return exp.column(name, quoted=True)

    for item in select.expressions:
        if item.is_star or item.find(exp.Window):
            ranks.append("expressions", item.copy())
        else:
            ranks.append("expressions", named(item, there(item)))
    if (qualify := select.args.get("qualify")) is not None:
        ranks.set("qualify", qualify.copy())
        conditions = qualify.this
        for one in conditions.flatten() if isinstance(conditions, exp.And) else [conditions]:
            if not one.find(exp.Window):
                refuse(f"QUALIFY {written(one)} of groups", "move conditions without a rank to HAVING")
    for window in _windows(ranks):
        terms = [one.this for one in window.args["order"].expressions] if window.args.get("order") else []
        for node in [*(window.args.get("partition_by") or []), *terms]:
            node.replace(there(node))
    groups.set("expressions", [exp.alias_(node, name, quoted=True) for node, name in items.items()])
    return ranks.from_(groups.subquery(copy=False))


def _conditions_on_ranks(select: exp.Select) -> exp.Select:
    """Return a SELECT with a condition on the rank of a nested query, instead of one with QUALIFY."""
    ranks, condition = select.copy(), select.args["qualify"].this
    ranks.set("qualify", None)
    window = next(_windows(select))
    ranks.set("expressions", [exp.Star(), exp.alias_(window.copy(), RANK, quoted=True)])

    def outside(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Window):
            return exp.column(RANK, quoted=True)
        if isinstance(node, exp.Column) and node.table:
            node.set("table", None)
        return node

    items = [named(one, one) if isinstance(one, exp.Window) else one for one in select.expressions]
    return (
        exp.Select(expressions=[one.transform(outside) for one in items])
        .from_(ranks.subquery(copy=False))
        .where(condition.transform(outside))
    )


def at_most(condition: exp.Expr, name: str) -> int | None:
    """Return n of ``rownum <= n``, ``rownum < n + 1``, ``rownum = 1`` or the flipped forms; else None."""
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(condition, exp.Binary):
        return None
    kind, left, right = type(condition), condition.left, condition.right
    if isinstance(left, exp.Literal):
        kind, left, right = flipped.get(kind, exp.Binary), right, left
    if not (isinstance(left, exp.Column) and left.name == name):
        return None
    if not isinstance(right, exp.Literal) or not right.is_int:  # a negative number is no literal
        return None
    n = int(right.name)
    if kind is exp.LTE or (kind is exp.EQ and n == 1):
        return n
    return n - 1 if kind is exp.LT else None


def partition_and_order(overs: list[exp.Window]) -> tuple[tuple[str, ...], str, tuple[Order, ...]]:
    """Return PARTITION BY, the time and the rest of ORDER BY, which must be the same in all."""
    first = overs[0]
    clauses = [[over.args.get(name) for name in ("partition_by", "order")] for over in overs]
    for over, clause in zip(overs, clauses, strict=True):
        if clause != clauses[0]:
            refuse(
                f"{written(over)} beside a different PARTITION BY or ORDER BY",
                "write the same in each, or make a view of the result and query that",
            )
    partition, order = clauses[0]
    terms = [] if order is None else order.expressions
    if terms and terms[0].args.get("desc") and any(type(over.this) in RANKS for over in overs):
        refuse(
            f"{written(first)} (a Top-N or the last of all rows: its result changes)",
            "order by ascending time: ORDER BY ts; rank rows of windows; or for the last row of a key use "
            'timerheap.spark.drop_duplicates(keep="last", within=...)',
        )
    if not terms or terms[0].args.get("desc"):
        refuse(f"{written(first)} without an ascending time as the first of ORDER BY", _FRAMES)
    keys = tuple(name_of(node, "PARTITION BY") for node in partition or [])
    return keys, time_of(terms[0].this, "ORDER BY"), orders_of(terms[1:])


def orders_of(terms: list[exp.Expr]) -> tuple[Order, ...]:
    return tuple(
        Order(text_of(one.this), bool(one.args.get("desc")), bool(one.args.get("nulls_first")))
        for one in terms
    )


def over_call(over: exp.Window) -> RowCall | tuple[Call, Frame]:
    """Return a rank or a function that returns a value of a row, or an aggregate and its frame."""
    function, ignore_nulls = over.this, isinstance(over.this, exp.IgnoreNulls)
    if isinstance(function, (exp.IgnoreNulls, exp.RespectNulls)):
        function = function.this
    kind = type(function)
    if kind in RANKS or kind in (exp.Lag, exp.Lead):
        expect_only(over, {"this", "partition_by", "order", "over"})
    if kind in RANKS and function is over.this:
        return RowCall(RANKS[kind], Frame())
    if kind in _PICKS:
        return _pick(function, _PICKS[kind], _frame(over), ignore_nulls)
    if not isinstance(over.this, (exp.AggFunc, exp.Filter)) or kind in RANKS:
        refuse(
            f"{written(over)} (OVER)",
            f"aggregates are, ranks, LAG, LEAD, FIRST_VALUE, LAST_VALUE and NTH_VALUE; {_PROCESS}",
        )
    frame, call = _frame(over), call_of(function, _PROCESS)
    if frame.whole and call.function not in _RUNNING:
        refuse(
            f"{written(function)} of all rows so far",
            f"use {', '.join(_RUNNING).upper()}, or a frame of time or rows: {_FRAMES}",
        )
    return call, frame


def _pick(function: exp.Expr, name: str, frame: Frame, ignore_nulls: bool) -> RowCall:
    expect_only(function, {"this", "offset", "default"})
    argument, offset, default = function.this, function.args.get("offset"), function.args.get("default")
    if offset is not None and not (isinstance(offset, exp.Literal) and offset.is_int and int(offset.name)):
        refuse(f"{written(offset)} in {written(function)}", "write a whole number, 1 or more")
    for part in filter(None, (argument, default)):
        if part.find(exp.AggFunc):
            refuse(written(function), "functions OVER rows cannot be nested; query a view of the result")
    return RowCall(
        name,
        frame,
        text_of(argument),
        1 if offset is None else int(offset.name),
        None if default is None else text_of(default),
        ignore_nulls,
    )


def _frame(over: exp.Window) -> Frame:
    spec, order = over.args.get("spec"), over.args["order"]
    if spec is None:
        return Frame()
    given = spec.args
    start, kind = given.get("start"), str(given.get("kind")).upper()
    ends = [str(given.get(name)).upper() for name in ("start_side", "end")]
    whole, of_rows = str(start).upper() == "UNBOUNDED", kind == "ROWS"
    if (
        kind not in ("ROWS", "RANGE")
        or given.get("exclude")
        or ends not in (["PRECEDING", "NONE"], ["PRECEDING", "CURRENT ROW"])
        or not (whole or isinstance(start, exp.Expr))
        or (of_rows and not (whole or (isinstance(start, exp.Literal) and start.is_int)))
    ):
        refuse(
            f"{written(over)} of other rows than the last ones by number or time", f"{_FRAMES}; {_PROCESS}"
        )
    if whole or of_rows:
        return Frame(rows=None if whole else int(start.name), peers=not of_rows)
    preceding = milliseconds(start, "RANGE")
    if preceding < 0:
        refuse(f"RANGE {written(start)} PRECEDING", "write an interval of 0 or more")
    if len(order.expressions) > 1:
        refuse(
            f"RANGE {written(start)} PRECEDING with several columns in ORDER BY",
            "write ROWS, or the time alone",
        )
    return Frame(preceding)
