"""The conversions that Spark's analyser would add to conditions of several rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from timerheap.errors import ArgumentValueError
from timerheap.spark._patterns.conditions import OPERATORS, Term
from timerheap.spark._patterns.spark_numbers import common, conversion_to, is_number

_ARITHMETIC = ("add", "sub", "mul", "div", "neg")
_ALIKE = (
    *("eq", "ne", "lt", "le", "gt", "ge", "same", "least", "greatest", "coalesce"),
    *("add", "sub", "mul", "div", "mod"),
)
"""The operators that compute with two numbers of one type."""


def typed(
    term: Term, leaf_type: Callable[[Term], pa.DataType], ansi: bool = True
) -> tuple[Term, pa.DataType]:
    """Return a term with conversions, and its type; raise unless what it computes with fits.

    leaf_type: returns the type of a term that is no operator
    ansi: whether Spark has ``spark.sql.ansi.enabled``
    """
    name, *parts = term
    if name not in OPERATORS:
        type_ = leaf_type(term)
        totals = name == "agg" and term[2] in ("sum", "avg")
        return (_to(type_, term) if totals else term), type_
    given = [typed(part, leaf_type, ansi) for part in parts]
    types = [type_ for _, type_ in given]
    if name in _ALIKE and all(map(is_number, types)):
        exact = not any(map(pa.types.is_floating, types))
        if name == "div" and not (exact and any(map(pa.types.is_decimal, types))):
            wanted = pa.float64()
        else:
            wanted = common(types[0], types[1], ansi)
            if name in _ARITHMETIC and wanted is not None and pa.types.is_decimal(wanted):
                wanted = None  # the result has less digits, not what it is computed of
        if wanted is not None:
            given = [(_to(wanted, part), wanted) for part, _ in given]
            types = [wanted, wanted]
    moments = [one for one in types if pa.types.is_date(one) or pa.types.is_timestamp(one)]
    with suppress(pa.ArrowException):
        if len({getattr(one, "tz", None) for one in moments}) < 2:  # else it depends on the time zone
            type_ = OPERATORS[name][1](*(pa.array([], one) for one in types)).type
            found = name, *(part for part, _ in given)
            return (_to(type_, found) if name in _ARITHMETIC and is_number(type_) else found), type_
    raise ArgumentValueError(
        f"query: {name.upper()} in DEFINE is not supported for {' and '.join(map(str, types))} of different "
        "rows; cast columns in a view, or compare values of one type"
    )


def _to(type_: pa.DataType, term: Term) -> Term:
    return conversion_to(type_), term
