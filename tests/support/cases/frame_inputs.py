"""The fuzzer's inputs for frames, groups, and columns that are packed, compared with keys, or read as rows.

Any bytes either are refused, or all that they hold lies within them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from timerheap._native._core import (
    BITS,
    FIXED,
    FLOAT,
    NESTED,
    TEXT,
    ArrayView,
    ColumnReader,
    IdIndex,
    Packing,
    SliceGroups,
    read_frame,
    spark_hashes,
    xxh64,
)

HEADER = struct.Struct("<IHHQQII")
CHECKSUM = struct.Struct("<Q")
FRONT = HEADER.size + CHECKSUM.size
COLUMN = 24


def read(data: bytes) -> None:
    """Read a frame, in memory of exactly its size, and every value in it."""
    try:
        rows, _, _, counts, columns = read_frame(np.frombuffer(data, np.uint8).copy())
    except ValueError:
        return
    assert counts.sum() == rows
    for kind, width, validity, offsets, values in columns:
        if kind == NESTED:
            bytes(values)
        elif rows < 1 << 16:
            view = ArrayView(kind, width, 0, rows, validity, offsets, values)
            view.compare(view, np.arange(rows), np.ones(rows, bool))
            if kind == TEXT:
                spark_hashes(view)


def with_checksum(data: bytes) -> None:
    """Read any frame whose header has the right size and checksum."""
    head = HEADER.pack(
        0x46484D54, 1, *struct.unpack("<H", data[:2]), FRONT + len(data) - 7, data[2], *data[3:5]
    )
    body = data[7:]
    front = data[0] * COLUMN + data[3] * 8 + data[4] + 7 & ~7
    read(head + CHECKSUM.pack(xxh64(head + body[:front], 1)) + body)


def packs(data: bytes) -> None:
    """Pack columns whose buffers are any bytes, and read the frames."""
    rows = data[0] % 32
    width = (1, 2, 4, 8)[data[1] % 4]
    parts = np.frombuffer(data[8:], np.uint8).copy()
    try:
        views = [
            ArrayView(FIXED, width, data[2] % 8, rows, parts if data[3] % 2 else None, None, parts),
            ArrayView(TEXT, 4 + 4 * (data[4] % 2), data[5] % 8, rows, None, parts, parts),
            ArrayView(BITS, 0, data[6] % 8, rows, None, None, parts),
            ArrayView(FLOAT, 4, 0, rows, parts, None, parts),
        ]
        packing = Packing([spark_hashes(views[data[7] % 2])], 1 + data[7] % 9, 1 + data[6] % 3)
        frames, ends = packing.frames(parts[:9], [[view] for view in views])
    except ValueError:
        return
    start = 0
    for end in ends.tolist():
        read(frames[start:end].tobytes())
        start = end


def groups(data: bytes) -> None:
    """Group rows whose keys are any bytes, in parts; a part that is refused changes nothing."""
    rows = data[0] % 32
    parts = np.frombuffer(data[4:], np.uint8).copy()
    held, added = SliceGroups(2), 0
    for part in range(1 + data[1] % 4):
        before = [column.tolist() for column in held.groups()]
        try:
            text = ArrayView(TEXT, 4 + 4 * (data[2] % 2), data[2] % 8, rows, None, parts, parts)
            fixed = ArrayView(FIXED, 3, part, rows, parts if data[3] % 2 else None, None, parts)
            held.add(parts[part : part + rows] % np.int64(3), parts[:rows] % np.int64(2), [text, fixed])
            added += rows
        except ValueError:
            assert [column.tolist() for column in held.groups()] == before
        assert held.groups()[2].sum() == added
    assert sorted(held.order().tolist()) == list(range(added))


def views_of(data: bytes) -> list[ArrayView]:
    """Return two views of one kind, whose buffers are any bytes."""
    kind = (BITS, FIXED, FLOAT, TEXT)[data[0] % 4]
    widths = {BITS: (0, 0), FIXED: (1 << data[1] % 5,) * 2, FLOAT: (4 + data[1] % 2 * 4,) * 2}
    rows, parts = data[2] % 16, np.frombuffer(data[8:], np.uint8).copy()
    return [
        ArrayView(kind, width, data[k] % 8, rows, parts if data[k] & 8 else None, parts, parts)
        for k, width in zip((3, 4), widths.get(kind, (4 + data[1] % 2 * 4, 4 + data[5] % 2 * 4)), strict=True)
    ]


def resolves(data: bytes) -> None:
    """Find keys as a key table does: where an index says, which may be outside of the stored keys."""
    try:
        values, stored = views_of(data)
        hashes = np.frombuffer(data[: len(values)].ljust(len(values)), np.int8).astype(np.int64)
        index = IdIndex()
        index.put_many(np.arange(-128, 128), np.arange(256) % (1 + data[6]) - data[7] % 2)
        places, found = index.find_many(hashes)
        assert found.all()
        asked = np.arange(len(values)) % 3 < 2
        same = asked.copy()
        values.compare(stored, places, same)
    except ValueError:
        return
    assert not (same & ~asked).any()
    inside = (places >= 0) & (places < len(stored))
    assert inside[asked].all(), "a place outside of the keys was not refused"


def read_rows(data: bytes) -> None:
    """Read the values of a column as Python objects."""
    try:
        values, _ = views_of(data)
        reader = ColumnReader(("integer", "float", "bool", "string", "binary")[data[7] % 5], values)
        assert len(reader.tolist()) == len(values)
    except ValueError:
        return


def run(data: bytes) -> None:
    """Run an input, whose first byte determines the meaning of the rest."""
    if len(data) > 8:
        (read, with_checksum, packs, groups, resolves, read_rows)[data[0] % 6](data[1:])


def seeds() -> Iterator[bytes]:
    """Yield the initial inputs: a frame in each form, and columns to pack and to group."""
    rng = np.random.default_rng(0)
    views = [
        [ArrayView(FIXED, 8, 0, 5, b"\x15", None, np.arange(5))],
        [ArrayView(TEXT, 4, 0, 5, None, np.arange(6, dtype=np.int32), b"abcde")],
    ]
    frame = bytes(Packing([np.zeros(5, np.int64)], 1, 1).frames(b"d", [*views, [b"nested"]])[0])
    _, _, columns, _, rows, groups, described = HEADER.unpack_from(frame)
    read(frame)
    yield b"\0" + frame
    yield b"\1" + bytes([columns, 0, rows, groups, described, 0, 0]) + frame[FRONT:]
    for _ in range(20):
        yield b"\2" + rng.bytes(8) + bytes(sorted(rng.bytes(120)))
        for meaning in b"\2\3\4\5":
            yield bytes([meaning]) + rng.bytes(8) + np.arange(12, dtype=np.int32).tobytes() * 4
