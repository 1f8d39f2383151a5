"""Rows of one side of a join by whether they have matches: how often each is there, and how many it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows, concatenated
from timerheap.spark._changes.change_rows import net_changes
from timerheap.spark._changes.changes_runner import ChangesRunner
from timerheap.spark._changes.joins.join_runner import ALONE, OF_LEFT, OF_RIGHT, PAIR
from timerheap.spark._changes.row_codes import net_weights, row_codes
from timerheap.spark._columns import ORIGIN, WEIGHT
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal

COUNTS = "counts"  # the state of each row of the side
_COUNTS = pa.struct([("rows", pa.int64()), ("matches", pa.int64())])


@dataclass(frozen=True)
class MatchesWork(KeyedWork):
    """Rows of a side, which are the keys, with pairs of them and their matches, told apart by `ORIGIN`.

    side: 0 for left rows, 1 for right ones
    pairs: whether pairs are in the result, with rows that have no match, and all others; else rows of the
        side alone are
    matched: whether those are the rows that have a match, not those that have none
    last: whether the result is that of the join, without `ORIGIN`
    """

    side: int
    pairs: bool
    matched: bool
    last: bool

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        super().rehearse(query, max_parallelism, group, streaming)
        return Rehearsal(has_metrics=True, states={COUNTS: _COUNTS})

    def runner(self, query: Query, placement: Placement) -> Runner:
        return MatchesRunner(self, query)


class MatchesRunner(ChangesRunner):
    """Counts the matches of each row."""

    source = "join_changes"

    def __init__(self, work: MatchesWork, query: Query) -> None:
        super().__init__(query)
        self._work = work
        self._names = self._result.names[:-1]

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        state = group.state(COUNTS, "value", _COUNTS)
        assert isinstance(state, StateTable)
        self._state = state

    def forget(self, ids: np.ndarray) -> None:
        self._state.put_many(ids, pa.nulls(len(ids), _COUNTS))

    def process(self, rows: KeyedRows, watermark: int) -> None:
        origins = rows.rows.column(ORIGIN).to_numpy()
        weights = rows.rows.column(WEIGHT).to_numpy().astype(np.int64)
        mine, pair = origins == (OF_LEFT, OF_RIGHT)[self._work.side], origins == PAIR
        counted = mine | pair
        ids, at = np.unique(rows.ids[counted], return_inverse=True)
        change = self._count(ids, at, weights[counted], mine[counted])
        (some,) = change.nonzero()
        parts = [(self._alone(ids[some]), change[some])]
        several = np.zeros(len(some), bool)
        if self._work.pairs:
            passed = rows.where(~mine)
            ambiguous = np.concatenate([ids[some], rows.ids[origins == ALONE]])
            parts.append((passed.rows, weights[~mine]))
            several = np.concatenate([several | True, np.isin(passed.ids, ambiguous)])
        found = concatenated([self._columns(part) for part, _ in parts])
        changes = np.concatenate([part for _, part in parts])
        if self._work.last and several.any():
            found, changes = _net(found, changes, several)
        self.count(rows=len(rows))
        self.emit(net_changes(found, changes))

    def _count(self, ids: np.ndarray, at: np.ndarray, weights: np.ndarray, mine: np.ndarray) -> np.ndarray:
        """Count rows and matches; return how much more often each of `ids` is in the result by itself."""
        stored = self._state.get_many(ids)
        before = [stored.field(name).fill_null(0).to_numpy() for name in ("rows", "matches")]
        after = [
            count + np.bincount(at[of], weights[of], len(ids)).astype(np.int64)
            for count, of in zip(before, (mine, ~mine), strict=True)
        ]
        nothing = (after[0] == 0) & (after[1] == 0)
        columns = [pa.array(count) for count in after]
        rows = pa.StructArray.from_arrays(columns, fields=list(_COUNTS), mask=pa.array(nothing))
        self._state.put_many(ids, rows)
        shown = [
            np.maximum(count, 0) * ((matches > 0) == self._work.matched) for count, matches in (before, after)
        ]
        change: np.ndarray = shown[1] - shown[0]
        return change

    def _alone(self, ids: np.ndarray) -> pa.RecordBatch:
        """Return rows of the side without a match."""
        keys = self._group.keys.keys(ids)
        columns = dict(zip(self._query.key, keys.columns, strict=True))
        columns[ORIGIN] = pa.array(np.full(len(ids), ALONE, np.int8))
        schema = self._query.schema
        found = [columns.get(name, pa.nulls(len(ids), schema.field(name).type)) for name in self._names]
        return pa.RecordBatch.from_arrays(found, names=self._names)

    def _columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(self._names)


def _net(rows: pa.RecordBatch, weights: np.ndarray, several: np.ndarray) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return rows with each of those that may be there several times once."""
    (some,), (others,) = several.nonzero(), (~several).nonzero()
    codes = row_codes(rows.take(pa.array(some)).to_struct_array())
    places, sums = net_weights(codes, weights[some])
    at = np.concatenate([others, some[places]])
    return rows.take(pa.array(at)), np.concatenate([weights[others], sums])
