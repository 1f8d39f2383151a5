"""The results of aggregates, computed of what keys have kept; in the types, and with the nulls, of Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import SUM_BASE
from timerheap.errors import ArgumentRangeError
from timerheap.spark._arrow import narrow_column
from timerheap.spark._changes.aggregates.exact_sums import as_integers, rounded

_LOW = (1 << 32) - 1
_WORD = (1 << 64) - 1
_QUOTIENT = Context(prec=100)
Columns = list[pa.Array]  # of one of what is kept


@dataclass(frozen=True)
class ComputedAggregate:
    """One aggregate.

    function: one of `FUNCTIONS`
    field: of the result
    of: the names of what it is computed of
    scale: the digits behind the point of the decimals that are aggregated
    ansi: whether a result that does not fit is an error, not null
    """

    function: str
    field: pa.Field
    of: tuple[str, ...]
    scale: int = 0
    ansi: bool = True

    def values(self, kept: Mapping[str, Columns]) -> pa.Array:
        """Return the results of keys that have kept these columns, by the names of what they are."""
        found = FUNCTIONS[self.function](self, *(kept[name] for name in self.of))
        return narrow_column(found, self.field.type)

    def checked(self, values: pa.Array, fits: np.ndarray, parts: Columns) -> pa.Array:
        """Return values, or null where they do not fit, unless that is an error."""
        if fits.all():
            return values
        if self.ansi:
            (at, *_) = (~fits).nonzero()[0].tolist()
            raise ArgumentRangeError(
                f"{self.field.name} must fit into {self.field.type}, got {_as_integer(parts, at)} in units "
                "of its last digit; cast the column to a larger type, such as decimal(38, 0)"
            )
        return pc.if_else(pa.array(fits), values, pa.scalar(None, values.type))


def _count(of: ComputedAggregate, count: Columns) -> pa.Array:
    return count[0]


def _value(of: ComputedAggregate, value: Columns) -> pa.Array:
    return value[0]


def _second(of: ComputedAggregate, value: Columns) -> pa.Array:
    """Return the value that goes with an extreme one."""
    return value[0].flatten()[1]


def _all(of: ComputedAggregate, true: Columns, false: Columns) -> pa.Array:
    return pa.array(_empty(false), mask=_empty(true) & _empty(false))


def _some(of: ComputedAggregate, true: Columns, false: Columns) -> pa.Array:
    return pa.array(~_empty(true), mask=_empty(true) & _empty(false))


def _empty(count: Columns) -> np.ndarray:
    found: np.ndarray = count[0].to_numpy() <= 0
    return found


def _sum_of_integers(of: ComputedAggregate, parts: Columns, count: Columns) -> pa.Array:
    low, high = (part.to_numpy() for part in parts)
    total, null = (high << 32) | low, _empty(count)
    values = pa.array(total, mask=null)
    if not of.ansi:
        return values  # as in Java, which Spark leaves it to
    return of.checked(values, null | (high >> 31 == high >> 63), parts)


def _sum_of_decimals(of: ComputedAggregate, parts: Columns, count: Columns) -> pa.Array:
    null, type_ = _empty(count), of.field.type
    words, fits = _two_words(parts)
    values = _decimals(words, pa.decimal128(38, of.scale))
    most = pa.scalar(Decimal((0, (9,) * type_.precision, -of.scale)), values.type)
    fits &= np.asarray(pc.and_(pc.less_equal(values, most), pc.less_equal(pc.negate(most), values)))
    values = pc.if_else(pa.array(fits & ~null), values, pa.scalar(None, values.type))
    return of.checked(values, fits | null, parts).cast(type_)


def _two_words(parts: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return integers as two words of 64 bits, shape (n, 2), and whether these are enough."""
    low, next_, *above = (part.to_numpy() for part in parts)
    words = np.empty((len(low), 2), np.int64)
    words[:, 0] = (next_ << 32) | low
    if not above:
        words[:, 1] = next_ >> 32
        return words, np.ones(len(low), bool)
    words[:, 1] = (above[1] << 32) | above[0]
    return words, above[1] >> 31 == above[1] >> 63


