"""The contents of a key group in the state store.

The manifest of a key group: a small sealed value that says what its chunks mean.

Little-endian, sealed. The format u16, flags u16 (1: a wake-up is registered, 2: the clock is in chunks,
4: there is an event-time timer, 8: a processing-time timer, 16: the clock is stale), the group's id 8 bytes,
the token 16 bytes, max_parallelism i32, the micro-batch i64, the watermark i64, late_rows i64, losses i64,
the wake-up i64, the length of the clock u16 and the number of runs u16; then the clock, or the digests of its
halves; then as LEB128 the numbers of event-time timers, processing-time timers, keys and waiting rows, and as
i64 when the next timer of each kind is due; then for each run its kind u16, the fingerprint of its schema
u32, the number of its segments u16, and as LEB128 the size and the number of entries of its last snapshot;
then for each segment the number of its chunks, their size in bytes, the number of their rows and their
digest, each as LEB128.

A group consists of parts: its timers, keys, buffered rows, windows and each user state. The store holds a
part as a run: a stack of segments, each a few chunks, whose batches rebuild the part when they are replayed
in order. The manifest says how many there are.

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
from typing import NamedTuple, Protocol

import pyarrow as pa

from timerheap._native._core import seal, unseal, xxh64
from timerheap.spark._arrow import size_of, widen
from timerheap.spark._group.chunks import (
    CLOCK,
    USER_STATE,
    pieces,
    read_chunk,
    read_schema,
    write_chunk,
    write_schema,
)
from timerheap.spark._group.watermark import halves
from timerheap.timer import MIN_WATERMARK

_SMALL = 4096
_SLACK = 16 << 10


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
        """Return the first segment of those to merge into the last one; the last one if there are none.

        The sizes are those of the segments, the oldest first.
        """
        sizes = list(sizes)
        while (start := self._full_level(sizes)) < len(sizes) - 1:
            sizes[start:] = [sum(sizes[start:])]  # which may complete the next level
        return len(sizes) - 1

    def _full_level(self, sizes: list[int]) -> int:
        """Return where the segments of the lowest full level start."""
        top, count = 0, 0
        for at in range(len(sizes) - 1, -1, -1):
            level = _level(sizes[at])
            if level > top:
                if count >= self._fan_in:
                    return at + 1
                top, count = level, 0
            count += 1
        return 0 if count >= self._fan_in else len(sizes) - 1


def _level(nbytes: int) -> int:
    return max(0, (nbytes.bit_length() - 10) // 3)


class Standing(NamedTuple):
    """What a key group held when it was saved, under the names of the metrics."""

    pending_event_time_timers: int = 0  # of windows, the ends by key and slice
    pending_processing_time_timers: int = 0
    keys: int = 0
    buffered_rows: int = 0
    next_event_time_timer: int | None = None  # epoch ms; None if there is none
    next_processing_time_timer: int | None = None


NOTHING = Standing()
"""What an empty group holds."""


FORMAT = 12
"""The version of the checkpoints' format."""

INLINE_CLOCK = 4096
"""The size of a clock, in bytes, up to which it is in every group's manifest: that of some 100 channels."""

MANIFEST = 32
"""The kind of the manifest among the chunks of a group."""

