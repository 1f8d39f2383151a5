"""Accumulators of aggregates as Arrow columns, and what they are made of and become.

Of no window and no feature: windows keep them by key and slice, functions OVER rows by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._values import Convert, Misfit, checker, local_leaf, local_reader, reader
from timerheap.errors import ArgumentRangeError, ArgumentValueError
from timerheap.spark._arrow import narrow_column
from timerheap.spark._columns import ACCUMULATOR, shown_name
from timerheap.spark._worker.column_casts import column_of
from timerheap.tvf.accumulators import Accumulators, Aggregate
from timerheap.tvf.aggregates import Aggregation
from timerheap.tvf.columns import Multisets


@dataclass(frozen=True)
class AggregateCalls:
    """Aggregates that tasks compute together.

    inputs: the columns that they read, and the types they read them as
    results: one field for each
    object_types: those of Python objects in accumulators, by the aggregate's column
    """

    aggregates: list[Aggregate]
    inputs: dict[str, np.dtype[Any]]
    results: list[pa.Field]
    object_types: dict[str, pa.DataType]


class AccumulatorColumns:
    """Converts accumulators to Arrow columns and back; `fields` are those of the columns."""

    def __init__(self, aggregates: Sequence[Aggregate], object_types: Mapping[str, pa.DataType]) -> None:
        self.aggregation = Aggregation(aggregates)
        self._like = self.aggregation.empty().fields
        self._of_fields = [one for one in self.aggregation.aggregates for _ in one.fields]
        types = [
            _arrow_type(like, object_types.get("".join(aggregate.columns[:1])))
            for like, aggregate in zip(self._like, self._of_fields, strict=True)
        ]
        names = [f"{ACCUMULATOR}{name}" for name in self.aggregation.names]
        self.fields = [pa.field(name, type_) for name, type_ in zip(names, types, strict=True)]

    def to_arrow(self, accumulators: tuple[Accumulators, ...]) -> list[pa.Array]:
        """Return accumulators as the columns of `fields`."""
        columns, parts = [], [part for of_one in accumulators for part in of_one]
        for part, field, aggregate in zip(parts, self.fields, self._of_fields, strict=True):
            try:
                columns.append(_to_arrow(part, field.type))
            except pa.ArrowInvalid as error:
                raise ArgumentRangeError(
                    f"{aggregate} must fit into {field.type}, got a larger value ({error}); cast its column "
                    "to a smaller type"
                ) from None
        return columns

    def from_arrow(self, columns: Sequence[pa.Array]) -> tuple[Accumulators, ...]:
        """Return accumulators of the columns of `fields`."""
        return self.aggregation.nested(map(_from_arrow, columns, self._like))


def _arrow_type(like: np.ndarray | Multisets, object_type: pa.DataType | None) -> pa.DataType:
    values = like.values if isinstance(like, Multisets) else like
    type_ = object_type if values.dtype.kind == "O" else pa.from_numpy_dtype(values.dtype)
    if isinstance(like, Multisets):
        return pa.list_(pa.struct([pa.field("value", type_), pa.field("count", pa.int64())]))
    return type_


def _to_arrow(column: np.ndarray | Multisets, type_: pa.DataType) -> pa.Array:
    if isinstance(column, Multisets):
        values = column_of_objects(column.values, type_.value_type.field("value").type)
        entries = pa.StructArray.from_arrays([values, pa.array(column.counts)], fields=list(type_.value_type))
        return pa.ListArray.from_arrays(pa.array(column.offsets, pa.int32()), entries, type=type_)
    return column_of_objects(column, type_)


def column_of_objects(values: np.ndarray, type_: pa.DataType) -> pa.Array:
    if values.dtype.kind != "O":
        return pa.array(values, type_)
    return pa.array(values.tolist() if _timeless(type_) else list(map(checker(type_), values)), type_)


def _from_arrow(array: pa.Array, like: np.ndarray | Multisets) -> np.ndarray | Multisets:
    if isinstance(like, Multisets):
        entries = array.flatten()
        offsets = np.concatenate([[0], np.cumsum(array.value_lengths().to_numpy())]).astype(np.int64)
        values = _from_values(entries.field("value"), like.values.dtype)
        return Multisets(offsets, values, entries.field("count").to_numpy())
    return _from_values(array, like.dtype)


def _from_values(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind != "O":
        if array.null_count:  # in a table of a user's
            raise ArgumentValueError(
                f"accumulators must have no null in columns of {array.type}, got {array.null_count}; fill in "
                "values"
            )
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(dtype, copy=True)
    return objects_of(array, local_leaf)


def _timeless(type_: pa.DataType) -> bool:
    """Return whether a type has no moments, which Arrow and Python take for different times."""
    return "tz=" not in str(type_)


def objects_of(column: pa.Array, leaf: Callable[[pa.DataType], Convert | None]) -> np.ndarray:
    values = column.to_pylist()
    read = None if _timeless(column.type) else reader(column.type, _dict_of, leaf)
    if read is not None:
        values = list(map(read, values))
    return np.fromiter(values, object, len(values))


def _dict_of(*names: str) -> Callable[..., Any]:
    return lambda *values: dict(zip(names, values, strict=True))


def input_column(column: pa.Array, dtype: np.dtype[Any]) -> np.ma.MaskedArray[Any, Any]:
    """Convert a column of rows to the dtype of an aggregate, with nulls masked and times as numbers."""
    mask = column.is_null().to_numpy(zero_copy_only=False)
    if dtype.kind == "O":
        return np.ma.masked_array(objects_of(column, local_reader), mask)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    # A float64 is rounded, as in Spark: a checked cast refuses integers beyond 2**53.
    numbers = column.cast(pa.from_numpy_dtype(dtype), safe=dtype.kind != "f")
    numbers = numbers.fill_null(0) if numbers.null_count else numbers  # which would copy
    return np.ma.masked_array(numbers.to_numpy(zero_copy_only=False), mask)


def result_column(result: np.ma.MaskedArray[Any, Any], field: pa.Field) -> pa.Array:
    """Return the results of an aggregate in the type of a field."""
    type_ = field.type
    data, mask = np.ma.getdata(result), np.ma.getmaskarray(result)
    if data.dtype.kind == "O":
        values = zip(data.tolist(), mask.tolist(), strict=True)
        try:
            column = column_of([None if null else value for value, null in values], type_)
        except Misfit as e:
            raise ArgumentValueError(f"agg: the result {shown_name(field.name)!r}: {e}") from None
        return narrow_column(column, type_)
    column = pa.array(data, mask=mask)
    return column.cast(pa.int32()).cast(type_) if pa.types.is_date32(type_) else column.cast(type_)
