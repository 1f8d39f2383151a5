"""The rows that matches show, and their measures, of all matches at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._patterns.conditions import Column
from timerheap.spark._patterns.matcher import EMPTY, accumulated, result


@dataclass(frozen=True)
class Measure:
    """A part of the measures that a match has to be asked for; Spark computes the rest.

    kind: "first" or "last", "classifier first" or "classifier last", "number", or the name of an aggregate
    variables: the numbers of the variables whose rows count; None for all
    type: of its column
    column: the column, and how many rows before the row of the match it is read
    final: whether all rows of the match count, not only those up to the row that is shown
    """

    name: str
    type: pa.DataType
    kind: str
    variables: frozenset[int] | None = None
    offset: int = 0
    column: Column | None = None
    final: bool = False


class Shown:
    """The rows that matches show.

    matches: the number of the match of each of them
    rows: which rows they are; an empty match shows the one where it starts
    """

    def __init__(self, found: Sequence[Sequence[int]], all_rows: bool, shows_empty: bool) -> None:
        starts, self._ends, self._rows, self._taken = (np.array(one, np.int64) for one in found)
        self._begins = np.append(0, self._ends)[:-1]
        lengths = self._ends - self._begins
        self._of = np.repeat(np.arange(len(starts)), lengths)
        if all_rows:
            at = np.flatnonzero(self._taken % 2 == 0)
            self.matches = self._of[at]
        else:
            self.matches = np.flatnonzero(lengths)
            at = self._ends[self.matches] - 1
        if shows_empty and not lengths.all():  # they have no row: what is shown is before the next one
            empty = np.flatnonzero(lengths == 0)
            self.matches, at = np.append(self.matches, empty), np.append(at, self._begins[empty] - 1)
            order = np.argsort(self.matches, kind="stable")
            self.matches, at = self.matches[order], at[order]
        self._at = at
        self.rows = np.where(lengths[self.matches], np.append(self._rows, -1)[at], starts[self.matches])

    def values(
        self, measure: Measure, column: Callable[[Column], pa.Array], variables: Sequence[str]
    ) -> pa.Array:
        """Return a measure at each row that is shown, but for "number"."""
        wanted, kind = measure.variables, measure.kind
        which = np.ones(len(self._of), bool) if wanted is None else np.isin(self._taken >> 1, [*wanted])
        added = None
        if kind in EMPTY and measure.column is not None:
            added = column(measure.column).take(pa.array(self._rows))
            which &= np.asarray(added.is_valid())
        counts = np.append(0, np.cumsum(which))
        low = counts[self._begins[self.matches]]
        high = counts[self._ends[self.matches] if measure.final else self._at + 1]
        if kind == "count":
            return pa.array(high - low, measure.type)
        if added is not None:
            totals = self._totals(kind, which, added)
            ends = zip(low.tolist(), high.tolist(), strict=True)
            return pa.array(
                [result(kind, totals[end - 1]) if end > at else None for at, end in ends], measure.type
            )
        at = low + measure.offset if kind.endswith("first") else high - 1 - measure.offset
        known = (low <= at) & (at < high)
        places = np.append(np.flatnonzero(which), 0)[np.where(known, at, -1)]
        if measure.column is None:
            taken = np.append(self._taken, 0)[places] >> 1
            return pa.array(variables).take(pa.array(taken, mask=~known))
        rows = np.append(self._rows, 0)[places]
        return column(measure.column).take(pa.array(rows, mask=~known))

    def _totals(self, kind: str, which: np.ndarray, added: pa.Array) -> list[object]:
        """Return an aggregate of the rows of each match up to each that counts."""
        totals: list[object] = []
        last, total = -1, EMPTY[kind]
        values = added.filter(pa.array(which)).to_pylist()
        for of, value in zip(self._of[which].tolist(), values, strict=True):
            total = accumulated(kind, total if of == last else EMPTY[kind], value)
            totals.append(total)
            last = of
        return totals
