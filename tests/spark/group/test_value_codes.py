"""Values become codes that are ordered as Spark orders the values, and values again."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerheap.errors import ArgumentTypeError
from timerheap.spark._memory.value_codes import Direction, ValueCodes

MICROS = timedelta(microseconds=1)
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf]),
    pa.string(): st.text(max_size=20) | st.text("\0\1\2a", max_size=5),
    pa.large_string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"\0\0", b"\1", b"\1\0", b"\xff"]),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(38, 3): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}e-3")),
    pa.date32(): st.dates(date(1, 1, 1)),
    pa.timestamp("us", "UTC"): st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(
        lambda t: t.replace(tzinfo=UTC)
    ),
    pa.duration("us"): st.integers(-(2**40), 2**40).map(lambda n: n * MICROS),
}
DIRECTIONS = st.builds(Direction, st.booleans(), st.booleans())


def types(depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    leaves = st.sampled_from([*LEAVES])
    if not depth:
        return leaves
    fields = st.lists(types(depth - 1), min_size=1, max_size=3)
    return leaves | fields.map(lambda each: pa.struct([(f"f{at}", type_) for at, type_ in enumerate(each)]))


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.none() | st.fixed_dictionaries({field.name: values(field.type) for field in type_})
    return st.none() | LEAVES[type_]


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def compare(one: Any, other: Any, type_: pa.DataType, way: Direction) -> int:
    """Compare as Spark's ORDER BY does: -0.0 equals 0.0."""
    if one is None or other is None:
        return ((one is not None) - (other is not None)) * (1 if way.nulls_first else -1)
    sign = -1 if way.descending else 1
    if pa.types.is_struct(type_):
        inner = Direction(way.descending, not way.descending)
        orders = (compare(one[field.name], other[field.name], field.type, inner) for field in type_)
        return next((order for order in orders if order), 0)
    if pa.types.is_floating(type_) and (math.isnan(one) or math.isnan(other)):
        return sign * (math.isnan(one) - math.isnan(other))
    one, other = plain(one), plain(other)
    return sign * ((one > other) - (one < other))


def of_lead(one: Any, other: Any, type_: pa.DataType, order: list[Direction]) -> int:
    if not pa.types.is_struct(type_):
        return compare(one, other, type_, order[0] if order else Direction())
    if one is None or other is None:
        return (one is not None) - (other is not None)
    fields = list(type_)[: len(order)]
    orders = (compare(one[f.name], other[f.name], f.type, way) for f, way in zip(fields, order, strict=True))
    return next((order for order in orders if order), 0)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_codes_are_ordered_as_values_are_and_become_them_again(data: st.DataObject) -> None:
    type_ = data.draw(types())
    most = type_.num_fields if pa.types.is_struct(type_) else 1
    order = data.draw(st.lists(DIRECTIONS, max_size=most))
    rows = data.draw(st.lists(values(type_), max_size=12))
    codes = ValueCodes(type_, order)
    array = pa.array([*rows[:1], *rows], type_)[len(rows[:1]) :]  # which does not begin at 0
    found = codes.encoded(array)
    decoded = codes.decoded(found)
    decoded.validate(full=True)
    assert decoded.type == codes.type
    assert repr(decoded.to_pylist()) == repr(array.to_pylist())  # NaN and the sign of 0, too
    by_code = found.tolist()
    kept = array.to_pylist()
    for one, a in zip(by_code, kept, strict=True):
        for other, b in zip(by_code, kept, strict=True):
            assert (one == other) == (repr(a) == repr(b)), "one code for each value"
            if by_lead := of_lead(a, b, type_, order):
                assert (one < other) == (by_lead < 0)


def test_fields_behind_the_lead_decide_after_it() -> None:
    type_ = pa.struct([("x", pa.float64()), ("s", pa.string())])
    rows = [{"x": x, "s": s} for x, s in [(0.0, "a"), (-0.0, "b"), (-0.0, None), (1.0, None)]]
    codes = ValueCodes(type_, [Direction(descending=True, nulls_first=False)])
    found = codes.encoded(pa.array(rows, type_)).tolist()
    assert sorted(range(4), key=found.__getitem__) == [3, 2, 1, 0], (
        "-0.0 before 0.0, which the lead calls equal"
    )


def test_each_nan_has_one_code() -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000000], np.uint64)
    values = pa.array(bits.view(np.float64), from_pandas=False)
    assert len({*ValueCodes(pa.float64()).encoded(values).tolist()}) == 1


def test_an_order_of_more_fields_than_there_are_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="order must be of at most 1 fields for int64, got 2"):
        ValueCodes(pa.int64(), [Direction(), Direction()])
