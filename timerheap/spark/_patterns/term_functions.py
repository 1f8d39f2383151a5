"""Functions of several rows in DEFINE, such as ``ABS(p - PREV(p))``: as Spark computes them.

Each is a pair, as those of `conditions.OPERATORS`: for values of one row, and for columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.errors import ArgumentValueError

Operator = tuple[Callable[..., Any], Callable[..., pa.Array]]

_EXACT = Context(prec=80)


def functions(operators: Mapping[str, Operator]) -> dict[str, Operator]:
    """Return the functions by their names in terms; some compare with the operators."""
    (equal, equals), (less, lesses) = operators["eq"], operators["le"]

    def smaller(x: Any, y: Any, flip: bool = False) -> Any:
        if x is None or y is None:
            return y if x is None else x
        return x if (less(y, x) if flip else less(x, y)) else y

    def smallers(x: pa.Array, y: pa.Array, flip: bool = False) -> pa.Array:
        first = pc.or_kleene(pc.is_null(y), lesses(y, x) if flip else lesses(x, y))
        return _column_chosen(first, x, y)

    def same(x: Any, y: Any) -> bool:
        return y is None if x is None else y is not None and bool(equal(x, y))

    def sames(x: pa.Array, y: pa.Array) -> pa.Array:
        return pc.coalesce(equals(x, y), pc.and_(pc.is_null(x), pc.is_null(y)))

    return {
        "least": (smaller, smallers),
        "greatest": (lambda x, y: smaller(x, y, True), lambda x, y: smallers(x, y, True)),
        "same": (same, sames),
        "if": (lambda met, x, y: x if met else y, _column_chosen),
        "concat": (_null_if_any(lambda x, y: x + y), lambda x, y: pc.binary_join_element_wise(x, y, "")),
        "abs": (_null_if_any(lambda x: x.copy_abs() if isinstance(x, Decimal) else abs(x)), pc.abs_checked),
        "sign": _value_by_value(lambda x: float(x if x != x else (x > 0) - (x < 0)), _double_type),
        "floor": _value_by_value(lambda x: _to_whole(x, math.floor, ROUND_FLOOR), _long_type),
        "ceil": _value_by_value(lambda x: _to_whole(x, math.ceil, ROUND_CEILING), _long_type),
        "round": _value_by_value(_half_up, _rounded_type),
        "mod": _value_by_value(_remainder, _common),
        "idiv": _value_by_value(_whole_quotient, _quotient_type),
        "sqrt": _value_by_value(lambda x: math.sqrt(x) if x >= 0 else math.nan, _double_type),
        "pow": _value_by_value(_power, _double_type),
        "exp": _value_by_value(lambda x: _power(math.e, x) if abs(x) > 700 else math.exp(x), _double_type),
        "ln": _value_by_value(lambda x: math.log(x) if x > 0 else None if x <= 0 else math.nan, _double_type),
    }


CAN_FAIL = {"div", "mod", "idiv", "floor", "ceil"}
"""Those that are errors for some values, which a condition before them can exclude."""


def _null_if_any(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: None if None in values else function(*values)


def _value_by_value(function: Callable[..., Any], type_of: Callable[..., pa.DataType]) -> Operator:
    """Return a function that is null if an argument is, for values, and for columns value by value."""
    strict = _null_if_any(function)

    def columns(*given: pa.Array) -> pa.Array:
        type_ = type_of(*(column.type for column in given))
        rows = zip(*(column.to_pylist() for column in given), strict=True)
        return pa.array([strict(*row) for row in rows], type_)

    return strict, columns


def _column_chosen(met: pa.Array, x: pa.Array, y: pa.Array) -> pa.Array:
    met = met.cast(pa.bool_()) if pa.types.is_null(met.type) else met
    if x.type != y.type:
        type_ = _of_both(x.type, y.type)
        x, y = x.cast(type_), y.cast(type_)
    return pc.if_else(pc.fill_null(met, False), x, y)


# The types of results


def _common(*types: pa.DataType) -> pa.DataType:
    for one in types:
        known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
        if not any(is_of(one) for is_of in known):
            raise pa.ArrowTypeError("not a number")
    return types[0] if len(types) == 1 else _of_both(*types)


def _of_both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that has the values of two."""
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    return pc.coalesce(pa.array([], one), pa.array([], other)).type


def _double_type(*types: pa.DataType) -> pa.DataType:
    _common(*types)
    return pa.float64()


def _long_type(type_: pa.DataType) -> pa.DataType:
    return pa.decimal128(38, 0) if pa.types.is_decimal(_common(type_)) else pa.int64()


def _rounded_type(type_: pa.DataType, digits: pa.DataType) -> pa.DataType:
    if not pa.types.is_integer(digits):
        raise pa.ArrowTypeError("not a number of digits")
    return pa.decimal128(38, type_.scale) if pa.types.is_decimal(_common(type_)) else type_


def _quotient_type(*types: pa.DataType) -> pa.DataType:
    if not all(map(pa.types.is_integer, types)):
        raise pa.ArrowTypeError("not whole numbers")
    return pa.int64()


# The functions of values that are not null


def _to_whole(x: Any, rounded: Callable[[float], int], rounding: str) -> Any:
    if isinstance(x, float):
        if not abs(x) < 2**63:
            raise ArgumentValueError(
                f"query: FLOOR and CEIL in DEFINE must be of numbers that fit a bigint, got {x}"
            )
        return rounded(x)
    return x.to_integral_value(rounding, _EXACT) if isinstance(x, Decimal) else x


def _half_up(x: Any, digits: int) -> Any:
    if isinstance(x, float):
        return float(_half_up(Decimal(repr(x)), digits)) if math.isfinite(x) else x
    if isinstance(x, int):
        return x if digits >= 0 else int(_half_up(Decimal(x), digits))
    if digits >= -x.as_tuple().exponent:
        return x
    return x.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _EXACT)


def _remainder(x: Any, y: Any) -> Any:
    if not y:
        raise ZeroDivisionError("query: a condition of DEFINE must not divide by zero; use NULLIF")
    if isinstance(x, float) or isinstance(y, float):
        return math.fmod(x, y) if math.isfinite(x) else math.nan
    if isinstance(x, Decimal) or isinstance(y, Decimal):
        return _EXACT.remainder(Decimal(x), Decimal(y))
    return int(math.copysign(1, x)) * (abs(x) % abs(y))


def _whole_quotient(x: int, y: int) -> int:
    if not y:
        raise ZeroDivisionError("query: a condition of DEFINE must not divide by zero; use NULLIF")
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _power(x: Any, y: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.float_power(float(x), float(y)))
