"""Contents that grow, by key id: for each a chain of segments, so that a change costs its own size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap._native._core import IdIndex
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.id_table import IdTable

Compact = Callable[[pa.Array, np.ndarray], pa.Array]
"""Removes what later entries of the same row supersede, given rows and which of them are whole contents."""
_CHAIN = pa.list_(pa.field("link", pa.struct([("segment", pa.int64()), ("length", pa.int64())])))


class Edits:
    """Changes of contents: rows to append to the contents of their keys, or to replace them.

    The ids (int64), what `replaces` (bool) and the rows (lists with 64-bit offsets) have the shape (n,). A
    key may have several rows, which then apply in this order. An empty row that replaces removes the
    contents.
    """

    def __init__(self, ids: np.ndarray, replaces: np.ndarray, rows: pa.Array) -> None:
        self.ids = ids
        self.replaces = replaces
        self.rows = rows

    @classmethod
    def concatenated(cls, edits: list[Edits]) -> Edits:
        """Return edits that apply one after the other."""
        if len(edits) == 1:
            return edits[0]
        return cls(
            np.concatenate([e.ids for e in edits]),
            np.concatenate([e.replaces for e in edits]),
            pa.concat_arrays([e.rows for e in edits]),
        )

    @classmethod
    def whole(cls, ids: np.ndarray, rows: pa.Array, more: tuple[np.ndarray, pa.Array] | None = None) -> Edits:
        """Return edits that replace the contents of keys; with those of `more` keys, by id."""
        if more is not None:
            ids, rows = np.concatenate([ids, more[0]]), pa.concat_arrays([rows, more[1]])
            order = np.argsort(ids)
            ids, rows = ids[order], rows.take(pa.array(order))
        return cls(ids, np.ones(len(ids), bool), rows)

    def take(self, rows: np.ndarray) -> Edits:
        """Return the edits at these positions, or where a mask is True."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Edits(self.ids[at], self.replaces[at], self.rows.take(pa.array(at)))

    def composed(self, compact: Compact) -> Edits:
        """Return edits with the same effect and one row for each key."""
        if IdIndex().put_many(self.ids, 0).all():  # as most often, which is cheaper to see than to sort
            return self
        codes, ids = pd.factorize(self.ids)
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        replacing = np.where(self.replaces[order], np.arange(len(order)), -1)
        since = np.maximum.reduceat(replacing, starts)  # the last replacement of each key
        kept = order[np.arange(len(order)) >= since[codes[order]]]
        starts = np.flatnonzero(np.diff(codes[kept], prepend=-1))
        rows = joined(self.rows.take(pa.array(kept)), starts)
        return Edits(ids, since >= 0, compact(rows, since >= 0))


