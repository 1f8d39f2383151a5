"""The rows of each key in their order: a multiset, read as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.errors import CheckpointMismatchError
from timerheap.spark._arrow import struct_of
from timerheap.spark._columns import PRESENT, WEIGHT
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.multiset_state import MultisetTable, Touched, multiset_of, note_of
from timerheap.spark._memory.value_codes import Direction
from timerheap.spark._order_by import Order

_COUNTS = {"row_number": "rows", "rank": "ties", "dense_rank": "leads"}


class KeptRows(NamedTuple):
    """Rows of multisets: the place of each one's multiset in what was asked for, its value and weight."""

    owners: np.ndarray
    values: pa.StructArray
    weights: np.ndarray


class RowsByKey:
    """The rows of each key, ordered by `order`, whose columns are the first fields of the type.

    Each call costs O(log n) for a key, and what it reads or writes. `source` is the public function, and
    `asked` are its arguments by which rows are in the result: a checkpoint with others is refused, since the
    rows that it has would not be looked at again.
    """

    def __init__(
        self,
        group: KeyGroup,
        name: str,
        type_: pa.StructType,
        order: Sequence[Order] = (),
        *,
        source: str,
        asked: str,
    ) -> None:
        stored: Any = group.states.get(name)
        if stored is not None and note_of(stored.type) != asked:
            raise CheckpointMismatchError(
                f"{source} must have the arguments of the checkpoint, {note_of(stored.type)}, got {asked}: "
                "rows of the past are not looked at again; pass them as before, or start a new checkpoint"
            )
        directions = [Direction(each.descending, each.nulls_first) for each in order]
        table: Any = group.state(name, "multiset", multiset_of(type_, directions, asked))
        self._table: MultisetTable = table

    def add_many(self, ids: np.ndarray, values: pa.Array, weights: np.ndarray) -> Touched:
        return self._table.add_many(ids, values, weights)

    def give_up_missing(self, touched: Touched) -> None:
        """Let removals of rows that are not there wait no longer: those of rows that were forgotten."""
        self._table.give_up_missing(touched)

    def get_many(self, ids: np.ndarray) -> KeptRows:
        return _kept(self._table.get_many(ids))

    def clear_many(self, ids: np.ndarray) -> None:
        self._table.clear_many(ids)

    def first_many(self, ids: np.ndarray, n: int, rank: str) -> KeptRows:
        """Return the entries with the first n places or ranks, those of positive weights."""
        return _kept(self._table.first_many(ids, n, _COUNTS[rank]))

    def keep_first_many(self, ids: np.ndarray, places: np.ndarray) -> None:
        """Remove what is behind the first places of each key."""
        self._table.keep_first_many(ids, places)

    def totals(self, ids: np.ndarray) -> np.ndarray:
        """Return the sums of the positive weights."""
        return self._table.totals(ids)[0]


def type_of_kept(fields: Iterable[pa.Field]) -> pa.StructType:
    """Return the type of rows of these fields; rows of none have one that says that they are there."""
    return pa.struct(list(fields) or [(PRESENT, pa.bool_())])


def weighted_rows(
    rows: pa.RecordBatch, columns: Iterable[str], type_: pa.StructType
) -> tuple[pa.StructArray, np.ndarray]:
    """Return some columns of rows as values of a type of `type_of_kept`, and their weights."""
    found = [rows.column(name) for name in columns] or [pa.array(np.ones(len(rows), bool))]
    return struct_of(found, type_), rows.column(WEIGHT).to_numpy().astype(np.int64)


def _kept(lists: pa.Array) -> KeptRows:
    entries = lists.flatten()
    owners = np.repeat(np.arange(len(lists)), np.asarray(lists.value_lengths()))
    return KeptRows(owners, entries.field("value"), entries.field("weight").to_numpy())
