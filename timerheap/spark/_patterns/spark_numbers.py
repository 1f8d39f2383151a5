"""Numbers of several rows as Spark computes with them: common types, decimals of 38 digits, overflow.

A term gets the conversions that Spark's analyser would add, as operators named ``to <type>``. Operators then
see values of one type, and results have the range and the digits of their types.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT = Context(prec=200, rounding=ROUND_HALF_EVEN)  # the default one has 28 digits
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 20}  # of integers by their bytes, as Spark says
_WHOLE = {one: np.iinfo(one) for one in ("int8", "int16", "int32", "int64")}
_SPARK = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint"}


class DoesNotFitError(ValueError):
    """A number is out of the range of its type."""

    def __init__(self, value: object, type_: object) -> None:
        shown = str(type_).removesuffix("()").replace("decimal128", "decimal").replace(", ", ",")
        super().__init__(f"must fit into {_SPARK.get(shown, shown)}, got {value}")


def is_number(type_: pa.DataType) -> bool:
    """Return whether values of a type are numbers."""
    is_exact = pa.types.is_integer(type_) or pa.types.is_decimal(type_)
    return bool(is_exact or pa.types.is_floating(type_))


def common(one: pa.DataType, other: pa.DataType, ansi: bool = True) -> pa.DataType | None:
    """Return the type as which Spark compares numbers of two types; None if it is exact as they are.

    ansi: whether Spark has ``spark.sql.ansi.enabled``, where an integer with a float becomes a double
    """
    if one == other or not (is_number(one) and is_number(other)):
        return None
    floats = [type_ for type_ in (one, other) if pa.types.is_floating(type_)]
    if not floats:
        return _wider(decimal_of(one), decimal_of(other))
    if floats == [pa.float32()] and not ansi and not any(map(pa.types.is_decimal, (one, other))):
        return pa.float32()
    return pa.float64()


def _wider(one: tuple[int, int], other: tuple[int, int]) -> pa.DataType | None:
    """Return the type with less digits as which Spark compares decimals that need more than 38 together."""
    whole, scale = max(one[0] - one[1], other[0] - other[1]), max(one[1], other[1])
    return pa.decimal128(38, 38 - whole) if whole + scale > 38 else None


def decimal_of(type_: pa.DataType) -> tuple[int, int]:
    """Return the precision and the scale of the decimals that a type of exact numbers becomes."""
    if pa.types.is_integer(type_):
        return _DIGITS[type_.bit_width // 8], 0
    return type_.precision, type_.scale


def decimal_result(name: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of a result of decimals, as Spark's ``DecimalType.adjustPrecisionScale``."""
    (p1, s1), (p2, s2) = decimal_of(one), decimal_of(other)
    if name in ("add", "sub"):
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    elif name == "mul":
        scale, precision = s1 + s2, p1 + p2 + 1
    else:
        scale = max(6, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    if precision > 38:
        whole = precision - scale
        precision, scale = 38, max(38 - whole, min(scale, 6))
    return pa.decimal128(precision, scale)


def average_type(precision: int, scale: int) -> tuple[int, int]:
    """Return the precision and the scale of an average of decimals, as Spark's ``DecimalType.bounded``."""
    return min(precision + 4, 38), min(scale + 4, 38)


def converted(type_: pa.DataType, value: Any) -> Any:
    """Return a number as one of another type; raise `DoesNotFitError` if it is out of range."""
    if value is None:
        return None
    if pa.types.is_floating(type_):
        if type_ == pa.float64():
            return float(value)
        with np.errstate(over="ignore"):
            return float(np.float32(np.int64(value) if isinstance(value, int) else value))
    if pa.types.is_integer(type_):
        limits = _WHOLE[str(type_)]
        if not limits.min <= value <= limits.max:
            raise DoesNotFitError(value, type_)
        return value
    rounded = EXACT.create_decimal(value).quantize(Decimal(1).scaleb(-type_.scale), ROUND_HALF_UP, EXACT)
    if rounded.copy_abs() >= Decimal(1).scaleb(type_.precision - type_.scale):
        raise DoesNotFitError(rounded, type_)
    return rounded


def converted_column(type_: pa.DataType, column: pa.Array) -> pa.Array:
    """Do the same for a column."""
    if column.type == type_:
        return column
    if pa.types.is_floating(type_) and not pa.types.is_decimal(column.type):
        return column.cast(type_, safe=False)  # large integers are rounded, as in Java
    return pa.array([converted(type_, value) for value in column.to_pylist()], type_)


def conversions() -> dict[str, tuple[Callable[..., Any], Callable[..., pa.Array]]]:
    """Return the conversions to all types of numbers, by their names in terms."""
    types = [pa.float32(), pa.float64(), *map(pa.type_for_alias, _WHOLE)]
    types += [pa.decimal128(precision, scale) for precision in range(1, 39) for scale in range(precision + 1)]
    return {conversion_to(one): (partial(converted, one), partial(converted_column, one)) for one in types}


def conversion_to(type_: pa.DataType) -> str:
    """Return the name of the conversion to a type."""
    return f"to {type_}"


_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
}  # fmt: skip
_DECIMALS = {"add": EXACT.add, "sub": EXACT.subtract, "mul": EXACT.multiply, "div": EXACT.divide}
_COLUMNS = {"add": pc.add_checked, "sub": pc.subtract_checked, "mul": pc.multiply_checked, "div": pc.divide}


def computed(name: str, x: Any, y: Any) -> Any:
    """Return a result of two values that are not null, exact if both are."""
    if isinstance(x, Decimal) or isinstance(y, Decimal):
        if isinstance(x, float) or isinstance(y, float):
            x, y = float(x), float(y)
        else:
            return _DECIMALS[name](Decimal(x), Decimal(y))
    return _VALUES[name](x, y)


def computed_column(name: str, x: pa.Array, y: pa.Array) -> pa.Array:
    """Do the same for columns, with the type that Spark gives the result."""
    if not any(pa.types.is_decimal(one.type) for one in (x, y)):
        try:
            return _COLUMNS[name](x, y)
        except pa.ArrowInvalid:  # an overflow: find the row
            type_ = _COLUMNS[name](x[:0], y[:0]).type
            if not pa.types.is_integer(type_):
                raise
    else:
        type_ = decimal_result(name, x.type, y.type)
    pairs = zip(x.to_pylist(), y.to_pylist(), strict=True)
    values = [None if one is None or two is None else computed(name, one, two) for one, two in pairs]
    return pa.array([converted(type_, value) for value in values], type_)


def comparable(x: pa.Array, y: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return columns as Arrow compares them exactly: decimals of any scale, with integers."""
    types = x.type, y.type
    if not any(map(pa.types.is_decimal, types)) or types[0] == types[1]:
        return x, y
    if not all(pa.types.is_decimal(one) or pa.types.is_integer(one) for one in types):
        return x, y
    scale = max(decimal_of(one)[1] for one in types)
    wide = [
        one.cast(pa.decimal256(decimal_of(one.type)[0], 0)) if pa.types.is_integer(one.type) else one
        for one in (x, y)
    ]
    one, other = (one.cast(pa.decimal256(76, scale)) for one in wide)
    return one, other
