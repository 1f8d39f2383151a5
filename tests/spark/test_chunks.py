"""Chunks are read back as written and have a bounded size; any other bytes raise ValueError."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap._native._heap import seal
from timerheap.spark._group.chunks import KEYS, ROWS, pieces, read_chunk, write_chunk
from timerheap.spark._group.offsets import widen

BATCH = pa.record_batch(
    {"id": np.arange(5), "key": ["a", None, "", "Zoë", "b"], "seen": [[1], [], None, [2, None], [3]]}
)
CHUNK = write_chunk(KEYS, BATCH)


def test_a_written_chunk_is_read_back():
    assert read_chunk(KEYS, CHUNK).equals(BATCH)
    assert read_chunk(KEYS, write_chunk(KEYS, BATCH.slice(2, 2))).equals(BATCH.slice(2, 2))


def test_reading_a_chunk_of_another_kind_raises():
    with pytest.raises(ValueError, match="kind"):
        read_chunk(ROWS, CHUNK)


@given(at=st.integers(0, len(CHUNK) - 1), byte=st.integers(1, 255))
def test_a_changed_byte_raises(at, byte):
    bad = bytearray(CHUNK)
    bad[at] ^= byte
    with pytest.raises(ValueError):  # noqa: PT011
        read_chunk(KEYS, bytes(bad))


@given(length=st.integers(0, len(CHUNK) - 1))
def test_a_truncated_chunk_raises(length):
    with pytest.raises(ValueError):  # noqa: PT011
        read_chunk(KEYS, CHUNK[:length])


@given(payload=st.binary(max_size=200))
def test_a_sealed_invalid_payload_raises(payload):
    with pytest.raises(ValueError, match=f"a chunk of kind {KEYS} must hold a valid record batch"):
        read_chunk(KEYS, seal(KEYS, payload))


def test_a_batch_is_split_into_pieces_of_bounded_size():
    batch = pa.record_batch({"id": np.arange(200_000), "text": ["some text"] * 200_000})
    cut = list(pieces(batch, batch.schema))
    assert pa.Table.from_batches(cut).combine_chunks().to_batches()[0].equals(batch)
    assert len(cut) > 8
    assert all(len(write_chunk(ROWS, piece)) < 1 << 20 for piece in cut)
    assert list(pieces(batch.slice(0, 0), batch.schema)) == []


def test_rows_of_unequal_size_are_split_by_size():
    text = ["x"] * 20_000 + ["y" * 1_000_000] * 5 + ["z"] * 20_000
    cut = list(pieces(widen(pa.record_batch({"text": text})), pa.schema([("text", pa.string())])))
    assert [value for piece in cut for value in piece["text"].to_pylist()] == text
    assert all(piece.nbytes < 2_000_000 for piece in cut)
