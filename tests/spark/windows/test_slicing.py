"""The arrow local stage makes the slices that a sort of all rows by key and slice makes, to the last bit."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from timerheap import AggregateFunction
from timerheap.spark._arrow import event_millis
from timerheap.spark._columns import HASH, SLICE_END
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._tvf.sliced_rows import PartialColumns, SlicedRows, WindowSpec
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import Aggregation, Avg, Count, Max, Min, PythonAggregate, Sum, Variance
from timerheap.tvf.distinct import ApproxCountDistinct, CountDistinct
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)

DECIMAL = pa.decimal128(12, 2)
KEYS: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "text": [(pa.string(), ["", "a", "b", "user-00000001", "user-00000002", None])],
    "bigint": [(pa.int64(), [0, -1, 1 << 62, None])],
    "double": [(pa.float64(), [0.0, -0.0, math.nan, 1.5, None])],
    "two columns": [(pa.string(), ["", "a", None]), (pa.date32(), [datetime.date(2020, 1, 1), None])],
    "boolean": [(pa.bool_(), [True, False, None])],
    "none": [(pa.null(), [None])],
}


class Longest(AggregateFunction):
    def create_accumulator(self) -> str:
        return ""

    def add(self, value: str | None, accumulator: str) -> str:
        return max(accumulator, value or "", key=len)

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=len)

    def get_result(self, accumulator: str) -> str:
        return accumulator


def aggregates() -> tuple[list[Aggregate], dict[str, np.dtype[Any]], dict[str, pa.DataType]]:
    whole, real, text, money = "whole", "real", "text", "money"
    chosen = [
        Count(),
        Count(text),
        *(kind(whole, np.int64) for kind in (Sum, Avg, Min, Max, CountDistinct)),
        *(kind(real, np.float64) for kind in (Sum, Avg, Min, Max)),
        *(kind(money, object) for kind in (Sum, Min)),
        Max(text, object),
        CountDistinct(text, object),
        Variance("stddev_samp", real),
        ApproxCountDistinct("word", object),
        PythonAggregate(Longest(), text).named("longest"),
    ]
    dtypes = {whole: np.int64, real: np.float64, text: object, money: object, "word": object}
    types = {whole: pa.int64(), real: pa.float64(), text: pa.string(), money: DECIMAL, "word": pa.binary()}
    return chosen, {name: np.dtype(dtype) for name, dtype in dtypes.items()}, types


def some(draw: np.random.Generator, values: list[Any], n: int) -> list[Any]:
    return [values[at] for at in draw.integers(0, len(values), n)]


def rows_of(draw: np.random.Generator, key: str, n: int, collisions: bool) -> pa.RecordBatch:
    keys = [some(draw, values, n) for _, values in KEYS[key]]
    times = draw.integers(-3_600_000_000, 3_600_000_000, n)
    columns = {
        f"k{at}": pa.array(own, type_)
        for at, (own, (type_, _)) in enumerate(zip(keys, KEYS[key], strict=True))
    }
    columns |= {
        "at": pa.array(times, pa.timestamp("us", "UTC")),
        "whole": pa.array(some(draw, [1, -5, 2**62, -(2**62), None], n), pa.int64()),
        "real": pa.array(some(draw, [0.1, 1e30, -0.0, 0.0, math.nan, math.inf, None], n), pa.float64()),
        "text": pa.array(some(draw, ["", "a", "longer", None], n), pa.string()),
        "word": pa.array(some(draw, ["x", "y", None], n), pa.string()),
        "money": pa.array(some(draw, [decimal.Decimal("0.10"), decimal.Decimal(7), None], n), DECIMAL),
    }
    own = [hash(repr([0.0 if value == 0 else value for value in row])) for row in zip(*keys, strict=True)]
    columns[HASH] = pa.array([one % 2 if collisions else one for one in own], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def masked(column: pa.Array, dtype: np.dtype[Any]) -> np.ma.MaskedArray[Any, Any]:
    values = column.to_pylist()
    filled = np.array([0 if value is None else value for value in values], dtype)
    return np.ma.masked_array(filled, [value is None for value in values])


def by_sorting(
    spec: WindowSpec, key: list[str], dtypes: dict[str, np.dtype[Any]], rows: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the slices of rows, from the ids of their keys and a sort."""
    keys = KeyTable([rows.schema.field(name) for name in key])
    ids = keys.resolve(rows.column(HASH).to_numpy(), [rows.column(name) for name in key])
    inputs = {name: masked(rows.column(name), dtype) for name, dtype in dtypes.items()}
    assert isinstance(spec.assigner, SliceAssigner)
    ends = spec.assigner.assign_slice_ends(event_millis(rows.column("at")))
    partials = Aggregation(spec.aggregates).accumulate(ids, ends, inputs)
    columns = PartialColumns(spec)
    _, *accumulators = columns.to_arrow(partials)
    arrays = [*keys.keys(partials.key_ids).columns, *accumulators, pa.array(keys.hashes(partials.key_ids))]
    return pa.RecordBatch.from_arrays(arrays, names=[*key, *columns.schema.names[1:], HASH])


def ordered(slices: pa.RecordBatch) -> list[str]:
    """Return the rows with every bit of their numbers, by slice and key."""
    return sorted(repr([*row.values()]) for row in slices.to_pylist())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("collisions", [False, True], ids=["hashes", "colliding hashes"])
def test_slices_are_those_of_a_sort(key: str, collisions: bool) -> None:
    draw = np.random.default_rng(0)
    chosen, dtypes, types = aggregates()
    minute = 60_000
    for assigner in (
        TumblingSliceAssigner(minute),
        HoppingSliceAssigner(10 * minute, minute, -7, "Asia/Kathmandu"),
        CumulativeSliceAssigner(60 * minute, 20 * minute, 0, "America/New_York"),
    ):
        spec = WindowSpec(assigner, chosen, types, "windows")
        names = [f"k{at}" for at in range(len(KEYS[key]))]
        rows = rows_of(draw, key, 400, collisions)
        buffer = SlicedRows(spec, names, "at", dtypes)
        for begin, end in ((0, 150), (150, 151), (151, 400)):
            part = rows.slice(begin, end - begin)
            buffer.add(part, part.column(HASH).to_numpy())
        slices = buffer.drain()
        assert slices.schema.equals(by_sorting(spec, names, dtypes, rows).schema)
        assert ordered(slices) == ordered(by_sorting(spec, names, dtypes, rows))
        again = rows_of(draw, key, 50, collisions)  # a drained buffer is empty
        buffer.add(again, again.column(HASH).to_numpy())
        assert ordered(buffer.drain()) == ordered(by_sorting(spec, names, dtypes, again))


def test_slices_are_in_the_order_in_which_they_first_occur() -> None:
    buffer = SlicedRows(WindowSpec(TumblingSliceAssigner(10), [Count()], {}, "windows"), ["k"], "at", {})
    columns = {
        "k": pa.array(["b", "a", "b", "a"]),
        "at": pa.array([15, 25, 5, 26]),
        HASH: pa.array([7, 8, 7, 8]),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    buffer.add(rows, rows.column(HASH).to_numpy())
    drained = buffer.drain()
    assert drained.column("k").to_pylist() == ["b", "a", "b"]
    assert drained.column(SLICE_END).to_pylist() == [20, 30, 10]
    assert drained.column(HASH).to_pylist() == [7, 8, 7]
