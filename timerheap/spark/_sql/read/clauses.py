"""What clauses of Flink's SQL are made of: names of columns, times, intervals, arguments of windows."""

from __future__ import annotations

import re
from decimal import Decimal

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.nodes import PROCTIME
from timerheap.spark._sql.read.dialect import as_read, refuse

EXAMPLE = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"

# Flink's names of the length arguments, in order, and the names in this package's functions.
LENGTHS = {
    "TUMBLE": {"SIZE": "size"},
    "HOP": {"SLIDE": "slide", "SIZE": "size"},
    "CUMULATE": {"STEP": "step", "SIZE": "max_size"},
    "SESSION": {"GAP": "gap"},
}

UNITS = {
    "WEEK": 604_800_000,
    "DAY": 86_400_000,
    "HOUR": 3_600_000,
    "MINUTE": 60_000,
    "SECOND": 1_000,
    "MILLISECOND": 1,
}
MONTHS = {"YEAR": 12, "QUARTER": 3, "MONTH": 1}


def parts_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the elements of a tuple or of parentheses; any other node as the only element."""
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node.this if isinstance(node, exp.Paren) else node]


def column_name(node: exp.Expr, clause: str) -> str:
    """Return the name of a column; raise for any other node."""
    if not isinstance(node, exp.Column) or node.table:
        refuse(f"{clause} {as_read(node)}", "use columns of the table; make a view that has it as a column")
    return node.name


def is_proctime(node: exp.Expr) -> bool:
    """Return whether a node is ``PROCTIME()``."""
    return isinstance(node, exp.Anonymous) and node.name.upper() == "PROCTIME"


def time_of(node: exp.Expr, clause: str) -> str:
    """Return the name of a time: of a column, or `PROCTIME`."""
    return PROCTIME if is_proctime(node) else column_name(node, clause)


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
            refuse(f"the argument {as_read(argument)}", takes)
        if name in given or name not in (*needed, more):
            shown = name.replace("_", " ") + ", given twice," * (name in given)
            refuse(f"the argument {shown}", takes)
        given[name] = value
        free = [one for one in free if one != name]
    missing = [name for name in needed if name not in given]
    if missing:
        raise ArgumentValueError(f"query: {takes}; {missing[0]} is missing")
    return windows, given


def descriptor(node: exp.Expr) -> str:
    is_descriptor = isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR"
    if not is_descriptor or len(node.expressions) != 1:
        refuse(f"TIMECOL {as_read(node)}", "write DESCRIPTOR(ts) with the time column")
    return column_name(node.expressions[0], "DESCRIPTOR")


def interval_months(node: exp.Expr) -> int | None:
    """Return the length of an interval of months, quarters or years; None for any other."""
    unit = node.args.get("unit") if isinstance(node, exp.Interval) else None
    ends = [unit.this, unit.expression] if isinstance(unit, exp.IntervalSpan) else [unit]
    names = [one.name.upper().removesuffix("S") for one in ends if one is not None]
    number = node.this.name.strip() if names and isinstance(node.this, exp.Literal) else ""
    if names == ["YEAR", "MONTH"] and (match := re.fullmatch(r"(\d+)-(\d+)", number)):
        return int(match[1]) * 12 + int(match[2])
    return int(number) * MONTHS[names[0]] if number.isdecimal() and {*names} <= {*MONTHS} else None


def interval_ms(node: exp.Expr, argument: str) -> int:
    shown, sign = as_read(node), 1
    while isinstance(node, exp.Neg):
        node, sign = node.this, -sign
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal) or node.unit is None:
        refuse(f"{argument} {shown}", "write an interval such as INTERVAL '10' MINUTES")
    unit = node.unit
    ends = [unit.this, unit.expression] if isinstance(unit, exp.IntervalSpan) else [unit, unit]
    first, last = ((one.name if isinstance(one, exp.Var) else one.key).upper() for one in ends)
    known = list(UNITS)
    for name in (first, last):
        if name.removesuffix("S") not in known:
            refuse(f"{argument} {shown}", f"the units are {', '.join(known)}")
    units = known[known.index(first.removesuffix("S")) : known.index(last.removesuffix("S")) + 1]
    match = re.fullmatch(r"\s*([+-]?)\s*(\d+(?:[ :]\d+)*(?:\.\d+)?)\s*", node.this.name)
    numbers = [] if match is None else re.split("[ :]", match[2])
    if match is None or not units or len(numbers) != len(units):
        raise ArgumentValueError(
            f"query: {argument} must be an interval such as INTERVAL '10' MINUTES, got {shown}; "
            f"{node.this.name!r} is not a number of {unit.sql()}"
        )
    length = sum(Decimal(number) * UNITS[name] for number, name in zip(numbers, units, strict=True))
    if length != int(length):
        raise ArgumentValueError(f"query: {argument} must be a whole number of milliseconds, got {shown}")
    return int(length) * sign * (-1 if match[1] == "-" else 1)
