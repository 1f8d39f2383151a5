"""Chunks are read back as written and have a bounded size; any other bytes raise ValueError."""

import os
import random
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap._native._core import seal, unseal
from timerheap.errors import DamagedCheckpointError, ForeignCheckpointError
from timerheap.spark._arrow import widen
from timerheap.spark._group.stored.chunks import pieces, read_chunk, read_schema, write_chunk, write_schema
from timerheap.spark._group.stored.kinds import KEYS, ROWS

BATCH = pa.record_batch(
    {
        "id": np.arange(5),
        "key": ["a", None, "", "Zoë", "b"],
        "seen": [[1], [], None, [2, None], [3]],
        "flag": [True, None, False, True, False],
        "map": pa.array([[("a", 1)], [], None, [("b", None), ("c", 3)], []], pa.map_(pa.string(), pa.int8())),
        "row": [{"x": 1, "y": "é"}, None, {"x": None, "y": ""}, {"x": 4, "y": None}, None],
        "cents": pa.array([1, None, 3, 4, 5], pa.decimal128(20, 2)),
        "none": pa.nulls(5),
    }
)
CHUNK = write_chunk(KEYS, BATCH)
_HEADER = struct.Struct("<BBHI")  # version, flags, the number of counts, the size
VERSION = 1
COMPRESSED, WIDE = 1, 2


@given(start=st.integers(0, 5), stop=st.integers(0, 5))
def test_a_written_chunk_is_read_back(start: int, stop: int) -> None:
    rows = BATCH.slice(start, max(0, stop - start))
    assert read_chunk(KEYS, write_chunk(KEYS, rows), BATCH.schema).to_pylist() == rows.to_pylist()
    wide = widen(rows)
    assert read_chunk(KEYS, write_chunk(KEYS, wide), wide.schema).equals(wide)


def test_a_chunk_of_one_value_or_timer_is_small() -> None:
    value = pa.record_batch({"key_hash": [2**60], "value": ["some text"]})
    timer = pa.record_batch({"op": pa.array([0], pa.int8()), "at": [2**41], "key": [-(2**60)], "ns": [0]})
    assert len(write_chunk(KEYS, value)) <= 72
    assert len(write_chunk(KEYS, timer)) <= 72


def test_a_name_and_a_schema_are_read_back() -> None:
    data = write_schema(KEYS, "Zoë", BATCH.schema)
    assert read_schema(KEYS, data) == ("Zoë", BATCH.schema)


def test_reading_a_chunk_of_another_kind_raises() -> None:
    with pytest.raises(ValueError, match="kind"):
        read_chunk(ROWS, CHUNK, BATCH.schema)


@given(at=st.integers(0, len(CHUNK) - 1), byte=st.integers(1, 255))
def test_a_changed_byte_raises(at: int, byte: int) -> None:
    bad = bytearray(CHUNK)
    bad[at] ^= byte
    with pytest.raises(ValueError):  # noqa: PT011
        read_chunk(KEYS, bytes(bad), BATCH.schema)


