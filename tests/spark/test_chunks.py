"""Chunks are read back as written and have a bounded size; any other bytes raise ValueError."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap._native._heap import seal, unseal
from timerheap.spark._group.chunks import (
    KEYS,
    ROWS,
    pieces,
    read_chunk,
    read_schema,
    write_chunk,
    write_schema,
)
from timerheap.spark._group.offsets import widen

BATCH = pa.record_batch(
    {
        "id": np.arange(5),
        "key": ["a", None, "", "Zoë", "b"],
        "seen": [[1], [], None, [2, None], [3]],
        "flag": [True, None, False, True, False],
        "map": pa.array([[("a", 1)], [], None, [("b", None), ("c", 3)], []], pa.map_(pa.string(), pa.int8())),
        "row": [{"x": 1, "y": "é"}, None, {"x": None, "y": ""}, {"x": 4, "y": None}, None],
        "pair": pa.array([[1, 2], None, [3, 4], [5, None], [7, 8]], pa.list_(pa.int16(), 2)),
        "none": pa.nulls(5),
    }
)
CHUNK = write_chunk(KEYS, BATCH)
_HEADER = struct.Struct("<BBHI")


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
    data = seal(KEYS, payload)
    with pytest.raises(ValueError, match=f"a chunk of kind {KEYS} must hold a valid record batch"):
        read_chunk(KEYS, data, BATCH.schema)
    with pytest.raises(ValueError, match=f"chunk 0 of kind {KEYS} must hold a name and a schema|utf-8"):
        read_schema(KEYS, data)


@given(
    changes=st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 255)), max_size=4), cut=st.integers(0)
)
def test_hostile_columns_raise_or_are_valid(changes: list[tuple[int, int]], cut: int) -> None:
    payload = bytes(unseal(KEYS, CHUNK))
    compressed, width, n, size = _HEADER.unpack_from(payload)
    raw = payload[_HEADER.size :]
    if compressed:
        raw = pa.decompress(raw, size, "lz4_raw", asbytes=True)
    raw = bytearray(raw)
    for at, byte in changes:
        raw[at % len(raw)] = byte
    del raw[len(raw) - cut % 64 :]
    header = _HEADER.pack(0, width, n, len(raw))
    try:
        batch = read_chunk(KEYS, seal(KEYS, header, raw), BATCH.schema)
    except ValueError:
        return
    batch.to_pylist()


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
