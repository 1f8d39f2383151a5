"""Loading a key group that is larger than what it may have in memory: its keys settle while they come.

A group is stored part by part, so the timers of a key come long after the key. So what is stored of keys
that may settle is first sorted into ranges of ids, in a scratch file. Then each range is loaded as a small
group, as any group is, and its keys settle in the large one, as any keys do.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import concatenated, wide_rows, widen
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.state_names import BROADCAST_STATE
from timerheap.spark._group.stored.chunk_store import ChunkReader
from timerheap.spark._group.stored.chunks import pieces, read_chunk, write_chunk
from timerheap.spark._group.stored.kinds import (
    EVENT_EXPIRIES,
    EVENT_TIMERS,
    KEYS,
    PROCESSING_EXPIRIES,
    PROCESSING_TIMERS,
    USER_STATE,
)
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.parts import CheckpointedPart, LoadedPart
from timerheap.spark._group.timers import POP_DUE
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._memory.id_table import ID_BYTES
from timerheap.spark._memory.scratch import Piece, Scratch
from timerheap.spark._settling.settling_keys import TIMER_BYTES, Settling, hot_bytes

_TIMERS = (EVENT_TIMERS, PROCESSING_TIMERS, EVENT_EXPIRIES, PROCESSING_EXPIRIES)
_SMALL = 8 << 20  # bytes of a range in memory
_WRITTEN = 4 << 20  # bytes of one part that are sorted into ranges at a time


def is_large(manifest: Manifest, layout: GroupLayout, settling: Settling) -> bool:
    """Return whether a group is about so large that its keys settle; O(1)."""
    return not layout.own and estimated_bytes(manifest) > settling.above


def large_group(
    store: ChunkReader, manifest: Manifest, layout: GroupLayout, file: LiveFile, settling: Settling
) -> tuple[KeyGroup, Stored]:
    """Do what `loaded_group` does, with little more memory than a group may have, as far as keys can settle.

    Takes a few times as long for each key, half of it to let keys settle, and as much of the disk again as
    the chunks have. Raises an OSError if a file cannot be written or read.
    """
    manifest = replace(manifest)  # a load that fails changes nothing
    wanted = max(estimated_bytes(manifest) / _SMALL, manifest.standing.keys / settling.records)
    group, ranges = KeyGroup(layout, file), _Ranges(int(wanted) + 2)
    with file.scratch() as scratch:
        sorters: list[_Sorter] = []
        others: list[tuple[int, str, pa.Schema]] = []

        def make_part(kind: int, name: str, schema: pa.Schema) -> LoadedPart:
            part: Any = group.part(kind, name, schema)
            if kind in (KEYS, *_TIMERS) or _has_values(part):
                sorters.append(_Sorter(part, name, schema, ranges, scratch))
                return sorters[-1]
            if kind >= USER_STATE:
                others.append((kind, name, schema))
            return cast(LoadedPart, part)

        stored = Stored.load(store, manifest, make_part, layout.drops)
        for sorter in sorters:
            sorter.write()
        group.watermark, group.late_rows = manifest.watermark, manifest.late_rows
        group.wake_up = manifest.wake_up
        group.evolved |= group.rows.loaded(manifest.watermark)
        _take_ranges(group, sorters, others, ranges, settling)
    return group.loaded(None if stored.drops else manifest.losses), stored


def estimated_bytes(manifest: Manifest) -> int:
    """Return about how many bytes the keys of a stored group take in memory; O(runs)."""
    standing, expiries = manifest.standing, (EVENT_EXPIRIES, PROCESSING_EXPIRIES)
    found = TIMER_BYTES * (standing.pending_event_time_timers + standing.pending_processing_time_timers)
    for run in manifest.runs:
        each, rows = run.size // max(1, run.entries), sum(segment.rows for segment in run.segments)
        if run.kind in expiries:
            found += TIMER_BYTES * rows
        elif run.kind == KEYS or run.kind >= USER_STATE:
            found += (ID_BYTES + each) * min(rows, standing.keys)
    return found


class _Ranges:
    """Ranges of ids of the same size: ids are hashes, so that each has about as many keys."""

    def __init__(self, count: int) -> None:
        self._size = -(-(1 << 64) // count)
        self.lows = [self._size * number - (1 << 63) for number in range(count)]
        self.count = count

    def numbers(self, ids: np.ndarray) -> np.ndarray:
        """Return the number of the range of each id, uint16 or uint32, shape (n,)."""
        places = ids.view(np.uint64) + np.uint64(1 << 63)  # modulo 2**64
        return (places // np.uint64(self._size)).astype(np.min_scalar_type(self.count))


class _Sorter:
    """Sorts the rows of a part into ranges, in which they keep their order."""

    def __init__(
        self, part: CheckpointedPart, name: str, schema: pa.Schema, ranges: _Ranges, scratch: Scratch
    ) -> None:
        self._part, self._ranges, self._scratch = part, ranges, scratch
        self.kind, self.name, self.schema = part.kind, name, schema
        self._batches: list[pa.RecordBatch] = []
        self._nbytes = 0
        self._pieces: list[list[Piece]] = [[] for _ in ranges.lows]

    def replay(self, batch: pa.RecordBatch) -> None:
        if wide_rows(batch.schema) != wide_rows(self._part.schema):
            self._part.replay(batch)  # which says what is wrong
        self._batches.append(batch)
        self._nbytes += batch.nbytes
        if self._nbytes >= _WRITTEN:
            self.write()

    def reserve(self, times: float) -> None:
        """Do nothing: what it has in memory stays small."""

    def write(self) -> None:
        """Write what has come since the last time."""
        batches, self._batches, self._nbytes = self._batches, [], 0
        if not batches:
            return
        rows = concatenated(batches)
        ids = rows.column(self._part.id_column).to_numpy()
        if self.kind not in _TIMERS and not np.all(ids[1:] > ids[:-1]):  # else a snapshot
            rows = self._part.merge([widen(rows)])  # of each id there may be one row at a time
            ids = rows.column(self._part.id_column).to_numpy()
        numbers = self._ranges.numbers(ids)
        everywhere = np.empty(0, np.int64)
        if self.kind in _TIMERS:
            everywhere = np.flatnonzero(rows.column(0).to_numpy() == POP_DUE)
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(self._ranges.count), side="right")
        for number, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
            mine = order[start:stop]
            if len(everywhere):
                mine = np.union1d(mine, everywhere)
            if len(mine):
                self._write(number, rows.take(pa.array(mine)))
        pa.default_memory_pool().release_unused()  # else what it keeps for later is most of the peak

    def _write(self, number: int, rows: pa.RecordBatch) -> None:
        for piece in pieces(rows, self.schema):
            self._pieces[number].append(self._scratch.write(write_chunk(self.kind, piece)))

    def load(self, group: KeyGroup, number: int) -> None:
        """Replay the rows of a range into the part of a small group."""
        part = group.part(self.kind, self.name, self.schema)
        for piece in self._pieces[number]:
            part.replay(read_chunk(self.kind, self._scratch.read(piece), self.schema))


def _has_values(part: LoadedPart) -> bool:
    """Return whether a part is a state of values of keys."""
    return isinstance(part, StateTable) and not part.name.startswith(BROADCAST_STATE)


def _take_ranges(
    group: KeyGroup,
    sorters: list[_Sorter],
    others: list[tuple[int, str, pa.Schema]],
    ranges: _Ranges,
    settling: Settling,
) -> None:
    """Load each range, and let its keys settle, once the group has half of what it may have in memory."""
    # The other half is for keys that come back.
    parts = {part.kind: part for part in group.parts()}
    settles = {sorter.kind for sorter in sorters}
    holders = [group.rows, *(state for state in group.states.values() if state.kind not in settles)]
    held = np.unique(np.concatenate([holder.ids() for holder in holders]))
    for number in range(ranges.count):
        small = KeyGroup(group.layout)
        small.watermark = group.watermark
        for other in others:  # a record has room for them, though these keys have nothing in them
            small.part(*other)
        for sorter in sorters:
            sorter.load(small, number)
        small.loaded(0)
        if hot_bytes(group) + hot_bytes(small) > settling.above // 2:
            _settle_some(group, small, held, ranges.lows, settling)
        for part in small.parts():
            if len(part):
                parts[part.kind].replay(cast(pa.RecordBatch, part.snapshot()))
        pa.default_memory_pool().release_unused()


def _settle_some(
    group: KeyGroup, small: KeyGroup, held: np.ndarray, lows: list[int], settling: Settling
) -> None:
    """Let keys of a small group settle in a large one, and take them out of it."""
    new = group.settling.settled is None
    small.settling.settled = group.settling.settled
    wanted = small.settling.wanted()
    if wanted is None:
        return
    settled = small.settling.settled = group.settling.with_records(wanted, settling)
    if new:
        settled.split(0, np.array(lows[1:]))
    ids = np.sort(small.keys.table.ids())
    if len(ids):
        first, stop = np.searchsorted(held, ids[0]), np.searchsorted(held, ids[-1], side="right")
        ids = ids[~np.isin(ids, held[first:stop])]
    if len(ids):
        at = int(np.searchsorted(settled.lows, ids[0], side="right")) - 1
        small.settling.settled_in(at, small.settling.fitting(ids, settled), settling)
