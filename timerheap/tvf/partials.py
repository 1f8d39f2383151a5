"""Accumulators by key and slice: the output of the local stage and the state of the global one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.accumulators import Accumulators, Aggregate
from timerheap.tvf.aggregates import Count
from timerheap.tvf.columns import (
    Accumulator,
    Groups,
    Int64s,
    column,
    concatenate,
    group_by,
    group_rows,
    nbytes,
    nullable,
)


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Accumulators by key and slice, as columns; they are never modified in place.

    key_ids, slice_ends (int64, shape (n,)): the key and the slice of each accumulator; a slice is identified
        by its end, in local ms
    accumulators: one tuple of columns for each aggregate of an `Aggregation`, COUNT(*) first. A column is an
        array (of objects, for Python values) or `Multisets`.
    """

    key_ids: NDArray[np.int64]
    slice_ends: NDArray[np.int64]
    accumulators: tuple[Accumulators, ...]

    def __len__(self) -> int:
        return len(self.key_ids)

    def __getitem__(self, rows: NDArray[Any] | slice) -> Partials:
        """Return the given rows, selected by number or by mask."""
        accumulators = tuple(tuple(field[rows] for field in fields) for fields in self.accumulators)
        return Partials(self.key_ids[rows], self.slice_ends[rows], accumulators)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of rows in each accumulator."""
        return np.asarray(self.accumulators[0][0])

    @property
    def nbytes(self) -> int:
        """The size of the columns in bytes; the size of Python objects is estimated."""
        return nbytes([self.key_ids, self.slice_ends, *self.fields])

    @property
    def fields(self) -> list[Accumulator]:
        """The columns of all accumulators, in the order of `Aggregation.names`."""
        return [field for fields in self.accumulators for field in fields]


class Aggregation:
    """The aggregates of a query, computed together.

    aggregates: those with accumulators: COUNT(*), which every aggregation needs, and all others
    outputs: the position in `aggregates` of each result
    names: the names of the accumulators' columns: the aggregate's number, 0 for COUNT(*), and the field
    """

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        rows = [isinstance(aggregate, Count) and not aggregate.columns for aggregate in aggregates]
        others = [aggregate for aggregate, is_rows in zip(aggregates, rows, strict=True) if not is_rows]
        self.aggregates: tuple[Aggregate, ...] = (Count(), *others)
        # A COUNT(*) in the query is the one at position 0, which is always kept.
        numbers = iter(range(1, len(self.aggregates)))
        self.outputs = tuple(0 if is_rows else next(numbers) for is_rows in rows)
        self.names = [
            f"{at}.{field}" for at, aggregate in enumerate(self.aggregates) for field in aggregate.fields
        ]

    def accumulate(
        self,
        key_ids: Int64s,
        slice_ends: NDArray[np.int64],
        inputs: Mapping[str, object] | None = None,
    ) -> Partials:
        """Compute one accumulator for the rows of each key and slice.

        Costs one pass per field, and a sort of the accumulators, or of the rows if they are nearly as many.
        """
        length = len(slice_ends)
        ids = column("key_ids", key_ids, length)
        groups = group_rows(slice_ends, ids)
        firsts = groups.firsts
        return Partials(ids[firsts], slice_ends[firsts], self.accumulate_groups(groups, inputs))

    def accumulate_groups(
        self, groups: Groups, inputs: Mapping[str, object] | None = None
    ) -> tuple[Accumulators, ...]:
        """Compute one accumulator for each group of rows, for every aggregate: one pass per field."""
        length, inputs = len(groups.order), {} if inputs is None else inputs
        accumulators = []
        for aggregate in self.aggregates:
            columns = [nullable(name, inputs[name], aggregate.dtype, length) for name in aggregate.columns]
            accumulators.append(aggregate.accumulate(groups, columns))
        return tuple(accumulators)

    def merge(self, parts: Iterable[Partials]) -> Partials:
        """Merge partials into one row per key and slice, by slice and then key, without modifying them."""
        joined = self.concatenate(parts)
        groups = group_by(joined.slice_ends, joined.key_ids)
        if len(groups.starts) == len(joined):
            return joined[groups.order]
        firsts = groups.firsts
        return Partials(
            joined.key_ids[firsts],
            joined.slice_ends[firsts],
            self.merge_accumulators(groups, joined.accumulators),
        )

    def merge_accumulators(
        self, groups: Groups, accumulators: tuple[Accumulators, ...]
    ) -> tuple[Accumulators, ...]:
        """Merge the accumulators of each group, for every aggregate."""
        pairs = zip(self.aggregates, accumulators, strict=True)
        return tuple(aggregate.merge(groups, fields) for aggregate, fields in pairs)

    def results(self, partials: Partials) -> tuple[np.ma.MaskedArray[Any, Any], ...]:
        """Return the results of accumulators, one column for each aggregate of the query."""
        return tuple(self.aggregates[at].result(partials.accumulators[at]) for at in self.outputs)

    def concatenate(self, parts: Iterable[Partials]) -> Partials:
        """Concatenate partials without merging them."""
        kept = [part for part in parts if len(part)]
        if len(kept) == 1:
            return kept[0]
        if not kept:
            return self.empty()
        fields = (
            tuple(concatenate(columns) for columns in zip(*accumulators, strict=True))
            for accumulators in zip(*(part.accumulators for part in kept), strict=True)
        )
        return Partials(
            np.concatenate([part.key_ids for part in kept]),
            np.concatenate([part.slice_ends for part in kept]),
            tuple(fields),
        )

    def empty(self) -> Partials:
        """Return partials without rows."""
        none = np.empty(0, np.int64)
        return Partials(none, none, tuple(aggregate.empty() for aggregate in self.aggregates))

    def nested(self, fields: Iterable[Accumulator]) -> tuple[Accumulators, ...]:
        """Return the columns of accumulators by aggregate, of all columns in the order of `names`."""
        following = iter(fields)
        return tuple(tuple(islice(following, len(aggregate.fields))) for aggregate in self.aggregates)
