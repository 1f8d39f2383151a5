"""List and map states: for each key id a chain of segments, behind what the batch has touched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row

from timerheap._native._core import IdIndex
from timerheap._values import KeyCodec
from timerheap.errors import ArgumentTypeError, ArgumentValueError, DamagedCheckpointError
from timerheap.spark._arrow import wide, wide_rows, widen, widen_column
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._memory.segment_chains import Edits, SegmentChains, without_empty
from timerheap.spark._python_rows import python_values
from timerheap.spark._settling.settled_parts import SettledPart

L = TypeVar("L")

SMALL = 256
"""The contents of all keys at hand are loaded at once, except those with more entries than this."""

_ROW_ENTRIES = 4096  # in one row of a chunk, so that no chunk grows with the contents of a key
_SEARCHES = 64  # of one map in a batch before it is loaded, which costs as much as about this many


class ChainedState:
    """What a state has whose contents grow: chains of segments, read and written in columns.

    All changes since the last save become one row of the checkpoint for each key. `type` is that of whole
    contents.
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
        self.record_type = self._chains.type
        self.settled: SettledPart | None = None  # the contents that are not in the chains
        self._journal: list[Edits] = []

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

    @staticmethod
    def _whole(rows: pa.Array) -> pa.Array:
        """Return contents given the compacted rows of whole ones."""
        return rows

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the contents of many keys, empty for a key without any: shape (n,), with 64-bit offsets."""
        self._settle()
        if self.settled is not None:
            self.settled.bring(ids)
        return self._whole(self._rows(ids))

    def _rows(self, ids: np.ndarray) -> pa.Array:
        return self._compact(self._chains.get(ids), np.ones(len(ids), bool))

    def clear_many(self, ids: np.ndarray) -> None:
        """Remove the contents of many keys, whose ids may be repeated: int64, shape (n,)."""
        nothing = pa.array([], self._chains.type.value_type)
        self._write_many(ids, nothing, np.zeros(len(ids), np.int64), replaces=True)

    def _write_many(
        self, ids: np.ndarray, entries: pa.Array, lengths: np.ndarray, *, replaces: bool = False
    ) -> None:
        """Append entries, or replace contents by them: for each of `ids`, int64, the next `lengths`."""
        if len(ids) != len(lengths):
            raise ArgumentValueError(
                f"state {self.name!r}: there must be one row for each id, got {len(ids)} ids and "
                f"{len(lengths)} rows"
            )
        rows = lists_of(entries, lengths, self._chains.type)
        self._settle()
        self._apply(Edits(np.array(ids, np.int64), np.full(len(ids), replaces), rows).composed(self._compact))

    def _apply(self, edits: Edits) -> None:
        """Apply edits with one row for each key, and journal them."""
        self._losses += self._chains.apply(edits)
        self._journal.append(edits)

    def _settle(self) -> None:
        """Write what has been collected to the chains and to the journal."""

    def announce(self, ids: np.ndarray) -> None:
        """Record that the contents of these keys may be read one by one."""

    def ids(self) -> np.ndarray:
        self._settle()
        return self._chains.ids()

    def count_losses(self) -> int:
        self._settle()
        return self._losses

    # The methods of `timerheap.spark._settling.settling_parts.SettlingContents`:

    def entries(self, ids: np.ndarray) -> np.ndarray:
        return self._chains.lengths(ids)

    def in_table(self, ids: np.ndarray) -> pa.Array:
        return without_empty(self._rows(ids))

    def take_out(self, ids: np.ndarray) -> None:
        self._chains.remove(ids)

    def put_back(self, ids: np.ndarray, contents: pa.Array) -> None:
        self._chains.apply(Edits.whole(ids, contents))

    def hot_bytes(self) -> float:
        return self._chains.used_bytes()

    # The methods of `timerheap.spark._group.stored.parts.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        self._settle()
        if not self._journal:
            return None
        edits = Edits.concatenated(self._journal).composed(self._compact)
        self._journal = []
        return batch_of(edits, self.schema)

    def snapshot(self) -> pa.RecordBatch:
        ids = np.sort(self.ids())
        more = None if self.settled is None else self.settled.items()
        return batch_of(Edits.whole(ids, self._rows(ids), more), self.schema)

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self.schema) or any(c.null_count for c in batch.columns):
            raise DamagedCheckpointError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._chains.apply(edits_of(batch).composed(self._compact))

    def reserve(self, times: float) -> None:
        self._chains.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        edits = Edits.concatenated([edits_of(batch) for batch in batches]).composed(self._compact)
        return batch_of(edits, self.schema)

    def __len__(self) -> int:
        return len(self.ids()) + (0 if self.settled is None else len(self.settled))


class GrowingState(ChainedState, ABC, Generic[L]):
    """The contents of one list or map state, by key id: chains of segments behind what the batch has touched.

    Changes of single keys in the current batch are collected for each key, and contents are loaded only when
    they are read.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._at_hand: list[np.ndarray] = []
        self._loaded: dict[int, L] = {}

    @abstractmethod
    def _read(self, ids: list[int], rows: pa.Array) -> None:
        """Put stored contents, with the changes of the batch, into `_loaded`."""

    @abstractmethod
    def _pending_edits(self) -> Edits | None:
        """Return the changes of single keys since the last call, or None if there are none."""

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

    def _settle(self) -> None:
        edits = self._pending_edits()
        if edits is not None:
            self._apply(edits)

    def _write_many(
        self, ids: np.ndarray, entries: pa.Array, lengths: np.ndarray, *, replaces: bool = False
    ) -> None:
        super()._write_many(ids, entries, lengths, replaces=replaces)
        self._loaded.clear()

    def changes(self) -> pa.RecordBatch | None:
        found = super().changes()
        self._loaded.clear()
        self._at_hand = []
        return found


