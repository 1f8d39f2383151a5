"""The windows of a key group: accumulators by key and slice, kept in the checkpoint by the slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark.chunks import SLICES
from timerheap.tvf import Aggregate, GlobalWindowAggregate, Multisets, Partials, SliceAssigner

__all__ = ["SlicesPart", "WindowSpec"]


@dataclass(frozen=True)
class WindowSpec:
    """The windows of a query, and what is computed of each.

    Parameters
    ----------
    assigner : SliceAssigner
    aggregates : list of Aggregate
    object_types : dict of str to pyarrow.DataType
        What the fields of accumulators that hold objects are stored as, by the aggregate's column.
    name : str
        Says all of this in words: a checkpoint keeps it.
    """

    assigner: SliceAssigner
    aggregates: list[Aggregate]
    object_types: dict[str, pa.DataType]
    name: str


class SlicesPart:
    """A `GlobalWindowAggregate` whose slices are saved as they change.

    A slice that has changed is written whole, behind a row without a key that says: forget what was there.

    Parameters
    ----------
    spec : WindowSpec
    """

    kind = SLICES

    def __init__(self, spec: WindowSpec) -> None:
        self.name = spec.name
        self.windows = GlobalWindowAggregate(spec.assigner, spec.aggregates)
        self.losses = 0  # slices that are no more
        aggregation = self.windows.aggregation
        fields = aggregation.columns(aggregation.empty())
        self._like = {name: fields[name] for name in aggregation.names}
        types = [
            _arrow_type(self._like[f"{at}.{field}"], spec.object_types.get("".join(aggregate.columns[:1])))
            for at, aggregate in enumerate(aggregation.aggregates)
            for field in aggregate.fields
        ]
        columns = [
            ("key_hash", pa.int64()),
            ("slice_end", pa.int64()),
            *zip(aggregation.names, types, strict=True),
        ]
        self._schema = pa.schema(columns)
        self._stored = aggregation.empty()  # while chunks are replayed

    def ids(self) -> np.ndarray:
        """Give the ids of the keys that have something here."""
        return self.windows.snapshot().key_ids

    def loaded(self, watermark: int) -> None:
        """All chunks have been replayed; the watermark was this."""
        self.windows.restore(self._stored, watermark)

    # What the checkpoint sees (see `timerheap.spark.state.Part`).

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
        if batch.schema != self._schema:
            raise ValueError(
                f"a chunk of windows has the columns {batch.schema}, not {self._schema}; go back to the old "
                "aggregates, or start a new checkpoint"
            )
        table = pa.Table.from_batches([batch])
        marks = table.column("key_hash").is_null()
        forgotten = table.filter(marks).column("slice_end").to_numpy()
        kept = self._stored[~np.isin(self._stored.slice_ends, forgotten)]
        rows = table.filter(table.column("key_hash").is_valid()).combine_chunks()
        columns: dict[str, Any] = {
            "key_ids": rows.column("key_hash").to_numpy(),
            "slice_ends": rows.column("slice_end").to_numpy(),
        }
        for name, like in self._like.items():
            columns[name] = _from_arrow(rows.column(name), like)
        aggregation = self.windows.aggregation
        self._stored = aggregation.concatenate([kept, aggregation.partials(columns)])

    def nbytes(self) -> int:
        """Give the size of a snapshot, roughly."""
        return self.windows.snapshot().nbytes

    def _batch(self, slices: Partials, forgotten: np.ndarray) -> pa.RecordBatch:
        aggregation = self.windows.aggregation
        n = len(forgotten)
        columns = [
            pa.concat_arrays([pa.nulls(n, pa.int64()), pa.array(slices.key_ids)]),
            pa.array(np.concatenate([forgotten, slices.slice_ends])),
        ]
        fields = aggregation.columns(slices)
        for name in aggregation.names:
            type_ = self._schema.field(name).type
            columns.append(pa.concat_arrays([pa.nulls(n, type_), _to_arrow(fields[name], type_)]))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


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


def _from_arrow(column: pa.ChunkedArray | pa.Array, like: np.ndarray | Multisets) -> np.ndarray | Multisets:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
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
