"""As-of joins whose match is not always the newest version: each left row with all versions before it.

A condition on both rows decides in Spark which of them is the match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows, fitting, narrow, wide
from timerheap.spark._asof.newest_runner import EXPIRY
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

VERSIONS = "versions"
"""The state of each key: its right rows up to the watermark, in their order."""

LEFTS, RIGHTS = "left rows", "versions"
"""The columns of the result: left rows of a key with `FIRST` and `COUNT`, and versions, the newest first."""

FIRST, COUNT = f"{HIDDEN}first", f"{HIDDEN}count"
"""Which of the versions those before a left row are: the number of the first one, from 1, and how many."""

_TOGETHER = 256  # left rows that share a copy of the versions
_ROWS = 1 << 17  # versions in a batch of results


@dataclass(frozen=True)
class VersionsWork(KeyedWork):
    """All versions before each left row.

    columns: for each side, the columns that carry those of the result, by their names
    version: the columns of a right row that its state has, by the names of the fields there
    ties: the columns that order right rows of one key and time
    deleted: the column that says whether a right row ends all before it
    tolerance: in ms; versions that are older may be left out
    """

    columns: tuple[Mapping[str, str], ...]
    version: Mapping[str, str]
    ties: tuple[str, ...]
    deleted: str | None
    tolerance: int | None
    exact: bool
    inner: bool

    def runner(self, query: Query, placement: Placement) -> Runner:
        """Return what collects them."""
        return VersionsRunner(self, query)


class VersionsRunner(Runner):
    """Collects the versions before the left rows that the watermark has passed."""

    any_order = decides_lateness = True
    fired_timers = 0

    def __init__(self, work: VersionsWork, query: Query) -> None:
        self._work, self._query, self._result = work, query, query.result_schema
        self._row = pa.struct(
            [query.schema.field(carrier).with_name(name) for name, carrier in work.version.items()]
        )
        self._unit = units_in_ms(query.schema.field(TIME).type)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        state = group.state(VERSIONS, "value", pa.list_(self._row))
        assert isinstance(state, StateTable)
        self._group, self._state, self._output = group, state, output
        self._watermark = group.watermark

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        """Emit left rows, in any order, and keep the right rows that later ones may match."""
        order = timely(rows, order, self._watermark, self._late)
        fired = self._group.event_timers.pop_due(watermark).key_hashes
        self.fired_timers += len(fired)
        keys = [rows.ids[order], fired, *([self._state.ids()] if watermark == MAX_WATERMARK else [])]
        ids = np.unique(np.concatenate(keys))
        if not len(ids):
            return
        times = exact_times(rows.rows.column(TIME))
        of_right = rows.rows.column(INPUT).to_numpy()[order] == 1
        left = content_order(rows.rows.select([TIME]), rows.ids, times, order[~of_right])
        content = rows.rows.select(dict.fromkeys([*self._work.ties, TIME]))
        right = content_order(content, rows.ids, times, order[of_right])
        versions = self._together(ids, rows, right)
        self._emit(rows, ids, left, times[left], versions)
        if watermark < MAX_WATERMARK:
            changed = np.union1d(rows.ids[right], fired)
            self._keep(ids, versions, np.isin(ids, changed), watermark)
        elif len(self._state):  # nothing follows on the end of time
            self._state.put_many(ids, pa.nulls(len(ids), self._state.type))

    def _late(self, rows: KeyedRows, late_by: np.ndarray) -> None:
        set_aside(self._query, self.dropped, self._group, rows, late_by, self._output)

    def _together(self, ids: np.ndarray, rows: KeyedRows, right: np.ndarray) -> _Versions:
        """Return the versions of keys: those that the state has, and behind them the new ones."""
        stored = self._state.get_many(ids)
        held, new = stored.flatten(), rows.rows.take(pa.array(right))
        lengths = stored.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        run = np.concatenate([np.repeat(np.arange(len(ids)), lengths), np.searchsorted(ids, rows.ids[right])])
        order = np.argsort(run, kind="stable")
        columns = {}
        for at, carrier in enumerate(self._work.version.values()):
            of_new = new.column(carrier)
            parts = [one.cast(wide(of_new.type)) for one in (held.field(at), of_new)]
            columns[carrier] = pa.concat_arrays(parts).take(pa.array(order))
        deleted = np.zeros(len(order), bool)
        if self._work.deleted is not None:
            deleted = np.asarray(columns[self._work.deleted].fill_null(False))
        return _Versions(run[order], exact_times(columns[TIME]), columns, deleted, len(ids))

    def _emit(
        self, rows: KeyedRows, ids: np.ndarray, left: np.ndarray, times: np.ndarray, versions: _Versions
    ) -> None:
        """Emit left rows, which are sorted by key and time, with the versions before them."""
        run = np.searchsorted(ids, rows.ids[left])
        stop = versions.before(run, times, self._work.exact)
        start = np.maximum(versions.starts[run], versions.begins[stop])
        if self._work.tolerance is not None:
            least = np.iinfo(np.int64).min
            tolerance = min(self._work.tolerance * self._unit, (1 << 63) - 1)
            start = np.maximum(start, versions.before(run, np.maximum(times, least + tolerance) - tolerance))
        start = np.minimum(start, stop)
        if self._work.inner:
            some = start < stop
            left, run, start, stop = left[some], run[some], start[some], stop[some]
        if not len(left):
            return
        number = np.arange(len(left))
        changes = np.append(True, run[1:] != run[:-1])
        number -= np.maximum.accumulate(np.where(changes, number, 0))  # in the key
        begins = np.flatnonzero(number % _TOGETHER == 0)
        lows = np.minimum.reduceat(np.where(start < stop, start, len(versions.times)), begins)
        highs = np.maximum.reduceat(np.where(start < stop, stop, 0), begins)
        sizes = np.maximum(highs - lows, 0)
        lows = highs - sizes
        counts = np.diff(np.append(begins, len(left)))
        high = np.repeat(highs, counts)
        first = np.where(start < stop, high - stop + 1, 1)
        for low, top in _spans(sizes):
            some = slice(begins[low], begins[low] + counts[low:top].sum())
            taken = rows.rows.take(pa.array(left[some]))
            fields = [taken.column(carrier) for carrier in self._work.columns[0].values()]
            fields += [pa.array(numbers[some].astype(np.int32)) for numbers in (first, stop - start)]
            of_left = pa.StructArray.from_arrays(fields, names=[*self._work.columns[0], FIRST, COUNT])
            size = sizes[low:top]
            offset = np.cumsum(size) - size
            at = np.repeat(highs[low:top] - 1 + offset, size) - np.arange(size.sum())  # the newest first
            of_right = pa.StructArray.from_arrays(
                [versions.columns[name].take(pa.array(at)) for name in self._work.columns[1].values()],
                names=list(self._work.columns[1]),
            )
            lists = [_lists(of_left, counts[low:top]), _lists(of_right, size)]
            emitted = pa.RecordBatch.from_arrays(lists, names=self._result.names)
            for begin, end in fitting(emitted):
                self._output.batch(narrow(emitted.slice(begin, end - begin), self._result), "sql")

    def _keep(self, ids: np.ndarray, versions: _Versions, changed: np.ndarray, watermark: int) -> None:
        """Keep the versions of keys that later left rows may match; those of other keys are as they were."""
        ends = np.append(versions.starts[1:], len(versions.times))
        first = np.maximum(versions.starts, versions.begins[ends])  # behind the last delete
        number = np.arange(len(versions.times))
        kept = number >= first[versions.run]
        if self._work.tolerance is not None:
            millis = versions.times // self._unit
            expiry = times_after(millis, self._work.tolerance)
            kept &= expiry > watermark
            new = np.flatnonzero(kept & changed[versions.run])
            run, at = np.unique(versions.run[new], return_index=True)  # the first of each key goes first
            if len(run):
                name = self._group.timer_names.new(EXPIRY)
                self._group.event_timers.push_many(expiry[new[at]], ids[run], name)
        at = np.flatnonzero(kept & changed[versions.run])
        counts = np.bincount(versions.run[at], minlength=len(ids))[changed]
        columns = [versions.columns[name].take(pa.array(at)) for name in self._work.version.values()]
        if not changed.any() or not (len(at) or len(self._state)):
            return
        fields = [field.with_type(one.type) for field, one in zip(self._row, columns, strict=True)]
        rows = pa.StructArray.from_arrays(columns, fields=fields)
        self._state.put_many(ids[changed], _lists(rows, counts, counts == 0))


class _Versions:
    """The versions of k keys: v right rows, by key, time and content.

    run: the number of the key of each, shape (v,)
    starts: where those of each key begin, shape (k,)
    begins: the place behind the last delete among the first n versions, shape (v + 1,)
    """

    def __init__(
        self,
        run: np.ndarray,
        times: np.ndarray,
        columns: Mapping[str, pa.Array],
        deleted: np.ndarray,
        keys: int,
    ) -> None:
        self.run, self.times, self.columns = run, times, columns
        self.starts = np.searchsorted(run, np.arange(keys))
        places = np.where(deleted, np.arange(len(run)) + 1, 0)
        self.begins = np.append(0, np.maximum.accumulate(places) if len(run) else places)

    def before(self, run: np.ndarray, times: np.ndarray, inclusive: bool = False) -> np.ndarray:
        """Return how many versions there are up to that of each key and time, with those of earlier keys."""
        keys, at = np.concatenate([self.run, run]), np.concatenate([self.times, times])
        right = np.arange(len(keys)) < len(self.run)
        order = np.lexsort((right != inclusive, at, keys))
        found = np.empty(len(keys), np.int64)
        found[order] = np.cumsum(right[order])
        return found[len(self.run) :]


def _spans(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of spans of about `_ROWS` in all, of at least one."""
    total, low = np.cumsum(sizes + 1), 0
    while low < len(sizes):
        done = total[low - 1] if low else 0
        top = max(low + 1, int(np.searchsorted(total, done + _ROWS, side="right")))
        yield low, top
        low = top


def _lists(values: pa.Array, counts: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    offsets = pa.array(np.append(0, np.cumsum(counts)))
    return pa.LargeListArray.from_arrays(offsets, values, mask=None if null is None else pa.array(null))
