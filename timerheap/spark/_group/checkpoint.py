"""The contents of a key group in the state store: a manifest and chunks.

A group consists of parts: its timers, keys, buffered rows, windows and each user state. The store holds a
part as a run: a stack of segments, each a few chunks, whose batches rebuild the part when they are replayed
in order. The manifest is a small value that says how many there are. Both are sealed: in timerheap's
checksummed envelope. All numbers are little-endian.

A chunk is a record batch, and has no schema of its own: all chunks of a part have the schema that the part's
chunk 0 holds. It begins with 8 bytes: whether what follows is compressed u8 (1: LZ4 block), the width of the
counts u8 (1 or 4), their number u16, the uncompressed size u32. What follows are the counts, then the buffers
of the columns in Arrow's order, each at a multiple of 8 bytes. The first count is the number of rows; the
others are the sizes of the buffers plus 1, or 0 for a buffer that is absent.

The manifest has the format u16, flags u16 (1: a wake-up is registered, 2: the clock is in chunks,
4: there is an event-time timer, 8: a processing-time timer, 16: the clock is stale), the group's id 8 bytes,
the token 16 bytes, max_parallelism i32, the micro-batch i64, the watermark i64, late_rows i64, losses i64,
the wake-up i64, the length of the clock u16 and the number of runs u16; then the clock, or the digests of its
halves; then as LEB128 the numbers of event-time timers, processing-time timers, keys and waiting rows, and as
i64 when the next timer of each kind is due; then for each run its kind u16, the fingerprint of its schema
u32, the number of its segments u16, and as LEB128 the size and the number of entries of its last snapshot;
then for each segment the number of its chunks, their size in bytes, the number of their rows and their
digest, each as LEB128.

A save pushes the changes of a part as a new segment; nothing is written for a part that has not changed.
Segments have levels by their size, each level of 8 times the size of the one below. Once about 8 segments of
a level are on top of the stack, they are merged into one (`Tiers`). So a part of n bytes has O(log n)
segments, and a byte is written again a few times per level: O(log n) times. A merge reads only the segments
that it merges, and none of the small ones that this process has written itself.

A part is written anew from memory where that is less: if the changes are as large as the part, if a merge
would take in the whole stack, or if the stack has grown to about twice the size of the part. The last costs
O(1) for each byte written since, and keeps the checkpoint within a constant factor of the live state, as long
as entries are about as large as they were in the last snapshot. These limits depend a little on the group's
id, so that not all groups merge in the same micro-batch.

What has been removed would stay in the snapshot for as long as few other things change. So a whole group is
written anew at least once in `RENEWAL` micro-batches, and its live file is left, which has the bytes, too.

The clock is the same in all groups of a task. A large one is written by the first of them. The others keep
what they have written when a channel last was new: if Spark repartitions a checkpoint, one of them may become
the first of its task, and then knows all channels.

What a save writes is a function of the stored state and the input: it does not depend on buffers, orders and
thresholds of the process that happens to have the group. So all attempts of a task write the same chunks, and
what Spark puts together from several attempts (speculation, checkpoint format 1) is whole.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from timerheap._native._core import seal, unseal, xxh64
from timerheap.spark._arrow import fitting, narrow, size_of, widen
from timerheap.spark._group.columns import Slab
from timerheap.spark._group.watermark import halves
from timerheap.timer import MIN_WATERMARK

if TYPE_CHECKING:  # which is saved here, and imports this module
    from timerheap.spark._group.key_group import KeyGroup

FORMAT = 12
"""The version of the checkpoints' format."""

INLINE_CLOCK = 4096
"""The size of a clock, in bytes, up to which it is in every group's manifest: that of some 100 channels."""

