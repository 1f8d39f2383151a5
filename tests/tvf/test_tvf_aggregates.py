"""Aggregates compared with plain Python, for any batches and merges, with nulls."""

from __future__ import annotations

import math
import pickle
import statistics
from collections.abc import Callable
from datetime import timedelta
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import tvf
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import (
    BUILT_IN,
    Aggregation,
    Avg,
    Count,
    Max,
    Min,
    PythonAggregate,
    Sum,
    Variance,
)
from timerheap.tvf.columns import Multisets, group_by, group_rows
from timerheap.tvf.distinct import ApproxCountDistinct, CountDistinct

INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, 0.0, -0.0, math.inf]))


def in_parts(aggregate: Aggregate, parts: list[list[Any]]) -> list[Any]:
    """Return the result for one key after batches of values are merged."""
    aggregation = Aggregation([aggregate])
    made = []
    for values in parts:
        column = np.empty(len(values), object)
        column[:] = values
        ends = np.zeros(len(values), np.int64)
        made.append(aggregation.accumulate(np.zeros(len(values), np.int64), ends, {"v": column}))
    merged = aggregation.merge([aggregation.merge(made[:2]), *made[2:]])
    (result,) = aggregation.results(merged)
    return result.tolist()


def cut(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    part = st.lists(st.one_of(st.none(), values), max_size=5)
    return st.lists(part, min_size=1, max_size=4)


def check(aggregate: Aggregate, parts: Any, reference: Callable[[list[Any]], Any]) -> None:
    values = [value for part in parts for value in part]
    got = in_parts(aggregate, parts)
    if not values:
        assert got == []
        return
    there = [value for value in values if value is not None]
    assert got == [reference(there) if there or isinstance(aggregate, Count | CountDistinct) else None]


def toward_zero(quotient: Fraction) -> int:
    return math.trunc(quotient)


@given(cut(INT64))
def test_aggregates_of_int64_equal_python(parts: Any) -> None:
    check(Count("v"), parts, len)
    check(Min("v", np.int64), parts, min)
    check(Max("v", np.int64), parts, max)
    check(Avg("v", np.int64), parts, lambda values: toward_zero(Fraction(sum(values), len(values))))
    check(CountDistinct("v", np.int64), parts, lambda values: len(set(values)))
    total = sum(value for part in parts for value in part if value is not None)
    if -(2**63) <= total < 2**63:
        check(Sum("v", np.int64), parts, sum)
    else:
        with pytest.raises(OverflowError, match=rf"sum\(v\) must fit into int64, got {total}; sum"):
            in_parts(Sum("v", np.int64), parts)


def sql_key(value: float) -> tuple[bool, float]:
    """Order NaN after all other values, and treat it as equal to itself."""
    return (True, 0.0) if math.isnan(value) else (False, value + 0.0)


@given(cut(NUMBERS))
def test_aggregates_of_floats_order_nan_last(parts: Any) -> None:
    check(CountDistinct("v", float), parts, lambda values: len(set(map(sql_key, values))))
    for aggregate, function in ((Min("v", float), min), (Max("v", float), max)):
        values = [value for part in parts for value in part if value is not None]
        got = in_parts(aggregate, parts)
        if values:
            assert sql_key(got[0]) == function(map(sql_key, values))


@given(cut(st.sampled_from(["", "a", "b", "é", "ab"])))
def test_aggregates_of_strings_equal_python(parts: Any) -> None:
    check(Min("v", object), parts, min)
    check(Max("v", object), parts, max)
    check(CountDistinct("v", object), parts, lambda values: len(set(values)))


def exact_sum(values: list[Decimal]) -> Decimal:
    return reduce(Context(prec=100).add, values, Decimal(0))


def rounded_half_up(value: Fraction, scale: int) -> Decimal:
    digits = math.floor(abs(value) * 10**scale + Fraction(1, 2))
    return Decimal(-digits if value < 0 else digits).scaleb(-scale, Context(prec=100))


@given(cut(st.decimals(-1000, 1000, places=2) | st.decimals(-(10**28), 10**28, places=10)))
def test_aggregates_of_decimals_are_exact(parts: Any) -> None:
    check(Sum("v", object), parts, exact_sum)
    for scale in 4, 10:
        average = Avg("v", object, scale)
        check(average, parts, lambda v, s=scale: rounded_half_up(Fraction(exact_sum(v)) / len(v), s))
    check(Max("v", object), parts, max)


@given(cut(st.floats(-1e3, 1e3)), st.sampled_from([0.0, 1e9]))
def test_variance_is_accurate_around_a_large_mean(parts: Any, far: float) -> None:
    """Check values whose mean is a million times as large as their distance from it."""
    parts = [[None if v is None else v + far for v in part] for part in parts]
    values = [Fraction(v) for part in parts for v in part if v is not None]
    for aggregate, reference, least in (
        (Variance("var_pop", "v"), statistics.pvariance, 1),
        (Variance("var_samp", "v"), statistics.variance, 2),
        (Variance("stddev_pop", "v"), statistics.pstdev, 1),
        (Variance("stddev_samp", "v"), statistics.stdev, 2),
    ):
        got = in_parts(aggregate, parts)
        if not any(part for part in parts):
            assert got == []
        elif len(values) < least:
            assert got == [None]
        else:
            assert got == [pytest.approx(float(reference(values)), rel=1e-6, abs=1e-9 + far * 1e-15)]


def test_masked_values_are_null_whatever_is_under_the_mask() -> None:
    aggregation = Aggregation([Sum("v", np.int64), Avg("b", float), Min("f", float), Sum("f", np.float64)])
    partials = aggregation.accumulate(
        [1, 1, 2],
        np.full(3, 10),
        {
            "v": np.ma.masked_array(np.array([1, 2, 99], np.int8), [False, False, True]),
            "b": np.array([True, False, True]),
            "f": np.ma.masked_array([1.5, math.nan, math.nan], [False, True, True]),
        },
    )
    assert [column.tolist() for column in aggregation.results(partials)] == [
        [3, None],
        [0.5, 1.0],
        [1.5, None],
        [1.5, None],
    ]


def test_multisets_are_selected_like_a_column() -> None:
    column = Multisets(np.array([0, 2, 2, 3]), np.array([5, 7, 9]), np.array([1, 3, 2]))
    chosen = column[np.array([False, True, True])]
    assert (chosen.offsets.tolist(), chosen.values.tolist(), chosen.counts.tolist()) == ([0, 0, 1], [9], [2])
    assert column[1:].sizes.tolist() == [0, 1]
    assert column[np.array([2, 0])].values.tolist() == [9, 5, 7]


class Product:
    def create_accumulator(self) -> list[int]:
        return [1]

    def add(self, value: tuple[int, int], accumulator: list[int]) -> list[int]:
        accumulator[0] *= value[0] * value[1]
        return accumulator

    def get_result(self, accumulator: list[int]) -> int | None:
        return accumulator.pop() if accumulator[0] != 6 else None

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a[0] *= acc_b.pop()
        return acc_a


def test_a_python_function_of_several_columns_receives_tuples() -> None:
    aggregation = Aggregation([PythonAggregate(Product(), "a", "b")])
    zeros = np.zeros(2, np.int64)
    one = aggregation.accumulate([1, 2], zeros, {"a": [2, 3], "b": [5, 2]})
    assert aggregation.results(aggregation.merge([one, one]))[0].tolist() == [100, 36]
    assert aggregation.results(one)[0].tolist() == [10, None]  # the accumulators are unchanged
    assert aggregation.aggregates[1].name == "Product(a, b)"
    with pytest.raises(TypeError, match="function must have a method create_accumulator, got <object"):
        PythonAggregate(object(), "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="columns must name at least one input column"):
        PythonAggregate(Product())


@pytest.mark.parametrize(
    "aggregate",
    [
        Count(),
        Sum("v", np.int64),
        Max("v", object),
        Min("v", np.float64),
        Variance("stddev_samp", "v"),
        CountDistinct("v", np.int64),
        PythonAggregate(Product(), "v", "v").named("product"),
    ],
    ids=repr,
)
def test_a_pickled_aggregate_computes_the_same(aggregate: Aggregate) -> None:
    plans = [Aggregation([aggregate]), Aggregation([pickle.loads(pickle.dumps(aggregate))])]
    parts = [plan.accumulate([1, 1, 2], np.zeros(3, np.int64), {"v": [5, 6, 7]}) for plan in plans]
    merged = [plan.merge([part, part]) for plan, part in zip(plans, parts, strict=True)]
    ours, theirs = (plan.results(part)[0].tolist() for plan, part in zip(plans, merged, strict=True))
    assert ours == theirs
    assert repr(plans[0].aggregates) == repr(plans[1].aggregates)


def test_a_dtype_that_loses_values_raises() -> None:
    with pytest.raises(TypeError, match=r"dtype of sum\(v\) must be int64, float64 or object, got float32"):
        Sum("v", np.float32)
    with pytest.raises(OverflowError, match="v must fit into int64, got 18446744073709551615"):
        Aggregation([Max("v", np.int64)]).accumulate(
            [1], np.zeros(1, np.int64), {"v": np.array([2**64 - 1], np.uint64)}
        )


def test_approximate_count_distinct_is_close_to_the_exact_count() -> None:
    pytest.importorskip("datasketches")
    random = np.random.default_rng(7)
    values = random.integers(0, 50_000, 60_000)
    aggregation = Aggregation([ApproxCountDistinct("v", np.int64), CountDistinct("v", np.int64)])
    parts = [
        aggregation.accumulate(chunk % 2, np.zeros(len(chunk), np.int64), {"v": chunk})
        for chunk in np.split(values, 3)
    ]
    estimates, exact = aggregation.results(aggregation.merge(parts))
    assert exact.tolist() == pytest.approx(estimates.tolist(), rel=0.05)
    few = aggregation.results(
        aggregation.accumulate([1, 1, 1, 2], np.zeros(4, np.int64), {"v": [4, 4, 5, 4]})
    )
    assert [column.tolist() for column in few] == [[2, 1], [2, 1]]
    assert all(isinstance(sketch, bytes) for sketch in parts[0].accumulators[1][0])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "values",
    [
        ["", "a", "é", "a\0", "sa", ""],
        [b"", b"a", b"\0", b""],
        [Decimal("1.00"), Decimal("1.50"), Decimal("-1.50"), Decimal("1.00")],
        [timedelta(seconds=1), timedelta(microseconds=1), timedelta(seconds=1)],
        [True, False, True],
    ],
)
def test_approximate_count_distinct_tells_few_values_of_any_type_apart(values: list[Any]) -> None:
    pytest.importorskip("datasketches")
    aggregation = Aggregation([ApproxCountDistinct("v", object)])
    parts = [aggregation.accumulate([1], np.zeros(1, np.int64), {"v": [value]}) for value in values]
    (estimates,) = aggregation.results(aggregation.merge(parts))
    assert estimates.tolist() == [len(set(values))]


@pytest.mark.parametrize("keys", [1, 40, 1 << 62], ids=["one key", "few keys", "all different"])
@pytest.mark.parametrize("slices", [1, 7])
def test_hashed_groups_are_those_of_a_sort(keys: int, slices: int) -> None:
    draw = np.random.default_rng(0)
    for rows in (999, 1000, 5000):
        key_ids = draw.integers(-keys, keys, 2 * rows)[::2]
        ends = draw.integers(-slices, slices, rows) * (1 << 59)
        hashed, by_sort = group_rows(ends, key_ids), group_by(ends, key_ids)
        for one, other in zip(hashed, by_sort, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_name_of_an_aggregate_is_pickled() -> None:
    assert repr(pickle.loads(pickle.dumps(Sum("v", np.int64).named("total")))) == "total"


@pytest.mark.parametrize("function", sorted(BUILT_IN.keys() - {"approx_count_distinct"}))
def test_a_function_of_sql_is_found_by_its_name(function: str) -> None:
    dtype = np.dtype(np.float64 if function.startswith(("var", "stddev")) else np.int64)
    made = tvf.aggregate(function, "v", dtype=dtype)
    shown = {"count_distinct": "count(distinct v)"}.get(function, f"{function}(v)")
    assert (repr(made), made.columns) == (shown, ("v",))
    assert function == "count" or made.dtype == dtype


def test_an_aggregate_counts_all_rows_or_calls_a_function() -> None:
    rows = [tvf.aggregate("count"), tvf.aggregate(Product(), "a", "b")]
    aggregation = Aggregation(rows)
    one = aggregation.accumulate([1, 1], np.zeros(2, np.int64), {"a": [2, 3], "b": [5, 2]})
    assert [column.tolist() for column in aggregation.results(one)] == [[2], [60]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("median", "v"), ValueError, "function must be one of count, sum, avg, .* got 'median'"),
        (("sum",), TypeError, r"columns must be one input column for sum, got \(\)"),
        (("sum", "a", "b"), TypeError, r"columns must be one input column for sum, got \('a', 'b'\)"),
    ],
)
def test_an_aggregate_that_there_is_not_raises(
    arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tvf.aggregate(*arguments)
