"""The manifest: what a key group consists of in the store, and what it held when it was saved.

It is a small value, sealed: in timerheap's checksummed envelope. All numbers are little-endian.

The manifest has the format u16, flags u16 (1: a wake-up is registered, 2: the watermark's state is in chunks,
4: there is an event-time timer, 8: a processing-time timer, 16: the watermark's state is stale), the group's
id 8 bytes, the token 16 bytes, max_parallelism i32, the micro-batch i64, the watermark i64, late_rows i64,
losses i64, the wake-up i64, the length of the watermark's state u16 and the number of runs u16; then that
state, or the digests of its halves; then as LEB128 the numbers of event-time timers, processing-time timers,
keys and waiting rows, and as i64 when the next timer of each kind is due; then for each run its kind u16, the
fingerprint of its schema u32, the number of its segments u16, and as LEB128 the size and the number of
entries of its last snapshot; then for each segment the number of its chunks, their size in bytes, the number
of their rows and their digest, each as LEB128.

What has been removed would stay in the snapshot for as long as few other things change. So a whole group is
written anew at least once in `RENEWAL` micro-batches, and its live file is left, which has the bytes, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from timerheap._native._core import seal, unseal
from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._group.stored.formats import CHECKPOINT
from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.timer import MIN_WATERMARK

RENEWAL = 1000
"""The number of micro-batches in which a key group is written anew, without what has been removed."""
_HEADER = struct.Struct("<HH8s16siqqqqqHH")
_RUN = struct.Struct("<HIH")
_TIME = struct.Struct("<q")
_WAKE_UP, _WATERMARK_APART, _NEXT_EVENT, _NEXT_PROCESSING, _WATERMARK_STALE = 1, 2, 4, 8, 16


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
    token: bytes = b""  # 16 bytes, most of them random, which every save, even a retried one, sets anew
    watermark: int = MIN_WATERMARK  # the group has been run up to it
    watermark_state: bytes = b""  # or, if it is longer than `INLINE_WATERMARK`, the `digest` of each half
    watermark_apart: bool = False  # whether the watermark's state is in chunks
    watermark_stale: bool = False  # whether these are of an earlier save: channels may have advanced since
    late_rows: int = 0
    losses: int = 0  # what has gone from the group since its dead keys were last looked for
    wake_up: int | None = None  # the timestamp of the group's timer in Spark
    standing: Standing = field(default_factory=Standing)
    runs: list[Run] = field(default_factory=list)
    batch: int = -1  # the micro-batch in which it was written

    @property
    def nbytes(self) -> int:
        """The size of the chunks, without those of the schemas and of the watermark's state."""
        return sum(run.nbytes for run in self.runs)

    def renews(self, batch: int) -> bool:
        """Return whether the save of a micro-batch is to write the group anew; not all groups in the same."""
        shift = int.from_bytes(self.id[2:4], "little") % (RENEWAL // 2)  # so that the first takes a while
        return (batch + shift) // RENEWAL > (self.batch + shift) // RENEWAL and self.batch >= 0

    def check(self, max_parallelism: int) -> None:
        """Raise CheckpointMismatchError if the query changed a setting that a checkpoint fixes."""
        if self.max_parallelism != max_parallelism:
            raise CheckpointMismatchError(
                f"max_parallelism must be {self.max_parallelism}, as in the checkpoint, got "
                f"{max_parallelism}; pass max_parallelism={self.max_parallelism}, or go on "
                "with its state on a new checkpoint: timerheap.spark.continue_from"
            )

    def to_bytes(self) -> bytes:
        """Return the value that the state store holds."""
        *numbers, next_event, next_processing = self.standing
        flags = _WAKE_UP * (self.wake_up is not None) | _WATERMARK_APART * self.watermark_apart
        flags |= _WATERMARK_STALE * self.watermark_stale
        flags |= _NEXT_EVENT * (next_event is not None) | _NEXT_PROCESSING * (next_processing is not None)
        counts = self.max_parallelism, self.batch, self.watermark, self.late_rows, self.losses
        sizes = len(self.watermark_state), len(self.runs)
        whose = CHECKPOINT.written, flags, self.id, self.token
        header = _HEADER.pack(*whose, *counts, self.wake_up or 0, *sizes)
        parts = [header, self.watermark_state, *(_leb128(n or 0) for n in numbers)]
        parts += [_TIME.pack(time) for time in (next_event, next_processing) if time is not None]
        for run in self.runs:
            parts.append(_RUN.pack(run.kind, run.schema, len(run.segments)))
            parts += [_leb128(run.size), _leb128(run.entries)]
            parts += [_leb128(n) for s in run.segments for n in (s.count, s.nbytes, s.rows, s.digest)]
        return seal(MANIFEST, *parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest of `to_bytes`; raise a `CheckpointError` for any other bytes."""
        payload = unseal(MANIFEST, data)
        CHECKPOINT.expect(payload[:2])
        try:
            return cls._parse(payload)
        except (struct.error, IndexError) as e:
            raise DamagedCheckpointError(f"a manifest is cut off: {e}") from None

    @classmethod
    def _parse(cls, payload: memoryview) -> Manifest:
        _, flags, id_, token, max_parallelism, batch, watermark, *rest = _HEADER.unpack_from(payload)
        late_rows, losses, wake_up, length, runs = rest
        at = _HEADER.size + length
        manifest = cls(max_parallelism, id_, token, watermark, bytes(payload[_HEADER.size : at]), batch=batch)
        manifest.watermark_apart, manifest.watermark_stale = (
            bool(flags & _WATERMARK_APART),
            bool(flags & _WATERMARK_STALE),
        )
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
            raise DamagedCheckpointError(
                f"a manifest must end after its runs, at byte {at}, got {len(payload)} bytes"
            )
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
