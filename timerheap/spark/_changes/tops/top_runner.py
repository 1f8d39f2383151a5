"""The first rows of each key, as changes, on key groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._changes.change_rows import net_changes, replacements
from timerheap.spark._changes.changes_runner import ChangesRunner
from timerheap.spark._changes.rows_by_key import RowsByKey, type_of_kept, weighted_rows
from timerheap.spark._changes.tops.reduced_rows import TopReducer
from timerheap.spark._changes.tops.shown_rows import ShownRows, changed_owners, first_shown, net_shown
from timerheap.spark._columns import WEIGHT, shown_name
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.multiset_state import multiset_of
from timerheap.spark._order_by import Order
from timerheap.spark._query import Query, Reduction
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal

ROWS = "rows"
"""The state of each key: its rows, or those of an input that only grows which may be shown."""


@dataclass(frozen=True)
class TopWork(KeyedWork):
    """The first rows of each key.

    order: by columns of the rows, those by which rows have different ranks
    rank: "row_number", "rank" or "dense_rank"
    number: whether each row of the result has its number, in the last column before the change type
    grows: whether rows only come
    forget_after: ms after which a key that has not changed is forgotten
    """

    order: tuple[Order, ...]
    rank: str
    limit: int
    number: bool
    grows: bool
    forget_after: int | None = None

    def columns_of_rows(self, query: Query) -> list[str]:
        """Return the columns of rows in the state: first what they are ordered by, and without their key."""
        ordered = [one.by for one in self.order]
        others = [name for name in query.schema.names if name not in {*query.key, *ordered, WEIGHT}]
        return [*ordered, *others]

    def type_of_rows(self, query: Query) -> pa.StructType:
        """Return the type of rows in the state."""
        return type_of_kept(map(query.schema.field, self.columns_of_rows(query)))

    def reduction(self, key: list[str]) -> Reduction | None:
        """Return how fewer rows are sent, given the columns of their key; None if they may go."""
        return Reduction(TopReducer(key, self.order, self.rank, self.limit)) if self.grows else None

    def asked(self) -> str:
        """Return the arguments by which rows are in the result, as the checkpoint has them."""
        ways = ("DESC" if one.descending else "ASC" for one in self.order)
        nulls = ("FIRST" if one.nulls_first else "LAST" for one in self.order)
        order = [
            f"{shown_name(one.by)} {way} NULLS {null}"
            for one, way, null in zip(self.order, ways, nulls, strict=True)
        ]
        number = "with" if self.number else "without"
        return f"n {self.limit}, order_by {', '.join(order)}, rank {self.rank} {number} numbers"

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        super().rehearse(query, max_parallelism, group, streaming)
        return Rehearsal(has_metrics=True, states={ROWS: multiset_of(self.type_of_rows(query))})

    def runner(self, query: Query, placement: Placement) -> Runner:
        return TopRunner(self, query)


class TopRunner(ChangesRunner):
    """Keeps the rows of each key in their order, and emits how the first of them change."""

    source = "top_changes"

    def __init__(self, work: TopWork, query: Query) -> None:
        super().__init__(query, work.forget_after)
        self._work, self._type = work, work.type_of_rows(query)
        self._columns = work.columns_of_rows(query)
        self._paired = work.rank == "row_number" and (work.number or work.limit == 1)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        work = self._work
        self._rows = RowsByKey(group, ROWS, self._type, work.order, source=self.source, asked=work.asked())

    def forget(self, ids: np.ndarray) -> None:
        self._rows.clear_many(ids)

    def process(self, rows: KeyedRows, watermark: int) -> None:
        ids = np.unique(rows.ids)
        before = self._shown(ids)
        touched = self._rows.add_many(rows.ids, *weighted_rows(rows.rows, self._columns, self._type))
        if self._work.forget_after is not None:
            self._rows.give_up_missing(touched)
        after = self._shown(ids)
        self.count(len(rows), touched.unmatched(), self._rows.totals(ids))
        self.keep(ids)
        if self._work.grows:
            places = np.bincount(after.owners, after.weights, len(ids)).astype(np.int64)
            self._rows.keep_first_many(ids, places)
        changed = changed_owners(before, after, len(ids))
        if not changed.any():
            return
        before, after = before.of(changed), after.of(changed)
        if self._paired:
            self._replace(ids, before, after)
        else:
            net = net_shown(before, after, self._work.number)
            self.emit(net_changes(self._results(ids, net), net.weights))

    def _shown(self, ids: np.ndarray) -> ShownRows:
        """Return what is shown of keys now."""
        work = self._work
        found = self._rows.first_many(ids, work.limit, work.rank)
        return first_shown(*found, work.rank, work.order, work.limit)

    def _replace(self, ids: np.ndarray, before: ShownRows, after: ShownRows) -> None:
        """Emit what has become of the row of each number."""
        limit = self._work.limit
        both = ShownRows.joined([before, after])
        places, first = [], 0
        rows: list[np.ndarray] = []
        for side in (before, after):
            owners, numbers, at = side.by_place()
            places.append(owners * limit + numbers - 1)
            rows.append(at + first)
            first += len(side.owners)
        every = np.union1d(*places)
        sides: list[pa.RecordBatch] = []
        there = [np.isin(every, of_side, assume_unique=True) for of_side in places]
        for has, at in zip(there, rows, strict=True):
            row = np.zeros(len(every), np.int64)  # any, where there is none
            row[has] = at
            values = both.values.take(pa.array(row))
            sides.append(self._results(ids, ShownRows(every // limit, values, row, every % limit + 1)))
        self.emit(replacements(sides[0], there[0], sides[1], there[1]))

    def _results(self, ids: np.ndarray, shown: ShownRows) -> pa.RecordBatch:
        """Return the columns of results, without the change type."""
        keys = self._group.keys.keys(ids[shown.owners])
        columns = dict(zip(self._query.key, keys.columns, strict=True))
        columns |= {field.name: shown.values.field(field.name) for field in self._type}
        names = self._result.names[:-1]
        if self._work.number:
            columns[names[-1]] = pa.array(shown.numbers)
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
