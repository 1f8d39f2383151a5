"""The values of a column that a key has, each with how often it is there: for MIN, MAX and DISTINCT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import widen_column
from timerheap.spark._changes.aggregates.row_groups import RowGroups
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.multiset_state import MultisetTable, Touched, multiset_of


@dataclass(frozen=True)
class Bag:
    """The values of a column that are not null, a multiset.

    name: of the state
    """

    column: str
    name: str
    values: pa.DataType

    def type(self) -> pa.ListType:
        """Return the type of the multisets."""
        return multiset_of(self.values)

    def sent_type(self) -> pa.ListType:
        """Return the type of what is added to them, whose values may be of any type."""
        return pa.list_(pa.struct([("value", self.values), ("weight", pa.int64())]))

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> pa.Array:
        """Return what each group of rows adds to the bag of its key: lists of values with weights."""
        values = rows.column(self.column)
        numbers, order = groups.numbers, groups.order
        if values.null_count:
            valid = np.asarray(values.is_valid())[order]
            numbers, order = numbers[valid], order[valid]
        counts = np.ones(len(order), np.int64) if weights is None else weights[order]
        columns = [values.take(pa.array(order)), pa.array(counts)]
        entries = pa.StructArray.from_arrays(columns, names=["value", "weight"])
        lengths = np.bincount(numbers, minlength=len(groups))
        offsets = np.append(0, np.cumsum(lengths))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries).cast(self.sent_type())

    def of(self, group: KeyGroup) -> MultisetTable:
        """Return the bags of a key group."""
        table = group.state(self.name, "multiset", self.type())
        assert isinstance(table, MultisetTable)
        return table


def add_to_bags(table: MultisetTable, ids: np.ndarray, added: pa.Array) -> Touched:
    """Add lists of values with weights to the bags of ids, which may be repeated."""
    entries = widen_column(added).flatten()
    owners = np.repeat(ids, np.asarray(added.value_lengths()))
    return table.add_many(owners, entries.field("value"), entries.field("weight").to_numpy())


@dataclass(frozen=True)
class BagReading:
    """What is read of a bag: its least or greatest value, or how many different ones there are."""

    bag: int
    name: str
    what: Literal["least", "greatest", "distinct"]

    def read(self, table: MultisetTable, ids: np.ndarray) -> pa.Array:
        if self.what == "distinct":
            return pa.array(table.totals(ids)[1])
        lists = (table.first_many if self.what == "least" else table.last_many)(ids, 1)
        lengths = np.asarray(lists.value_lengths())
        places = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
        return lists.flatten().field("value").take(places)
