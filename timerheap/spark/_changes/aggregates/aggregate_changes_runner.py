"""Aggregates of keys whose rows come and go: what a key has kept, and how its result changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.errors import CheckpointMismatchError
from timerheap.spark._arrow import KeyedRows, struct_of
from timerheap.spark._changes.aggregates.aggregate_results import Columns, ComputedAggregate
from timerheap.spark._changes.aggregates.bags import BagReading, add_to_bags
from timerheap.spark._changes.aggregates.kept_sums import Kept
from timerheap.spark._changes.aggregates.reduced_changes import ROWS, SentColumns
from timerheap.spark._changes.aggregates.row_groups import RowGroups
from timerheap.spark._changes.aggregates.user_aggregates import UserCall
from timerheap.spark._changes.change_rows import replacements
from timerheap.spark._changes.changes_runner import ChangesRunner
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.multiset_state import MultisetTable, Touched
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal

KEPT_STATE = "aggregates"


@dataclass(frozen=True)
class AggregateChangesWork(KeyedWork):
    """Aggregates to compute.

    keys: how many columns of the result are the key; without any, all rows are one group, which has always a
        row in the result
    sent: what is added to what keys keep; first how many rows there are
    distinct: what is kept of the different values in a bag, which has this number
    readings: what is read of bags
    users: calls of functions in Python, with what is behind the bags in what is sent
    forget_after: ms after which a key that has not changed is forgotten
    """

    keys: int
    sent: SentColumns
    distinct: tuple[tuple[int, Kept], ...]
    readings: tuple[BagReading, ...]
    users: tuple[UserCall, ...]
    computed: tuple[ComputedAggregate, ...]
    forget_after: int | None

    @property
    def kept(self) -> list[Kept]:
        """All that keys keep, but for their bags."""
        return [*self.sent.kept, *(one for _, one in self.distinct)]

    def type_of_state(self) -> pa.DataType:
        return pa.struct(list(self._fields()))

    def _fields(self) -> Iterator[pa.Field]:
        for one in self.kept:
            for name, type_ in one.fields().items():
                yield pa.field(one.name if len(one.fields()) == 1 else f"{one.name}, {name}", type_)

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        bags = {bag.name: bag.type() for bag in self.sent.bags}
        accumulators = {one.name: one.accumulator for one in self.users}
        states = {KEPT_STATE: self.type_of_state(), **bags, **accumulators}
        super().rehearse(query, max_parallelism, group, streaming)
        return Rehearsal(has_metrics=True, states=states)

    def runner(self, query: Query, placement: Placement) -> Runner:
        return AggregateChangesRunner(self, query)


class AggregateChangesRunner(ChangesRunner):
    """Adds up changes, and emits how results change."""

    source = "aggregate_changes"

    def __init__(self, work: AggregateChangesWork, query: Query) -> None:
        super().__init__(query, work.forget_after)
        self._work, self._type, self._kept = work, work.type_of_state(), work.kept
        self._sent = [field.name for field in work.sent.kept_fields()]
        self._sent_bags = [field.name for field in work.sent.bag_fields()]

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        stored = group.states.get(KEPT_STATE)
        if stored is not None and stored.type != self._type:
            raise CheckpointMismatchError(
                f"the checkpoint has what these aggregates need: {_shown(stored.type)}; the query needs "
                f"{_shown(self._type)}, for which rows of the past are missing; start a new checkpoint, or "
                "keep the aggregates"
            )
        state = group.state(KEPT_STATE, "value", self._type)
        assert isinstance(state, StateTable)
        self._state = state
        self._bags = [bag.of(group) for bag in self._work.sent.bags]
        self._accumulators = [one.of(group) for one in self._work.users]

    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Add what the pack stage has made of rows."""
        groups, ids = RowGroups.by_id(rows.ids)
        sent = self._split(self._work.sent.kept, [rows.rows.column(name) for name in self._sent])
        if len(groups) < len(rows):
            sent = _summed_up(self._work.sent.kept, sent, groups)
        read_before = self._readings(ids)
        lists = [rows.rows.column(name) for name in self._sent_bags]
        touched = [self._added_to(bag, rows.ids, one) for bag, one in zip(self._bags, lists, strict=False)]
        new = sent + [self._of_distinct(one, touched[bag], ids) for bag, one in self._work.distinct]
        stored = self._state.get_many(ids)
        known: np.ndarray = np.asarray(stored.is_valid())
        before = self._split(self._kept, stored.filter(pa.array(known)).flatten())
        after = new
        if known.any():
            after = _summed_up(self._kept, _with_behind(new, before), RowGroups.pairs(known))
        self._put(ids, after)
        calls = zip(self._work.users, self._accumulators, lists[len(self._bags) :], strict=True)
        count = after[0][0].to_numpy()
        there = count != 0 if self._work.forget_after is None else count > 0
        called = [one.run(table, ids, rows.ids, some, there) for one, table, some in calls]
        readings = (
            read_before + [results[0] for results in called],
            self._readings(ids) + [results[1] for results in called],
        )
        self._emit_changes(ids, known, before, after, readings)
        self.count(int(rows.rows.column(ROWS).to_numpy().sum()))
        self.keep(ids)

    def forget(self, ids: np.ndarray) -> None:
        self._state.put_many(ids, pa.nulls(len(ids), self._type))
        for bag in self._bags:
            bag.clear_many(ids)
        for one, table in zip(self._work.users, self._accumulators, strict=True):
            table.put_many(ids, pa.nulls(len(ids), one.accumulator))

    @staticmethod
    def _split(kept: Sequence[Kept], columns: Sequence[pa.Array]) -> list[Columns]:
        rest = iter(columns)
        return [[next(rest) for _ in one.fields()] for one in kept]

    def _readings(self, ids: np.ndarray) -> list[pa.Array]:
        return [one.read(self._bags[one.bag], ids) for one in self._work.readings]

    @staticmethod
    def _of_distinct(one: Kept, touched: Touched, ids: np.ndarray) -> Columns:
        """Return what values add that have come to a bag, or have gone from it."""
        weights = (touched.after > 0).astype(np.int64) - (touched.before > 0)
        groups, changed = RowGroups.by_id(touched.ids)
        order = np.argsort(changed)
        places = np.searchsorted(changed, ids, sorter=order)
        places[places == len(order)] = 0
        at = order[places] if len(order) else np.zeros(len(ids), np.int64)
        missing = changed[at] != ids if len(order) else np.ones(len(ids), bool)
        rows = pa.RecordBatch.from_arrays([touched.values], ["value"])
        columns = one.of_rows(rows, weights, groups) if len(changed) else one.nothing()
        found = [column.take(pa.array(at, mask=missing)) for column in columns]
        return [column if pa.types.is_nested(column.type) else column.fill_null(0) for column in found]

    def _added_to(self, bag: MultisetTable, ids: np.ndarray, added: pa.Array) -> Touched:
        """Add values to bags; where keys are forgotten, a value that is taken back and not there has been."""
        touched = add_to_bags(bag, ids, added)
        if self._work.forget_after is not None:
            bag.give_up_missing(touched)
        return touched

    def _put(self, ids: np.ndarray, kept: list[Columns]) -> None:
        """Keep columns, but for those of keys that have nothing any more."""
        count = kept[0][0].to_numpy()
        nothing: np.ndarray = count == 0
        if self._work.forget_after is not None:  # what is taken back and not there has been forgotten
            nothing = count <= 0
            for bag in self._bags if nothing.any() else ():
                bag.clear_many(ids[nothing])
        elif nothing.any():
            for one, columns in zip(self._kept, kept, strict=True):
                nothing &= one.is_nothing(columns)
        mask = nothing if self._work.keys and nothing.any() else None
        every = [column for columns in kept for column in columns]
        self._state.put_many(ids, struct_of(every, self._type, mask))

    def _emit_changes(
        self,
        ids: np.ndarray,
        known: np.ndarray,
        before: list[Columns],
        after: list[Columns],
        readings: tuple[list[pa.Array], list[pa.Array]],
    ) -> None:
        count, held = after[0][0].to_numpy(), np.zeros(len(ids), np.int64)
        held[known] = before[0][0].to_numpy()
        missing = np.maximum(-count, 0) - np.maximum(-held, 0)
        self.count(unmatched=int(np.maximum(missing, 0).sum()), sizes=count[count > 0])
        keys = self._group.keys.keys(ids).columns[: self._work.keys]
        had, has = (held > 0, count > 0) if keys else (known, np.ones(1, bool))
        places = np.cumsum(known) - 1
        results = [
            self._results(keys, before, places, readings[0], had),
            self._results(keys, after, np.arange(len(ids)), readings[1], has),
        ]
        self.emit(replacements(results[0], had, results[1], has))

    def _results(
        self,
        keys: list[pa.Array],
        kept: list[Columns],
        places: np.ndarray,
        readings: list[pa.Array],
        some: np.ndarray,
    ) -> pa.RecordBatch:
        """Return rows of the result for all keys, of which those of `some` count.

        places: where columns that are kept have each key
        """
        found, names = list(keys), self._result.names[:-1]
        (rows,) = some.nonzero()
        if not len(rows):
            found += [pa.nulls(len(some), one.field.type) for one in self._work.computed]
            return pa.RecordBatch.from_arrays(found, names)
        at, where = pa.array(places[rows]), pa.array(rows)
        columns = {
            one.name: [column.take(at) for column in some_columns]
            for one, some_columns in zip(self._kept, kept, strict=True)
        }
        read = [*(one.name for one in self._work.readings), *(one.name for one in self._work.users)]
        columns |= {name: [column.take(where)] for name, column in zip(read, readings, strict=True)}
        back = np.zeros(len(some), np.int64)
        back[rows] = np.arange(len(rows))
        for one in self._work.computed:
            values = one.values(columns)
            found.append(values if len(rows) == len(some) else values.take(pa.array(back, mask=~some)))
        return pa.RecordBatch.from_arrays(found, names)


def _summed_up(kept: Sequence[Kept], columns: list[Columns], groups: RowGroups) -> list[Columns]:
    return [one.added(some, groups) for one, some in zip(kept, columns, strict=True)]


def _with_behind(new: list[Columns], before: list[Columns]) -> list[Columns]:
    """Return columns with those of others behind them."""
    return [
        [pa.concat_arrays([one.cast(two.type), two]) for one, two in zip(*pair, strict=True)]
        for pair in zip(new, before, strict=True)
    ]


def _shown(type_: pa.DataType) -> str:
    return ", ".join(field.name for field in type_)
