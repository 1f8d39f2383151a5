"""The rows that matches show, and their measures, of all matches at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.errors import ArgumentValueError
from timerheap.spark._patterns.conditions import Column, shown_column
from timerheap.spark._patterns.folds import Fold, arguments_of
from timerheap.spark._patterns.match_rules import EMPTY, accumulated, result
from timerheap.spark._patterns.spark_numbers import DoesNotFitError, converted


@dataclass(frozen=True)
class Measure:
    """A part of the measures that a match has to be asked for; Spark computes the rest.

    kind: "first" or "last", "classifier first" or "classifier last", "number", the name of an aggregate, or
        one of the user
    variables: the numbers of the variables whose rows count; None for all
    type: of its column
    column: the column, and how many rows before the row of the match it is read
    final: whether all rows of the match count, not only those up to the row that is shown
    failed: the column that says for which rows `column` could not be computed, and is null
    """

    name: str
    type: pa.DataType
    kind: str | Fold
    variables: frozenset[int] | None = None
    offset: int = 0
    column: Column | None = None
    final: bool = False
    failed: str | None = None

    def refuse_failures(self, column: Callable[[Column], pa.Array], rows: np.ndarray) -> None:
        """Raise if one of these rows, -1 for none, has no value because it could not be computed."""
        if self.failed is None or self.column is None:
            return
        failed = np.asarray(column((self.failed, self.column[1])).cast(pa.bool_()).fill_null(False))
        if failed[rows[rows >= 0]].any():
            raise ArgumentValueError(
                f"query: {shown_column(self.column[0]).strip()} in MEASURES must be a value for each row "
                "that it reads, got one for which the cast or the arithmetic fails; use try_cast, "
                "try_divide or NULLIF for null"
            )


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
        if isinstance(kind, Fold):
            return self._folded(measure, kind, which, column)
        if kind in EMPTY and measure.column is not None:
            measure.refuse_failures(column, self._rows[which])
            added = column(measure.column).take(pa.array(self._rows))
            which &= np.asarray(added.is_valid())
        low, high = self._spans(measure, which)
        if kind == "count":
            return pa.array(high - low, measure.type)
        if added is not None:
            totals = self._totals(kind, which, added)
            ends = zip(low.tolist(), high.tolist(), strict=True)
            values = [result(kind, totals[end - 1]) if end > at else None for at, end in ends]
            return self._fitting(measure, values)
        at = low + measure.offset if kind.endswith("first") else high - 1 - measure.offset
        known = (low <= at) & (at < high)
        places = np.append(np.flatnonzero(which), 0)[np.where(known, at, -1)]
        if measure.column is None:
            taken = np.append(self._taken, 0)[places] >> 1
            return pa.array(variables).take(pa.array(taken, mask=~known))
        rows = np.append(self._rows, 0)[places]
        measure.refuse_failures(column, rows[known])
        return column(measure.column).take(pa.array(rows, mask=~known))

    def _spans(self, measure: Measure, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the rows of a measure begin and end among `which`, for each row that is shown."""
        counts = np.append(0, np.cumsum(which))
        ends = self._ends[self.matches] if measure.final else self._at + 1
        return counts[self._begins[self.matches]], counts[ends]

    def _folded(
        self, measure: Measure, fold: Fold, which: np.ndarray, column: Callable[[Column], pa.Array]
    ) -> pa.Array:
        """Return an aggregate of the user at each row that is shown."""
        assert measure.column is not None
        rows = self._rows[which]
        measure.refuse_failures(column, rows)
        arguments = arguments_of(column(measure.column).take(pa.array(rows)))
        low, high = self._spans(measure, which)
        found = fold.up_to(zip(low.tolist(), high.tolist(), strict=True), arguments)
        return fold.column(found, measure.type, "MEASURES")

    @staticmethod
    def _fitting(measure: Measure, values: list[Any]) -> pa.Array:
        """Return the results of an aggregate; raise if one is out of the range of its type."""
        type_, column = measure.type, measure.column
        if measure.kind in ("sum", "avg") and (pa.types.is_integer(type_) or pa.types.is_decimal(type_)):
            try:
                values = [converted(type_, value) for value in values]
            except DoesNotFitError as error:
                of = "" if column is None else shown_column(column[0])
                raise ArgumentValueError(
                    f"query: {measure.kind.upper()}({of}) in MEASURES {error}; cast the column to "
                    "decimal(38,0), or to double"
                ) from None
        return pa.array(values, type_)

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