class SegmentChains:
    """The contents of many keys, each a list of entries of one type in a chain of segments.

    Appending adds a segment. Then the newest segments are joined as long as the one before them is at most
    twice as long, so that each is more than twice as long as the next: a chain has O(log n) segments, and n
    entries are copied O(n log n) times in all, however they come.
    """

    _next: int  # the id of the next segment

    def __init__(
        self, type_: pa.DataType, compact: Compact, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        links, segments, self._next = head or ((), (), 0)
        self._compact = compact
        self._chains = IdTable(_CHAIN, memory, links)
        self._segments = IdTable(type_, memory, segments)
        self.type = self._segments.type

    def head(self) -> list[Any]:
        return [self._chains.head(), self._segments.head(), self._next]

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have contents: shape (n,), int64, valid until the next change."""
        return self._chains.ids()

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return which keys have contents: shape (n,), bool."""
        # These are the keys that have chains, even where entries remove others: the oldest segment is longer
        # than all others together, and removes nothing, so something of it is left.
        return self._chains.find(ids)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of stored entries of each key, superseded ones included: shape (n,), int64."""
        chains, bounds = self._chains_of(ids)
        totals = np.concatenate([[0], np.cumsum(chains.field("length"))])
        return np.diff(totals[bounds])

    def get(self, ids: np.ndarray) -> pa.Array:
        """Return the contents of each key, from the oldest entry to the newest: shape (n,), never null."""
        chains, bounds = self._chains_of(ids)
        return _regrouped(self._segments.get(np.asarray(chains.field("segment"))), bounds)

    def used_bytes(self) -> float:
        """Return about how many bytes the contents take; O(1)."""
        return self._chains.used_bytes() + self._segments.used_bytes()

    def remove(self, ids: np.ndarray) -> None:
        """Remove the contents of keys; those that have none are ignored."""
        links, _ = self._chains_of(ids)
        self._segments.remove(np.asarray(links.field("segment")))
        self._chains.remove(ids)

    def reserve(self, times: float) -> None:
        self._chains.reserve(times)
        self._segments.reserve(times)

    def apply(self, edits: Edits) -> int:
        """Change the contents by edits with one row for each key; return how many keys have lost theirs."""
        links, bounds = self._chains_of(edits.ids)
        held, lengths = (links.field(name).to_numpy() for name in ("segment", "length"))
        start, end = bounds[:-1], bounds[1:]  # of the links of each key
        stop = np.where(edits.replaces, start, end)
        rows = self._compact(edits.rows, stop == start)
        kept = _unjoined(lengths, start, stop, np.asarray(rows.value_lengths()))
        if (kept < stop).any():  # join the links from `kept` to `stop` with the new rows, before them
            segments = self._segments.get(held[_ranges(kept, stop)])
            counts = stop - kept
            both = _interleaved(segments, counts, rows, np.ones(len(rows), bool))
            rows = self._compact(joined(both, np.cumsum(counts + 1) - counts - 1), kept == start)
        old = _ranges(kept, end)
        self._segments.remove(held[old])
        links = links.take(pa.array(_ranges(start, kept)))
        return self._put(edits.ids, links, kept - start, rows, end > start)

    def _chains_of(self, ids: np.ndarray) -> tuple[pa.StructArray, np.ndarray]:
        """Return the chains of keys one after the other, and the bounds of each: shape (n + 1,)."""
        chains = self._chains.get(ids)
        counts = np.asarray(chains.value_lengths().fill_null(0))
        return chains.flatten(), np.concatenate([[0], np.cumsum(counts)])

    def _put(
        self, ids: np.ndarray, links: pa.StructArray, counts: np.ndarray, rows: pa.Array, known: np.ndarray
    ) -> int:
        """Put `rows` behind chains of `counts` `links`, and return how many `known` keys have no chain."""
        lengths = np.asarray(rows.value_lengths())
        filled = lengths > 0
        new = np.arange(self._next, self._next + len(ids))[filled]
        self._next += len(ids)
        if not filled.all():
            rows = rows.filter(pa.array(filled))
        self._segments.put(new, rows)
        columns = [pa.array(new), pa.array(lengths[filled], pa.int64())]
        link = pa.StructArray.from_arrays(columns, fields=list(links.type))
        sizes = counts + filled
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)])[np.append(True, sizes > 0)])
        chains = pa.LargeListArray.from_arrays(
            offsets, _interleaved(links, counts, link, filled), type=self._chains.type
        )
        self._chains.put(ids[sizes > 0], chains)
        emptied = known & (sizes == 0)
        self._chains.remove(ids[emptied])
        return int(np.count_nonzero(emptied))


def without_empty(rows: pa.Array) -> pa.Array:
    """Return lists, of which those without entries become null."""
    empty = np.asarray(rows.value_lengths()) == 0
    return rows.take(pa.array(np.arange(len(rows)), mask=empty)) if empty.any() else rows


def joined(rows: pa.Array, starts: np.ndarray) -> pa.Array:
    """Join rows into one row for each of `starts`, the first row of which it names."""
    return _regrouped(rows, np.append(starts, len(rows)))


def _regrouped(rows: pa.Array, bounds: np.ndarray) -> pa.Array:
    offsets = rows.offsets.to_numpy()[bounds]
    return pa.LargeListArray.from_arrays(pa.array(offsets), rows.values, type=rows.type)


def _interleaved(old: pa.Array, counts: np.ndarray, new: pa.Array, has_new: np.ndarray) -> pa.Array:
    """Return, row by row, a count of `old` elements, and the next of the `new` ones where it `has_new`."""
    ends = np.cumsum(counts + has_new)
    own = np.zeros(len(old) + len(new), bool)
    own[ends[has_new] - 1] = True
    order = np.empty(len(own), np.int64)
    order[own] = np.arange(len(old), len(own))
    order[~own] = np.arange(len(old))
    return pa.concat_arrays([old, new]).take(pa.array(order)) if len(old) else new


def _unjoined(lengths: np.ndarray, start: np.ndarray, stop: np.ndarray, added: np.ndarray) -> np.ndarray:
    """Return, for each chain, the end of the links that its new segment is not joined with."""
    # `lengths` are those of all segments, chain by chain; each chain is from `start` to `stop`, and gets a
    # segment of the length `added`.
    ends, totals = stop.copy(), added.astype(np.int64)
    at = np.flatnonzero(ends > start)
    while len(at := at[lengths[ends[at] - 1] <= 2 * totals[at]]):
        ends[at] -= 1
        totals[at] += lengths[ends[at]]
        at = at[ends[at] > start[at]]
    return ends


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the numbers of all ranges, one range after the other."""
    counts = stops - starts
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
