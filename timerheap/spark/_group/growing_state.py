"""List and map states: for each key id a chain of segments, so that a change costs its own size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from timerheap._native._core import IdIndex
from timerheap._values import KeyCodec
from timerheap.spark._arrow import wide, wide_rows, widen
from timerheap.spark._group.columns import python_values
from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.tables import IdTable

Compact = Callable[[pa.Array, np.ndarray], pa.Array]
"""Removes what later entries of the same row supersede, given rows and which of them are whole contents."""

L = TypeVar("L")

SMALL = 256
"""The contents of all keys at hand are loaded at once, except those with more entries than this."""

_ROW_ENTRIES = 4096  # in one row of a chunk, so that no chunk grows with the contents of a key
_SEARCHES = 64  # of one map in a batch before it is loaded, which costs as much as about this many
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


class GrowingState(ABC, Generic[L]):
    """The contents of one list or map state, by key id: chains of segments behind what the batch has touched.

    Changes of the current batch are collected for each key, and become one row of its chain and of the
    checkpoint. Contents are loaded only when they are read. `type` is that of a whole list or map.
    """

    shape: ClassVar[str]
    id_column = 0
    _losses: int

    def __init__(
        self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS, head: Sequence[Any] = ()
    ) -> None:
        self._losses, chains = head or (0, ())
        self.kind = kind
        self.name = name
        self.type = type_
        rows = self._row_type(type_)
        self.schema = pa.schema([("key_hash", pa.int64()), ("replaces", pa.bool_()), (self.shape, rows)])
        self._chains = SegmentChains(rows, self._compact, memory, chains)
        self._journal: list[Edits] = []
        self._at_hand: list[np.ndarray] = []
        self._loaded: dict[int, L] = {}

    @classmethod
    def restored(cls, kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> Self:
        return cls(kind, name, cls._type_of(schema.field(cls.shape).type), memory)

    def head(self) -> list[Any]:
        return [self._losses, self._chains.head()]

    @staticmethod
    def _row_type(type_: pa.DataType) -> pa.DataType:
        """Return the list type of the rows of chunks, given the type of whole contents."""
        return type_

    @staticmethod
    def _type_of(rows: pa.DataType) -> pa.DataType:
        """Return the type of whole contents, given that of the rows of chunks."""
        return rows

    @staticmethod
    def _compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
        return rows

    @abstractmethod
    def _read(self, ids: list[int], rows: pa.Array) -> None:
        """Put stored contents, with the changes of the batch, into `_loaded`."""

    @abstractmethod
    def _pending_edits(self) -> Edits | None:
        """Return the changes since the last call, or None if there are none."""

    @staticmethod
    def _whole(rows: pa.Array) -> pa.Array:
        """Return contents given the compacted rows of whole ones."""
        return rows

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the contents of many keys, empty for a key without any: shape (n,), with 64-bit offsets."""
        self._settle()
        return self._whole(self._compact(self._chains.get(ids), np.ones(len(ids), bool)))

    def announce(self, ids: np.ndarray) -> None:
        """Record that the contents of these keys may be read; the first read then loads the small ones."""
        self._at_hand.append(ids)

    def _is_stored(self, key_id: int) -> bool:
        """Return whether a key has contents, apart from the changes of the batch; O(1)."""
        return bool(self._chains.find(np.array([key_id]))[0])

    def _load(self, key_id: int) -> L:
        ids = np.array([key_id])
        if self._at_hand:
            more = np.setdiff1d(np.concatenate(self._at_hand), ids)
            self._at_hand = []
            ids = np.concatenate([ids, more[self._chains.lengths(more) <= SMALL]])
        missing = [id_ for id_ in ids.tolist() if id_ not in self._loaded]
        self._read(missing, self._chains.get(np.array(missing, np.int64)))
        return self._loaded[key_id]

    def ids(self) -> np.ndarray:
        self._settle()
        return self._chains.ids()

    def count_losses(self) -> int:
        self._settle()
        return self._losses

    def _settle(self) -> None:
        """Write the changes of the batch to the chains and to the journal."""
        edits = self._pending_edits()
        if edits is not None:
            self._losses += self._chains.apply(edits)
            self._journal.append(edits)

    # The methods of `timerheap.spark._group.checkpoint.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        self._settle()
        self._loaded.clear()
        self._at_hand = []
        if not self._journal:
            return None
        edits = Edits.concatenated(self._journal).composed(self._compact)
        self._journal = []
        return _batch(edits, self.schema)

    def snapshot(self) -> pa.RecordBatch:
        ids = np.sort(self.ids())
        whole = np.ones(len(ids), bool)
        return _batch(Edits(ids, whole, self._compact(self._chains.get(ids), whole)), self.schema)

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema) or any(c.null_count for c in batch.columns):
            raise ValueError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._chains.apply(_edits(batch).composed(self._compact))

    def reserve(self, times: float) -> None:
        self._chains.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        edits = Edits.concatenated([_edits(batch) for batch in batches]).composed(self._compact)
        return _batch(edits, self.schema)

    def __len__(self) -> int:
        return len(self.ids())