def lists_of(entries: pa.Array, lengths: Sequence[int] | np.ndarray, type_: pa.DataType) -> pa.Array:
    """Return rows of these lengths, in the type with 64-bit offsets."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), entries, type=wide(type_))


def edits_of(batch: pa.RecordBatch) -> Edits:
    ids, replaces, rows = widen(batch).columns
    return Edits(ids.to_numpy(), replaces.to_numpy(zero_copy_only=False), rows)


def batch_of(edits: Edits, schema: pa.Schema) -> pa.RecordBatch:
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
    return lists_of(kept, np.bincount(owners[places], minlength=len(rows)), rows.type)


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
    codes = np.array(keys.is_null(), np.int64)
    for column in keys.flatten():
        field = _codes(column)
        codes, _ = pd.factorize(codes * (field.max(initial=0) + 1) + field)
    return codes


def _comparable_keys(keys: pa.Array) -> pa.Array:
    """Return keys of maps as `KeyCodec` has them: -0.0 becomes 0.0, and each NaN the same."""
    if pa.types.is_floating(keys.type):
        return pc.if_else(
            pc.is_nan(keys), pa.scalar(float("nan"), keys.type), pc.add(keys, pa.scalar(0.0, keys.type))
        )
    if pa.types.is_struct(keys.type):
        columns = list(map(_comparable_keys, keys.flatten()))
        return pa.StructArray.from_arrays(columns, fields=list(keys.type), mask=keys.is_null())
    return keys


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

    def append_many(self, ids: np.ndarray, rows: pa.Array) -> None:
        """Append a row, a list, to the list of each of `ids`, which may be repeated: both of shape (n,)."""
        self._write_many(ids, *self._elements_of(rows))

    def replace_many(self, ids: np.ndarray, rows: pa.Array) -> None:
        """Set the lists of `ids` to the rows, lists: both of shape (n,); an empty one removes the state."""
        self._write_many(ids, *self._elements_of(rows), replaces=True)

    def _elements_of(self, rows: pa.Array) -> tuple[pa.Array, np.ndarray]:
        lists = pa.types.is_list(rows.type) or pa.types.is_large_list(rows.type)
        if not lists or wide(rows.type.value_type) != self._chains.type.value_type:
            raise ArgumentTypeError(f"state {self.name!r}: rows must be of {self.type}, got {rows.type}")
        elements, lengths = widen_column(rows.flatten()), rows.value_lengths()
        if lengths.null_count or elements.null_count:
            raise ArgumentValueError(
                f"state {self.name!r}: rows and their elements must not be null, got {lengths.null_count} "
                f"null rows and {elements.null_count} null elements"
            )
        return elements, lengths.to_numpy()

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
        rows = lists_of(
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

    def put_many(self, ids: np.ndarray, rows: pa.Array) -> None:
        """Set the entries of a row, a map, in the map of each of `ids`, which may be repeated: shape (n,)."""
        self._write_many(ids, *self._entries_of(rows))

    def replace_many(self, ids: np.ndarray, rows: pa.Array) -> None:
        """Set the maps of `ids` to the rows, maps: both of shape (n,); an empty one removes the state."""
        self._write_many(ids, *self._entries_of(rows), replaces=True)

    def remove_many(self, ids: np.ndarray, keys: pa.Array) -> None:
        """Remove an entry, by its key, from the map of each of `ids`, which may be repeated: shape (n,)."""
        if wide(keys.type) != wide(self.type.key_type) or keys.null_count:
            raise ArgumentTypeError(
                f"state {self.name!r}: keys must be of {self.type.key_type} and not null, got {keys.type} "
                f"with {keys.null_count} nulls"
            )
        entries = self._log(widen_column(keys), pa.nulls(len(keys), wide(self.type.item_type)), removed=True)
        self._write_many(ids, entries, np.ones(len(keys), np.int64))

    def _entries_of(self, rows: pa.Array) -> tuple[pa.Array, np.ndarray]:
        if not pa.types.is_map(rows.type) or wide(rows.type) != wide(self.type) or rows.null_count:
            raise ArgumentTypeError(
                f"state {self.name!r}: rows must be of {self.type} and not null, got {rows.type} with "
                f"{rows.null_count} nulls"
            )
        whole = pa.concat_arrays([rows])  # which begins at 0
        offsets = whole.offsets.to_numpy()
        keys, values = (widen_column(each.slice(0, offsets[-1])) for each in (whole.keys, whole.items))
        return self._log(keys, values, removed=False), np.diff(offsets).astype(np.int64)

    def _log(self, keys: pa.Array, values: pa.Array, removed: bool) -> pa.Array:
        columns = [pa.repeat(removed, len(keys)), _comparable_keys(keys), values]
        return pa.StructArray.from_arrays(columns, fields=list(self._chains.type.value_type))

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
        rows = lists_of(entries, lengths, self._row_type(self.type))
        return Edits(np.fromiter(pending, np.int64, len(pending)), replaces, rows)
