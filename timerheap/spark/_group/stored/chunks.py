"""A chunk: a record batch of one part of a key group as sealed bytes.

A chunk has no schema of its own: all chunks of a part have the schema that the part's chunk 0 holds. It
begins with 8 bytes: its version u8, flags u8 (1: what follows is an LZ4 block, 2: counts have 4 bytes, else
one), the number of counts u16, the uncompressed size u32. What follows are the counts, then the buffers of
the columns in Arrow's order, each at a multiple of 8 bytes. The first count is the number of rows; the others
are the sizes of the buffers plus 1, or 0 for a buffer that is absent. Chunk 0 has its version u16, the length
of the name u32, the name, and the schema as Arrow writes it. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import seal, unseal
from timerheap.errors import DamagedCheckpointError
from timerheap.spark._arrow import fitting, narrow
from timerheap.spark._group.stored.formats import CHUNK, SCHEMA
from timerheap.spark._memory.array_layouts import can_hold
from timerheap.spark._memory.streamed import Streamed

_TARGET_BYTES = 1 << 20  # a load takes about 0.5 ms of CPU for each chunk, whatever its size
_CHUNK = struct.Struct("<BBHI")
_COMPRESSED, _WIDE = 1, 2
_NAME = struct.Struct("<HI")
_ALIGNMENT = 8
_LZ4 = pa.Codec("lz4_raw")
_LZ4_RATIO = 256  # more than LZ4 can reach
_NO_VALUES = pa.py_buffer(bytes(8))  # also the one offset of no values


def write_schema(kind: int, name: str, schema: pa.Schema) -> bytes:
    """Return the sealed name and schema of a part."""
    text = name.encode()
    return seal(kind, _NAME.pack(SCHEMA.written, len(text)), text, schema.serialize())


def read_schema(kind: int, data: bytes) -> tuple[str, pa.Schema]:
    """Return what `write_schema` wrote; raise a `CheckpointError` for any other bytes, even hostile ones."""
    payload = unseal(kind, data)
    SCHEMA.expect(payload[:2])
    try:
        start = _NAME.size + _NAME.unpack_from(payload)[1]
        name = str(payload[_NAME.size : start], "utf-8")
        schema = pa.ipc.read_schema(pa.py_buffer(payload[start:]))
        _check_types(schema)
    except (struct.error, ValueError, pa.ArrowException, OSError) as e:
        raise DamagedCheckpointError(f"chunk 0 of kind {kind} must hold a name and a schema: {e}") from e
    return name, schema


def _check_types(schema: pa.Schema) -> None:
    """Raise an error for a type that no part has: Arrow ends the process for some arrays of others."""
    for column in schema:
        if not can_hold(column.type):
            raise ValueError(
                f"column {column.name!r} must have a type that state can have, got {column.type}"
            )


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
    flags = _COMPRESSED * smaller | _WIDE * (width == 4)
    header = _CHUNK.pack(CHUNK.written, flags, len(counts), len(raw))
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
        if any(each.null_count for each in _nested_arrays(array)):  # `take` writes zeros for nulls
            array = pa.concat_arrays([column.take(pa.array(np.arange(n)))])
        for each in _nested_arrays(array):
            validity, *rest = each.buffers()[: each.type.num_buffers]
            yield validity if each.null_count else None
            yield from rest


def _nested_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield an array and those nested in it, in the order of their buffers."""
    yield array
    for i in range(array.type.num_fields):
        yield from _nested_arrays(array.field(i) if pa.types.is_struct(array.type) else array.values)


def read_chunk(kind: int, data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return what `write_chunk` wrote; raise a `CheckpointError` for any other bytes, even hostile ones."""
    payload = unseal(kind, data)
    CHUNK.expect(payload[:1])
    try:
        _check_types(schema)
        batch = _parsed(payload, schema)
        batch.validate(full=True)
    except (struct.error, IndexError, ValueError, pa.ArrowException, OSError) as e:
        raise DamagedCheckpointError(f"a chunk of kind {kind} must hold a valid record batch: {e}") from e
    return batch


def _parsed(payload: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    _, flags, n, size = _CHUNK.unpack_from(payload)
    raw, width = pa.py_buffer(payload[_CHUNK.size :]), 4 if flags & _WIDE else 1
    if flags & _COMPRESSED:
        if size > _LZ4_RATIO * raw.size:
            raise ValueError(f"{raw.size} bytes cannot be {size} bytes compressed")
        raw = _LZ4.decompress(raw, size)
    if len(raw) != size or flags > _COMPRESSED | _WIDE:
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
    columns = [_array_of_buffers(field.type, rows, left) for field in schema]
    if next(left, left) is not left or size - at >= _ALIGNMENT:
        raise ValueError("it has more buffers than its schema")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array_of_buffers(type_: pa.DataType, n: int, buffers: Iterator[pa.Buffer | None]) -> pa.Array:
    validity, *own = (next(buffers, None) for _ in range(type_.num_buffers))
    # Some of Arrow's functions read a buffer that is absent, even of an array of length 0.
    own = [_NO_VALUES if buffer is None or not (n or buffer.size) else buffer for buffer in own]
    length = n
    if type_.num_fields and not pa.types.is_struct(type_):
        offsets: Any = own[0]
        length = int(np.frombuffer(offsets, np.int64 if pa.types.is_large_list(type_) else np.int32)[n])
        if length < 0:
            raise ValueError(f"a column cannot have {length} elements")
    children = [_array_of_buffers(type_.field(i).type, length, buffers) for i in range(type_.num_fields)]
    if pa.types.is_map(type_) and (children[0].null_count or children[0].field(0).null_count):
        raise ValueError("a map cannot have null entries or keys")  # Arrow would end the process
    return pa.Array.from_buffers(type_, n, [validity, *own], children=children or None)


def pieces(batch: pa.RecordBatch | Streamed, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield pieces of `batch`, of the schema and about 1 MiB, so that chunks do not grow with the state."""
    spans = batch.spans(_TARGET_BYTES, 2 * _TARGET_BYTES) if isinstance(batch, Streamed) else (batch,)
    for span in spans:
        for start, stop in fitting(span, _TARGET_BYTES, 2 * _TARGET_BYTES):
            yield narrow(span.slice(start, stop - start), schema)
