"""The local stages of windows: what a task makes of its rows, by window and key, before they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import SliceGroups
from timerheap.spark._arrow import event_millis, view_of
from timerheap.spark._columns import HASH
from timerheap.spark._windows.partial_columns import PartialColumns, WindowSpec, input_column
from timerheap.tvf.columns import Groups
from timerheap.tvf.partials import Partials
from timerheap.tvf.slices import SliceAssigner


@dataclass(frozen=True)
class LocalStage:
    """Aggregates rows into one row per key and slice; `inputs` are the columns of the aggregates."""

    spec: WindowSpec
    key: list[str]
    event_time: str
    inputs: dict[str, np.dtype[Any]]

    def __call__(self) -> SlicedRows:
        """Return a buffer without rows."""
        return SlicedRows(self)


class SlicedRows:
    """Rows that are grouped by key and slice as they come, and aggregated when they are drained.

    Rows arrive while the JVM prepares those after them, so grouping them immediately takes no extra time.
    """

    def __init__(self, stage: LocalStage) -> None:
        assert isinstance(stage.spec.assigner, SliceAssigner)
        self._stage, self._assigner = stage, stage.spec.assigner
        self._columns = PartialColumns(stage.spec)
        self._begin()

    def _begin(self) -> None:
        self._groups: SliceGroups | None = None
        self._hashes: list[np.ndarray] = []  # of the keys, in the order of their numbers
        self._keys: list[list[pa.Array]] = [[] for _ in self._stage.key]
        self._inputs: list[list[pa.Array]] = [[] for _ in self._stage.inputs]

    def add(self, rows: pa.RecordBatch, hashes: np.ndarray) -> None:
        """Add rows, with the hashes of their keys."""
        columns = [rows.column(name) for name in self._stage.key]
        views = [view_of(column) for column in columns if not pa.types.is_null(column.type)]
        if self._groups is None:
            self._groups = SliceGroups(len(views))
        ends = self._assigner.assign_slice_ends(event_millis(rows.column(self._stage.event_time)))
        new = self._groups.add(hashes, ends, views)
        if len(new):
            self._hashes.append(hashes[new])
            for held, column in zip(self._keys, columns, strict=True):
                held.append(column.take(pa.array(new)))
        for held, name in zip(self._inputs, self._stage.inputs, strict=True):
            held.append(rows.column(name))

    def drain(self) -> pa.RecordBatch:
        """Remove all rows, of which there must be some, and return a row for each key and slice.

        The rows are in the order in which the groups first occurred. `HASH` is the last column.
        """
        assert self._groups is not None
        keys, ends, sizes = self._groups.groups()
        groups = Groups(self._groups.order(), np.cumsum(sizes) - sizes, sizes)
        inputs = {
            name: input_column(pa.concat_arrays(held), dtype)
            for (name, dtype), held in zip(self._stage.inputs.items(), self._inputs, strict=True)
        }
        accumulators = self._columns.aggregation.accumulate_groups(groups, inputs)
        _, *columns = self._columns.to_arrow(Partials(keys, ends, accumulators))
        numbers = pa.array(keys)
        names = [*self._stage.key, *self._columns.schema.names[1:], HASH]
        arrays = [pa.concat_arrays(held).take(numbers) for held in self._keys]
        hashes = pa.array(np.concatenate(self._hashes)[keys])
        self._begin()
        return pa.RecordBatch.from_arrays([*arrays, *columns, hashes], names=names)
