"""Accumulators by key and slice as columns: made of rows before these are sent, and kept by key groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import SliceGroups
from timerheap._values import Convert, checker, local_leaf, local_reader, reader
from timerheap.spark._arrow import event_millis, view_of
from timerheap.spark._columns import ACCUMULATOR, HASH, KEY_HASH, SESSION_START, SLICE_END
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import Aggregation, Partials
from timerheap.tvf.columns import Groups, Multisets
from timerheap.tvf.slices import SessionUnsliceAssigner, SliceAssigner


@dataclass(frozen=True)
class WindowSpec:
    """The windows of a query and their aggregates."""

    assigner: SliceAssigner | SessionUnsliceAssigner
    aggregates: list[Aggregate]
    object_types: dict[str, pa.DataType]  # of Python objects in accumulators, by the aggregate's column
    name: str  # a description of the windows and the aggregates; a checkpoint records it


class PartialColumns:
    """Converts `Partials` to Arrow columns and back: ids, ends, accumulators' fields, starts of sessions."""

    def __init__(self, spec: WindowSpec) -> None:
        self.aggregation = Aggregation(spec.aggregates)
        self._like = self.aggregation.empty().fields
        self._of_fields = [one for one in self.aggregation.aggregates for _ in one.fields]
        self._names = [f"{ACCUMULATOR}{name}" for name in self.aggregation.names]
        types = [
            _arrow_type(like, spec.object_types.get("".join(aggregate.columns[:1])))
            for like, aggregate in zip(self._like, self._of_fields, strict=True)
        ]
        names = [KEY_HASH, SLICE_END, *self._names]
        self.schema = pa.schema(list(zip(names, [pa.int64(), pa.int64(), *types], strict=True)))
        if isinstance(spec.assigner, SessionUnsliceAssigner):
            self.schema = self.schema.append(pa.field(SESSION_START, pa.int64()))

    def to_arrow(self, partials: Partials) -> list[pa.Array]:
        """Return partials as the columns of `schema`."""
        columns = [pa.array(partials.key_ids), pa.array(partials.slice_ends)]
        types = (self.schema.field(name).type for name in self._names)
        for field, type_, aggregate in zip(partials.fields, types, self._of_fields, strict=True):
            try:
                columns.append(_to_arrow(field, type_))
            except pa.ArrowInvalid as error:
                raise OverflowError(
                    f"{aggregate} must fit into {type_}, got a larger value ({error}); cast its column to a "
                    "smaller type"
                ) from None
        return columns if partials.starts is None else [*columns, pa.array(partials.starts)]

    def from_arrow(self, rows: pa.RecordBatch) -> Partials:
        """Build partials from the columns of `schema`."""
        fields = [_from_arrow(rows.column(n), like) for n, like in zip(self._names, self._like, strict=True)]
        key_ids, slice_ends = rows.column(KEY_HASH).to_numpy(), rows.column(SLICE_END).to_numpy()
        starts = rows.column(SESSION_START).to_numpy() if SESSION_START in self.schema.names else None
        return Partials(key_ids, slice_ends, self.aggregation.nested(fields), starts)


def _arrow_type(like: np.ndarray | Multisets, object_type: pa.DataType | None) -> pa.DataType:
    values = like.values if isinstance(like, Multisets) else like
    type_ = object_type if values.dtype.kind == "O" else pa.from_numpy_dtype(values.dtype)
    if isinstance(like, Multisets):
        return pa.list_(pa.struct([pa.field("value", type_), pa.field("count", pa.int64())]))
    return type_


def _to_arrow(column: np.ndarray | Multisets, type_: pa.DataType) -> pa.Array:
    if isinstance(column, Multisets):
        values = _values(column.values, type_.value_type.field("value").type)
        entries = pa.StructArray.from_arrays([values, pa.array(column.counts)], fields=list(type_.value_type))
        return pa.ListArray.from_arrays(pa.array(column.offsets, pa.int32()), entries, type=type_)
    return _values(column, type_)


def _values(values: np.ndarray, type_: pa.DataType) -> pa.Array:
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
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(dtype, copy=True)
    return _objects(array, local_leaf)


def _timeless(type_: pa.DataType) -> bool:
    """Return whether a type has no moments, which Arrow and Python take for different times."""
    return "tz=" not in str(type_)


def _objects(column: pa.Array, leaf: Callable[[pa.DataType], Convert | None]) -> np.ndarray:
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
        return np.ma.masked_array(_objects(column, local_reader), mask)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    # A float64 is rounded, as in Spark: a checked cast refuses integers beyond 2**53.
    numbers = column.cast(pa.from_numpy_dtype(dtype), safe=dtype.kind != "f")
    numbers = numbers.fill_null(0) if numbers.null_count else numbers  # which would copy
    return np.ma.masked_array(numbers.to_numpy(zero_copy_only=False), mask)


class SlicedRows:
    """Rows that are grouped by key and slice as they come, and aggregated when they are drained.

    Rows arrive while the JVM prepares those after them, so grouping them immediately takes no extra time.
    """

    def __init__(
        self, spec: WindowSpec, key: list[str], event_time: str, inputs: dict[str, np.dtype[Any]]
    ) -> None:
        assert isinstance(spec.assigner, SliceAssigner)
        self._assigner, self._columns = spec.assigner, PartialColumns(spec)
        self._key, self._event_time, self._dtypes = key, event_time, inputs
        self._begin()

    def _begin(self) -> None:
        self._groups: SliceGroups | None = None
        self._hashes: list[np.ndarray] = []  # of the keys, in the order of their numbers
        self._keys: list[list[pa.Array]] = [[] for _ in self._key]
        self._inputs: dict[str, list[pa.Array]] = {name: [] for name in self._dtypes}

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        columns = [rows.column(name) for name in self._key]
        views = [view_of(column) for column in columns if not pa.types.is_null(column.type)]
        if self._groups is None:
            self._groups = SliceGroups(len(views))
        ends = self._assigner.assign_slice_ends(event_millis(rows.column(self._event_time)))
        new = self._groups.add(hashes, ends, views)
        if len(new):
            self._hashes.append(hashes[new])
            for held, column in zip(self._keys, columns, strict=True):
                held.append(column.take(pa.array(new)))
        for name, parts in self._inputs.items():
            parts.append(rows.column(name))

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, one or more; return one for each key and slice, as they came, with `HASH` last."""
        assert self._groups is not None
        keys, ends, sizes = self._groups.groups()
        groups = Groups(self._groups.order(), np.cumsum(sizes) - sizes, sizes)
        inputs = {
            name: input_column(pa.concat_arrays(held), self._dtypes[name])
            for name, held in self._inputs.items()
        }
        accumulators = self._columns.aggregation.accumulate_groups(groups, inputs)
        _, *columns = self._columns.to_arrow(Partials(keys, ends, accumulators))
        numbers = pa.array(keys)
        names = [*self._key, *self._columns.schema.names[1:], HASH]
        arrays = [pa.concat_arrays(held).take(numbers) for held in self._keys]
        hashes = pa.array(np.concatenate(self._hashes)[keys])
        self._begin()
        return pa.RecordBatch.from_arrays([*arrays, *columns, hashes], names=names)
