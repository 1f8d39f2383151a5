"""As-of joins on key groups: the newest right row of each key, and the search for it, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap._native._core import row_order
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import KeyedRows, fitting, narrow, struct_of, wide
from timerheap.spark._columns import HIDDEN, INPUT, TIME
from timerheap.spark._event_times import exact_times, times_after, units_in_ms
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.row_buffer import content_order
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.lateness import set_aside, timely
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.timer import MAX_WATERMARK

VERSION = "right"
"""The state of each key: its newest right row up to the watermark."""

EXPIRY = "expiry"
"""The timer of a right row that is too old for all left rows once the watermark has passed it."""

SIDE_NAMES = ["left", "right"]
MATCHED = f"{HIDDEN}matched"


@dataclass(frozen=True)
class AsofJoinWork(KeyedWork):
    """An as-of join of the rows of two inputs, which share the columns of the key and the time.

    columns: for each input, the columns that carry those of the user, by the names of these
    results: for each column of the result, the number of its input, and the column that carries it
    version: the columns of a right row that its state has, by the names of the fields there
    ties: the columns that order right rows of one key and time
    deleted: the column that says whether a right row only ends the one before it
    tolerance: in ms
    unmatched: the side output of rows without a match
    """

    columns: tuple[Mapping[str, str], ...]
    results: tuple[tuple[int, str], ...]
    version: Mapping[str, str]
    ties: tuple[str, ...]
    deleted: str | None
    tolerance: int | None
    exact: bool
    inner: bool
    unmatched: OutputTag | None

    def runner(self, query: Query, placement: Placement) -> Runner:
        """Return what runs the join."""
        return AsofJoinRunner(self, query)


class Found(NamedTuple):
    """The right row of each left row, and of each key, by number.

    The number of a right row is its position among the right rows. Behind them are the rows from the state of
    the keys `asked`.

    match: for each left row, shape (l,)
    keys: the ids of the keys with right rows, shape (k,); `newest` has the number of the last row of each
    asked: shape (a,); `superseded` says which of them are among `keys`
    """

    match: np.ndarray
    keys: np.ndarray
    newest: np.ndarray
    asked: np.ndarray
    superseded: np.ndarray


def search(ids: np.ndarray, times: np.ndarray, lefts: int, exact: bool, every: bool) -> Found:
    """Find the newest right row at or before each left row: a sort and a carry; O(n).

    ids, times: of all rows, the left ones first, shape (n,); right rows of one key have different times
    exact: whether a right row of the same time is found
    every: whether the state of all keys is asked for, not only of those whose first row is a left row
    """
    right = np.arange(len(ids)) >= lefts
    order = row_order(ids, times, (right != exact).astype(np.int64))
    keys, of_right = ids[order], right[order]
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    run = np.zeros(len(keys), np.int64)
    run[starts[1:]] = 1
    run = np.cumsum(run)
    last = np.maximum.accumulate(np.where(of_right, np.arange(len(keys)), -1))
    asks = np.full(len(starts), True) if every else ~of_right[starts]
    stored = len(ids) - lefts + np.cumsum(asks) - 1
    match = np.empty(lefts, np.int64)
    of_left = np.flatnonzero(~of_right)
    run, at = run[of_left], last[of_left]
    match[order[of_left]] = np.where(at >= starts[run], order[at] - lefts, stored[run])
    newest = last[np.append(starts[1:], len(keys))[: len(starts)] - 1]
    has = newest >= starts
    return Found(match, keys[starts[has]], order[newest[has]] - lefts, keys[starts[asks]], has[asks])


class AsofJoinRunner(Runner):
    """Joins the rows that the watermark has passed."""

    any_order = decides_lateness = True  # late rows are structs of one input, whose columns come one by one
    fired_timers = 0

    def __init__(self, work: AsofJoinWork, query: Query) -> None:
        self._work, self._query = work, query
        self._result, self._tag = query.result_schema, work.unmatched
        fields = [query.schema.field(carrier).with_name(name) for name, carrier in work.version.items()]
        if work.unmatched is not None:
            fields.append(pa.field(MATCHED, pa.bool_()))
        self._type = pa.struct(fields)
        self._carriers = list(work.version.values())
        self._time = self._carriers.index(TIME)
        self._unit = units_in_ms(query.schema.field(TIME).type)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        state = group.state(VERSION, "value", self._type)
        assert isinstance(state, StateTable)
        self._group, self._versions, self._output = group, state, output
        self._watermark = group.watermark

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Join rows, in any order, and keep the newest right row of each key."""
        order = timely(rows, order, self._watermark, self._late)
        times = exact_times(rows.rows.column(TIME))
        of_right = rows.rows.column(INPUT).to_numpy()[order] == 1
        left, every_right = order[~of_right], order[of_right]
        right = self._distinct(rows, times, every_right)
        both = np.concatenate([left, right])
        found = search(rows.ids[both], times[both], len(left), self._work.exact, self._tag is not None)
        stored = self._versions.get_many(found.asked)
        there = np.append(~self._deleted(rows.rows, right), _bools(stored.is_valid()))
        matched = there[found.match]
        if self._work.tolerance is not None:
            of_match = np.append(times[right], exact_times(stored.field(self._time)))[found.match]
            # Unsigned, since int64 may overflow; what is found is not after the left row.
            age = times[left].view(np.uint64) - of_match.view(np.uint64)
            matched &= age <= np.uint64(min(self._work.tolerance * self._unit, (1 << 64) - 1))
        self._emit(rows.rows, left, right, found.match, matched, stored)
        newest = right[found.newest]
        expiry = self._expiry(rows.timestamps[newest])
        kept = there[found.newest] & (expiry > watermark) & (watermark < MAX_WATERMARK)
        if self._tag is None:
            self._keep(rows.rows, newest, found.keys, kept, expiry)
        else:
            used = np.append(~there[: len(right)], _bools(stored.field(MATCHED).fill_null(True)))
            used[found.match[matched]] = True
            gone = ~used[: len(right)]
            gone[found.newest[kept]] = False
            lost = np.setdiff1d(every_right, right)
            lost = np.concatenate([left[~matched], right[gone], lost[~self._deleted(rows.rows, lost)]])
            self._output.batch((self._tag, self._sides(rows.rows.take(pa.array(lost)))), "join_asof")
            self._emit_unmatched(found.asked, stored, found.superseded & ~used[len(right) :])
            used_now = used[len(right) :] & ~found.superseded & _bools(stored.is_valid())
            self._mark(found.asked, stored, used_now)
            self._keep(rows.rows, newest, found.keys, kept, expiry, used[found.newest])
        self._forget(watermark)

    def _late(self, rows: KeyedRows, late_by: np.ndarray) -> None:
        set_aside(self._query, self.dropped, self._group, rows, late_by, self._output, self._sides)

    def _sides(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as a struct for each input, one of which is null."""
        number = rows.column(INPUT).to_numpy()
        structs = [
            pa.StructArray.from_arrays(
                [rows.column(carrier) for carrier in columns.values()],
                names=list(columns),
                mask=pa.array(number != side),
            )
            for side, columns in enumerate(self._work.columns)
        ]
        return pa.RecordBatch.from_arrays(structs, names=SIDE_NAMES)

    def _distinct(self, rows: KeyedRows, times: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the positions of right rows, of those of one key and time only the last one."""
        columns = rows.rows.select(dict.fromkeys([*self._work.ties, TIME]))
        right = content_order(columns, times, rows.ids, right)
        ids, at = rows.ids[right], times[right]
        last = np.append((ids[1:] != ids[:-1]) | (at[1:] != at[:-1]), True)
        distinct: np.ndarray = right[last[: len(right)]]
        return distinct

    def _deleted(self, rows: pa.RecordBatch, at: np.ndarray) -> np.ndarray:
        if self._work.deleted is None:
            return np.zeros(len(at), bool)
        column = rows.column(self._work.deleted).fill_null(False)
        deleted: np.ndarray = _bools(column)[at]
        return deleted

    def _emit(
        self,
        rows: pa.RecordBatch,
        left: np.ndarray,
        right: np.ndarray,
        match: np.ndarray,
        matched: np.ndarray,
        stored: pa.StructArray,
    ) -> None:
        """Emit the left rows with the columns of their matches."""
        if self._work.inner:
            left, match = left[matched], match[matched]
            matched = np.ones(len(left), bool)
        of_left, of_right = pa.array(left), pa.array(match, mask=~matched)
        key_of_match = of_left if matched.all() else pa.array(left, mask=~matched)
        columns = []
        for side, carrier in self._work.results:
            column = rows.column(carrier)
            if side == 0:
                columns.append(column.take(of_left))
            elif carrier in self._carriers:
                parts = [column.take(pa.array(right)), stored.field(self._carriers.index(carrier))]
                whole = pa.concat_arrays(
                    [part.cast(wide(part.type)) for part in parts if len(part)] or parts[:1]
                )
                columns.append(whole.take(of_right))
            else:  # of the key
                columns.append(column.take(key_of_match))
        joined = pa.RecordBatch.from_arrays(columns, names=self._result.names)
        for start, stop in fitting(joined):
            self._output.batch(narrow(joined.slice(start, stop - start), self._result), "join_asof")

    def _expiry(self, timestamps: np.ndarray) -> np.ndarray:
        """Return the watermark from which on no left row can match right rows of these times, in ms."""
        if self._work.tolerance is None:
            return np.full(len(timestamps), MAX_WATERMARK)
        return times_after(timestamps, self._work.tolerance)

    def _keep(
        self,
        rows: pa.RecordBatch,
        newest: np.ndarray,
        ids: np.ndarray,
        kept: np.ndarray,
        expiry: np.ndarray,
        used: np.ndarray | None = None,
    ) -> None:
        """Replace the state of keys by their newest right rows, or by nothing where these are not kept."""
        if not kept.any() and not len(self._versions):  # as at the end of a batch
            return
        if self._work.tolerance is not None and kept.any():
            name = self._group.timer_names.new(EXPIRY)
            self._group.event_timers.push_many(expiry[kept], ids[kept], name)
        columns = [rows.column(carrier).take(pa.array(newest)) for carrier in self._carriers]
        if used is not None:
            columns.append(pa.array(used))
        self._versions.put_many(ids, struct_of(columns, self._type, ~kept))

    def _mark(self, ids: np.ndarray, stored: pa.StructArray, used: np.ndarray) -> None:
        new = np.flatnonzero(used & ~_bools(stored.field(MATCHED).fill_null(True)))
        if len(new):
            columns = stored.take(pa.array(new)).flatten()
            columns[-1] = pa.array(np.ones(len(new), bool))
            self._versions.put_many(ids[new], struct_of(columns, self._type, np.zeros(len(new), bool)))

    def _forget(self, watermark: int) -> None:
        """Remove the right rows that no left row can match any more."""
        ids = self._group.event_timers.pop_due(watermark).key_hashes
        self.fired_timers += len(ids)
        if watermark == MAX_WATERMARK:
            ids = np.sort(self._versions.ids())  # their own order depends on how they came into the table
        if len(ids):
            if self._tag is not None:
                stored = self._versions.get_many(ids)
                self._emit_unmatched(ids, stored, ~_bools(stored.field(MATCHED).fill_null(True)))
            self._versions.put_many(ids, pa.nulls(len(ids), self._type))

    def _emit_unmatched(self, ids: np.ndarray, stored: pa.StructArray, unmatched: np.ndarray) -> None:
        """Emit right rows that have left the state and had no match."""
        assert self._tag is not None
        at = np.flatnonzero(unmatched)
        if not len(at):
            return
        fields = dict(zip(self._carriers, stored.take(pa.array(at)).flatten(), strict=False))
        keys = self._group.keys.keys(ids[at])
        right = [
            fields[carrier] if carrier in fields else keys.column(carrier)
            for carrier in self._work.columns[1].values()
        ]
        rows = pa.StructArray.from_arrays(right, names=list(self._work.columns[1]))
        none = pa.nulls(len(at), self._query.side_fields[0].type.field("left").type)
        self._output.batch(
            (self._tag, pa.RecordBatch.from_arrays([none, rows], names=SIDE_NAMES)), "join_asof"
        )


def _bools(column: pa.Array) -> np.ndarray:
    mask: np.ndarray = column.to_numpy(zero_copy_only=False)
    return mask