_HEADER = struct.Struct("<HH8s16siqqqqqHH")
_RUN = struct.Struct("<HIH")
_TIME = struct.Struct("<q")
_WAKE_UP, _CLOCK_APART, _NEXT_EVENT, _NEXT_PROCESSING, _CLOCK_STALE = 1, 2, 4, 8, 16


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

    @property
    def rows(self) -> int:
        """The number of their rows."""
        return sum(segment.rows for segment in self.segments)


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
    standing: Standing = NOTHING
    runs: list[Run] = field(default_factory=list)
    batch: int = -1  # the micro-batch in which it was written

    @property
    def nbytes(self) -> int:
        """The size of the chunks, without those of the schemas and of the clock."""
        return sum(run.nbytes for run in self.runs)

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
        header = _HEADER.pack(
            FORMAT,
            flags,
            self.id,
            self.token,
            self.max_parallelism,
            self.batch,
            self.watermark,
            self.late_rows,
            self.losses,
            self.wake_up or 0,
            len(self.clock),
            len(self.runs),
        )
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
                "use the version that wrote it, or start a new checkpoint"
            )
        try:
            return cls._parse(payload)
        except (struct.error, IndexError) as e:
            raise ValueError(f"a manifest is cut off: {e}") from None

    @classmethod
    def _parse(cls, payload: memoryview) -> Manifest:
        header = _HEADER.unpack_from(payload)
        _, flags, id_, token, max_parallelism, batch, watermark, *rest = header
        late_rows, losses, wake_up, clock, runs = rest
        at = _HEADER.size + clock
        manifest = cls(
            max_parallelism,
            id_,
            token,
            watermark,
            bytes(payload[_HEADER.size : at]),
            bool(flags & _CLOCK_APART),
            bool(flags & _CLOCK_STALE),
            late_rows,
            losses,
            wake_up if flags & _WAKE_UP else None,
            batch=batch,
        )
        numbers: list[int] = []
        for _ in range(4):
            number, at = _parse_leb128(payload, at)
            numbers.append(number)
        times: list[int | None] = []
        for flag in (_NEXT_EVENT, _NEXT_PROCESSING):
            times.append(_TIME.unpack_from(payload, at)[0] if flags & flag else None)
            at += _TIME.size * bool(flags & flag)
        event, processing, keys, rows = numbers
        manifest.standing = Standing(event, processing, keys, rows, times[0], times[1])
        for _ in range(runs):
            kind, schema, segments = _RUN.unpack_from(payload, at)
            at += _RUN.size
            size, at = _parse_leb128(payload, at)
            entries, at = _parse_leb128(payload, at)
            run = Run(kind, schema, size, entries)
            for _ in range(segments):
                count, at = _parse_leb128(payload, at)
                nbytes, at = _parse_leb128(payload, at)
                rows, at = _parse_leb128(payload, at)
                joint, at = _parse_leb128(payload, at)
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


