"""Joins of changes on key groups: both sides as multisets of rows by key, and how their join changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._changes.change_rows import net_changes
from timerheap.spark._changes.changes_runner import ChangesRunner
from timerheap.spark._changes.row_codes import combined_codes, net_weights, row_codes
from timerheap.spark._changes.rows_by_key import RowsByKey, type_of_kept, weighted_rows
from timerheap.spark._columns import INPUT
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.multiset_state import multiset_of
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal

SIDES = "left", "right"
"""The states of each key: its rows on each side."""

PAIR, OF_LEFT, OF_RIGHT, ALONE = range(4)
"""What the rows of a result with `ORIGIN` are: pairs, changes of one side, and rows without matches."""

_ROWS = 1 << 16  # of a result that are made together


@dataclass(frozen=True)
class JoinWork(KeyedWork):
    """A join by key of the rows of two inputs, which share the columns of the key.

    fields: for each side, the columns that carry its rows without the key, by the names of the fields in the
        state; none of a side whose rows are only counted
    results: for each column of the result, the side and the field or key column; the side is None for a key
        column that both sides have
    how: the name of the kind of join
    pairs: whether rows with their matches are in the result
    alone: for each side, whether rows without matches are
    matched: whether left rows that have a match are, without it
    origins: for each side, whether its own rows are, with and without matches; if so of one of them, the last
        column of the result says what a row is
    null_safe: whether null is a key as others are, else it matches nothing
    forget_after: ms after which a key that has not changed is forgotten
    """

    fields: tuple[dict[str, str], dict[str, str]]
    results: tuple[tuple[int | None, str], ...]
    how: str
    pairs: bool = False
    alone: tuple[bool, bool] = (False, False)
    matched: bool = False
    origins: tuple[bool, bool] = (False, False)
    null_safe: bool = False
    forget_after: int | None = None

    def types_of_rows(self, query: Query) -> list[pa.StructType]:
        """Return the types of the rows of both sides in the state, without their key."""
        schema = query.schema
        return [
            type_of_kept(schema.field(carrier).with_name(name) for name, carrier in fields.items())
            for fields in self.fields
        ]

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        types = map(multiset_of, self.types_of_rows(query))
        super().rehearse(query, max_parallelism, group, streaming)
        return Rehearsal(has_metrics=True, states=dict(zip(SIDES, types, strict=True)))

    def runner(self, query: Query, placement: Placement) -> Runner:
        return JoinRunner(self, query)

    def asked(self) -> str:
        """Return how rows are joined, as the checkpoint has it."""
        condition = ", with a condition" if any(self.origins) else ""
        return f"how {self.how!r}{condition}{', null equal to null' if self.null_safe else ''}"

    def keeps_without_key(self, side: int) -> bool:
        """Return whether rows of a side are of use if their key matches nothing."""
        return self.alone[side] or self.origins[side]


class Pool(NamedTuple):
    """Rows of one side, which pairs refer to by their places: those that change, then those there were.

    A row that was there before it changes has two places.

    ids: of their keys; weights: how often each was there; changes: how much more often it is there now
    changed, renewed: the keys with rows that change, and with rows that were there before, ascending
    """

    ids: np.ndarray
    values: pa.StructArray
    weights: np.ndarray
    changes: np.ndarray
    changed: np.ndarray
    renewed: np.ndarray


class Pairs(NamedTuple):
    """Rows of a result: a key, the places of a left and a right row, -1 for none, and how often it comes."""

    ids: np.ndarray
    left: np.ndarray
    right: np.ndarray
    weights: np.ndarray

    def at(self, places: np.ndarray | slice) -> Pairs:
        return Pairs(*(column[places] for column in self))


class JoinRunner(ChangesRunner):
    """Keeps the rows of both sides, and emits how their join changes."""

    source = "join_changes"

    def __init__(self, work: JoinWork, query: Query) -> None:
        super().__init__(query, work.forget_after)
        self._work, self._key = work, query.key
        self._types = work.types_of_rows(query)
        shared = {name for side, name in work.results if side is None}
        # Then a row without a match equals one whose match has null in all other columns.
        self._hides_matches = shared.issuperset(query.key) and not any(work.origins)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        self._sides = [
            RowsByKey(group, name, type_, source=self.source, asked=self._work.asked())
            for name, type_ in zip(SIDES, self._types, strict=True)
        ]

    def forget(self, ids: np.ndarray) -> None:
        for side in self._sides:
            side.clear_many(ids)

    def process(self, rows: KeyedRows, watermark: int) -> None:
        self.count(rows=len(rows))
        ids, at = np.unique(rows.ids, return_inverse=True)
        self.keep(ids)
        matches = self._can_match(rows, ids, at)
        number = rows.rows.column(INPUT).to_numpy()
        came = [_which_of(ids, rows.ids[number == side]) for side in (0, 1)]
        work = self._work
        alone = work.alone[0] or work.matched, work.alone[1]
        shown: list[tuple[np.ndarray, np.ndarray] | None] = [None, None]
        pools = {}
        for side in (1, 0):  # of a semi or anti join the right side says which left rows are of use
            other, of_side = 1 - side, shown[side]
            if work.pairs:
                wanted = came[other] & matches
            else:
                wanted = np.zeros(len(ids), bool) if of_side is None else of_side[0] != of_side[1]
            had = self._sides[side].totals(ids) if alone[other] else None
            pools[side] = self._added(side, rows, number == side, matches[at], ids[wanted])
            if had is not None:
                has = self._sides[side].totals(ids)
                shown[other] = self._alone_before_and_after(other, had, has, matches)
        parts: list[Pairs] = []
        if work.pairs:
            parts += self._products(pools[0], pools[1], ids, matches)
        ambiguous = np.logical_and(*(_which_of(ids, pools[side].changed) for side in (0, 1)))
        ambiguous &= np.logical_or(*(_which_of(ids, pools[side].renewed) for side in (0, 1)))
        for side in (0, 1):
            alone_of_side = shown[side]
            if alone_of_side is not None:
                parts.append(_alone(side, pools[side], ids, *alone_of_side))
                ambiguous |= alone_of_side[0] != alone_of_side[1]
            if work.origins[side]:
                parts.append(_own(side, pools[side]))
        self._emit_pairs([pools[0], pools[1]], _joined(parts), ids[ambiguous])

    def _can_match(self, rows: KeyedRows, ids: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return which keys can have matches: bool, of the shape of `ids`."""
        can = np.ones(len(ids), bool)
        if not self._work.null_safe:
            for name in self._key:
                if rows.rows.column(name).null_count:
                    can[at[np.asarray(rows.rows.column(name).is_null())]] = False
        return can

    def _added(
        self, side: int, rows: KeyedRows, where: np.ndarray, matches: np.ndarray, wanted: np.ndarray
    ) -> Pool:
        """Add the rows of a side; return those that change, and those that there were of some keys."""
        there = self._sides[side].get_many(wanted)
        if not self._work.keeps_without_key(side):
            where = where & matches
        some = rows.where(where)
        added = weighted_rows(some.rows, self._work.fields[side].values(), self._types[side])
        found = self._sides[side].add_many(some.ids, *added)
        self.count(unmatched=found.unmatched())
        if self._work.forget_after is not None:
            self._sides[side].give_up_missing(found)
        now, before = np.maximum(found.after, 0), np.maximum(found.before, 0)
        (new,), (known,) = (now != before).nonzero(), (there.weights > 0).nonzero()
        changed = found.ids[new]
        return Pool(
            np.concatenate([changed, wanted[there.owners[known]]]),
            pa.concat_arrays([found.values.take(pa.array(new)), there.values.take(pa.array(known))]),
            np.concatenate([np.zeros(len(new), np.int64), there.weights[known]]),
            np.concatenate([(now - before)[new], np.zeros(len(known), np.int64)]),
            changed,
            changed[before[new] > 0],
        )

    def _alone_before_and_after(
        self, side: int, had: np.ndarray, has: np.ndarray, matches: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for which keys the rows of a side were in the result, and are, without matches."""
        found = (had > 0) & matches, (has > 0) & matches
        return found if self._work.matched and side == 0 else (~found[0], ~found[1])

    @staticmethod
    def _products(left: Pool, right: Pool, ids: np.ndarray, matches: np.ndarray) -> Iterator[Pairs]:
        """Yield the change of all pairs: dL * R + L * dR + dL * dR, with L and R as they were."""
        can = [matches[np.searchsorted(ids, pool.ids)] for pool in (left, right)]
        for one, other in (
            (left.changes, right.weights),
            (left.weights, right.changes),
            (left.changes, right.changes),
        ):
            (at,), (there,) = (one * can[0]).nonzero(), (other * can[1]).nonzero()
            first, second = matching_places(left.ids[at], right.ids[there])
            at, there = at[first], there[second]
            yield Pairs(left.ids[at], at, there, one[at] * other[there])

    def _emit_pairs(self, pools: list[Pool], pairs: Pairs, ambiguous: np.ndarray) -> None:
        """Emit pairs; those of some keys may have the same rows, which are added up."""
        several = np.isin(pairs.ids, ambiguous)
        net = pairs.at(~several)
        if several.any():
            net = _joined([net, self._net(pools, pairs.at(several))])
        for start in range(0, len(net.ids), _ROWS):
            self._emit_span(pools, net.at(slice(start, start + _ROWS)))

    def _net(self, pools: list[Pool], pairs: Pairs) -> Pairs:
        """Return pairs with each row of the result once."""
        codes = np.unique(pairs.ids, return_inverse=True)[1]
        for pool, at in zip(pools, (pairs.left, pairs.right), strict=True):
            used, place = np.unique(at, return_inverse=True)
            rows = pool.values.take(pa.array(np.maximum(used, 0), mask=used < 0))
            columns = rows.flatten()
            if not self._hides_matches:
                columns.append(pa.array(used < 0))
            struct = pa.StructArray.from_arrays(columns, names=[str(n) for n in range(len(columns))])
            codes, _ = combined_codes(codes, row_codes(struct)[place])
        places, weights = net_weights(codes, pairs.weights)
        return pairs.at(places)._replace(weights=weights)

    def _emit_span(self, pools: list[Pool], pairs: Pairs) -> None:
        keys = self._group.keys.keys(pairs.ids)
        rows = [
            pool.values.take(pa.array(np.maximum(at, 0), mask=at < 0))
            for pool, at in zip(pools, (pairs.left, pairs.right), strict=True)
        ]
        columns = []
        for side, name in self._work.results:
            if side is None:
                columns.append(keys.column(keys.schema.names.index(name)))
            elif name in self._key:
                absent = (pairs.left, pairs.right)[side] < 0
                places = pa.array(np.arange(len(absent)), mask=absent)
                columns.append(keys.column(keys.schema.names.index(name)).take(places))
            else:
                columns.append(rows[side].field(name))
        if any(self._work.origins):
            origins = np.where(pairs.right < 0, OF_LEFT, np.where(pairs.left < 0, OF_RIGHT, PAIR))
            columns.append(pa.array(origins, pa.int8()))
        names = self._result.names[:-1]
        self.emit(net_changes(pa.RecordBatch.from_arrays(columns, names=names), pairs.weights))


def _which_of(ids: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Return which of ascending ids are among some of them: bool, of the shape of `ids`."""
    found = np.zeros(len(ids), bool)
    found[np.searchsorted(ids, some)] = True
    return found


def matching_places(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of all pairs of equal numbers."""
    order = np.argsort(other, kind="stable")
    other = other[order]
    start, stop = np.searchsorted(other, one, "left"), np.searchsorted(other, one, "right")
    sizes = stop - start
    first = np.repeat(np.arange(len(one)), sizes)
    offset = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return first, order[np.repeat(start, sizes) + offset]


def _alone(side: int, pool: Pool, ids: np.ndarray, before: np.ndarray, after: np.ndarray) -> Pairs:
    """Return the change of the rows of a side that are in the result without matches.

    before, after: for which of `ids` they were, and are
    """
    at = np.searchsorted(ids, pool.ids)
    turned = after.astype(np.int64) - before
    # (L + dL) * after - L * before
    weights = pool.weights * turned[at] + pool.changes * after[at]
    (some,) = weights.nonzero()
    return _of_side(side, pool, some, weights[some])


def _own(side: int, pool: Pool) -> Pairs:
    (some,) = pool.changes.nonzero()
    return _of_side(side, pool, some, pool.changes[some])


def _of_side(side: int, pool: Pool, places: np.ndarray, weights: np.ndarray) -> Pairs:
    none = np.full(len(places), -1)
    left, right = (places, none) if side == 0 else (none, places)
    return Pairs(pool.ids[places], left, right, weights)


def _joined(parts: list[Pairs]) -> Pairs:
    return Pairs(*map(np.concatenate, zip(*parts, strict=True)))
