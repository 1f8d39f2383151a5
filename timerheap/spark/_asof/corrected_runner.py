"""As-of joins that are corrected: the answers that new right rows change, as changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.errors import CheckpointMismatchError
from timerheap.spark._arrow import KeyedRows, concatenated, fitting, narrow, struct_of, widen, widen_column
from timerheap.spark._asof.newest_runner import VERSION, AsofJoinRunner, AsofJoinWork, search
from timerheap.spark._changes.change_rows import replacements
from timerheap.spark._columns import INPUT, TIME
from timerheap.spark._event_times import exact_times, times_after
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.growing_state import ListTable, lists_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.lateness import timely
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.revisions import delayed

ANSWERED = "left rows"
"""Begins the name of the state of each key that has its answered left rows; how long it does follows."""

_SHORTEST_WAIT = 1_000  # ms between two removals of what a key has no more use for


@dataclass(frozen=True)
class RevisedJoinWork(AsofJoinWork):
    """An as-of join whose answers are corrected.

    left: the columns of a left row that its state has, by the names of the fields there
    lateness: how long behind the watermark rows may come, in ms
    early: whether left rows are answered when they come
    """

    left: Mapping[str, str]
    lateness: int
    early: bool

    def runner(self, query: Query, placement: Placement) -> Runner:
        return RevisedJoinRunner(self, query)

    @property
    def answered(self) -> str:
        """The name of the state of answered left rows."""
        return f"{ANSWERED} of {self.lateness} ms{', answered early' if self.early else ''}"


class RevisedJoinRunner(AsofJoinRunner):
    """Joins rows as they come, or once the watermark has passed them, and keeps them for the lateness."""

    def __init__(self, work: RevisedJoinWork, query: Query) -> None:
        super().__init__(work, query)
        self._revised = work
        self._left_carriers = list(work.left.values())
        left = [query.schema.field(carrier).with_name(name) for name, carrier in work.left.items()]
        self._left_type, self._key = pa.struct(left), query.key
        self._wait = max(work.lateness // 2, _SHORTEST_WAIT)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        name = self._revised.answered
        other = next((each for each in group.states if each.startswith(ANSWERED) and each != name), None)
        if other is not None:
            raise CheckpointMismatchError(
                f"late must be as in the checkpoint, which has {other}, got {name}; "
                "pass them as before, or start a new checkpoint"
            )
        left = group.state(name, "list", pa.list_(self._left_type))
        right = group.state(VERSION, "list", pa.list_(self._type))
        assert isinstance(left, ListTable)
        assert isinstance(right, ListTable)
        self._group, self._output, self._watermark = group, output, group.watermark
        self._lefts, self._rights = left, right

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Join rows, in any order, and those that they concern."""
        self._revise(rows, order, watermark)
        self.advance(watermark)

    def process(self, rows: KeyedRows, watermark: int) -> None:
        """Join rows, in any order, and those that they concern."""
        self._revise(rows, np.arange(len(rows)), watermark)

    def _revise(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        order = timely(rows, order, delayed(self._watermark, self._revised.lateness), self._late)
        if not len(order):
            return
        of_right = rows.rows.column(INPUT).to_numpy()[order] == 1
        left, right = rows.take(order[~of_right]), rows.take(order[of_right])
        # New right rows concern left rows that were answered, if these are not before all of them.
        behind = (right.timestamps <= self._watermark) | self._revised.early
        concerned = np.unique(right.ids[behind])
        held, owners = _kept_rows_of(self._lefts, concerned)
        lefts = self._with_keys(held, self._left_carriers, owners, left)
        keys = np.unique(np.concatenate([left.ids, concerned]))
        stored, owners = _kept_rows_of(self._rights, keys)
        rights = self._with_keys(stored, self._carriers, owners, right.where(np.isin(right.ids, keys)))
        new = len(lefts) - len(left)
        if len(lefts):
            before = np.append(self._found(lefts.slice(0, new), rights, len(owners)), np.full(len(left), -1))
            after = self._found(lefts, rights, len(rights))
            self._emit_changes(lefts, rights.rows, before, after, new)
        if watermark < MAX_WATERMARK:
            self._remember(left, right, delayed(watermark, self._revised.lateness))

    def _with_keys(
        self, held: pa.StructArray, carriers: list[str], owners: np.ndarray, new: KeyedRows
    ) -> KeyedRows:
        """Return rows of the state, and new ones behind them; with the columns of their keys."""
        keys = self._group.keys.keys(owners)
        names = [*carriers, *self._key]
        columns = [*held.flatten(), *map(keys.column, range(len(self._key)))]
        parts = [columns, list(map(new.rows.column, names))]
        both = concatenated([widen(pa.RecordBatch.from_arrays(part, names)) for part in parts])
        times = exact_times(both.column(TIME))
        return KeyedRows(both, np.concatenate([owners, new.ids]), times // self._unit)

    def _found(self, lefts: KeyedRows, rights: KeyedRows, count: int) -> np.ndarray:
        """Return for left rows which of the first right rows is the match, -1 without one: shape (l,)."""
        times, of_left = exact_times(rights.rows.column(TIME)), exact_times(lefts.rows.column(TIME))
        right = self._distinct(rights, times, np.arange(count))
        ids = np.concatenate([lefts.ids, rights.ids[right]])
        both = np.concatenate([of_left, times[right]])
        match = search(ids, both, len(lefts), self._work.exact, every=False).match
        places = np.append(np.where(self._deleted(rights.rows, right), -1, right), -1)
        found: np.ndarray = places[np.minimum(match, len(right))]
        if self._work.tolerance is not None and len(right):
            # Unsigned, since int64 may overflow; what is found is not after the left row.
            age = of_left.view(np.uint64) - times[found].view(np.uint64)
            most = np.uint64(min(self._work.tolerance * self._unit, (1 << 64) - 1))
            found = np.where(age <= most, found, -1)
        return found

    def _emit_changes(
        self, lefts: KeyedRows, rights: pa.RecordBatch, before: np.ndarray, after: np.ndarray, new: int
    ) -> None:
        """Emit the answers of left rows that are other ones than before; those from `new` on had none."""
        at = np.flatnonzero((before != after) | (np.arange(len(lefts)) >= new))
        before, after = before[at], after[at]
        had, has = at < new, np.full(len(at), True)
        if self._work.inner:
            had, has = had & (before >= 0), after >= 0
        rows = [self._answers(lefts.rows, at, rights, places) for places in (before, after)]
        changes = replacements(rows[0], had, rows[1], has)
        for start, stop in fitting(changes):
            self._output.batch(narrow(changes.slice(start, stop - start), self._result), "join_asof")

    def _answers(
        self, lefts: pa.RecordBatch, at: np.ndarray, rights: pa.RecordBatch, places: np.ndarray
    ) -> pa.RecordBatch:
        """Return left rows with right rows, or null where the place is negative."""
        of_left, matched = pa.array(at), pa.array(at, mask=places < 0)
        of_right = pa.array(places, mask=places < 0)
        columns = [
            lefts.column(carrier).take(of_left if side == 0 else matched)
            if side == 0 or carrier in self._key
            else rights.column(carrier).take(of_right)
            for side, carrier in self._work.results
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._result.names[:-1])

    def _remember(self, left: KeyedRows, right: KeyedRows, final: int) -> None:
        """Keep rows that are not final, and right rows that those may match."""
        left = left.where(left.timestamps > final)
        lateness, tolerance = self._revised.lateness, self._work.tolerance
        due = [times_after(side.timestamps, lateness) for side in (left, right)]
        ids = [left.ids, right.ids]
        if tolerance is not None:
            due.append(times_after(due[1], tolerance))
            ids.append(right.ids)
        for state, side, carriers in (
            (self._lefts, left, self._left_carriers),
            (self._rights, right, self._carriers),
        ):
            if len(side):
                rows = _elements_of(side.rows, carriers, state)
                state.append_many(side.ids, lists_of(rows, np.ones(len(side), np.int64), state.type))
        times = np.concatenate(due)
        if len(times):
            wait = self._wait  # a key is looked at once for all rows of some time
            times = -(-np.minimum(times, MAX_WATERMARK - wait) // wait) * wait
            self._group.event_timers.push_many(times, np.concatenate(ids), np.zeros(len(times), np.int64))

    def advance(self, watermark: int) -> None:
        """Remove the rows that are final, but the newest right row of each key, if that may be a match."""
        ids = np.unique(self._group.event_timers.pop_due(watermark).key_hashes)
        self.fired_timers += len(ids)
        if watermark == MAX_WATERMARK:
            for state in (self._lefts, self._rights):
                state.clear_many(np.sort(state.ids()))
            return
        if not len(ids):
            return
        final = delayed(watermark, self._revised.lateness)
        held, owners = _kept_rows_of(self._lefts, ids)
        rows = pa.RecordBatch.from_arrays(held.flatten(), self._left_carriers)
        times = exact_times(rows.column(TIME)) // self._unit
        self._replace(self._lefts, ids, rows, owners, np.flatnonzero(times > final), len(owners))
        held, owners = _kept_rows_of(self._rights, ids)
        rows = pa.RecordBatch.from_arrays(held.flatten(), self._carriers)
        times = exact_times(rows.column(TIME))
        order = self._distinct(KeyedRows(rows, owners, times), times, np.arange(len(rows)))
        owner, millis = owners[order], times[order] // self._unit
        old = millis <= final
        # In this order the old ones of a key come first.
        newest = old & np.append((owner[1:] != owner[:-1]) | ~old[1:], True)[: len(old)]
        newest &= ~self._deleted(rows, order)
        if self._work.tolerance is not None:
            newest &= times_after(millis, self._work.tolerance) > final
        self._replace(self._rights, ids, rows, owners, order[~old | newest], len(owners))

    def _replace(
        self,
        state: ListTable,
        ids: np.ndarray,
        rows: pa.RecordBatch,
        owners: np.ndarray,
        kept: np.ndarray,
        count: int,
    ) -> None:
        """Leave only the rows at some places, which are ordered by key, in the state of those keys."""
        if len(kept) == count:
            return
        places = np.searchsorted(ids, owners[kept])
        kept = kept[np.argsort(places, kind="stable")]
        lengths = np.bincount(places, minlength=len(ids))
        fewer = lengths < np.bincount(np.searchsorted(ids, owners), minlength=len(ids))
        kept = kept[fewer[np.searchsorted(ids, owners[kept])]]
        elements = _elements_of(rows.take(pa.array(kept)), rows.schema.names, state)
        state.replace_many(ids[fewer], lists_of(elements, lengths[fewer], state.type))


def _kept_rows_of(state: ListTable, ids: np.ndarray) -> tuple[pa.StructArray, np.ndarray]:
    """Return the rows that the state has of distinct keys, and the id of the key of each."""
    lists = state.get_many(ids)
    return lists.flatten(), np.repeat(ids, lists.value_lengths().to_numpy())


def _elements_of(rows: pa.RecordBatch, carriers: list[str], state: ListTable) -> pa.StructArray:
    """Return rows as elements of a state."""
    return struct_of([widen_column(rows.column(carrier)) for carrier in carriers], state.type.value_type)