# The kinds of chunks; frozen, since checkpoints contain them. User states have USER_STATE and up.
EVENT_TIMERS = 16
PROCESSING_TIMERS = 17
KEYS = 18
ROWS = 20
CLOCK = 21
EVENT_EXPIRIES = 23
PROCESSING_EXPIRIES = 24
TIMER_NAMES = 25
MANIFEST = 32
USER_STATE = 64
OWN = frozenset([22, *range(40, USER_STATE)])  # of an `OwnPart`; each feature that has one takes a number

RENEWAL = 1000
"""The number of micro-batches in which a key group is written anew, without what has been removed."""

_SMALL = 4096
_SLACK = 16 << 10
_TARGET_BYTES = 1 << 20  # a load takes about 0.5 ms of CPU for each chunk, whatever its size
_HALVES = (0, 1)  # the ids of the chunks of a clock: times and names
_HEADER = struct.Struct("<HH8s16siqqqqqHH")
_RUN = struct.Struct("<HIH")
_TIME = struct.Struct("<q")
_WAKE_UP, _CLOCK_APART, _NEXT_EVENT, _NEXT_PROCESSING, _CLOCK_STALE = 1, 2, 4, 8, 16
_CHUNK = struct.Struct("<BBHI")
_NAME = struct.Struct("<I")
_ALIGNMENT = 8
_LZ4 = pa.Codec("lz4_raw")
_LZ4_RATIO = 256  # more than LZ4 can reach
_NO_VALUES = pa.py_buffer(bytes(8))  # also the one offset of no values


