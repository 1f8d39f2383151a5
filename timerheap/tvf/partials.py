"""Accumulators by key and slice: what goes from the local stage to the global one, and what that keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.aggregate import Accumulators, Aggregate, FieldAggregate
from timerheap.tvf.aggregates import Count
from timerheap.tvf.arithmetic import Int64s, column
from timerheap.tvf.columns import Accumulator, Groups, Multisets, concatenate, group_by, nbytes, nullable

__all__ = ["Aggregation", "Partials"]


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Accumulators of some keys in some slices, as columns.

    Parameters
    ----------
    key_ids, slice_ends : ndarray of int64, shape (n,)
        Whose they are; a slice is named by its end, local ms.
    accumulators : tuple of tuple of columns, shape (n,) each
        One tuple of columns for each aggregate of a `Aggregation`, COUNT(*) first.

    Notes
    -----
    A column is an array (of objects, for Python's own), or `Multisets`. Nothing here is ever changed in
    place.
    """

    key_ids: NDArray[np.int64]
    slice_ends: NDArray[np.int64]
    accumulators: tuple[Accumulators, ...]

    def __len__(self) -> int:
        return len(self.key_ids)

    def __getitem__(self, rows: NDArray[Any] | slice) -> Partials:
        """Some rows, by number or by mask."""
        accumulators = tuple(tuple(field[rows] for field in fields) for fields in self.accumulators)
        return Partials(self.key_ids[rows], self.slice_ends[rows], accumulators)

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many rows are in each accumulator, less those taken back."""
        return np.asarray(self.accumulators[0][0])

    @property
    def nbytes(self) -> int:
        """What they take, bytes; of Python objects a guess."""
        return nbytes([self.key_ids, self.slice_ends, *(f for fields in self.accumulators for f in fields)])


class Aggregation:
    """The aggregates of a query, computed side by side.

    Parameters
    ----------
    aggregates : sequence of Aggregate
        In the order of the results.

    Attributes
    ----------
    aggregates : tuple of Aggregate
        What accumulators are kept of: COUNT(*), which every aggregation needs, and all others.
    outputs : tuple of int
        Which of those each result is.

    Raises
    ------
    TypeError
        If one is no `Aggregate`.

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
                    f"aggregates must be aggregates, such as Sum('delay', int), got {aggregate!r}"
                )
        rows = [isinstance(aggregate, Count) and not aggregate.columns for aggregate in aggregates]
        others = [aggregate for aggregate, is_rows in zip(aggregates, rows, strict=True) if not is_rows]
        self.aggregates: tuple[Aggregate, ...] = (Count(), *others)
        # Where in those each result comes from: a COUNT(*) that is asked for is the one that is there anyway.
        numbers = iter(range(1, len(self.aggregates)))
        self.outputs = tuple(0 if is_rows else next(numbers) for is_rows in rows)

    def accumulate(
        self,
        key_ids: Int64s,
        slice_ends: NDArray[np.int64],
        inputs: Mapping[str, object] | None = None,
        signs: object = None,
    ) -> Partials:
        """Make one accumulator of the rows of each key and slice: a sort, O(n log n), and a pass a field.

        Parameters
        ----------
        key_ids : array_like of int64, shape (n,)
            The rows' keys.
        slice_ends : ndarray of int64, shape (n,)
            The rows' slices.
        inputs : mapping of str to array_like, shape (n,) each
            The columns that the aggregates take; masked arrays where there are nulls.
        signs : array_like of int, shape (n,), optional
            -1 for a row that is taken back, else 1.

        Raises
        ------
        KeyError
            If a column is missing.
        TypeError, OverflowError
            If a column is not what its aggregate takes.
        ValueError
            If columns differ in length, a sign is another, or an aggregate cannot take rows back.
        """
        length = len(slice_ends)
        ids = column("key_ids", key_ids, length)
        taken_back = self._signs(signs, length)
        given = {} if inputs is None else inputs
        columns = []
        for aggregate in self.aggregates:
            for name in aggregate.columns:
                if name not in given:
                    raise KeyError(
                        f"inputs: no column {name!r}, which {aggregate.name} takes, in {sorted(given)}"
                    )
            taken = [nullable(name, given[name], aggregate.dtype, length) for name in aggregate.columns]
            columns.append(taken)
        groups = group_by(slice_ends, ids)
        firsts = groups.firsts
        made = (
            aggregate.accumulate(groups, taken, taken_back)
            for aggregate, taken in zip(self.aggregates, columns, strict=True)
        )
        return Partials(ids[firsts], slice_ends[firsts], tuple(made))

    def from_parts(self, key_ids: Int64s, slice_ends: Int64s, parts: Sequence[Sequence[object]]) -> Partials:
        """Make partials of what another engine has computed of each key and slice.

        Parameters
        ----------
        key_ids, slice_ends : array_like of int64, shape (n,)
            Whose they are.
        parts : sequence of sequences of array_like, shape (n,) each
            For each of `aggregates`, COUNT(*) first, the columns that its `parts` names.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If an aggregate cannot be computed elsewhere, or a column is missing or of another type.

        Examples
        --------
        >>> from timerheap.tvf import Avg
        >>> delays = Aggregation([Avg("delay", float)])
        >>> delays.results(delays.from_parts([7], [60], [([3],), ([30.0], [2])]))[0].item()
        15.0
        """
        ends = column("slice_ends", slice_ends)
        made = []
        for aggregate, columns in zip(self.aggregates, parts, strict=True):
            if not isinstance(aggregate, FieldAggregate):
                raise TypeError(f"{aggregate.name} takes rows, not what another engine has computed of them")
            made.append(aggregate.from_parts(*columns))
        return Partials(column("key_ids", key_ids, len(ends)), ends, tuple(made))

    def _signs(self, signs: object, length: int) -> NDArray[np.int64] | None:
        if signs is None:
            return None
        taken = column("signs", signs, length)  # type: ignore[arg-type]
        if (abs(taken) != 1).any():
            wrong = int(taken[abs(taken) != 1][0])
            raise ValueError(f"signs must be 1, or -1 for a row that is taken back, got {wrong}")
        if (taken == 1).all():
            return None
        for aggregate in self.aggregates:
            if not aggregate.retractable:
                raise ValueError(
                    f"signs: {aggregate.name} cannot take rows back; use an aggregate that can "
                    "(MinWithRetract, MaxWithRetract, or a function with a method retract)"
                )
        return taken

    def merge(self, parts: Iterable[Partials]) -> Partials:
        """Make one of partials, each key and slice once, by slice and then key; what is given stays."""
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
        """Make one accumulator of each group, of every aggregate."""
        pairs = zip(self.aggregates, accumulators, strict=True)
        return tuple(aggregate.merge(groups, fields) for aggregate, fields in pairs)

    def results(self, partials: Partials) -> tuple[np.ma.MaskedArray[Any, Any], ...]:
        """Give the results of accumulators, one column for each aggregate that was asked for."""
        return tuple(self.aggregates[at].result(partials.accumulators[at]) for at in self.outputs)

    def concatenate(self, parts: Iterable[Partials]) -> Partials:
        """Append partials as they are."""
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
        """No partials."""
        none = np.empty(0, np.int64)
        return Partials(none, none, tuple(aggregate.empty() for aggregate in self.aggregates))

    @property
    def names(self) -> list[str]:
        """The names of the columns of accumulators: the aggregate's number, 0 for COUNT(*), and the field."""
        return [f"{at}.{field}" for at, aggregate in enumerate(self.aggregates) for field in aggregate.fields]

    def columns(self, partials: Partials) -> dict[str, Accumulator]:
        """Give partials as named columns, to be stored or sent: ``key_ids``, ``slice_ends`` and `names`."""
        fields = (field for fields in partials.accumulators for field in fields)
        named = dict(zip(self.names, fields, strict=True))
        return {"key_ids": partials.key_ids, "slice_ends": partials.slice_ends, **named}

    def partials(self, columns: Mapping[str, Accumulator]) -> Partials:
        """Take partials in as `columns` gave them.

        Raises
        ------
        ValueError
            If a column is missing or strange, of another type, or of another length: they are those of other
            aggregates.
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
