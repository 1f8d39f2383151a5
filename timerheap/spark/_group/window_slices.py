"""The windows of a key group: accumulators by key and slice, kept in the checkpoint by the slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._group.chunks import SLICES
from timerheap.tvf import (
    Aggregate,
    Aggregation,
    GlobalWindowAggregate,
    Multisets,
    Partials,
    SessionUnsliceAssigner,
    SliceAssigner,
)

__all__ = ["KEY_HASH", "SLICE_END", "PartialColumns", "SlicesPart", "WindowSpec", "input_column", "objects"]


KEY_HASH = "__timerheap_key_hash"
SLICE_END = "__timerheap_slice_end"
"""Names of the columns that say whose an accumulator is."""


@dataclass(frozen=True)
class WindowSpec:
    """The windows of a query, and what is computed of each.

    Parameters
    ----------
    assigner : SliceAssigner or SessionUnsliceAssigner
    aggregates : list of Aggregate
    object_types : dict of str to pyarrow.DataType
        What the fields of accumulators that hold objects are stored as, by the aggregate's column.
    name : str
        Says all of this in words: a checkpoint keeps it.
    """

    assigner: SliceAssigner | SessionUnsliceAssigner
    aggregates: list[Aggregate]
    object_types: dict[str, pa.DataType]
    name: str


class PartialColumns:
    """Accumulators by key and slice as Arrow columns, for the way and for the checkpoint.

    Parameters
    ----------
    spec : WindowSpec

    Attributes
    ----------
    aggregation : Aggregation
    schema : pyarrow.Schema
        `KEY_HASH`, `SLICE_END`, and the fields of the accumulators.
    """

    def __init__(self, spec: WindowSpec) -> None:
        self.aggregation = Aggregation(spec.aggregates)
        fields = self.aggregation.columns(self.aggregation.empty())
        self._like = {name: fields[name] for name in self.aggregation.names}
        types = [
            _arrow_type(self._like[f"{at}.{field}"], spec.object_types.get("".join(aggregate.columns[:1])))
            for at, aggregate in enumerate(self.aggregation.aggregates)
            for field in aggregate.fields
        ]
        names = [KEY_HASH, SLICE_END, *(f"__timerheap_{name}" for name in self._like)]
        self.schema = pa.schema(list(zip(names, [pa.int64(), pa.int64(), *types], strict=True)))

    def to_arrow(self, partials: Partials) -> list[pa.Array]:
        """Give the columns of `schema`."""
        fields = self.aggregation.columns(partials)
        columns = [pa.array(partials.key_ids), pa.array(partials.slice_ends)]
        types = self.schema.types[2:]
        columns += [_to_arrow(fields[name], type_) for name, type_ in zip(self._like, types, strict=True)]
        return columns

    def from_arrow(self, rows: pa.RecordBatch) -> Partials:
        """Take back the columns of `schema`; ValueError where they are none that an aggregate can have."""
        columns: dict[str, Any] = {
            "key_ids": rows.column(KEY_HASH).to_numpy(),
            "slice_ends": rows.column(SLICE_END).to_numpy(),
        }
        for name, like in self._like.items():
            columns[name] = _from_arrow(rows.column(f"__timerheap_{name}"), like)
        return self.aggregation.partials(columns)


class SlicesPart:
    """A `GlobalWindowAggregate` whose slices are saved as they change.

    A slice that has changed is written whole, behind a row without a key that says: forget what was there.

    Parameters
    ----------
    spec : WindowSpec
        Of slices.
    """

    kind = SLICES

    def __init__(self, spec: WindowSpec) -> None:
        assert isinstance(spec.assigner, SliceAssigner)
        self.name = spec.name
        self.windows = GlobalWindowAggregate(spec.assigner, spec.aggregates)
        self.columns = PartialColumns(spec)
        self.schema = self.columns.schema
        self.losses = 0  # slices that are no more
        self._stored = self.windows.aggregation.empty()  # while chunks are replayed

    def ids(self) -> np.ndarray:
        """Give the ids of the keys that have something here."""
        return self.windows.snapshot().key_ids

    def loaded(self, watermark: int) -> None:
        """All chunks have been replayed; the watermark was this."""
        self.windows.restore(self._stored, watermark)

    # What the checkpoint sees (see `timerheap.spark._group.checkpoint.CheckpointedPart`).

    def changes(self) -> pa.RecordBatch | None:
        """Give the slices that have changed since the last call, or are no more."""
        slices, gone = self.windows.changes()
        self.losses += len(gone)
        ends = np.concatenate([np.unique(slices.slice_ends), gone])
        return self._batch(slices, ends) if len(ends) else None

    def snapshot(self) -> pa.RecordBatch:
        """Give all slices."""
        return self._batch(self.windows.snapshot(), np.empty(0, np.int64))

    def replay(self, batch: pa.RecordBatch) -> None:
        """Take back what `changes` or `snapshot` gave."""
        if batch.schema != self.columns.schema:
            raise ValueError(
                f"a chunk of windows has the columns {batch.schema}, not {self.columns.schema}; go back to "
                "the old aggregates, or start a new checkpoint"
            )
        keys = batch.column(KEY_HASH)
        forgotten = batch.filter(keys.is_null()).column(SLICE_END).to_numpy()
        kept = self._stored[~np.isin(self._stored.slice_ends, forgotten)]
        rows = self.columns.from_arrow(batch.filter(keys.is_valid()))
        self._stored = self.windows.aggregation.concatenate([kept, rows])

    def nbytes(self) -> int:
        """Give the size of a snapshot, roughly."""
        return self.windows.snapshot().nbytes

    def _batch(self, slices: Partials, forgotten: np.ndarray) -> pa.RecordBatch:
        schema, n = self.columns.schema, len(forgotten)
        marks = [pa.nulls(n, field.type) for field in schema]
        marks[1] = pa.array(forgotten)
        columns = zip(marks, self.columns.to_arrow(slices), strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(pair) for pair in columns], schema=schema)


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
    return pa.array(values.tolist() if values.dtype.kind == "O" else values, type_)


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
    return objects(array.to_pylist())


def objects(values: Sequence[Any]) -> np.ndarray:
    """Give a column of Python objects, lists and tuples too: shape (n,)."""
    column = np.empty(len(values), object)
    for at, value in enumerate(values):
        column[at] = value
    return column


def input_column(column: pa.Array, dtype: np.dtype[Any]) -> np.ma.MaskedArray[Any, Any]:
    """Give a column of rows as an aggregate takes it; times as their numbers."""
    mask = column.is_null().to_numpy(zero_copy_only=False)
    if dtype.kind == "O":
        return np.ma.masked_array(objects(column.to_pylist()), mask)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    numbers = column.cast(pa.from_numpy_dtype(dtype)).fill_null(0)
    return np.ma.masked_array(numbers.to_numpy(zero_copy_only=False), mask)
