"""User states whose contents grow: lists and maps, which are written by their changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa

from timerheap.spark._group.memory import PROCESS, Memory
from timerheap.spark._group.offsets import wide, wide_rows, widen
from timerheap.spark._group.segments import Edits, SegmentChains

__all__ = ["SMALL", "GrowingState", "rows_of"]

SMALL = 256
"""The contents of all keys at hand are loaded at once, except those with more entries than this."""

_ROW_ENTRIES = 4096  # in one row of a chunk, so that no chunk grows with the contents of a key

L = TypeVar("L")


class GrowingState(ABC, Generic[L]):
    """The contents of one list or map state, by key id: chains of segments behind what the batch has touched.

    Changes of the current batch are collected for each key, and become one row of its chain and of the
    checkpoint. Contents are loaded only when they are read.

    Parameters
    ----------
    kind : int
        The kind of its chunks in the checkpoint.
    name : str
        The state's name.
    type_ : pyarrow.DataType
        The type of a whole list or map.
    memory : Memory
    """

    shape: ClassVar[str]
    id_column = 0

    def __init__(self, kind: int, name: str, type_: pa.DataType, memory: Memory = PROCESS) -> None:
        self.kind = kind
        self.name = name
        self.type = type_
        rows = self._row_type(type_)
        self.schema = pa.schema([("key_hash", pa.int64()), ("replaces", pa.bool_()), (self.shape, rows)])
        self._chains = SegmentChains(rows, self._compact, memory)
        self._journal: list[Edits] = []
        self._losses = 0
        self._at_hand: list[np.ndarray] = []
        self._loaded: dict[int, L] = {}

    @classmethod
    def restored(cls, kind: int, name: str, schema: pa.Schema, memory: Memory = PROCESS) -> Self:
        """Return an empty state for chunks of this schema."""
        return cls(kind, name, cls._type_of(schema.field(cls.shape).type), memory)

    @classmethod
    def attach(cls, kind: int, name: str, type_: pa.DataType, memory: Memory, head: list[Any]) -> Self:
        """Return the state that `head` describes; O(1)."""
        state = cls(kind, name, type_)
        state._losses, chains = head
        state._chains = SegmentChains.attach(cls._row_type(type_), cls._compact, memory, chains)
        return state

    def head(self) -> list[Any]:
        """Return the JSON values that `attach` needs; all changes must have been saved."""
        return [self._losses, self._chains.head()]

    @staticmethod
    @abstractmethod
    def _row_type(type_: pa.DataType) -> pa.DataType:
        """Return the list type of the rows of chunks, given the type of whole contents."""

    @staticmethod
    @abstractmethod
    def _type_of(rows: pa.DataType) -> pa.DataType:
        """Return the type of whole contents, given that of the rows of chunks."""

    @staticmethod
    @abstractmethod
    def _compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
        """See `timerheap.spark._group.segments.Compact`."""

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
        """Return the ids of the keys that have contents."""
        self._settle()
        return self._chains.ids()

    @property
    def losses(self) -> int:
        """How many times a key lost its contents."""
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
        """Return what was appended or replaced since the last call."""
        self._settle()
        self._loaded.clear()
        self._at_hand = []
        if not self._journal:
            return None
        edits = Edits.concatenated(self._journal).composed(self._compact)
        self._journal = []
        return _batch(edits, self.schema)

    def snapshot(self) -> pa.RecordBatch:
        """Return all contents."""
        ids = np.sort(self.ids())
        whole = np.ones(len(ids), bool)
        return _batch(Edits(ids, whole, self._compact(self._chains.get(ids), whole)), self.schema)

    def replay(self, batch: pa.RecordBatch) -> None:
        """Restore a batch that `changes` or `snapshot` returned."""
        if wide_rows(batch.schema) != wide_rows(self.schema) or any(c.null_count for c in batch.columns):
            raise ValueError(
                f"a chunk of state {self.name!r} has the columns {batch.schema}, not {self.schema}"
            )
        self._chains.apply(_edits(batch).composed(self._compact))

    def reserve(self, times: float) -> None:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        self._chains.reserve(times)

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """See `timerheap.spark._group.checkpoint.CheckpointedPart`."""
        edits = Edits.concatenated([_edits(batch) for batch in batches]).composed(self._compact)
        return _batch(edits, self.schema)

    def __len__(self) -> int:
        """Return the number of keys that have contents."""
        return len(self.ids())


def rows_of(entries: pa.Array, lengths: Sequence[int], type_: pa.DataType) -> pa.Array:
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
