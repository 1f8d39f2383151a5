"""Calls of functions on tables: which arguments are tables, the time, the name of the state, and values."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from timerheap.errors import ArgumentValueError
from timerheap.spark._sql.read.clauses import column_name, parts_of
from timerheap.spark._sql.read.dialect import as_read, refuse, text_of

EXAMPLE_CALL = "f(input => TABLE t PARTITION BY k, on_time => DESCRIPTOR(ts), threshold => 10)"
_PARTITION, _TIME, _UID = "PARTITION_BY", "on_time", "uid"


@dataclass
class TableCall:
    """The arguments of a call.

    tables: what each table is, and the columns of its PARTITION BY, None without it
    times: the columns of ``on_time``
    positional, named: the scalar arguments, in Spark's SQL
    """

    tables: list[tuple[exp.Expr, tuple[str, ...] | None]] = field(default_factory=list)
    times: tuple[str, ...] = ()
    positional: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    uid: str | None = None


def read_table_call(call: exp.Anonymous) -> TableCall:
    """Return the arguments of the call of a function on tables."""
    found = TableCall()
    scalars = True  # whether a value without a name may be one of the function's own
    for argument in call.expressions:
        if not isinstance(argument, exp.Kwarg):
            if _is_default(argument) or _is_descriptor(argument):
                found.times = found.times or (() if _is_default(argument) else _times(argument))
                scalars = False
            elif _is_table(argument):
                found.tables.append((argument, None))
            elif scalars:
                found.positional.append(text_of(argument))
            else:
                found.uid = _uid(argument)
            continue
        name, value = argument.this.name, argument.expression
        if name == _PARTITION:
            _add_keys(found, value)
        elif name.lower() == _TIME:
            found.times = () if _is_default(value) else _times(value)
        elif name.lower() == _UID:
            found.uid = None if _is_default(value) else _uid(value)
        elif _is_default(value):
            continue
        elif _is_table(value):
            found.tables.append((value, None))
        elif name in found.named:
            refuse(f"the argument {name}, given twice,", "write it once")
        else:
            found.named[name] = text_of(value)
    return found


def _add_keys(found: TableCall, value: exp.Expr) -> None:
    if not found.tables or found.tables[-1][1] is not None:
        refuse(f"PARTITION BY {as_read(value)}", f"write it behind a table: {EXAMPLE_CALL}")
    keys = tuple(column_name(part, "PARTITION BY") for part in parts_of(value))
    found.tables[-1] = found.tables[-1][0], keys


def _is_table(node: exp.Expr) -> bool:
    return isinstance(node, (exp.Column, exp.Subquery, exp.Select))


def _is_default(node: exp.Expr) -> bool:
    """Return whether an argument is the keyword that leaves it out."""
    return (
        isinstance(node, exp.Column)
        and not node.table
        and not node.this.quoted
        and node.name.upper() == "DEFAULT"
    )


def _is_descriptor(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "DESCRIPTOR"


def _times(node: exp.Expr) -> tuple[str, ...]:
    if not _is_descriptor(node) or not node.expressions:
        refuse(f"on_time => {as_read(node)}", "write DESCRIPTOR(ts) with the time column")
    return tuple(column_name(part, "DESCRIPTOR") for part in node.expressions)


def _uid(node: exp.Expr) -> str:
    if not isinstance(node, exp.Literal) or not node.is_string:
        raise ArgumentValueError(
            f"query: uid must be a text such as 'totals', got {as_read(node)}; it names the operator, and so "
            "its state"
        )
    return node.name