def rows_of(entries: pa.Array, lengths: Sequence[int] | np.ndarray, type_: pa.DataType) -> pa.Array:
    """Return rows of these lengths, in the type with 64-bit offsets."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), entries, type=wide(type_))


def _edits(batch: pa.RecordBatch) -> Edits:
    ids, replaces, rows = widen(batch).columns
    return Edits(ids.to_numpy(), replaces.to_numpy(zero_copy_only=False), rows)


def _batch(edits: Edits, schema: pa.Schema) -> pa.RecordBatch:
    """Return edits as rows of chunks, in which long contents are a row that replaces and rows to append."""
    lengths = np.asarray(edits.rows.value_lengths())
    pieces = np.maximum(1, -(-lengths // _ROW_ENTRIES))
    ids, replaces, rows = edits.ids, edits.replaces, edits.rows
    if len(ids) < pieces.sum():
        owner = np.repeat(np.arange(len(ids)), pieces)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        start = rows.offsets.to_numpy()[owner] + number * _ROW_ENTRIES
        bounds = np.append(start, rows.offsets.to_numpy()[-1])
        rows = pa.LargeListArray.from_arrays(pa.array(bounds), rows.values, type=rows.type)
        ids, replaces = ids[owner], replaces[owner] & (number == 0)
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(replaces), rows], schema=wide_rows(schema))


def log_type(type_: pa.MapType) -> pa.ListType:
    """Return the type of the log of a map: its entries, and whether each was removed."""
    fields = [("removed", pa.bool_()), ("key", type_.key_type), ("value", type_.item_type)]
    return pa.list_(pa.field("entry", pa.struct(fields)))


def compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
    """Return logs with the same effect, in which a key has at most a removal and then a value."""
    # Like a dict, a log keeps the place of the first value of a key since its last removal. A log of whole
    # contents, one that begins with nothing, needs no removals. Rows of `log_type` and `whole` have the shape
    # (n,).
    entries = rows.flatten()
    removed = entries.field("removed").to_numpy(zero_copy_only=False)
    owners = np.repeat(np.arange(len(rows)), rows.value_lengths())
    keys = _codes(entries.field("key"))
    codes = owners * (keys.max(initial=0) + 1) + keys
    if IdIndex().put_many(codes, 0).all() and not (removed & whole[owners]).any():
        return rows
    codes, distinct = pd.factorize(codes)
    at = np.arange(len(codes))
    removal = np.full(len(distinct), -1)
    removal[codes[removed]] = at[removed]  # of a repeated index, the last value stays
    put = at > removal[codes]
    first, last = np.full(len(distinct), -1), np.full(len(distinct), -1)
    first[codes[put][::-1]] = at[put][::-1]
    last[codes[put]] = at[put]
    present, removal = first >= 0, removal[removal >= 0]
    removal = removal[~whole[owners[removal]]]
    places = np.concatenate([removal, first[present]])
    order = np.argsort(places)
    kept = entries.take(pa.array(np.concatenate([removal, last[present]])[order]))
    return rows_of(kept, np.bincount(owners[places], minlength=len(rows)), rows.type)


def maps(rows: pa.Array) -> pa.Array:
    """Return the maps of whole, compacted logs, fewer than 2**31 entries: shape (n,)."""
    entries = rows.flatten()
    keys, values = entries.field("key"), entries.field("value")
    offsets = np.concatenate([[0], np.cumsum(rows.value_lengths())])
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values)


def find(log: pa.Array, key: Any) -> tuple[bool, Any]:
    """Return whether the map of a single log has a key, and its value; O(n) in Arrow."""
    entries = log.flatten()
    keys = entries.field("key")
    at = np.flatnonzero(pc.equal(keys, pa.scalar(key, keys.type)))
    if not len(at) or entries.field("removed")[at[-1]].as_py():
        return False, None
    return True, python_values(entries.field("value").slice(at[-1], 1))[0]


def _codes(keys: pa.Array) -> np.ndarray:
    """Return numbers that are equal only for equal keys, shape (n,), int64."""
    codes: np.ndarray
    if not pa.types.is_struct(keys.type):
        codes = np.asarray(keys.dictionary_encode(null_encoding="encode").indices, np.int64)
        return codes
    codes = np.zeros(len(keys), np.int64)
    for column in keys.flatten():
        field = _codes(column)
        codes, _ = pd.factorize(codes * (field.max(initial=0) + 1) + field)
    return codes


class ListTable(GrowingState[list[Any]]):
    """The lists of one state (`timerheap._states.ListContents`); see `GrowingState` for its parameters."""

    shape = "list"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: dict[int, tuple[bool, list[Any]]] = {}  # whether it replaces, and elements

    def load(self, key_id: int) -> list[Any]:
        found = self._loaded.get(key_id)
        return self._load(key_id) if found is None else found

    def is_empty(self, key_id: int) -> bool:
        replaces, added = self._pending.get(key_id, (False, []))
        return not added and (replaces or not self._is_stored(key_id))

    def append(self, key_id: int, elements: list[Any]) -> None:
        _, added = self._pending.setdefault(key_id, (False, []))
        added.extend(elements)
        loaded = self._loaded.get(key_id, added)
        if loaded is not added:
            loaded.extend(elements)

    def replace(self, key_id: int, elements: list[Any]) -> None:
        self._pending[key_id] = True, elements
        self._loaded[key_id] = elements

    def _read(self, ids: list[int], rows: pa.Array) -> None:
        flat, stop = python_values(rows.flatten()), 0
        for key_id, length in zip(ids, rows.value_lengths().to_pylist(), strict=True):
            start, stop = stop, stop + length
            elements = flat[start:stop]
            replaces, added = self._pending.get(key_id, (False, []))
            self._loaded[key_id] = added if replaces or not elements else elements + added

    def _pending_edits(self) -> Edits | None:
        if not self._pending:
            return None
        pending, self._pending = self._pending, {}
        flat = [element for _, elements in pending.values() for element in elements]
        rows = rows_of(
            pa.array(flat, self._chains.type.value_type),
            [len(elements) for _, elements in pending.values()],
            self.type,
        )
        replaces = np.array([replaces for replaces, _ in pending.values()])
        return Edits(np.fromiter(pending, np.int64, len(pending)), replaces, rows)


class _Changes:
    """The changes of one map: what was there is replaced or not, keys are removed, then entries put."""

    __slots__ = ("puts", "removed", "replaces")

    def __init__(self, replaces: bool = False) -> None:
        self.replaces = replaces
        self.removed: dict[Any, None] = {}
        self.puts: dict[Any, Any] = {}

    def remove(self, entry: Any) -> None:
        self.puts.pop(entry, None)
        if not self.replaces:
            self.removed[entry] = None


class MapTable(GrowingState[dict[Any, Any]]):
    """The maps of one state (`timerheap._states.MapContents`); see `GrowingState` for its parameters."""

    shape = "map"
    _row_type = staticmethod(log_type)
    _compact = staticmethod(compact)
    _whole = staticmethod(maps)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._key = KeyCodec(self.type.key_type, f"state {self.name!r}, a key", Row)
        self._pending: dict[int, _Changes] = {}
        key = self.type.key_type  # `find` can look for keys but floats, because of NaN, and structs
        self._searchable = not (pa.types.is_nested(key) or pa.types.is_floating(key))
        self._searched: dict[int, tuple[int, pa.Array | None]] = {}  # how often, and the log

    @staticmethod
    def _type_of(rows: pa.DataType) -> pa.DataType:
        return pa.map_(rows.value_type.field("key").type, rows.value_type.field("value").type)

    def load(self, key_id: int) -> dict[Any, Any]:
        found = self._loaded.get(key_id)
        return self._load(key_id) if found is None else found

    def find(self, key_id: int, entry: Any) -> tuple[bool, Any]:
        entries = self._loaded.get(key_id)
        if entries is None:
            if (changes := self._pending.get(key_id)) is not None:
                if entry in changes.puts:
                    return True, changes.puts[entry]
                if changes.replaces or entry in changes.removed:
                    return False, None
            if (log := self._large_log(key_id)) is not None:
                return find(log, entry)
            entries = self._load(key_id)
        return entry in entries, entries.get(entry)

    def is_empty(self, key_id: int) -> bool:
        """Return whether a key has no entries; a large map is not loaded."""
        if key_id in self._loaded:
            return not self._loaded[key_id]
        changes = self._pending.get(key_id, _Changes())
        if changes.puts or changes.replaces:
            return not changes.puts
        if changes.removed:
            if not self._is_large(key_id):
                return not self.load(key_id)
            self._settle()
        return not self._is_stored(key_id)

    def _is_large(self, key_id: int) -> bool:
        return int(self._chains.lengths(np.array([key_id]))[0]) > SMALL

    def _large_log(self, key_id: int) -> pa.Array | None:
        """Return the log of a map that is too large to load for a few lookups; None if it is to be loaded."""
        found = self._searched.get(key_id)
        if found is None:
            large = self._searchable and self._is_large(key_id)
            found = 0, self._chains.get(np.array([key_id])) if large else None
        searches, log = found
        self._searched[key_id] = searches + 1, log
        return log if searches < _SEARCHES else None

    def _settle(self) -> None:
        super()._settle()
        self._searched.clear()

    def put(self, key_id: int, entries: dict[Any, Any]) -> None:
        self._changes(key_id).puts.update(entries)
        if key_id in self._loaded:
            self._loaded[key_id].update(entries)

    def remove(self, key_id: int, entry: Any) -> None:
        if key_id in self._loaded:
            self._loaded[key_id].pop(entry, None)
        # Even if the entry is known to be missing: whether that is known depends on what is loaded, and all
        # attempts of a task must write the same.
        self._changes(key_id).remove(entry)

    def remove_all(self, key_id: int) -> None:
        self._pending[key_id] = _Changes(replaces=True)
        self._loaded[key_id] = {}

    def _changes(self, key_id: int) -> _Changes:
        changes = self._pending.get(key_id)
        if changes is None:
            changes = self._pending[key_id] = _Changes()
        return changes

    def _read(self, ids: list[int], rows: pa.Array) -> None:
        entries = rows.flatten()
        keys = self._keys(entries.field("key"))
        values = python_values(entries.field("value"))
        removed = python_values(entries.field("removed"))
        stop = 0
        for key_id, length in zip(ids, rows.value_lengths().to_pylist(), strict=True):
            start, stop = stop, stop + length
            changes = self._pending.get(key_id, _Changes())
            contents: dict[Any, Any] = {}
            if not changes.replaces:
                for at in range(start, stop):
                    if removed[at]:
                        contents.pop(keys[at], None)
                    else:
                        contents[keys[at]] = values[at]
            for entry in changes.removed:
                contents.pop(entry, None)
            contents.update(changes.puts)
            self._loaded[key_id] = contents

    def _keys(self, column: pa.Array) -> list[Any]:
        kept = python_values(column)
        if pa.types.is_struct(column.type) or pa.types.is_floating(column.type):
            return [self._key.encode(key) for key in kept]  # NaN becomes the one NaN
        return kept

    def _pending_edits(self) -> Edits | None:
        if not self._pending:
            return None
        pending, self._pending = self._pending, {}
        keys = [k for c in pending.values() for part in (c.removed, c.puts) for k in part]
        values = [v for c in pending.values() for v in (*c.removed.values(), *c.puts.values())]
        removed = [r for c in pending.values() for r in (*[True] * len(c.removed), *[False] * len(c.puts))]
        fields = list(self._chains.type.value_type)
        columns = zip((removed, keys, values), fields, strict=True)
        entries = pa.StructArray.from_arrays([pa.array(c, f.type) for c, f in columns], fields=fields)
        lengths = [len(c.removed) + len(c.puts) for c in pending.values()]
        replaces = np.array([c.replaces for c in pending.values()])
        rows = rows_of(entries, lengths, self._row_type(self.type))
        return Edits(np.fromiter(pending, np.int64, len(pending)), replaces, rows)
