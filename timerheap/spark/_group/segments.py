"""Contents that grow: for each key id a chain of segments, so that a change costs its own size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap.spark._group.id_table import IdTable
from timerheap.spark._group.memory import PROCESS, Memory

__all__ = ["Compact", "Edits", "SegmentChains", "joined"]

Compact = Callable[[pa.Array, np.ndarray], pa.Array]
"""Removes what later entries of the same row supersede, given rows and which of them are whole contents."""

_CHAIN = pa.list_(pa.field("link", pa.struct([("segment", pa.int64()), ("length", pa.int64())])))


class Edits:
    """Changes of contents: rows to append to the contents of their keys, or to replace them.

    Parameters
    ----------
    ids : ndarray of int64, shape (n,)
        A key may have several rows, which then apply in this order.
    replaces : ndarray of bool, shape (n,)
        Whether a row replaces what its key had before; an empty row that does removes the contents.
    rows : pyarrow.LargeListArray, shape (n,)
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

    def take(self, rows: np.ndarray) -> Edits:
        """Return the edits at these positions, or where a mask is True."""
        at = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Edits(self.ids[at], self.replaces[at], self.rows.take(pa.array(at)))

    def composed(self, compact: Compact) -> Edits:
        """Return edits with the same effect and one row for each key."""
        codes, ids = pd.factorize(self.ids)
        if len(ids) == len(self.ids):
            return self
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

    Parameters
    ----------
    type_ : pyarrow.ListType
        The type of contents.
    compact : Compact
    memory : Memory
    """

    def __init__(self, type_: pa.DataType, compact: Compact, memory: Memory = PROCESS) -> None:
        self._compact = compact
        self._chains = IdTable(_CHAIN, memory)
        self._segments = IdTable(type_, memory)
        self._next = 0  # the id of the next segment
        self._entries = 0  # in all segments
        self._nbytes = 0.0  # of these; what a removed entry took is known on average
        self.type = self._segments.type

    @classmethod
    def attach(cls, type_: pa.DataType, compact: Compact, memory: Memory, head: list[Any]) -> SegmentChains:
        """Return the chains that `head` describes; O(1)."""
        chains = cls.__new__(cls)
        links, segments, chains._next, chains._entries, chains._nbytes = head
        chains._compact = compact
        chains._chains = IdTable.attach(_CHAIN, memory, links)
        chains._segments = IdTable.attach(type_, memory, segments)
        chains.type = chains._segments.type
        return chains

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs."""
        return [self._chains.head(), self._segments.head(), self._next, self._entries, self._nbytes]

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that have contents: shape (n,), int64, valid until the next change."""
        return self._chains.ids()

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return which keys have contents: shape (n,), bool."""
        return self._chains.find(ids)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of stored entries of each key, superseded ones included: shape (n,), int64."""
        chains, bounds = self._chains_of(ids)
        totals = np.concatenate([[0], np.cumsum(chains.field("length"))])
        lengths: np.ndarray = np.diff(totals[bounds])
        return lengths

    def get(self, ids: np.ndarray) -> pa.Array:
        """Return the contents of each key, from the oldest entry to the newest: shape (n,), never null."""
        chains, bounds = self._chains_of(ids)
        return _regrouped(self._segments.get(np.asarray(chains.field("segment"))), bounds)

    def nbytes(self) -> int:
        """Return the approximate size of all contents in bytes."""
        return round(self._nbytes)

    def reserve(self, times: int) -> None:
        """Make room for `times` the present contents."""
        self._chains.reserve(times)
        self._segments.reserve(times)

    def apply(self, edits: Edits) -> int:
        """Change the contents, and return how many keys have lost theirs.

        Parameters
        ----------
        edits : Edits
            One row for each key.
        """
        known = self.find(edits.ids)
        whole = edits.replaces | ~known
        chains = [[] for _ in range(len(whole))] if not known.any() else self._old_chains(edits.ids)
        old = [  # segments to remove, with their lengths
            link
            for chain, replaced in zip(chains, edits.replaces.tolist(), strict=True)
            if replaced
            for link in chain
        ]
        rows = self._compact(edits.rows, whole)
        lengths = np.asarray(rows.value_lengths()).tolist()
        sources: list[tuple[int, int]] = []  # segments to join with new rows, before them
        counts = np.zeros(len(lengths), np.int64)  # how many for each row
        for at, (chain, alone) in enumerate(zip(chains, whole.tolist(), strict=True)):
            if alone:
                chain.clear()
                continue
            length, first = lengths[at], len(chain)
            while first and chain[first - 1][1] <= 2 * length:
                first -= 1
                length += chain[first][1]
            counts[at] = len(chain) - first
            sources += chain[first:]
            whole[at] = not first
            del chain[first:]
        if sources:
            segments = self._segments.get(np.array([segment for segment, _ in sources]))
            rows = self._compact(_prefixed(segments, counts, rows), whole)
        old += sources
        gone = sum(length for _, length in old)
        return self._put(edits.ids, chains, rows, np.array([s for s, _ in old], np.int64), gone, known)

    def _old_chains(self, ids: np.ndarray) -> list[list[tuple[int, int]]]:
        flat, bounds = self._chains_of(ids)
        pairs = list(zip(flat.field("segment").to_pylist(), flat.field("length").to_pylist(), strict=True))
        return [pairs[start:stop] for start, stop in pairwise(bounds.tolist())]

    def _chains_of(self, ids: np.ndarray) -> tuple[pa.StructArray, np.ndarray]:
        """Return the chains of keys one after the other, and the bounds of each: shape (n + 1,)."""
        chains = self._chains.get(ids)
        counts = np.asarray(chains.value_lengths().fill_null(0))
        return chains.flatten(), np.concatenate([[0], np.cumsum(counts)])

    def _put(
        self,
        ids: np.ndarray,
        chains: list[list[tuple[int, int]]],
        rows: pa.Array,
        old: np.ndarray,
        gone: int,
        known: np.ndarray,
    ) -> int:
        """Put `rows` at the ends of `chains`, and remove the segments `old`, which have `gone` entries."""
        lengths = np.asarray(rows.value_lengths())
        new = np.arange(self._next, self._next + len(ids))
        self._next += len(ids)
        filled = lengths > 0
        self._segments.remove(old)
        rows = rows.filter(pa.array(filled))
        self._segments.put(new[filled], rows)
        self._nbytes += rows.nbytes - gone * self._nbytes / max(1, self._entries)
        self._entries += int(lengths.sum()) - gone
        for chain, segment, length in zip(chains, new.tolist(), lengths.tolist(), strict=True):
            if length:
                chain.append((segment, length))
        emptied = known & np.array([not chain for chain in chains], bool)
        self._chains.remove(ids[emptied])
        kept = np.array([bool(chain) for chain in chains], bool)
        flat = [pair for chain in chains for pair in chain]
        entries = pa.StructArray.from_arrays(
            [pa.array([s for s, _ in flat], pa.int64()), pa.array([n for _, n in flat], pa.int64())],
            fields=list(self._chains.type.value_type),
        )
        offsets = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])]).astype(np.int64)
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), entries, type=self._chains.type)
        self._chains.put(ids[kept], lists.filter(pa.array(kept)))
        return int(np.count_nonzero(emptied))


def joined(rows: pa.Array, starts: np.ndarray) -> pa.Array:
    """Join rows into one row for each of `starts`, the first row of which it names."""
    return _regrouped(rows, np.append(starts, len(rows)))


def _regrouped(rows: pa.Array, bounds: np.ndarray) -> pa.Array:
    offsets = rows.offsets.to_numpy()[bounds]
    return pa.LargeListArray.from_arrays(pa.array(offsets), rows.values, type=rows.type)


def _prefixed(segments: pa.Array, counts: np.ndarray, rows: pa.Array) -> pa.Array:
    """Join each of `rows` with its count of `segments`, which come before it."""
    ends = np.cumsum(counts + 1)
    order = np.empty(len(segments) + len(rows), np.int64)
    own = np.zeros(len(order), bool)
    own[ends - 1] = True
    order[own] = np.arange(len(segments), len(order))
    order[~own] = np.arange(len(segments))
    both = pa.concat_arrays([segments, rows]).take(pa.array(order))
    return joined(both, ends - counts - 1)
