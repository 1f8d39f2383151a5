"""The local stage of windows in the pack stage: a task's rows become slices before they travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._exchange.pack import HASH, event_millis
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.window_slices import PartialColumns, WindowSpec, input_column
from timerheap.tvf import SliceAssigner

__all__ = ["LocalStage"]


@dataclass(frozen=True)
class LocalStage:
    """Makes one row of all rows of a key and slice; Flink's local window aggregate.

    Parameters
    ----------
    spec : WindowSpec
        Of slices.
    key : list of str
    event_time : str
    inputs : dict of str to dtype
        The columns that the aggregates take, as what.
    """

    spec: WindowSpec
    key: list[str]
    event_time: str
    inputs: dict[str, np.dtype[Any]]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """Give the schema of what is made of such rows: the key, and all of `PartialColumns` but its ids."""
        _, *fields = PartialColumns(self.spec).schema
        return pa.schema([*(rows.field(name) for name in self.key), *fields])

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Give the slices of some rows, with their keys and the keys' hashes."""
        keys = KeyTable([rows.schema.field(name) for name in self.key])
        hashes = rows.column(HASH).to_numpy()
        ids = keys.resolve(hashes, [rows.column(name) for name in self.key])
        columns = PartialColumns(self.spec)
        assert isinstance(self.spec.assigner, SliceAssigner)
        ends = self.spec.assigner.assign_slice_ends(event_millis(rows.column(self.event_time)))
        inputs = {name: input_column(rows.column(name), dtype) for name, dtype in self.inputs.items()}
        partials = columns.aggregation.accumulate(ids, ends, inputs)
        whose = keys.keys(partials.key_ids)
        _, *made = columns.to_arrow(partials)
        names = [*self.key, *columns.schema.names[1:], HASH]
        own = pa.array(keys.hashes(partials.key_ids))
        return pa.RecordBatch.from_arrays([*whose.columns, *made, own], names=names)
