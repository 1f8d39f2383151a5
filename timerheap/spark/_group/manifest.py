"""The manifest of a key group: a small sealed value that says what its chunks mean.

Little-endian, sealed. The format u16, flags u16 (1: a wake-up is registered, 2: the clock is in chunks,
4: there is an event-time timer, 8: a processing-time timer, 16: the clock is stale), the group's id 8 bytes,
the token 16 bytes, max_parallelism i32, the watermark i64, late_rows i64, losses i64, the wake-up i64, the
length of the clock u16 and the number of runs u16; then the clock, or the digests of its halves; then as
LEB128 the numbers of event-time timers, processing-time timers, keys and waiting rows, and as i64 when the
next timer of each kind is due; then for each run its kind u16, the fingerprint of its schema u32, the number
of its segments u16, and as LEB128 the size and the number of entries of its last snapshot; then for each
segment the number of its chunks, their size in bytes, the number of their rows and their digest, each as
LEB128.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from timerheap._native._heap import seal, unseal, xxh64
from timerheap.spark._group.standing import NOTHING, Standing
from timerheap.timer import MIN_WATERMARK

__all__ = ["FORMAT", "INLINE_CLOCK", "MANIFEST", "Manifest", "Run", "Segment", "digest", "joint_digest"]

FORMAT = 10
"""The version of the checkpoints' format."""

INLINE_CLOCK = 4096
"""The size of a clock, in bytes, up to which it is in every group's manifest: that of some 100 channels."""

MANIFEST = 32
"""The kind of the manifest among the chunks of a group."""

_HEADER = struct.Struct("<HH8s16siqqqqHH")
_RUN = struct.Struct("<HIH")
_TIME = struct.Struct("<q")
_WAKE_UP, _CLOCK_APART, _NEXT_EVENT, _NEXT_PROCESSING, _CLOCK_STALE = 1, 2, 4, 8, 16


@dataclass(slots=True)
class Segment:
    """The chunks of one save, or of several that have been merged.

    Parameters
    ----------
    count : int
        Number of chunks.
    nbytes : int
        Their size.
    rows : int
        The number of their rows.
    digest : int
        The `joint_digest` of all of them, unsigned, 32 bits.
    """

    count: int
    nbytes: int
    rows: int
    digest: int


@dataclass(slots=True)
class Run:
    """The chunks of one part: a stack of segments, the oldest first.

    Chunk 0 has the name and the schema of the part; those of the segments follow, numbered from 1.

    Parameters
    ----------
    kind : int
    schema : int
        The fingerprint of chunk 0; -1 before it is written.
    size, entries : int
        The size in bytes of the last snapshot that was written, and the number of entries of the part then.
    segments : list of Segment
    """

    kind: int
    schema: int = -1
    size: int = 0
    entries: int = 0
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
    """The table of contents of a group.

    Parameters
    ----------
    max_parallelism : int
    id : bytes
        8 bytes, which the group keeps for life, and which the attempts of its first task agree on.
    token : bytes
        16 random bytes, which every save, even a retried one, sets anew.
    watermark : int
        The watermark that the group has been run up to.
    clock : bytes
        The clock; if it is longer than `INLINE_CLOCK`, it is in chunks, and this is the `digest` of each.
    clock_apart : bool
        Whether the clock is in chunks.
    clock_stale : bool
        Whether these are of an earlier save, after which the channels may have advanced.
    late_rows : int
        The number of late rows so far.
    losses : int
        What has gone from the group since its dead keys were last looked for.
    wake_up : int or None
        The timestamp of the group's timer in Spark.
    standing : Standing
        What the group holds.
    runs : list of Run
    """

    max_parallelism: int
    id: bytes = bytes(8)
    token: bytes = b""
    watermark: int = MIN_WATERMARK
    clock: bytes = b""
    clock_apart: bool = False
    clock_stale: bool = False
    late_rows: int = 0
    losses: int = 0
    wake_up: int | None = None
    standing: Standing = NOTHING
    runs: list[Run] = field(default_factory=list)

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
        _, flags, id_, token, max_parallelism, watermark, late_rows, losses, wake_up, clock, runs = header
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
