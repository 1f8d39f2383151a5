"""A key group as a checkpoint has it, read without the query that has written it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa

from timerheap._native._heap import from_text
from timerheap.spark._group.checkpoint import LoadedPart, Stored
from timerheap.spark._group.chunks import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    KEYS,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    ROWS,
    SLICES,
    USER_STATE,
)
from timerheap.spark._group.journalled_timers import JournalledTimers
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.manifest import MANIFEST, Manifest
from timerheap.spark._group.row_buffer import RowBuffer
from timerheap.spark._group.user_states import UserState, restored_state
from timerheap.spark._group.windows_part import StoredWindows

__all__ = ["ReadChunks", "StoredGroup"]

_NO_TIMES = np.empty(0, np.int64)


class ReadChunks:
    """The `ChunkStore` of a key group whose chunks have been read; it is not written."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int], pa.Scalar] = {}

    def add(self, kind: int, id_: int, text: pa.Scalar) -> None:
        """Add a chunk that was read, as it is stored."""
        self._chunks[kind, id_] = text

    def read(self, kind: int, id_: int) -> bytes | None:
        """Return a chunk, or None if there is none."""
        text = self._chunks.get((kind, id_))
        return None if text is None else from_text(text.as_py())

    def read_manifest(self) -> Manifest:
        """Return the manifest; raise ValueError if there is none."""
        data = self.read(MANIFEST, 0)
        if data is None:
            raise ValueError("the checkpoint lacks the manifest of a key group")
        return Manifest.from_bytes(data)

    def has_all(self, kinds: Collection[int]) -> bool:
        """Return whether the chunks of these kinds have been read, as far as they exist."""
        if (MANIFEST, 0) not in self._chunks:
            return False
        manifest = self.read_manifest()
        wanted = {
            (run.kind, id_) for run in manifest.runs if run.kind in kinds for id_ in range(run.count + 1)
        }
        return wanted <= self._chunks.keys()

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError

    def remove(self, kind: int, id_: int) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError

    def write_manifest(self, manifest: Manifest) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError


class StoredGroup:
    """The parts of a key group, loaded from its chunks.

    Parameters
    ----------
    store : ReadChunks
        With the manifest and the chunks of the parts to load.
    kinds : collection of int
        The kinds of these parts.

    Attributes
    ----------
    manifest : Manifest
    keys : KeyTable or None
    timers : dict of int to JournalledTimers
        By kind.
    rows : RowBuffer or None
    windows : StoredWindows or None
    states : dict of str to UserState
        By name.

    Raises
    ------
    ValueError
        If a chunk is missing or damaged, or belongs to another save than the others.
    """

    def __init__(self, store: ReadChunks, kinds: Collection[int]) -> None:
        self.manifest = manifest = store.read_manifest()
        self.keys: KeyTable | None = None
        self.timers: dict[int, JournalledTimers] = {}
        self.rows: RowBuffer | None = None
        self.windows: StoredWindows | None = None
        self.states: dict[str, UserState] = {}
        runs = [run for run in manifest.runs if run.kind in kinds]
        Stored.load(store, replace(manifest, runs=runs), self._part)
        if self.rows is not None:
            self.rows.loaded(manifest.watermark)

    def timers_of(self, kind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the timestamps, key ids and namespaces of the timers of a kind, each of shape (n,)."""
        if kind not in self.timers:
            return _NO_TIMES, _NO_TIMES, _NO_TIMES
        heap = self.timers[kind].heap
        return heap.timestamps, heap.key_hashes, heap.namespaces

    def _part(self, kind: int, name: str, schema: pa.Schema) -> LoadedPart:
        part: LoadedPart
        if kind >= USER_STATE:
            part = self.states[name] = restored_state(kind, name, schema)
        elif kind == KEYS:
            part = self.keys = KeyTable.restored(schema)
        elif kind in (EVENT_TIMERS, PROCESSING_TIMERS, EVENT_EXPIRIES, PROCESSING_EXPIRIES):
            part = self.timers[kind] = JournalledTimers.restored(kind, name)
        elif kind == ROWS:
            part = self.rows = RowBuffer.restored(schema)
        elif kind == SLICES:
            part = self.windows = StoredWindows(name, schema)
        else:
            raise ValueError(f"the checkpoint has chunks of kind {kind}, which this version cannot read")
        return part
