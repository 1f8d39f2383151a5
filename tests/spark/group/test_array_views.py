"""Values of Arrow arrays are compared with stored ones as a plain loop over Python's values does."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from timerheap.spark._arrow import is_flat, view_of, wide
from timerheap.spark._python_rows import python_values

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-1, 5]),
    (pa.int16(), [-(2**15), 5]),
    (pa.int32(), [1, 2]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float32(), [0.0, -0.0, math.nan, 1.5]),
    (pa.float64(), [0.0, -0.0, math.nan, 1.5]),
    (pa.string(), ["", "a", "user-00000001", "user-00000002", "x" * 40]),
    (pa.binary(), [b"", b"\0", b"\0\0"]),
    (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(1, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)]),
    (pa.timestamp("us"), [datetime.datetime(2020, 1, 1), datetime.datetime(1, 1, 1)]),
    (pa.duration("us"), [datetime.timedelta(1), datetime.timedelta(-1)]),
    (pa.decimal128(38, 2), [decimal.Decimal("1.23"), decimal.Decimal("-9.99")]),
    (pa.binary(3), [b"abc", b"abd"]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_values_of_all_types_are_compared(type_: pa.DataType, values: list[Any], nulls: bool) -> None:
    rng = np.random.default_rng(0)
    some = [*values, None] if nulls else values
    whole = pa.array([some[i] for i in rng.integers(0, len(some), 60)], type_)
    stored = pa.array([some[i] for i in rng.integers(0, len(some), 30)], type_).slice(7).cast(wide(type_))
    for array in (whole, whole.slice(9, 11), whole.slice(60)):
        places = rng.integers(0, len(stored), len(array))
        same = rng.random(len(array)) < 0.8
        asked = same.copy()
        view_of(array).compare(view_of(stored), places, same)
        for i, (one, other) in enumerate(zip(array, stored.take(pa.array(places)), strict=True)):
            a, b = one.as_py(), other.as_py()
            assert same[i] == (asked[i] and (a == b or (a != a and b != b)))


def test_types_with_children_are_not_flat() -> None:
    assert all(map(is_flat, [pa.large_string(), pa.large_binary(), *(type_ for type_, _ in VALUES)]))
    nested = [pa.null(), pa.list_(pa.int8()), pa.struct([]), pa.map_(pa.int8(), pa.int8())]
    assert not any(map(is_flat, nested))


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_timestamps_become_the_objects_that_arrow_makes(zone: str | None) -> None:
    micros = [0, None, -(2**45), 1_761_440_400_000_000, 1_761_436_800_000_000, 253_370_764_799_999_999]
    column = pa.array(
        micros, pa.timestamp("us", zone)
    )  # two of them are one hour apart, and one by the clock
    for part in (column, column.slice(1, 3), column.slice(1, 1), column.slice(0, 0)):
        found, expected = python_values(part), part.to_pylist()
        assert found == expected
        shown = [(at.tzinfo, at.fold) for at in found if at is not None]
        assert shown == [(at.tzinfo, at.fold) for at in expected if at is not None]


def test_a_timestamp_beyond_the_years_of_python_raises() -> None:
    with pytest.raises((OverflowError, ValueError)):
        python_values(pa.array([0, 2**60], pa.timestamp("us", "UTC")))
