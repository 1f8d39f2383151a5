"""ORDER BY: by which columns rows follow each other, as Spark compares their values, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import SliceGroups


@dataclass(frozen=True)
class Order:
    """One ORDER BY expression, in Spark's SQL; of a `Ranking`, a column."""

    by: str
    descending: bool
    nulls_first: bool


def sort_columns(
    rows: pa.RecordBatch, orders: Sequence[Order], first: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return columns, the `first` among them, and keys to sort them by as Spark does; NaN is the largest."""
    columns, keys = dict(first), [(name, "ascending") for name in first]
    for at, one in enumerate(orders):
        values = rows.column(one.by)
        direction = "descending" if one.descending else "ascending"
        if values.null_count:
            columns[f"null{at}"] = values.is_null()
            keys.append((f"null{at}", "descending" if one.nulls_first else "ascending"))
        if pa.types.is_floating(values.type):
            columns[f"nan{at}"] = pc.is_nan(values)
            keys.append((f"nan{at}", direction))
        columns[f"value{at}"] = values
        keys.append((f"value{at}", direction))
    return columns, keys


@dataclass(frozen=True)
class Ranking:
    """Which rows of a group are the first, and by what number."""

    function: str  # "row_number", "rank" or "dense_rank"
    name: str  # of the column with the number
    order: tuple[Order, ...]
    arrival: tuple[Order, ...]  # by which rows that are equal in `order` follow each other
    limit: int

    def first_by_key(self, rows: pa.RecordBatch, groups: SliceGroups) -> np.ndarray:
        """Return the positions of the first rows of each of the groups to which all rows have been added."""
        numbers = np.empty(len(rows), np.int64)
        numbers[groups.order()] = np.repeat(np.arange(len(groups)), groups.groups()[2])
        return self.first(rows, numbers)[0]

    def first(self, rows: pa.RecordBatch, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the first rows of each of the numbered groups, and their ranks."""
        columns, keys = sort_columns(rows, self.order + self.arrival, {"group": groups})
        compared, _ = sort_columns(rows, self.order, {"group": groups})
        table = pa.table(columns)
        order = pc.sort_indices(table, keys).to_numpy()
        begins = run_starts(groups[order])
        within = np.arange(len(order)) - run_begins(begins) + 1
        if self.function != "row_number":
            differs = differing(table.select(list(compared)).take(order))
            within = tied_ranks(self.function, within, begins, differs)
        kept = within <= self.limit
        return order[kept], within[kept]


def tied_ranks(function: str, numbers: np.ndarray, begins: np.ndarray, differs: np.ndarray) -> np.ndarray:
    """Return the ranks of rows, which are in their order: int64, shape (n,).

    function: "rank" or "dense_rank"
    numbers: the row numbers
    begins: where a group begins
    differs: where a row differs from the one before it, or is the first of a group
    """
    if function == "rank":
        return np.asarray(numbers[run_begins(differs)])
    dense = np.cumsum(differs)
    return np.asarray(dense - dense[run_begins(begins)] + 1)


def run_begins(starts: np.ndarray) -> np.ndarray:
    """Return the place of each row's run, given where runs start: int64, shape (n,)."""
    begins: np.ndarray = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
    return begins


def differing(rows: pa.Table) -> np.ndarray:
    """Return where a row differs from the one before it: bool, shape (n,); the first does."""
    differs = np.zeros(len(rows), bool)
    differs[:1] = True
    for column in rows.columns:
        differs[1:] |= ~_equal_values(column.slice(1), column.slice(0, len(rows) - 1))
    return differs


def run_starts(numbers: np.ndarray) -> np.ndarray:
    """Return where a number differs from the one before it: bool, shape (n,); the first does."""
    starts = np.ones(len(numbers), bool)
    starts[1:] = numbers[1:] != numbers[:-1]
    return starts


def _equal_values(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Return where values are equal, as null is to null and NaN to NaN: bool, shape (n,)."""
    equal = pc.equal(one, other).fill_null(False)
    equal = pc.or_(equal, pc.and_(one.is_null(nan_is_null=True), other.is_null(nan_is_null=True)))
    return np.asarray(equal)