def _parse_leb128(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def joint_digest(chunk: bytes, before: int = 0) -> int:
    """Return 32 bits that tell whether a sealed chunk, or one of those `before` it, is another one."""
    return xxh64(chunk[:24], before) & 0xFFFFFFFF  # the envelope begins with a checksum of the rest


def digest(data: bytes) -> bytes:
    """Return 16 bytes that tell whether `data` changed."""
    return xxh64(data).to_bytes(8, "little") + xxh64(data, 1).to_bytes(8, "little")


_HALVES = (0, 1)  # the ids of the chunks of a clock: times and names


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

    @property
    def kind(self) -> int:
        """The kind of its chunks."""

    @property
    def name(self) -> str:
        """The name of the user state; for other parts a description that a restart must match."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of its chunks."""

    @property
    def id_column(self) -> int:
        """The number of the column with key ids; names do not tell, since users name columns, too."""

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
    """The Spark state variables of the current key group."""

    def write(self, kind: int, id_: int, data: bytes) -> None:
        """Write a chunk."""

    def remove(self, kind: int, id_: int) -> None:
        """Remove a chunk."""

    def read_manifest(self) -> Manifest | None:
        """Return the manifest, or None for a new group."""

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest."""


class Chunks(dict[tuple[int, int], bytes]):
    """A `ChunkStore` in memory: chunks by kind and id."""

    def read(self, kind: int, id_: int) -> bytes | None:
        return self.get((kind, id_))

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self[kind, id_] = data

    def remove(self, kind: int, id_: int) -> None:
        del self[kind, id_]

    def read_manifest(self) -> Manifest | None:
        data = self.get((MANIFEST, 0))
        return None if data is None else Manifest.from_bytes(data)

    def write_manifest(self, manifest: Manifest) -> None:
        self[MANIFEST, 0] = manifest.to_bytes()


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
        """Load a group: replay the chunks of each run into the part of this kind, name and schema.

        User states named in `drop_state` are not read, and the next save removes them.
        """
        dropped = []
        for run, name, schema in described(store, manifest.runs):
            if run.kind >= USER_STATE and name in drop_state:
                dropped.append(run)
                continue
            part = make_part(run.kind, name, schema)
            first = 1
            for segment in run.segments:
                joint = 0
                for id_ in range(first, first + segment.count):
                    data = _read(store, run.kind, id_, name)
                    joint = joint_digest(data, joint)
                    batch = read_chunk(run.kind, data, schema)
                    part.replay(batch)
                    if id_ == 1:
                        # If its rows are longer than most, the number of rows would say too much.
                        times = min(run.rows / max(1, batch.num_rows), 17 / 16 * run.nbytes / len(data))
                        if times > 1:
                            part.reserve(times)
                if joint != segment.digest:
                    raise ValueError(_mixed(run.kind, name))
                first += segment.count
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
        parts: Iterable[CheckpointedPart],
        clock: bytes,
        losses: Callable[[], int] = int,
        late_rows: int = 0,
        wake_up: int | None = None,
        standing: Standing = NOTHING,
        whole: bool = False,
        watermark: int = MIN_WATERMARK,
        writes_clock: bool = True,
    ) -> None:
        """Write the changes, or all parts as a `whole`, then the manifest with a new token.

        A large clock is left as it was stored, unless the group `writes_clock`. `losses` is called after the
        parts, which may count some when they are written.
        """
        manifest = self.manifest
        self._save_clock(store, clock, writes_clock)
        manifest.watermark = watermark
        manifest.late_rows, manifest.wake_up, manifest.standing = late_rows, wake_up, standing
        for run in self._dropped:  # first, since a new state may reuse their kind
            for id_ in range(run.count + 1):
                store.remove(run.kind, id_)
        self._dropped = []
        for part in parts:
            self._save_part(store, part, whole)
        manifest.losses = losses()
        manifest.runs = sorted(self._runs.values(), key=lambda run: run.kind)
        manifest.token = os.urandom(16)
        store.write_manifest(manifest)

    def _save_clock(self, store: ChunkStore, clock: bytes, writes: bool) -> None:
        """Put the clock into the manifest, or what has changed of a large one into chunks."""
        manifest = self.manifest
        before = manifest.clock if manifest.clock_apart else b""
        if len(clock) <= INLINE_CLOCK:
            for half in _HALVES if before else ():
                store.remove(CLOCK, half)
            manifest.clock, manifest.clock_apart, manifest.clock_stale = clock, False, False
        elif writes or not before:
            manifest.clock, manifest.clock_apart, manifest.clock_stale = b"", True, False
            for half, data in zip(_HALVES, halves(clock), strict=True):
                now = digest(data)
                if now != before[16 * half : 16 * half + 16]:
                    store.write(CLOCK, half, seal(CLOCK, pa.compress(data, "lz4", asbytes=True)))
                manifest.clock += now
        else:
            manifest.clock_stale = True

    def _save_part(self, store: ChunkStore, part: CheckpointedPart, whole: bool) -> None:
        changes = part.changes()
        run = self._runs.get(part.kind)
        if run is None:
            run = Run(part.kind)
            if run.kind >= USER_STATE:  # even an empty one, so that its name keeps its kind
                self._runs[run.kind] = run
                self._check_schema(store, part, run)
        changed = 0 if changes is None else size_of(changes)
        live = run.size * len(part) // max(1, run.entries)
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
            changes = part.merge([*self._read_segments(store, part, run, start), changes])
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

    def _read_segments(
        self, store: ChunkStore, part: CheckpointedPart, run: Run, start: int
    ) -> Iterator[pa.RecordBatch]:
        first = 1 + sum(segment.count for segment in run.segments[:start])
        for segment in run.segments[start:]:
            for id_ in range(first, first + segment.count):
                data = segment.data or _read(store, run.kind, id_, part.name)
                yield widen(read_chunk(run.kind, data, part.schema))
            first += segment.count

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
        for left in range(below + segment.count + 1, before + 1):
            store.remove(kind, left)
        if segment.count:
            run.segments.append(segment)


def _read(store: ChunkReader, kind: int, id_: int, name: str) -> bytes:
    data = store.read(kind, id_)
    if data is None:
        raise ValueError(f"the checkpoint lacks chunk {id_} of kind {kind} {name!r}")
    return data


def _mixed(kind: int, name: str) -> str:
    """Return the error for chunks that another attempt of a task has written."""
    return (
        f"the checkpoint mixes chunks of kind {kind} {name!r} from two attempts of a task, as may come of "
        "spark.speculation; start from an older version of the checkpoint, or a new one, and set "
        "spark.sql.streaming.stateStore.checkpointFormatVersion to 2"
    )
