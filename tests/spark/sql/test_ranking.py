"""Ranks of rows, compared with a loop over the rows of each group."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from timerheap.spark._order_by import Order, Ranking

VALUES = [None, math.nan, 1.5, -2.0, 0.0]


@pytest.mark.parametrize("function", ["row_number", "rank", "dense_rank"])
def test_first_rows_are_those_of_a_loop(function: str) -> None:
    """Nulls are first or last, NaN is the largest number, and arrival decides among equal rows."""
    draw = np.random.default_rng(0)
    for n in [*range(9)] * 20:
        values = [VALUES[at] for at in draw.integers(0, len(VALUES), n)]
        groups, limit = draw.integers(0, 3, n), int(draw.integers(1, 4))
        descending, nulls_first, last = (bool(one) for one in draw.integers(0, 2, 3))
        null = (-1.0 if nulls_first else 1.0), 0.0
        sign = -1 if descending else 1
        place = [
            null if value is None else (0.0, sign * (math.inf if math.isnan(value) else value))
            for value in values
        ]
        wanted = []
        for group in range(3):
            rows = [row for row in range(n) if groups[row] == group]
            rows = sorted(reversed(rows) if last else rows, key=place.__getitem__)
            places = [place[row] for row in rows]
            for at, row in enumerate(rows):
                rank = {"row_number": at + 1, "rank": places.index(places[at]) + 1}
                rank["dense_rank"] = len({*places[:at], places[at]})
                if rank[function] <= limit:
                    wanted.append((row, rank[function]))
        batch = pa.RecordBatch.from_pydict({"v": pa.array(values, pa.float64()), "at": pa.array(range(n))})
        order, arrival = Order("v", descending, nulls_first), Order("at", last, nulls_first=False)
        ranking = Ranking(function, "place", (order,), (arrival,), limit)
        found = zip(*(column.tolist() for column in ranking.first(batch, groups)), strict=True)
        assert sorted(found) == sorted(wanted)
