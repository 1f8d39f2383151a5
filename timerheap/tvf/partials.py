"""Accumulators by key and slice: the output of the local stage and the state of the global one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.aggregate import Accumulators, Aggregate
from timerheap.tvf.aggregates import Count
from timerheap.tvf.columns import (
    Accumulator,
    Groups,
    Multisets,
    concatenate,
    group_by,
    group_rows,
    nbytes,
    nullable,
)
from timerheap.tvf.zone import Int64s, column


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Accumulators by key and slice, as columns.

    Parameters
    ----------
    key_ids, slice_ends : ndarray of int64, shape (n,)
        The key and the slice of each accumulator; a slice is identified by its end, in local ms.
    accumulators : tuple of tuple of columns, shape (n,) each
        One tuple of columns for each aggregate of an `Aggregation`, COUNT(*) first.

    Notes
    -----
    A column is an array (of objects, for Python values) or `Multisets`. Partials are never modified in place.
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
        return nbytes([self.key_ids, self.slice_ends, *(f for fields in self.accumulators for f in fields)])


class Aggregation:
    """The aggregates of a query, computed together.

    Parameters
    ----------
    aggregates : sequence of Aggregate
        The aggregates, in the order of the results.

    Attributes
    ----------
    aggregates : tuple of Aggregate
        The aggregates with accumulators: COUNT(*), which every aggregation needs, and all others.
    outputs : tuple of int
        The position in `aggregates` of each result.

    Raises
    ------
    TypeError
        If an element is not an `Aggregate`.

    Examples
    --------
    >>> from timerheap.tvf import Sum
    >>> aggregation = Aggregation([Sum("delay", float)])
    >>> partials = aggregation.accumulate([7, 7, 8], np.array([60, 60, 60]), {"delay": [1.5, 2.5, 0.0]})
    >>> for name, column in aggregation.columns(partials).items(): print(name, column)
    key_ids [7 8]
    slice_ends [60 60]
    0.count [2 1]
    1.sum [4. 0.]
    1.count [2 1]
    """

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        for aggregate in aggregates:
            if not isinstance(aggregate, Aggregate):
                raise TypeError(
                    f"aggregates must contain aggregates only, such as Sum('delay', int), got {aggregate!r}"
                )
        rows = [isinstance(aggregate, Count) and not aggregate.columns for aggregate in aggregates]
        others = [aggregate for aggregate, is_rows in zip(aggregates, rows, strict=True) if not is_rows]
        self.aggregates: tuple[Aggregate, ...] = (Count(), *others)
        # A COUNT(*) in the query is the one at position 0, which is always kept.
        numbers = iter(range(1, len(self.aggregates)))
        self.outputs = tuple(0 if is_rows else next(numbers) for is_rows in rows)

    def accumulate(
        self,
        key_ids: Int64s,
        slice_ends: NDArray[np.int64],
        inputs: Mapping[str, object] | None = None,
    ) -> Partials:
        """Compute one accumulator for the rows of each key and slice.

        Costs one pass per field, and a sort of the accumulators, or of the rows if they are nearly as many.

        Parameters
        ----------
        key_ids : array_like of int64, shape (n,)
            The keys of the rows.
        slice_ends : ndarray of int64, shape (n,)
            The slices of the rows.
        inputs : mapping of str to array_like, shape (n,) each
            The columns that the aggregates need; a masked array where there are nulls.

        Raises
        ------
        KeyError
            If a column is missing.
        TypeError, OverflowError
            If a column does not fit the dtype of its aggregate.
        ValueError
            If columns differ in length.
        """
        length = len(slice_ends)
        ids = column("key_ids", key_ids, length)
        groups = group_rows(slice_ends, ids)
        firsts = groups.firsts
        return Partials(ids[firsts], slice_ends[firsts], self.accumulate_groups(groups, inputs))

    def accumulate_groups(
        self, groups: Groups, inputs: Mapping[str, object] | None = None
    ) -> tuple[Accumulators, ...]:
        """Compute one accumulator for each group of rows: one pass per field.

        Parameters
        ----------
        groups : Groups
            The rows of each key and slice.
        inputs : mapping of str to array_like, shape (n,) each
            As in `accumulate`, which raises the same errors.

        Returns
        -------
        tuple of tuple of columns, shape (g,) each
            The columns of each of `aggregates`.
        """
        length, inputs = len(groups.order), {} if inputs is None else inputs
        accumulators = []
        for aggregate in self.aggregates:
            for name in aggregate.columns:
                if name not in inputs:
                    raise KeyError(
                        f"inputs must have the column {name!r} for {aggregate.name}, got {sorted(inputs)}"
                    )
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

    @property
    def names(self) -> list[str]:
        """The names of the accumulator columns: the aggregate's number, 0 for COUNT(*), and the field."""
        return [f"{at}.{field}" for at, aggregate in enumerate(self.aggregates) for field in aggregate.fields]

    def columns(self, partials: Partials) -> dict[str, Accumulator]:
        """Return partials as named columns for storage: ``key_ids``, ``slice_ends`` and `names`."""
        fields = (field for fields in partials.accumulators for field in fields)
        named = dict(zip(self.names, fields, strict=True))
        return {"key_ids": partials.key_ids, "slice_ends": partials.slice_ends, **named}

    def partials(self, columns: Mapping[str, Accumulator]) -> Partials:
        """Build partials from the named columns that `columns` returns.

        Raises
        ------
        ValueError
            If a column is missing, unexpected, of another type or of another length, as it is when the
            columns belong to other aggregates.
        """
        expected = self.columns(self.empty())
        if set(columns) != set(expected):
            raise ValueError(f"columns must be {sorted(expected)}, got {sorted(columns)}")
        length = len(columns["key_ids"])
        for name, like in expected.items():
            got = columns[name]
            if type(got) is not type(like) or _dtype(got) != _dtype(like) or len(got) != length:
                raise ValueError(f"column {name!r} must be {_dtype(like)} of {length} rows, got {got!r}")
            if isinstance(got, Multisets):
                got.check(name)
        fields = iter([columns[name] for name in self.names])
        accumulators = tuple(tuple(next(fields) for _ in a.fields) for a in self.aggregates)
        key_ids, slice_ends = np.asarray(columns["key_ids"]), np.asarray(columns["slice_ends"])
        return Partials(key_ids, slice_ends, accumulators)


def _dtype(of: Accumulator) -> np.dtype[Any]:
    return of.dtype if isinstance(of, np.ndarray) else of.values.dtype
