"""Conditions of DEFINE as data, computed for all rows in columns, or for one row and a partial match.

A term is ("row", column, back): a column of the row, or of the one so many rows before it; ("nav",
variables, "first" or "last", offset, column, back): of a row of the match; ("class", variables and names,
"first" or "last", offset): as what it is taken; ("agg", variables, kind, column), whose kind may be a `Fold`;
or the name of one of `OPERATORS` with its arguments. Times are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN
from timerheap.spark._patterns.folds import Fold, arguments_of
from timerheap.spark._patterns.match_rules import Condition, Register, Registers, result
from timerheap.spark._patterns.spark_numbers import (
    DoesNotFitError,
    comparable,
    computed,
    computed_column,
    conversions,
)
from timerheap.spark._patterns.term_functions import CAN_FAIL, Operator, functions

Term = tuple[Any, ...]
COMPUTED = f"{HIDDEN}of:"
"""A column that Spark computes for conditions and measures has this name, with the expression behind it."""
Column = tuple[str, int]
"""The name of a column, and how many rows back it is read."""


def leaves(term: Term) -> Iterator[Term]:
    """Yield the parts of a term that are not operators."""
    if term[0] in OPERATORS:
        for one in term[1:]:
            yield from leaves(one)
    else:
        yield term


def of_rows(term: Term) -> bool:
    """Return whether a term depends on the row and those before it alone, and can be computed for any row."""
    return all(leaf[0] == "row" for leaf in leaves(term)) and not _can_fail(term)


def _can_fail(term: Term) -> bool:
    """Return whether a term is an error for some rows, so that it waits until a row is asked for."""
    return term[0] in CAN_FAIL or (term[0] in OPERATORS and any(map(_can_fail, term[1:])))


def registers_of(leaf: Term, columns: Mapping[Column, int]) -> list[Register]:
    """Return what a partial match has to remember for a leaf."""
    if leaf[0] == "agg":
        return [Register(leaf[1], leaf[2], None if leaf[3] is None else columns[leaf[3], 0])]
    groups = [leaf[1]] if leaf[0] == "nav" else [frozenset([one]) for one, _ in leaf[1]]
    return [Register(group, leaf[2], None, leaf[3] + 1) for group in groups]


def shown_column(name: str) -> str:
    """Return the expression of a column that Spark has computed."""
    return name.removeprefix(COMPUTED)


def columns_read(term: Term) -> Iterator[Column]:
    """Yield the columns that a term reads."""
    for leaf in leaves(term):
        if leaf[0] == "row":
            yield leaf[1], leaf[2]
        elif leaf[0] == "nav":
            yield leaf[4], leaf[5]
        elif leaf[0] == "agg" and leaf[3] is not None:
            yield leaf[3], 0


def condition(term: Term, columns: Mapping[Column, int], registers: Sequence[Register]) -> Condition:
    """Return a term as a function of one row and a partial match."""
    if term[0] == "row":
        at = columns[term[1], term[2]]
        return lambda values, row, known: values[at][row]
    numbers = [] if term[0] in OPERATORS else [registers.index(one) for one in registers_of(term, columns)]
    if term[0] == "nav":
        at, number, offset = columns[term[4], term[5]], numbers[0], term[3]

        def navigated(values: Sequence[Any], row: int, known: Registers) -> Any:
            return values[at][known[number][offset]] if offset < len(known[number]) else None

        return navigated
    if term[0] == "class":

        def classified(values: Sequence[Any], row: int, known: Registers) -> Any:
            each = zip(numbers, term[1], strict=True)
            rows = [(one, name) for number, (_, name) in each for one in known[number]]
            return sorted(rows, reverse=term[2] == "last")[term[3]][1] if term[3] < len(rows) else None

        return classified
    if term[0] == "agg" and isinstance(term[2], Fold):
        return _folded(term[2], columns[term[3], 0], numbers[0])
    if term[0] == "agg":
        return lambda values, row, known: result(term[2], known[numbers[0]])
    function = OPERATORS[term[0]][0]
    one, *more = (condition(part, columns, registers) for part in term[1:])
    if not more:
        return lambda values, row, known: function(one(values, row, known))
    two = more[0]
    if term[0] == "if":
        other = more[1]
        return lambda values, row, known: (two if one(values, row, known) else other)(values, row, known)
    return lambda values, row, known: function(one(values, row, known), two(values, row, known))


def _folded(fold: Fold, at: int, number: int) -> Condition:
    """Return an aggregate of the user, of the rows in a register, as a function."""

    def folded(values: Sequence[Any], row: int, known: Registers) -> Any:
        found = fold.of(values[at][one] for one in known[number])
        return plain(fold.column([found], fold.returns, "DEFINE"))[0]

    return folded


def with_range_error(variable: str, term: Term, condition: Condition) -> Condition:
    """Return a condition whose error of a number out of range names the variable and the columns."""
    if not any(name.startswith("to ") for name in operators(term)):
        return condition

    def checked(values: Sequence[Any], row: int, known: Registers) -> bool | None:
        try:
            return condition(values, row, known)
        except DoesNotFitError as error:
            raise out_of_range(variable, term, error) from None

    return checked


def out_of_range(variable: str, term: Term, error: DoesNotFitError) -> ArgumentValueError:
    """Return an error that names the variable, the columns and the number."""
    shown = dict.fromkeys(shown_column(name) for name, _ in columns_read(term))
    columns = ", ".join(one for one in shown if any(map(str.isalpha, one)))  # no literals
    return ArgumentValueError(
        f"query: a number that DEFINE {variable} computes of {columns} {error}; cast the columns to a wider "
        "type in a view, such as decimal(38,0) or double"
    )


def operators(term: Term) -> Iterator[str]:
    """Yield the names of the operators in a term."""
    if term[0] in OPERATORS:
        yield term[0]
        for one in term[1:]:
            yield from operators(one)


def _unless_null(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def applied(x: Any, y: Any) -> Any:
        if x is None or y is None:
            return None
        if type(x) is not type(y) and float in (type(x), type(y)):
            x, y = float(x), float(y)  # a decimal and a double
        return function(x, y)

    return applied


def _values_less(x: Any, y: Any) -> bool:
    return bool(x < y or (y != y and x == x))  # NaN is the largest number


def _values_equal(x: Any, y: Any) -> bool:
    return bool(x == y or (x != x and y != y))


def _divided(x: Any, y: Any) -> Any:
    if not y:
        raise ZeroDivisionError("query: a condition of DEFINE must not divide by zero; use NULLIF in a view")
    return computed("div", x, y)


def _and(x: bool | None, y: bool | None) -> bool | None:
    return False if x is False or y is False else None if x is None or y is None else True


def _not(x: bool | None) -> bool | None:
    return None if x is None else not x


def _column_divided(x: pa.Array, y: pa.Array) -> pa.Array:
    if pa.types.is_integer(x.type) and pa.types.is_integer(y.type):
        x, y = x.cast(pa.float64(), safe=False), y.cast(pa.float64(), safe=False)
    zero = Decimal(0) if pa.types.is_decimal(y.type) else 0
    if pc.any(pc.equal(y, pa.scalar(zero, y.type))).as_py():
        _divided(1, 0)
    return computed_column("div", x, y)


def _minus(x: Any) -> Any:
    return None if x is None else x.copy_negate() if isinstance(x, Decimal) else -x


def _column_minus(x: pa.Array) -> pa.Array:
    try:
        return pc.negate_checked(x)
    except pa.ArrowInvalid:  # the smallest integer
        raise DoesNotFitError(-pc.min(x).as_py(), x.type) from None


def _nan(x: pa.Array) -> pa.Array:
    if pa.types.is_floating(x.type):
        return pc.is_nan(x)
    return pc.if_else(pc.is_valid(x), pa.scalar(False), pa.scalar(None, pa.bool_()))


def _columns_less(x: pa.Array, y: pa.Array) -> pa.Array:
    x, y = comparable(x, y)
    found = pc.less(x, y)
    if pa.types.is_floating(y.type):
        found = pc.or_kleene(found, pc.and_kleene(_nan(y), pc.invert(_nan(x))))
    return found


def _columns_equal(x: pa.Array, y: pa.Array) -> pa.Array:
    x, y = comparable(x, y)
    found = pc.equal(x, y)
    if pa.types.is_floating(x.type) and pa.types.is_floating(y.type):
        found = pc.or_kleene(found, pc.and_kleene(_nan(x), _nan(y)))
    return found


OPERATORS: dict[str, Operator] = {
    "eq": (_unless_null(_values_equal), _columns_equal),
    "ne": (
        _unless_null(lambda x, y: not _values_equal(x, y)),
        lambda x, y: pc.invert(_columns_equal(x, y)),
    ),
    "lt": (_unless_null(_values_less), _columns_less),
    "gt": (_unless_null(lambda x, y: _values_less(y, x)), lambda x, y: _columns_less(y, x)),
    "le": (_unless_null(lambda x, y: not _values_less(y, x)), lambda x, y: pc.invert(_columns_less(y, x))),
    "ge": (_unless_null(lambda x, y: not _values_less(x, y)), lambda x, y: pc.invert(_columns_less(x, y))),
    "add": (_unless_null(partial(computed, "add")), partial(computed_column, "add")),
    "sub": (_unless_null(partial(computed, "sub")), partial(computed_column, "sub")),
    "mul": (_unless_null(partial(computed, "mul")), partial(computed_column, "mul")),
    "div": (_unless_null(_divided), _column_divided),
    "and": (_and, pc.and_kleene),
    "or": (lambda x, y: _not(_and(_not(x), _not(y))), pc.or_kleene),
    "not": (_not, pc.invert),
    "neg": (_minus, _column_minus),
    "null": (lambda x: x is None, pc.is_null),
    "coalesce": (lambda x, y: y if x is None else x, pc.coalesce),
}
OPERATORS |= functions(OPERATORS) | conversions()
"""For one row, and for all rows."""


def plain(column: pa.Array) -> list[Any]:
    """Return the values of a column, times and intervals as integers, structs as arguments of a `Fold`."""
    type_ = column.type
    if pa.types.is_struct(type_):
        return list(arguments_of(column))
    if pa.types.is_date32(type_):  # their difference is an interval
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_temporal(type_) and not pa.types.is_time(type_):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
