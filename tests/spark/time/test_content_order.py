"""Rows of one key and timestamp are ordered by their columns, whatever order they arrived in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap.spark._group.row_buffer import content_order

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.none() | st.integers(-2, 2), st.sampled_from("abc")),
    max_size=40,
)


@given(rows=ROWS, data=st.data())
def test_the_order_equals_sorted_rows(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True) if rows else st.just([]))
    at, ids, numbers, texts = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64()), "t": pa.array(texts, pa.string())})
    order = content_order(
        batch, np.array(at, np.int64), np.array(ids, np.int64), np.array(positions, np.int64)
    )
    nulls_last = [(*row[:2], row[2] is None, row[2] or 0, row[3]) for row in rows]
    assert order.tolist() == sorted(positions, key=lambda row: nulls_last[row])


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": 2}, {"x": None}, None]),
        (pa.list_(pa.int64()), [[1, 2], [1], [2], [], None]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [("b", 1)], None]),
        (pa.struct([("x", pa.list_(pa.float64()))]), [{"x": [1.5]}, {"x": [2.5]}, {"x": None}, None]),
        (pa.decimal128(10, 2), [1, 2, 3, None]),
        (pa.timestamp("us", "UTC"), [1, 2, 3, None]),
        (pa.binary(), [b"", b"\x00", b"\xff", None]),
        (pa.bool_(), [False, True, None]),
        (pa.null(), [None, None]),
    ],
    ids=str,
)
def test_columns_of_any_type_have_an_order_of_their_own(type_: pa.DataType, values: list[Any]) -> None:
    n = len(values)
    zeros = np.zeros(n, np.int64)
    for seed in range(5):
        shuffled = np.random.default_rng(seed).permutation(n)
        batch = pa.record_batch({"c": pa.array([values[i] for i in shuffled], type_)})
        order = content_order(batch, zeros, zeros, np.arange(n))
        assert batch.column("c").take(pa.array(order)).equals(pa.array(values, type_))