def _decimals(words: np.ndarray, type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(np.ascontiguousarray(words))])


def _sum_of_doubles(of: ComputedAggregate, digits: Columns, count: Columns) -> pa.Array:
    return pa.array(rounded(digits[0]), mask=_empty(count))


def _mean_of_doubles(of: ComputedAggregate, digits: Columns, count: Columns) -> pa.Array:
    null = _empty(count)
    return pa.array(rounded(digits[0]) / np.where(null, 1, count[0].to_numpy()), mask=null)


def _mean_of_integers(of: ComputedAggregate, parts: Columns, count: Columns) -> pa.Array:
    low, high = (part.to_numpy() for part in parts)
    fits, null = high >> 31 == high >> 63, _empty(count)
    total = np.where(fits, ((high << 32) | low).astype(np.float64), high * 2.0**32 + low)
    return pa.array(total / np.where(null, 1, count[0].to_numpy()), mask=null)


def _mean_of_decimals(of: ComputedAggregate, parts: Columns, count: Columns) -> pa.Array:
    null, type_ = _empty(count), of.field.type
    rows = np.where(null, 1, count[0].to_numpy())
    by, small = 10 ** (type_.scale - of.scale), np.zeros(len(rows), bool)
    if len(parts) == 2:
        low, high = (part.to_numpy() for part in parts)
        total = (high << 32) | low
        small = (high >> 31 == high >> 63) & (np.abs(total) < (1 << 62) // by) & (rows < 1 << 60)
    if len(parts) == 2 and small.all():
        whole, rest = np.divmod(np.abs(total) * by, rows)
        whole = (whole + (2 * rest >= rows)) * np.sign(total)
        words = np.stack([whole, whole >> 63], axis=1)
        return pc.if_else(pa.array(~null), _decimals(words, type_), pa.scalar(None, type_))
    means: list[Decimal | None] = []
    unit = Decimal((0, (1,), -type_.scale))
    for at, (number, none) in enumerate(zip(rows.tolist(), null.tolist(), strict=True)):
        total_of = Decimal(_as_integer(parts, at)).scaleb(-of.scale, _QUOTIENT)
        mean = _QUOTIENT.divide(total_of, Decimal(number)).quantize(unit, ROUND_HALF_UP, _QUOTIENT)
        means.append(None if none else mean)
    return pa.array(means, type_)


def _as_integer(parts: Columns, at: int) -> int:
    return sum(int(part[at].as_py()) << 32 * number for number, part in enumerate(parts))


def _variance(of: ComputedAggregate, digits: Columns, squares: Columns, count: Columns) -> pa.Array:
    least = 2 if of.function.endswith("samp") else 1
    root = of.function.startswith("stddev")
    found: list[float | None] = []
    pairs = zip(count[0].to_pylist(), as_integers(digits[0]), as_integers(squares[0]), strict=True)
    for rows, total, square in pairs:
        if rows < least:
            found.append(None)
        elif total is None or square is None:
            found.append(math.nan)
        else:
            above = (rows * square << SUM_BASE) - total * total
            value = _quotient(above, rows * (rows - least + 1) << 2 * SUM_BASE)
            found.append(math.sqrt(value) if root else value)
    return pa.array(found, pa.float64(), from_pandas=False)


def _quotient(one: int, other: int) -> float:
    try:
        return max(one, 0) / other  # below 0 only while a delete waits for its row
    except OverflowError:
        return math.inf


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count": _count,
    "value": _value,
    "second": _second,
    "bool_and": _all,
    "bool_or": _some,
    "sum of integers": _sum_of_integers,
    "sum of decimals": _sum_of_decimals,
    "sum of doubles": _sum_of_doubles,
    "avg of integers": _mean_of_integers,
    "avg of decimals": _mean_of_decimals,
    "avg of doubles": _mean_of_doubles,
    **dict.fromkeys(("var_samp", "var_pop", "stddev_samp", "stddev_pop"), _variance),
}