class Tiers:
    """The limits of one key group, whose id shifts them, so that groups do not all merge at the same time.

    A segment of less than 4 KiB has level 0; each further level has segments of 8 times the size. A smaller
    segment below a larger one counts as one of the larger one's level, since it cannot be merged without it.
    """

    def __init__(self, id_: bytes) -> None:
        self._fan_in = 6 + id_[0] % 5  # 8 on average
        self._growth = 1.5 + id_[1] / 256  # 2 on average

    def overgrown(self, stored: int, changed: int, live: int) -> bool:
        """Return whether to write a part anew, given the bytes of its run, of its changes and of itself."""
        return 0 < changed >= live or stored > self._growth * live + _SLACK

    def merge_from(self, sizes: list[int]) -> int:
        """Return the first of the segments, the oldest first, to merge into the last one, or that one."""
        sizes = list(sizes)
        while (start := self._full_level(sizes)) < len(sizes) - 1:
            sizes[start:] = [sum(sizes[start:])]  # which may complete the next level
        return len(sizes) - 1

    def _full_level(self, sizes: list[int]) -> int:
        """Return where the segments of the lowest full level start."""
        top, count = 0, 0
        for at in range(len(sizes) - 1, -1, -1):
            level = max(0, (sizes[at].bit_length() - 10) // 3)
            if level > top:
                if count >= self._fan_in:
                    return at + 1
                top, count = level, 0
            count += 1
        return 0 if count >= self._fan_in else len(sizes) - 1


class Standing(NamedTuple):
    """What a key group held when it was saved, under the names of the metrics."""

    pending_event_time_timers: int = 0  # of windows, the ends by key and slice
    pending_processing_time_timers: int = 0
    keys: int = 0
    buffered_rows: int = 0
    next_event_time_timer: int | None = None  # epoch ms; None if there is none
    next_processing_time_timer: int | None = None


@dataclass(slots=True)
class Segment:
    """The chunks of one save, or of several that have been merged."""

    count: int  # the number of chunks; the size and the number of rows are those of all of them
    nbytes: int
    rows: int
    digest: int  # their `joint_digest`, unsigned, 32 bits
    data: bytes = field(default=b"", compare=False)  # the only chunk, if a merge will want it soon


@dataclass(slots=True)
class Run:
    """The chunks of one part: a stack of segments, the oldest first.

    Chunk 0 has the name and the schema of the part; those of the segments follow, numbered from 1.
    """

    kind: int
    schema: int = -1  # the fingerprint of chunk 0; -1 before it is written
    size: int = 0  # the bytes of the last snapshot that was written
    entries: int = 0  # how many the part had then
    segments: list[Segment] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of chunks, without chunk 0."""
        return sum(segment.count for segment in self.segments)

    @property
    def nbytes(self) -> int:
        """The size of these chunks."""
        return sum(segment.nbytes for segment in self.segments)

    def numbered(self, start: int = 0) -> Iterator[tuple[Segment, range]]:
        """Yield the segments from `start` on, with the numbers of their chunks."""
        first = 1 + sum(segment.count for segment in self.segments[:start])
        for segment in self.segments[start:]:
            yield segment, range(first, first + segment.count)
            first += segment.count


@dataclass(slots=True)
class Manifest:
    """The table of contents of a group."""

    max_parallelism: int
    id: bytes = bytes(8)  # the same for life, and for all attempts of the first task of the group
    token: bytes = b""  # 16 random bytes, which every save, even a retried one, sets anew
    watermark: int = MIN_WATERMARK  # the group has been run up to it
    clock: bytes = b""  # or, if it is longer than `INLINE_CLOCK`, the `digest` of each of its chunks
    clock_apart: bool = False  # whether the clock is in chunks
    clock_stale: bool = False  # whether these are of an earlier save, after which channels may have advanced
    late_rows: int = 0
    losses: int = 0  # what has gone from the group since its dead keys were last looked for
    wake_up: int | None = None  # the timestamp of the group's timer in Spark
    standing: Standing = field(default_factory=Standing)
    runs: list[Run] = field(default_factory=list)
    batch: int = -1  # the micro-batch in which it was written

    @property
    def nbytes(self) -> int:
        """The size of the chunks, without those of the schemas and of the clock."""
        return sum(run.nbytes for run in self.runs)

    def renews(self, batch: int) -> bool:
        """Return whether the save of a micro-batch is to write the group anew; not all groups in the same."""
        shift = int.from_bytes(self.id[2:4], "little") % (RENEWAL // 2)  # so that the first takes a while
        return (batch + shift) // RENEWAL > (self.batch + shift) // RENEWAL and self.batch >= 0

    def check(self, max_parallelism: int) -> None:
        """Raise ValueError if the query changed a setting that a checkpoint fixes."""
        if self.max_parallelism != max_parallelism:
            raise ValueError(
                f"max_parallelism must be {self.max_parallelism}, as in the checkpoint, got "
                f"{max_parallelism}; pass max_parallelism={self.max_parallelism}, or start a new checkpoint"
            )

    def to_bytes(self) -> bytes:
        """Return the value that the state store holds."""
        *numbers, next_event, next_processing = self.standing
        flags = _WAKE_UP * (self.wake_up is not None) | _CLOCK_APART * self.clock_apart
        flags |= _CLOCK_STALE * self.clock_stale
        flags |= _NEXT_EVENT * (next_event is not None) | _NEXT_PROCESSING * (next_processing is not None)
        counts = self.max_parallelism, self.batch, self.watermark, self.late_rows, self.losses
        sizes = len(self.clock), len(self.runs)
        header = _HEADER.pack(FORMAT, flags, self.id, self.token, *counts, self.wake_up or 0, *sizes)
        parts = [header, self.clock, *(_leb128(n or 0) for n in numbers)]
        parts += [_TIME.pack(time) for time in (next_event, next_processing) if time is not None]
        for run in self.runs:
            parts.append(_RUN.pack(run.kind, run.schema, len(run.segments)))
            parts += [_leb128(run.size), _leb128(run.entries)]
            parts += [_leb128(n) for s in run.segments for n in (s.count, s.nbytes, s.rows, s.digest)]
        return seal(MANIFEST, *parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest of `to_bytes`; raise ValueError for any other bytes."""
        payload = unseal(MANIFEST, data)
        if len(payload) >= 2 and (found := int.from_bytes(payload[:2], "little")) != FORMAT:
            raise ValueError(
                f"this checkpoint has timerheap's state format {found}, and this version reads {FORMAT}: "
                "use the version that wrote it, or save the tables with it, and pass them as initial_state"
            )
        try:
            return cls._parse(payload)
        except (struct.error, IndexError) as e:
            raise ValueError(f"a manifest is cut off: {e}") from None

    @classmethod
    def _parse(cls, payload: memoryview) -> Manifest:
        _, flags, id_, token, max_parallelism, batch, watermark, *rest = _HEADER.unpack_from(payload)
        late_rows, losses, wake_up, clock, runs = rest
        at = _HEADER.size + clock
        manifest = cls(max_parallelism, id_, token, watermark, bytes(payload[_HEADER.size : at]), batch=batch)
        manifest.clock_apart, manifest.clock_stale = bool(flags & _CLOCK_APART), bool(flags & _CLOCK_STALE)
        manifest.late_rows, manifest.losses = late_rows, losses
        manifest.wake_up = wake_up if flags & _WAKE_UP else None
        (event, processing, keys, rows), at = _parse_leb128(payload, at, 4)
        times: list[int | None] = []
        for flag in (_NEXT_EVENT, _NEXT_PROCESSING):
            times.append(_TIME.unpack_from(payload, at)[0] if flags & flag else None)
            at += _TIME.size * bool(flags & flag)
        manifest.standing = Standing(event, processing, keys, rows, times[0], times[1])
        for _ in range(runs):
            kind, schema, segments = _RUN.unpack_from(payload, at)
            at += _RUN.size
            (size, entries), at = _parse_leb128(payload, at, 2)
            run = Run(kind, schema, size, entries)
            for _ in range(segments):
                (count, nbytes, rows, joint), at = _parse_leb128(payload, at, 4)
                run.segments.append(Segment(count, nbytes, rows, joint))
            manifest.runs.append(run)
        if at != len(payload):
            raise ValueError(f"a manifest must end after its runs, at byte {at}, got {len(payload)} bytes")
        return manifest


def _leb128(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _parse_leb128(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    numbers = []
    for _ in range(count):
        number = shift = 0
        while (byte := data[at]) >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        numbers.append(number | byte << shift)
        at += 1
    return numbers, at


def joint_digest(chunk: bytes, before: int = 0) -> int:
    """Return 32 bits that tell whether a sealed chunk, or one of those `before` it, is another one."""
    return xxh64(chunk[:24], before) & 0xFFFFFFFF  # the envelope begins with a checksum of the rest


def digest(data: bytes) -> bytes:
    """Return 16 bytes that tell whether `data` changed."""
    return xxh64(data).to_bytes(8, "little") + xxh64(data, 1).to_bytes(8, "little")


class LoadedPart(Protocol):
    """A part of a group that is built by replaying its snapshot and changes in order."""

    def replay(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `changes`, `snapshot` or `merge`; raise ValueError if it belongs to another part.

        A load calls this for each chunk, so it must not copy the part.
        """

    def reserve(self, times: float) -> None:
        """Make room for `times` the present contents; a load calls it after the first of several chunks."""


class CheckpointedPart(LoadedPart, Protocol):
    """A part of a group that is saved incrementally."""

    kind: int  # of its chunks
    name: str  # of the user state; for other parts a description that a restart must match
    schema: pa.Schema  # of its chunks
    id_column: int  # the number of the column with key ids; users name columns, too

    def changes(self) -> pa.RecordBatch | None:
        """Return the changes since the last call, or None if there are none; offsets may have 64 bits."""

    def snapshot(self) -> pa.RecordBatch:
        """Return the whole part; offsets may have 64 bits."""

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one batch whose replay has the effect of replaying these; the part does not change.

        Batches have 64-bit offsets, and may be pieces of what `changes`, `snapshot` or `merge` returned.
        There may be older ones, so what removes something must stay.
        """

    def __len__(self) -> int:
        """Return the number of entries, from which the size of a snapshot is estimated."""


class ChunkReader(Protocol):
    """Reads the chunks of a key group."""

    def read(self, kind: int, id_: int) -> bytes | None:
        """Return a chunk, or None if there is none."""


class ChunkStore(ChunkReader, Protocol):
    """Reads and writes the chunks of a key group, of which the manifest is one."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Write a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None for a new group."""
        data = self.read(MANIFEST, 0)
        return None if data is None else Manifest.from_bytes(data)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""
        self.write(MANIFEST, 0, manifest.to_bytes())


class Chunks(dict[tuple[int, int], bytes], ChunkStore):
    """Chunks in memory, by kind and id."""

    def read(self, kind: int, id_: int) -> bytes | None:
        return self.get((kind, id_))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self[kind, id_] = data

    def remove(self, kind: int, id_: int) -> None:
        del self[kind, id_]


def read_clock(manifest: Manifest, store: ChunkReader) -> bytes:
    """Return the clock of a manifest."""
    if not manifest.clock_apart:
        return manifest.clock
    return b"".join(_read_half(store, half, manifest.clock[16 * half : 16 * half + 16]) for half in _HALVES)


def _read_half(store: ChunkReader, id_: int, wanted: bytes) -> bytes:
    data = store.read(CLOCK, id_)
    if data is None:
        raise ValueError("the checkpoint lacks a chunk of the watermark's state")
    try:
        with pa.CompressedInputStream(pa.BufferReader(unseal(CLOCK, data)), "lz4") as stream:
            half = bytes(stream.read())
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"a chunk of the watermark's state must hold a clock: {e}") from e
    if digest(half) != wanted:
        raise ValueError("a chunk of the watermark's state is not that of the manifest")
    return half


def described(store: ChunkReader, runs: Iterable[Run]) -> Iterator[tuple[Run, str, pa.Schema]]:
    """Yield the runs that have contents or are of user states, with their names and schemas."""
    for run in runs:
        if run.segments or run.kind >= USER_STATE:
            yield run, *read_schema(run.kind, _read(store, run.kind, 0, ""))


class Stored:
    """The runs of one group as they are in the store.

    All that it has to know is in the manifest, so ``Stored(manifest)`` continues what another process saved.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._runs = {run.kind: run for run in manifest.runs}
        self._tiers = Tiers(manifest.id)
        self._dropped: list[Run] = []
        self._checked: dict[int, pa.Schema] = {}  # the schemas that are known to be those of chunks 0

    @classmethod
    def load(
        cls,
        store: ChunkReader,
        manifest: Manifest,
        make_part: Callable[[int, str, pa.Schema], LoadedPart],
        drop_state: Collection[str] = (),
    ) -> Stored:
        """Load a group: replay the chunks of each run into the part of this kind, name and schema."""
        # User states named in `drop_state` are not read, and the next save removes them.
        dropped = []
        for run, name, schema in described(store, manifest.runs):
            if run.kind >= USER_STATE and name in drop_state:
                dropped.append(run)
                continue
            part = make_part(run.kind, name, schema)
            for segment, ids in run.numbered():
                joint = 0
                for id_ in ids:
                    data = _read(store, run.kind, id_, name)
                    joint = joint_digest(data, joint)
                    batch = read_chunk(run.kind, data, schema)
                    part.replay(batch)
                    if id_ == 1:
                        rows = sum(each.rows for each in run.segments)
                        # If its rows are longer than most, the number of rows would say too much.
                        times = min(rows / max(1, batch.num_rows), 17 / 16 * run.nbytes / len(data))
                        if times > 1:
                            part.reserve(times)
                if joint != segment.digest:
                    raise ValueError(
                        f"the checkpoint mixes chunks of kind {run.kind} {name!r} from two attempts of a "
                        "task, as may come of spark.speculation; start from an older version of the "
                        "checkpoint, or a new one, and set "
                        "spark.sql.streaming.stateStore.checkpointFormatVersion to 2"
                    )
        manifest.runs = [run for run in manifest.runs if run not in dropped]
        stored = cls(manifest)
        stored._dropped = dropped
        return stored

    @property
    def drops(self) -> bool:
        """Whether the next save removes a state."""
        return bool(self._dropped)

    def save(
        self,
        store: ChunkStore,
        group: KeyGroup,
        clock: bytes,
        *,
        whole: bool = False,
        writes_clock: bool = True,
    ) -> None:
        """Write the changes of a group, or it as a `whole`, then the manifest with a new token."""
        # A large clock is left as it was stored, unless the group `writes_clock`.
        manifest = self.manifest
        self._save_clock(store, clock, writes_clock)
        manifest.watermark, manifest.late_rows = group.watermark, group.late_rows
        manifest.wake_up, manifest.standing = group.wake_up, group.standing()
        for run in self._dropped:  # first, since a new state may reuse their kind
            for id_ in range(run.count + 1):
                store.remove(run.kind, id_)
        self._dropped = []
        for part in group.parts():
            self._save_part(store, part, whole or group.evolved)
        group.evolved = False
        manifest.losses = group.losses()  # after the parts: windows count some when they are written
        manifest.runs = sorted(self._runs.values(), key=lambda run: run.kind)
        manifest.token = os.urandom(16)  # not of the contents: a retry must not match the first one's file
        store.write_manifest(manifest)

    def _save_clock(self, store: ChunkStore, clock: bytes, writes: bool) -> None:
        """Put the clock into the manifest, or what has changed of a large one into chunks."""
        manifest = self.manifest
        before = manifest.clock if manifest.clock_apart else b""
        if len(clock) <= INLINE_CLOCK:
            for half in _HALVES if before else ():
                store.remove(CLOCK, half)
            manifest.clock, manifest.clock_apart, manifest.clock_stale = clock, False, False
        elif writes or not before:  # the clock is that of all groups of the task: one of them is enough
            manifest.clock, manifest.clock_apart, manifest.clock_stale = b"", True, False
            for half, data in zip(_HALVES, halves(clock), strict=True):
                now = digest(data)
                if now != before[16 * half : 16 * half + 16]:
                    store.write(CLOCK, half, seal(CLOCK, pa.compress(data, "lz4", asbytes=True)))
                manifest.clock += now
        else:
            manifest.clock_stale = True

    def _save_part(self, store: ChunkStore, part: CheckpointedPart, whole: bool) -> None:
        changes = part.changes()  # even before a rewrite: the next save must not write them again
        run = self._runs.get(part.kind)
        if run is None:
            run = Run(part.kind)
            if run.kind >= USER_STATE:  # even an empty one, so that its name keeps its kind
                self._runs[run.kind] = run
                self._check_schema(store, part, run)
        changed = 0 if changes is None else size_of(changes)
        live = run.size * len(part) // max(1, run.entries)  # to measure the part would cost O(part)
        rewrite = whole or self._tiers.overgrown(run.nbytes, changed, live)
        if not rewrite and changes is None:
            return
        self._runs[part.kind] = run
        rewrite |= self._check_schema(store, part, run)
        if changes is None or rewrite:
            self._rewrite(store, part, run)
            return
        sizes = [segment.nbytes for segment in run.segments]
        start = self._tiers.merge_from([*sizes, changed])
        if start == 0:
            self._rewrite(store, part, run)
            return
        if start < len(sizes):
            chunks = [
                segment.data or _read(store, run.kind, id_, part.name)
                for segment, ids in run.numbered(start)
                for id_ in ids
            ]
            batches = [widen(read_chunk(run.kind, data, part.schema)) for data in chunks]
            changes = part.merge([*batches, changes])
        self._push(store, part, run, start, changes)

    def _rewrite(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> None:
        snapshot = part.snapshot()
        run.size, run.entries = size_of(snapshot), len(part)
        self._push(store, part, run, 0, snapshot)

    def _check_schema(self, store: ChunkStore, part: CheckpointedPart, run: Run) -> bool:
        """Write chunk 0 if the part's schema is not that of the run, and return whether it was not."""
        if self._checked.get(part.kind) is part.schema:
            return False
        self._checked[part.kind] = part.schema
        data = write_schema(part.kind, part.name, part.schema)
        fingerprint = xxh64(data) & 0xFFFFFFFF
        if run.schema == fingerprint:
            return False
        store.write(part.kind, 0, data)
        run.schema = fingerprint
        return True

    def _push(
        self, store: ChunkStore, part: CheckpointedPart, run: Run, start: int, batch: pa.RecordBatch
    ) -> None:
        """Replace the segments from `start` on by one that holds `batch`."""
        kind, before = run.kind, run.count
        del run.segments[start:]
        below, segment = run.count, Segment(0, 0, batch.num_rows, 0)
        for piece in pieces(batch, part.schema):
            data = write_chunk(kind, piece)
            segment.count += 1
            store.write(kind, below + segment.count, data)
            segment.nbytes += len(data)
            segment.digest = joint_digest(data, segment.digest)
            segment.data = data if segment.count == 1 and len(data) < _SMALL else b""
        # Only now: chunks that are written anew need no removal, which would be another call.
        for left in range(below + segment.count + 1, before + 1):
            store.remove(kind, left)
        if segment.count:
            run.segments.append(segment)


def _read(store: ChunkReader, kind: int, id_: int, name: str) -> bytes:
    data = store.read(kind, id_)
    if data is None:
        raise ValueError(f"the checkpoint lacks chunk {id_} of kind {kind} {name!r}")
    return data


def write_schema(kind: int, name: str, schema: pa.Schema) -> bytes:
    """Return the sealed name and schema of a part."""
    text = name.encode()
    return seal(kind, _NAME.pack(len(text)), text, schema.serialize())


def read_schema(kind: int, data: bytes) -> tuple[str, pa.Schema]:
    """Return what `write_schema` wrote; raise ValueError for any other bytes, even hostile ones."""
    payload = unseal(kind, data)
    try:
        start = _NAME.size + _NAME.unpack_from(payload)[0]
        name = str(payload[_NAME.size : start], "utf-8")
        schema = pa.ipc.read_schema(pa.py_buffer(payload[start:]))
        _check_types(schema)
    except (struct.error, ValueError, pa.ArrowException, OSError) as e:
        raise ValueError(f"chunk 0 of kind {kind} must hold a name and a schema: {e}") from e
    return name, schema


def _check_types(schema: pa.Schema) -> None:
    """Raise ValueError for a type that no part has: Arrow ends the process for some arrays of others."""
    for column in schema:
        if not _is_known(column.type):
            raise ValueError(
                f"column {column.name!r} must have a type that state can have, got {column.type}"
            )


@lru_cache(maxsize=256)
def _is_known(type_: pa.DataType) -> bool:
    try:
        Slab(type_)
    except TypeError:
        return False
    return True


def write_chunk(kind: int, batch: pa.RecordBatch) -> bytes:
    """Return `batch` as sealed bytes."""
    buffers = [buffer for column in batch.columns for buffer in _buffers(column)]
    counts = [batch.num_rows, *(0 if buffer is None else len(buffer) + 1 for buffer in buffers)]
    width = 1 if max(counts) < 1 << 8 else 4
    parts = [struct.pack(f"<{len(counts)}{'B' if width == 1 else 'I'}", *counts)]
    parts += [buffer for buffer in buffers if buffer]
    raw = b"".join(padded for part in parts for padded in (part, bytes(-len(part) % _ALIGNMENT)))
    packed = _LZ4.compress(raw, asbytes=True)
    smaller = len(packed) < len(raw)
    header = _CHUNK.pack(smaller, width, len(counts), len(raw))
    return seal(kind, header, packed if smaller else raw)


def _buffers(column: pa.Array) -> Iterator[pa.Buffer | None]:
    """Yield the buffers of an array, which depend on its values alone."""
    type_, n = column.type, len(column)
    if not column.null_count and pa.types.is_primitive(type_) and not pa.types.is_boolean(type_):
        width = type_.bit_width // 8
        yield None
        yield column.buffers()[1].slice(column.offset * width, n * width)
    else:  # a copy by Arrow begins at 0 and has nothing behind its end
        array = pa.concat_arrays([column])
        if any(each.null_count for each in _arrays(array)):  # `take` writes zeros for nulls
            array = pa.concat_arrays([column.take(pa.array(np.arange(n)))])
        for each in _arrays(array):
            validity, *rest = each.buffers()[: each.type.num_buffers]
            yield validity if each.null_count else None
            yield from rest


def _arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield an array and those nested in it, in the order of their buffers."""
    yield array
    for i in range(array.type.num_fields):
        yield from _arrays(array.field(i) if pa.types.is_struct(array.type) else array.values)


def read_chunk(kind: int, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch that `write_chunk` wrote; raise ValueError for any other bytes, even hostile ones."""
    payload = unseal(kind, data)
    try:
        _check_types(schema)
        batch = _parsed(payload, schema)
        batch.validate(full=True)
    except (struct.error, IndexError, ValueError, pa.ArrowException, OSError) as e:
        raise ValueError(f"a chunk of kind {kind} must hold a valid record batch: {e}") from e
    return batch


def _parsed(payload: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    compressed, width, n, size = _CHUNK.unpack_from(payload)
    raw = pa.py_buffer(payload[_CHUNK.size :])
    if compressed:
        if size > _LZ4_RATIO * raw.size:
            raise ValueError(f"{raw.size} bytes cannot be {size} bytes compressed")
        raw = _LZ4.decompress(raw, size)
    if len(raw) != size or compressed > 1 or width not in (1, 4):
        raise ValueError(f"its header says {size} bytes, got {len(raw)}")
    rows, *sizes = struct.unpack_from(f"<{n}{'B' if width == 1 else 'I'}", raw)
    at = n * width
    buffers: list[pa.Buffer | None] = []
    for length in sizes:
        if not length:
            buffers.append(None)
            continue
        at += -at % _ALIGNMENT
        if at + length - 1 > size:
            raise ValueError("its buffers are longer than the chunk")
        buffers.append(raw.slice(at, length - 1))
        at += length - 1
    left = iter(buffers)
    columns = [_array(field.type, rows, left) for field in schema]
    if next(left, left) is not left or size - at >= _ALIGNMENT:
        raise ValueError("it has more buffers than its schema")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(type_: pa.DataType, n: int, buffers: Iterator[pa.Buffer | None]) -> pa.Array:
    validity, *own = (next(buffers, None) for _ in range(type_.num_buffers))
    # Some of Arrow's functions read a buffer that is absent, even of an array of length 0.
    own = [_NO_VALUES if buffer is None or not (n or buffer.size) else buffer for buffer in own]
    length = n
    if type_.num_fields and not pa.types.is_struct(type_):
        offsets: Any = own[0]
        length = int(np.frombuffer(offsets, np.int64 if pa.types.is_large_list(type_) else np.int32)[n])
        if length < 0:
            raise ValueError(f"a column cannot have {length} elements")
    children = [_array(type_.field(i).type, length, buffers) for i in range(type_.num_fields)]
    if pa.types.is_map(type_) and (children[0].null_count or children[0].field(0).null_count):
        raise ValueError("a map cannot have null entries or keys")  # Arrow would end the process
    return pa.Array.from_buffers(type_, n, [validity, *own], children=children or None)


def pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield pieces of `batch`, of the schema and about 1 MiB, so that chunks do not grow with the state."""
    for start, stop in fitting(batch, _TARGET_BYTES, 2 * _TARGET_BYTES):
        yield narrow(batch.slice(start, stop - start), schema)
