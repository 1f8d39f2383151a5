"""Where the watermark's state is stored: in the manifest or, if it is large, in chunks of some groups.

The watermark's state is the same in all groups of a task. A large one is written by the first of them. The
others keep what they have written when a channel last was new: if Spark repartitions a checkpoint, one of
them may become the first of its task, and then knows all channels.
"""

from __future__ import annotations

import pyarrow as pa

from timerheap._native._core import seal, unseal, xxh64
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._group.stored.chunk_store import ChunkReader, ChunkStore
from timerheap.spark._group.stored.kinds import WATERMARK
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.watermark_bytes import halves

INLINE_WATERMARK = 4096
"""The size of the state, in bytes, up to which it is in every group's manifest: some 100 channels."""
_HALVES = (0, 1)  # the ids of the chunks of the state: times and names


def digest(data: bytes) -> bytes:
    """Return 16 bytes that tell whether `data` changed."""
    return xxh64(data).to_bytes(8, "little") + xxh64(data, 1).to_bytes(8, "little")


def read_watermark(manifest: Manifest, store: ChunkReader) -> bytes:
    """Return the watermark's state of a manifest."""
    if not manifest.watermark_apart:
        return manifest.watermark_state
    return b"".join(
        _read_half(store, half, manifest.watermark_state[16 * half : 16 * half + 16]) for half in _HALVES
    )


def _read_half(store: ChunkReader, id_: int, wanted: bytes) -> bytes:
    data = store.read(WATERMARK, id_)
    if data is None:
        raise DamagedCheckpointError("the checkpoint lacks a chunk of the watermark's state")
    try:
        with pa.CompressedInputStream(pa.BufferReader(unseal(WATERMARK, data)), "lz4") as stream:
            half = bytes(stream.read())
    except (pa.ArrowException, OSError) as e:
        raise DamagedCheckpointError(f"a chunk of the watermark's state must be compressed bytes: {e}") from e
    if digest(half) != wanted:
        raise DamagedCheckpointError("a chunk of the watermark's state is not that of the manifest")
    return half


def save_watermark(manifest: Manifest, store: ChunkStore, watermark_state: bytes, writes: bool) -> None:
    """Put the watermark's state into the manifest, or what has changed of a large one into chunks.

    A large one is left as it was stored, unless the group `writes` it.
    """
    before = manifest.watermark_state if manifest.watermark_apart else b""
    if len(watermark_state) <= INLINE_WATERMARK:
        for half in _HALVES if before else ():
            store.remove(WATERMARK, half)
        manifest.watermark_state, manifest.watermark_apart, manifest.watermark_stale = (
            watermark_state,
            False,
            False,
        )
    elif writes or not before:  # it is that of all groups of the task: one of them is enough
        manifest.watermark_state, manifest.watermark_apart, manifest.watermark_stale = b"", True, False
        for half, data in zip(_HALVES, halves(watermark_state), strict=True):
            now = digest(data)
            if now != before[16 * half : 16 * half + 16]:
                store.write(WATERMARK, half, seal(WATERMARK, pa.compress(data, "lz4", asbytes=True)))
            manifest.watermark_state += now
    else:
        manifest.watermark_stale = True
