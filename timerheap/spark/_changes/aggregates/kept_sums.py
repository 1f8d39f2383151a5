"""What a key keeps of its rows for aggregates: columns that add up, exactly, whatever the order of rows.

Rows are added before they are sent, key by key, and what comes of them is added to what the key has kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._changes.aggregates.exact_sums import TYPE, added_sums, sums_of
from timerheap.spark._changes.aggregates.row_groups import RowGroups
from timerheap.spark._order_by import Order, run_starts, sort_columns

_LOW = (1 << 32) - 1


class Kept(ABC):
    """Some columns of what keys keep.

    name: what they are, as checkpoints have it
    """

    name: str

    @abstractmethod
    def fields(self) -> dict[str, pa.DataType]:
        """Return their names and types."""

    def nothing(self) -> list[pa.Array]:
        """Return the columns of no groups."""
        return [pa.array([], type_) for type_ in self.fields().values()]

    @abstractmethod
    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        """Return the columns of each group of rows; without weights each row has come once."""

    @abstractmethod
    def added(self, columns: Sequence[pa.Array], groups: RowGroups) -> list[pa.Array]:
        """Return the columns of each group of those that add up."""

    @abstractmethod
    def is_nothing(self, columns: Sequence[pa.Array]) -> np.ndarray:
        """Return where the columns say what those of a key without rows do."""


@dataclass(frozen=True)
class KeptCount(Kept):
    """How many values of a column are not null; of no column, how many rows there are."""

    column: str | None
    name: str

    def fields(self) -> dict[str, pa.DataType]:
        return {"count": pa.int64()}

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        values = None if self.column is None else rows.column(self.column)
        if values is None or not values.null_count:
            return [pa.array(groups.sizes if weights is None else groups.total(weights))]
        valid = np.asarray(values.is_valid()).astype(np.int64)
        return [pa.array(groups.total(valid if weights is None else valid * weights))]

    def added(self, columns: Sequence[pa.Array], groups: RowGroups) -> list[pa.Array]:
        return [pa.array(groups.total(column.to_numpy())) for column in columns]

    def is_nothing(self, columns: Sequence[pa.Array]) -> np.ndarray:
        return np.asarray(np.logical_and.reduce([column.to_numpy() == 0 for column in columns]))


@dataclass(frozen=True)
class KeptIntegers(KeptCount):
    """The sum of a column of integers, or of decimals, as the integers that they are stored as.

    It has `parts` of 32 bits each, but for the last one, which has the sign and cannot overflow.
    """

    column: str
    parts: int

    def fields(self) -> dict[str, pa.DataType]:
        return {f"bits_{32 * part}": pa.int64() for part in range(self.parts)}

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        words = _words(rows.column(self.column), self.parts)
        weights = np.ones(1, np.int64) if weights is None else weights
        (top,) = words[-1:]
        if self.parts == 2 and len(top) * max(abs(int(top.max())), abs(int(top.min()))) < 2**63:
            total = groups.total(top * weights)
            return [pa.array(total & _LOW), pa.array(total >> 32)]
        found = [part for word in words[:-1] for part in (word & _LOW, (word >> 32) & _LOW)]
        return self._carried([groups.total(part * weights) for part in (*found, top & _LOW, top >> 32)])

    def added(self, columns: Sequence[pa.Array], groups: RowGroups) -> list[pa.Array]:
        return self._carried([groups.total(column.to_numpy()) for column in columns])

    @staticmethod
    def _carried(parts: list[np.ndarray]) -> list[pa.Array]:
        found = []
        for part, above in pairwise(parts):
            above += part >> 32
            found.append(pa.array(part & _LOW))
        return [*found, pa.array(parts[-1])]


def _words(column: pa.Array, parts: int) -> list[np.ndarray]:
    """Return the integers in a column as words of 64 bits, the lowest first, with 0 in place of null."""
    if not pa.types.is_decimal(column.type):
        column = column.fill_null(0) if column.null_count else column
        return [column.to_numpy().astype(np.int64)]
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset :][: len(column)]
    found = [words[:, at].copy() for at in range(parts // 2)]
    if column.null_count:
        null = np.asarray(column.is_null())
        for word in found:
            word[null] = 0
    return found


@dataclass(frozen=True)
class KeptDoubles(Kept):
    """The sum of a column of doubles, or of their squares."""

    column: str
    name: str
    power: int = 1

    def fields(self) -> dict[str, pa.DataType]:
        return {"digits": TYPE}

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        values = rows.column(self.column)
        values = values.fill_null(0) if values.null_count else values
        return [sums_of(values.to_numpy().astype(np.float64), weights, groups, self.power)]

    def added(self, columns: Sequence[pa.Array], groups: RowGroups) -> list[pa.Array]:
        return [added_sums(columns[0], groups)]

    def is_nothing(self, columns: Sequence[pa.Array]) -> np.ndarray:
        return np.asarray(columns[0].value_lengths().fill_null(0).to_numpy() == 0)


@dataclass(frozen=True)
class KeptExtreme(Kept):
    """The least or the greatest value of a column of rows that only come; null if there is none."""

    column: str
    name: str
    values: pa.DataType
    greatest: bool

    def fields(self) -> dict[str, pa.DataType]:
        return {"value": self.values}

    def of_rows(self, rows: pa.RecordBatch, weights: np.ndarray | None, groups: RowGroups) -> list[pa.Array]:
        return self.added([rows.column(self.column)], groups)

    def added(self, columns: Sequence[pa.Array], groups: RowGroups) -> list[pa.Array]:
        """Return the best value of each group."""
        values = columns[0].take(pa.array(groups.order))
        if len(groups) == len(values):
            return [values]
        is_struct = pa.types.is_struct(values.type)
        parts = [*([values.is_null()] if is_struct else []), *(values.flatten() if is_struct else [values])]
        names = [str(number) for number in range(len(parts))]
        # A null struct, whose fields are null, is the last one; in a struct that is there null is the least.
        if not is_struct:
            orders = [Order("0", self.greatest, nulls_first=False)]
        else:
            orders = [Order(name, self.greatest, not self.greatest) for name in names]
            orders[0] = Order("0", descending=False, nulls_first=False)
        table = pa.RecordBatch.from_arrays(parts, names)
        found, keys = sort_columns(table, orders, {"group": groups.numbers})
        order = pc.sort_indices(pa.table(found), keys)
        first = run_starts(groups.numbers[order.to_numpy()])
        return [values.take(order.filter(pa.array(first)))]

    def is_nothing(self, columns: Sequence[pa.Array]) -> np.ndarray:
        return np.asarray(columns[0].is_null())
