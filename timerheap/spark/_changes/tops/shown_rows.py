"""Which rows of a Top-N are shown, by which numbers, and the changes from what was shown before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.spark._changes.change_rows import same_rows
from timerheap.spark._changes.row_codes import combined_codes, net_weights, row_codes
from timerheap.spark._order_by import Order, differing, run_begins, run_starts, sort_columns, tied_ranks


class ShownRows(NamedTuple):
    """Rows of k keys that are shown, by key and in their order: each of shape (n,).

    owners: the place of each one's key in what was asked for
    weights: how often a row is shown
    numbers: by which number, from 1; of a ROW_NUMBER that of the first of a row's places
    """

    owners: np.ndarray
    values: pa.StructArray
    weights: np.ndarray
    numbers: np.ndarray

    @classmethod
    def joined(cls, parts: list[ShownRows]) -> ShownRows:
        owners, values, weights, numbers = zip(*parts, strict=True)
        return cls(
            np.concatenate(owners), pa.concat_arrays(values), np.concatenate(weights), np.concatenate(numbers)
        )

    def at(self, places: np.ndarray) -> ShownRows:
        """Return the rows at these places."""
        values = self.values.take(pa.array(places))
        return ShownRows(self.owners[places], values, self.weights[places], self.numbers[places])

    def of(self, owners: np.ndarray) -> ShownRows:
        """Return the rows of some of the keys: bool, shape (k,)."""
        kept = owners[self.owners]
        return self if kept.all() else self.at(kept.nonzero()[0])

    def by_owner(self) -> ShownRows:
        """Return the rows by key, given those of each key in their order."""
        return self.at(np.argsort(self.owners, kind="stable"))

    def by_place(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the key, the number and the place here of each row, as often as it is shown."""
        at = np.repeat(np.arange(len(self.owners)), self.weights)
        first = np.cumsum(self.weights) - self.weights
        return self.owners[at], self.numbers[at] + np.arange(len(at)) - first[at], at


def first_shown(
    owners: np.ndarray,
    values: pa.StructArray,
    weights: np.ndarray,
    rank: str,
    order: Sequence[Order],
    limit: int,
) -> ShownRows:
    """Return which of the first rows of keys have numbers up to a limit.

    owners, values, weights: rows with positive weights, by key and in their order, with all places up to the
        limit: shape (n,)
    rank: "row_number", "rank" or "dense_rank"
    order: by which rows have different ranks
    """
    begins = run_starts(owners)
    places = np.cumsum(weights) - weights
    places -= places[run_begins(begins)]
    numbers = places + 1
    if rank != "row_number" and len(owners):
        compared, _ = sort_columns(pa.RecordBatch.from_struct_array(values), order, {"owner": owners})
        new = differing(pa.table(compared))
        numbers = tied_ranks(rank, numbers, begins, new)
    kept = numbers <= limit
    shown = ShownRows(owners, values, weights, numbers)
    if not kept.all():
        shown = shown.at(kept.nonzero()[0])
    if rank == "row_number":
        shown = shown._replace(weights=np.minimum(shown.weights, limit + 1 - shown.numbers))
    return shown


def changed_owners(before: ShownRows, after: ShownRows, keys: int) -> np.ndarray:
    """Return which of the keys show something else than before: bool, shape (keys,)."""
    counts = [np.bincount(each.owners, minlength=keys) for each in (before, after)]
    changed: np.ndarray = counts[0] != counts[1]
    at = [(~changed[each.owners]).nonzero()[0] for each in (before, after)]
    rows = [
        pa.RecordBatch.from_struct_array(each.values.take(pa.array(some)))
        for each, some in zip((before, after), at, strict=True)
    ]
    same = same_rows(*rows) & (before.weights[at[0]] == after.weights[at[1]])
    same &= before.numbers[at[0]] == after.numbers[at[1]]
    changed[after.owners[at[1]][~same]] = True
    return changed


def net_shown(before: ShownRows, after: ShownRows, numbered: bool) -> ShownRows:
    """Return what is shown more or, with negative weights, less than before, each row once."""
    both = ShownRows.joined([before._replace(weights=-before.weights), after])
    codes, _ = combined_codes(both.owners, row_codes(both.values))
    if numbered:
        codes, _ = combined_codes(codes, both.numbers)
    places, weights = net_weights(codes, both.weights)
    return both.at(places)._replace(weights=weights).by_owner()
