"""Partial aggregates by key and slice: made of rows before these are sent, and kept by key groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import SliceGroups
from timerheap.spark._aggregates.accumulator_columns import AccumulatorColumns, input_column
from timerheap.spark._arrow import event_millis, view_of
from timerheap.spark._columns import HASH, KEY_HASH, SESSION_START, SLICE_END
from timerheap.tvf.accumulators import Aggregate
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.columns import Groups
from timerheap.tvf.slices import SessionUnsliceAssigner, SliceAssigner


@dataclass(frozen=True)
class WindowSpec:
    """The windows of a query and their aggregates."""

    assigner: SliceAssigner | SessionUnsliceAssigner
    aggregates: list[Aggregate]
    object_types: dict[str, pa.DataType]  # of Python objects in accumulators, by the aggregate's column
    name: str  # a description of the windows and the aggregates; a checkpoint records it
    folds: bool = True  # as in `GlobalWindowAggregate`


class PartialColumns:
    """Converts `Partials` to Arrow columns and back: ids, ends, accumulators' fields, starts of sessions."""

    def __init__(self, spec: WindowSpec) -> None:
        self._accumulators = AccumulatorColumns(spec.aggregates, spec.object_types)
        self.aggregation = self._accumulators.aggregation
        self._names = [field.name for field in self._accumulators.fields]
        ids = [pa.field(KEY_HASH, pa.int64()), pa.field(SLICE_END, pa.int64())]
        self.schema = pa.schema([*ids, *self._accumulators.fields])
        if isinstance(spec.assigner, SessionUnsliceAssigner):
            self.schema = self.schema.append(pa.field(SESSION_START, pa.int64()))

    def to_arrow(self, partials: Partials) -> list[pa.Array]:
        """Return partials as the columns of `schema`."""
        columns = [pa.array(partials.key_ids), pa.array(partials.slice_ends)]
        columns += self._accumulators.to_arrow(partials.accumulators)
        return columns if partials.starts is None else [*columns, pa.array(partials.starts)]

    def from_arrow(self, rows: pa.RecordBatch) -> Partials:
        """Build partials from the columns of `schema`."""
        accumulators = self._accumulators.from_arrow([rows.column(name) for name in self._names])
        key_ids, slice_ends = rows.column(KEY_HASH).to_numpy(), rows.column(SLICE_END).to_numpy()
        starts = rows.column(SESSION_START).to_numpy() if SESSION_START in self.schema.names else None
        return Partials(key_ids, slice_ends, accumulators, starts)


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