@given(length=st.integers(0, len(CHUNK) - 1))
def test_a_truncated_chunk_raises(length: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_chunk(KEYS, CHUNK[:length], BATCH.schema)


@given(payload=st.binary(max_size=200))
def test_a_sealed_invalid_payload_raises(payload: bytes) -> None:
    with pytest.raises(ValueError, match=f"a chunk of kind {KEYS} must hold a valid record batch"):
        read_chunk(KEYS, seal(KEYS, bytes([VERSION]), payload), BATCH.schema)
    with pytest.raises(ValueError, match=f"chunk 0 of kind {KEYS} must hold a name and a schema|utf-8"):
        read_schema(KEYS, seal(KEYS, bytes([VERSION, 0]), payload))


def test_another_version_raises() -> None:
    with pytest.raises(ForeignCheckpointError, match="has a chunk of version 9, and this version reads 1"):
        read_chunk(KEYS, seal(KEYS, b"\x09", unseal(KEYS, CHUNK)[1:]), BATCH.schema)
    schema = write_schema(KEYS, "name", BATCH.schema)
    with pytest.raises(ForeignCheckpointError, match="has a schema of version 9, and this version reads 1"):
        read_schema(KEYS, seal(KEYS, b"\x09", unseal(KEYS, schema)[1:]))
    for read in (lambda data: read_chunk(KEYS, data, BATCH.schema), lambda data: read_schema(KEYS, data)):
        with pytest.raises(DamagedCheckpointError, match="is cut off"):
            read(seal(KEYS))


def unpacked(chunk: bytes) -> tuple[int, bytes]:
    """Return the width of the counts of a chunk, and the counts and buffers."""
    payload = bytes(unseal(KEYS, chunk))
    _, flags, _, size = _HEADER.unpack_from(payload)
    raw, width = payload[_HEADER.size :], 4 if flags & WIDE else 1
    return width, pa.decompress(raw, size, "lz4_raw", asbytes=True) if flags & COMPRESSED else raw


def buffers_of(chunk: bytes) -> list[bytes | None]:
    width, raw = unpacked(chunk)
    n = _HEADER.unpack_from(unseal(KEYS, chunk))[2]
    sizes, at = struct.unpack_from(f"<{n}{'B' if width == 1 else 'I'}", raw)[1:], n * width
    found: list[bytes | None] = []
    for size in sizes:
        at += -at % 8 if size else 0
        found.append(raw[at : at + size - 1] if size else None)
        at += max(0, size - 1)
    return found


def packed(rows: int, buffers: list[bytes | None]) -> bytes:
    counts = [rows, *(0 if buffer is None else len(buffer) + 1 for buffer in buffers)]
    parts = [struct.pack(f"<{len(counts)}I", *counts), *(buffer for buffer in buffers if buffer)]
    raw = b"".join(part + bytes(-len(part) % 8) for part in parts)
    return seal(KEYS, _HEADER.pack(VERSION, WIDE, len(counts), len(raw)), raw)


FILLS = [None, b"", bytes(1), bytes(8), bytes(64), b"\xff" * 64, b"\xaa" * 64]
FILLS += [struct.pack("<16i", *range(16)), struct.pack("<8q", *range(8)), struct.pack("<16i", 0, *[9] * 15)]
UNKNOWN = [
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
    pa.list_(pa.int16(), 2),
    pa.list_(pa.int16(), 0),
    pa.dense_union([pa.field("a", pa.int64())]),
    pa.sparse_union([pa.field("a", pa.int64())]),
    pa.uuid(),
]
NESTED = [pa.list_, lambda type_: pa.struct([("a", type_)]), lambda type_: pa.map_(pa.string(), type_)]

Case = tuple[bytes, pa.Schema]


def changed_bytes(random_: random.Random) -> Iterator[Case]:
    width, raw = unpacked(CHUNK)
    n = _HEADER.unpack_from(unseal(KEYS, CHUNK))[2]
    for _ in range(4000):
        changed = bytearray(raw)
        for _ in range(random_.randint(0, 4)):
            changed[random_.randrange(len(raw))] ^= 1 << random_.randrange(8)
        del changed[len(raw) - random_.choice([0, 0, 1, 8, 63]) :]
        yield seal(KEYS, _HEADER.pack(VERSION, WIDE * (width == 4), n, len(changed)), changed), BATCH.schema


def changed_buffers(_: random.Random) -> Iterator[Case]:
    buffers = buffers_of(CHUNK)
    assert packed(5, buffers) != CHUNK
    assert read_chunk(KEYS, packed(5, buffers), BATCH.schema).equals(BATCH)
    for i in range(len(buffers)):
        for fill in FILLS:
            yield packed(5, [*buffers[:i], fill, *buffers[i + 1 :]]), BATCH.schema
    for rows in (0, 1, 4, 6, 100, 2**31 - 1, 2**31, 2**32 - 1):
        yield packed(rows, buffers), BATCH.schema


def other_schemas(_: random.Random) -> Iterator[Case]:
    types = [*BATCH.schema.types, *UNKNOWN, *(nest(type_) for nest in NESTED for type_ in UNKNOWN)]
    types += [pa.large_string(), pa.large_list(pa.int64()), pa.binary(0), pa.month_day_nano_interval()]
    for type_ in types:
        for i in range(len(BATCH.schema)):
            yield CHUNK, BATCH.schema.set(i, pa.field("x", type_))
        for fill in FILLS:
            for rows, n in ((rows, n) for rows in (0, 1, 5) for n in range(7)):
                yield packed(rows, [fill] * n), pa.schema([("x", type_)])
                yield packed(rows, [None, *[fill] * (n - 1)]), pa.schema([("x", type_)])


def changed_schemas(random_: random.Random) -> Iterator[Case]:
    for schema in (BATCH.schema, *(pa.schema([("x", type_)]) for type_ in UNKNOWN)):
        data = bytes(unseal(KEYS, write_schema(KEYS, "name", schema)))
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(random_.randint(1, 4)):
                changed[random_.randrange(len(data))] = random_.choice([0, 1, 255, random_.randrange(256)])
            try:
                _, found = read_schema(KEYS, seal(KEYS, changed))
            except ValueError:
                continue
            yield CHUNK, found


@pytest.mark.parametrize("cases", [changed_bytes, changed_buffers, other_schemas, changed_schemas])
def test_hostile_chunks_raise_or_are_valid(cases: Callable[[random.Random], Iterator[Case]]) -> None:
    child = os.fork()
    if not child:  # Arrow may end the process
        status = 1
        try:
            for data, schema in cases(random.Random(7)):
                try:
                    batch = read_chunk(KEYS, data, schema)
                except ValueError:
                    continue
                pa.concat_batches([batch, batch.take(pa.array(np.arange(batch.num_rows)))])
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("type_", [nest(type_) for nest in [lambda t: t, *NESTED] for type_ in UNKNOWN])
def test_a_schema_of_a_type_that_no_state_has_raises(type_: pa.DataType) -> None:
    schema = pa.schema([("x", type_)])
    with pytest.raises(ValueError, match="column 'x' must have a type that state can have, got "):
        read_schema(KEYS, write_schema(KEYS, "name", schema))
    with pytest.raises(ValueError, match="column 'x' must have a type that state can have, got "):
        read_chunk(KEYS, CHUNK, schema)


@pytest.mark.parametrize("empty", range(2))
def test_nulls_among_the_entries_or_keys_of_a_map_raise(empty: int) -> None:
    batch = pa.record_batch({"map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))})
    buffers = buffers_of(write_chunk(KEYS, batch))
    buffers[2 + empty] = bytes(1)
    with pytest.raises(ValueError, match="a map cannot have null entries or keys"):
        read_chunk(KEYS, packed(1, buffers), batch.schema)


def test_a_chunk_of_another_schema_raises() -> None:
    for schema in (pa.schema(list(BATCH.schema)[:-2]), BATCH.schema.append(pa.field("more", pa.int64()))):
        with pytest.raises(ValueError, match="must hold a valid record batch"):
            read_chunk(KEYS, CHUNK, schema)


def test_a_batch_is_split_into_pieces_of_bounded_size() -> None:
    batch = pa.record_batch({"id": np.arange(200_000), "text": ["some text"] * 200_000})
    cut = list(pieces(batch, batch.schema))
    assert pa.Table.from_batches(cut).combine_chunks().to_batches()[0].equals(batch)
    assert len(cut) > 4
    assert all(len(write_chunk(ROWS, piece)) < 1 << 20 for piece in cut)
    assert list(pieces(batch.slice(0, 0), batch.schema)) == []


def test_rows_of_unequal_size_are_split_by_size() -> None:
    text = ["x"] * 20_000 + ["y" * 1_000_000] * 5 + ["z"] * 20_000
    cut = list(pieces(widen(pa.record_batch({"text": text})), pa.schema([("text", pa.string())])))
    assert [value for piece in cut for value in piece["text"].to_pylist()] == text
    assert all(piece.nbytes < 2_200_000 for piece in cut)
