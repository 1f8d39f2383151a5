"""Whether the files of a checkpoint, of live state, or of anything else contain a text."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from timerheap._native._core import to_text

_MAGIC = b"LZ4Block"
_RAW, _LZ4 = 0x10, 0x20


def files_with(folder: Path, text: str) -> set[str]:
    """Return the files below a folder that contain a text, also as a part of timerheap's chunks.

    The text must be random and not short, so that no compression finds parts of it elsewhere; and what
    RocksDB writes must not be compressed: ``spark.sql.streaming.stateStore.rocksdb.compression`` is "none".
    """
    forms = {text.encode(), *_in_chunks(text.encode())}
    found = set()
    # os.walk passes over folders that are removed meanwhile; Path.rglob of Python 3.11 does not.
    for path in [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]:
        try:
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:  # Spark has removed or renamed it
            continue
        if any(form in part for part in _parts(data) for form in forms):
            found.add(str(path.relative_to(folder)))
    return found


def _in_chunks(text: bytes) -> Iterator[bytes]:
    """Yield what is sure to be in the text of a chunk that has these bytes, wherever they begin.

    The text has 7 bits a character, and 8 characters for 7 bytes.
    """
    for before in range(7):
        ones, others = (
            to_text(byte * before + text + byte * (14 - (before + len(text)) % 7)).encode()
            for byte in (b"\0", b"\x7f")
        )
        same = [a == b for a, b in zip(ones, others, strict=True)]
        start = 8 if before else 0
        stop = next((at for at in range(start, len(same)) if not same[at]), len(same))
        assert stop - start > 8, "the text is too short"
        yield ones[start:stop]


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the contents of a file, without compression; those of a half-written archive as they are."""
    if data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif data.startswith(_MAGIC):
        yield _unpacked(data)
    else:
        yield data


def _unpacked(data: bytes) -> bytes:
    """Return the contents of Spark's whole LZ4 blocks, one after the other; the last may be half-written."""
    codec, found, at = pa.Codec("lz4_raw"), [], 0
    while at + 21 <= len(data):
        assert data[at : at + 8] == _MAGIC, f"no block at byte {at}"
        method = data[at + 8] & 0xF0
        size, original = (int.from_bytes(data[i : i + 4], "little") for i in (at + 9, at + 13))
        assert method in (_RAW, _LZ4)
        at += 21
        block = data[at : at + size]
        if original and len(block) == size:
            found.append(block if method == _RAW else codec.decompress(block, original, asbytes=True))
        at += size
    return b"".join(found)
