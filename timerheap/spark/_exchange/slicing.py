"""The arrow local stage of windows: aggregates a task's rows by key and slice before they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.pack import HASH, event_millis
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.window_slices import PartialColumns, WindowSpec, input_column
from timerheap.tvf import LocalWindowAggregate, SliceAssigner

__all__ = ["LocalStage"]


@dataclass(frozen=True)
class LocalStage:
    """Aggregates rows into one row per key and slice, by a `LocalWindowAggregate`.

    Parameters
    ----------
    spec : WindowSpec
        Windows whose assigner is a `SliceAssigner`.
    key : list of str
        The key's columns.
    event_time : str
        The event time's column.
    inputs : dict of str to dtype
        The columns that the aggregates need, and the dtypes that they need them in.
    """

    spec: WindowSpec
    key: list[str]
    event_time: str
    inputs: dict[str, np.dtype[Any]]

    def __call__(self, rows: pa.RecordBatch, hashes: np.ndarray) -> pa.RecordBatch:
        """Return the aggregated rows and the hashes of their keys."""
        keys = KeyTable([rows.schema.field(name) for name in self.key])
        ids = keys.resolve(hashes, [rows.column(name) for name in self.key])
        times = event_millis(rows.column(self.event_time))
        inputs = {name: input_column(rows.column(name), dtype) for name, dtype in self.inputs.items()}
        assert isinstance(self.spec.assigner, SliceAssigner)
        local = LocalWindowAggregate(self.spec.assigner, self.spec.aggregates)
        partials = local.aggregation.concatenate([local.add(ids, times, inputs), local.drain()])
        columns = PartialColumns(self.spec)
        _, *accumulators = columns.to_arrow(partials)
        names = [*self.key, *columns.schema.names[1:], HASH]
        key_hashes = pa.array(keys.hashes(partials.key_ids))
        arrays = [*keys.keys(partials.key_ids).columns, *accumulators, key_hashes]
        return pa.RecordBatch.from_arrays(arrays, names=names)
