"""The newest upsert of each key, and what it changes in the table of all keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._arrow import KeyedRows, concatenated, struct_of
from timerheap.spark._changes.change_rows import replacements
from timerheap.spark._changes.changes_runner import ChangesRunner
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._memory.id_table import distinct_ids
from timerheap.spark._order_by import Order, differing, run_starts, sort_columns
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal

ROW = "row"  # the state


@dataclass(frozen=True)
class UpsertsWork(KeyedWork):
    """Upserts to make changes of.

    names: the columns of an upsert without the key, and what they are called in the state
    columns: those of the result
    sequence, deleted: the columns that say which upsert is newer, and whether it is a delete
    forget_after: ms after which a deleted key is forgotten
    """

    names: Mapping[str, str]
    columns: tuple[str, ...]
    sequence: tuple[str, ...]
    deleted: str | None
    forget_after: int | None

    def type_of_state(self, query: Query) -> pa.DataType:
        return pa.struct([query.schema.field(name).with_name(known) for name, known in self.names.items()])

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        super().rehearse(query, max_parallelism, group, streaming)
        return Rehearsal(has_metrics=True, states={ROW: self.type_of_state(query)})

    def runner(self, query: Query, placement: Placement) -> Runner:
        return UpsertsRunner(self, query)


class UpsertsRunner(ChangesRunner):
    """Keeps the newest upsert of each key."""

    source = "changes_of"

    def __init__(self, work: UpsertsWork, query: Query) -> None:
        super().__init__(query, work.forget_after)
        self._work, self._type = work, work.type_of_state(query)
        self._sequence = [Order(name, False, True) for name in work.sequence]
        marks = [] if work.deleted is None else [work.deleted]
        self._columns = list(dict.fromkeys([*marks, *work.names]))

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        state = group.state(ROW, "value", self._type)
        assert isinstance(state, StateTable)
        self._state = state

    def process(self, rows: KeyedRows, watermark: int) -> None:
        names = list(self._work.names)
        ids = distinct_ids(rows.ids)
        stored = self._state.get_many(ids)
        known: np.ndarray = np.asarray(stored.is_valid())
        before = pa.RecordBatch.from_arrays(stored.flatten(), names)
        upserts = rows.rows.select(names)
        all_ids = rows.ids
        if known.any():
            upserts = concatenated([upserts, before.filter(pa.array(known))])
            all_ids = np.concatenate([all_ids, ids[known]])
        newest = self._newest(upserts, all_ids)
        changed = newest[newest < len(rows)]
        newest_ids = all_ids[changed]
        self.count(len(rows))
        if not len(changed):
            return
        places = self._places(ids, newest_ids)
        after, before, had = upserts.take(pa.array(changed)), before.take(pa.array(places)), known[places]
        self._state.put_many(newest_ids, struct_of(after.columns, self._type))
        gone = self._deleted(after)
        had &= ~self._deleted(before)
        self.count(unmatched=int(np.count_nonzero(gone & ~had)))
        self.keep(newest_ids[gone])
        keys = self._group.keys.keys(newest_ids)
        self.emit(replacements(self._result_rows(before, keys), had, self._result_rows(after, keys), ~gone))

    def forget(self, ids: np.ndarray) -> None:
        """Forget keys, unless an upsert has come since they were deleted."""
        rows = pa.RecordBatch.from_arrays(self._state.get_many(ids).flatten(), list(self._work.names))
        ids = ids[self._deleted(rows)]
        self._state.put_many(ids, pa.nulls(len(ids), self._type))

    @staticmethod
    def _places(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        order = np.argsort(ids)
        places: np.ndarray = order[np.searchsorted(ids, wanted, sorter=order)]
        return places

    def _deleted(self, rows: pa.RecordBatch) -> np.ndarray:
        if self._work.deleted is None:
            return np.zeros(len(rows), bool)
        deleted: np.ndarray = np.asarray(rows.column(self._work.deleted).fill_null(False))
        return deleted

    def _result_rows(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        columns = [(rows if name in self._work.names else keys).column(name) for name in self._work.columns]
        return pa.RecordBatch.from_arrays(columns, names=list(self._work.columns))

    def _newest(self, rows: pa.RecordBatch, ids: np.ndarray) -> np.ndarray:
        """Return the position of the newest row of each id."""
        columns, keys = sort_columns(rows, self._sequence, {"id": ids})
        table = pa.table(columns)
        order = pc.sort_indices(table, keys).to_numpy().astype(np.int64)
        differs = differing(table.take(pa.array(order)))
        runs, last = np.cumsum(differs) - 1, _ends(run_starts(ids[order]))
        several = np.bincount(runs) > 1  # rows of one sequence
        tied = several[runs[last]]
        if not tied.any():
            return np.asarray(order[last])
        is_tied = np.zeros(len(several), bool)
        is_tied[runs[last[tied]]] = True
        some = order[is_tied[runs]]
        greatest = self._greatest(rows.take(pa.array(some)), ids[some])
        return np.concatenate([order[last[~tied]], some[greatest]])

    def _greatest(self, rows: pa.RecordBatch, ids: np.ndarray) -> np.ndarray:
        """Return the position of the greatest row of each id, by all columns."""
        columns = [_comparable(rows.column(name)) for name in self._columns]
        table = pa.RecordBatch.from_arrays(columns, names=self._columns)
        found, keys = sort_columns(table, [Order(name, False, True) for name in self._columns], {"id": ids})
        order = pc.sort_indices(pa.table(found), keys).to_numpy().astype(np.int64)
        return np.asarray(order[_ends(run_starts(ids[order]))])


def _ends(starts: np.ndarray) -> np.ndarray:
    """Return the positions at which runs end."""
    return np.flatnonzero(np.append(starts[1:], True)[: len(starts)])


def _comparable(column: pa.Array) -> pa.Array:
    """Return a column in an order in which no different values are equal."""
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    if pa.types.is_floating(column.type):
        bits = column.cast(pa.float64()).fill_null(0).to_numpy().view(np.int64)
        return pa.array(bits ^ ((bits >> 63) & np.iinfo(np.int64).max), mask=np.asarray(column.is_null()))
    return pa.array(np.zeros(len(column))) if pa.types.is_null(column.type) else column
