"""Results as Spark receives them: DataFrames of columns that it takes unchanged, with the task's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

from timerheap.spark._arrow import fitting

_ROWS = 1 << 12  # results in an array, which Spark copies as a whole
_AIM, _MOST_IN_FRAME = 1 << 20, 1 << 22  # bytes of an array


def result_frames(results: pa.Table, metrics: pa.Array | None = None) -> Iterator[pd.DataFrame]:
    """Yield DataFrames of the columns `RESULTS` and `METRICS`, which is set in the last row if passed."""
    # Observing the metrics has a cost for each row that passes, so a row has many results.
    *before, last = [_result_arrays(batch) for batch in results.to_batches()] or [pa.nulls(1)]
    for arrays in before:
        yield _spark_frame([arrays, pa.nulls(len(arrays))])
    told = [pa.nulls(len(last))] if metrics is None else [pa.nulls(len(last) - 1, metrics.type), metrics]
    yield _spark_frame([last, pa.concat_arrays(told)])


def flat_frames(results: pa.Table, metrics: pa.Array) -> Iterator[pd.DataFrame]:
    """Yield DataFrames of the columns of results and `METRICS`, which is set in the last row only."""
    # In that row the other columns are null, also those that must not be null in results.
    for batch in results.to_batches():
        yield _spark_frame([*batch.columns, pa.nulls(batch.num_rows)])
    yield _spark_frame([*(pa.nulls(1, type_) for type_ in results.schema.types), metrics])


def _result_arrays(batch: pa.RecordBatch) -> pa.ListArray:
    """Return the rows of a batch in arrays of a limited size."""
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    starts = [
        start + first
        for start in range(0, batch.num_rows, _ROWS)
        for first, _ in fitting(batch.slice(start, _ROWS), _AIM, _MOST_IN_FRAME)
    ]
    type_ = pa.list_(pa.field("element", rows.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array([*starts, batch.num_rows], pa.int32()), rows, type=type_)


def _spark_frame(columns: list[pa.Array]) -> pd.DataFrame:
    # Spark reads numbered columns by position, which is faster than by name.
    return _Frame({number: _ArrowColumn(column) for number, column in enumerate(columns)}, copy=False)


class _ArrowColumn(pd.arrays.ArrowExtensionArray):
    """An Arrow column that Spark receives unchanged.

    Plain pandas would lose large ints beside nulls, and years outside 1677-2262; Python objects, which Spark
    makes of nested columns, take far longer.
    """

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        column = super().__arrow_array__()
        return column if type is None else column.cast(type)


class _Series(pd.Series):
    """A column for Spark, which converts its values by `apply`: values of Arrow need no conversion."""

    @property
    def _constructor(self) -> type[_Series]:
        return _Series

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Frame(pd.DataFrame):
    _constructor_sliced = _Series
