"""Rows in frames: the rows of one partition, ordered by key group, in the fewest objects and copies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa

from timerheap._native._core import NESTED, TEXT, ArrayView, Packing, read_frame, spark_hashes
from timerheap.errors import ArgumentRangeError
from timerheap.spark._arrow import FITS, is_flat, kind_of, view_of
from timerheap.spark._columns import HASH
from timerheap.spark._exchange.placement import Placement

_SHORT = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def hashes_of(key: pa.Array) -> np.ndarray:
    """Return Spark's xxhash64 of a key of text, bytes or integers, 42 for null: int64, shape (n,)."""
    return spark_hashes(view_of(key))


def frames_of(
    batches: list[pa.RecordBatch], hashes: list[np.ndarray], placement: Placement
) -> tuple[np.ndarray, pa.Array]:
    """Return the partitions that have rows, and a frame with the rows of each, in the order of key groups."""
    # Flat columns are copied once. Nested ones are taken, and written as a batch of Arrow's. There are one or
    # more batches of one schema, each with the hashes of its keys.
    schema = batches[0].schema
    packing = Packing(hashes, placement.max_parallelism, placement.partitions)
    nested = [field.name for field in schema if not is_flat(field.type)]
    columns: list[list[Any]] = [
        [view_of(batch.column(i)) for batch in batches]
        for i, field in enumerate(schema)
        if is_flat(field.type)
    ]
    if nested:
        columns.append(_nested_parts([batch.select(nested) for batch in batches], packing))
    data, ends = packing.frames(schema.serialize(), columns)
    return packing.partitions, blobs_of(data, ends)


def _nested_parts(batches: list[pa.RecordBatch], packing: Packing) -> list[pa.Buffer]:
    """Return the nested columns of each partition."""
    ordered = pa.concat_batches(batches).take(pa.array(packing.order()))
    starts = np.cumsum(packing.rows) - packing.rows
    return [
        ordered.slice(start, rows).serialize()
        for start, rows in zip(starts.tolist(), packing.rows.tolist(), strict=True)
    ]


def blobs_of(data: Any, ends: np.ndarray) -> pa.Array:
    """Return blobs that stand one after the other in a buffer as a column."""
    if len(ends) and ends[-1] > FITS:
        raise ArgumentRangeError(
            f"the rows that are packed together must take at most {FITS} bytes, got {ends[-1]}; lower "
            "spark.sql.execution.arrow.maxRecordsPerBatch"
        )
    offsets = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, offsets, pa.py_buffer(data)])


def frame_rows(frame: Any) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
    """Return the rows of a frame, their key groups in order, and the number of rows of each."""
    # Text and bytes have 32-bit offsets, which suffice for a frame. The rows are views of the frame where it
    # has the same bytes. Raises ValueError if the frame was not written by `frames_of` of this version, or is
    # damaged.
    data = np.frombuffer(frame, np.uint8)
    if data.ctypes.data % 8:
        data = data.copy()
    n, description, key_groups, counts, columns = read_frame(data)
    try:
        schema, types = _frame_schema(bytes(description))
        flat = sum(flat for _, flat in types)
        if len(columns) != flat + (flat < len(schema)):
            raise ValueError(f"{len(columns)} columns for the schema {schema}")
        nested = iter(_nested_columns(columns.pop(), n, schema) if flat < len(schema) else ())
        views = iter(columns)
        arrays = [_frame_array(type_, n, next(views)) if flat else next(nested) for type_, flat in types]
        names = schema.names
    except (pa.ArrowException, OSError, ValueError) as e:
        raise ValueError(f"a frame must hold the rows that its schema says: {e}") from e
    return pa.RecordBatch.from_arrays(arrays, names=names), key_groups, counts


@lru_cache(maxsize=64)
def _frame_schema(serialized: bytes) -> tuple[pa.Schema, list[tuple[pa.DataType, bool]]]:
    """Return the schema, and the types of the columns, with whether they are flat."""
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    return schema, [(field.type, is_flat(field.type)) for field in schema]


def _frame_array(type_: pa.DataType, n: int, column: tuple[Any, ...]) -> pa.Array:
    kind, width, validity, offsets, data = column
    type_ = _SHORT.get(type_, type_)
    if (kind, width) != kind_of(type_):
        raise ValueError(f"a column of kind {kind} and width {width} cannot be of {type_}")
    ArrayView(kind, width, 0, n, validity, offsets, data)
    buffers = [validity, offsets, data] if kind == TEXT else [validity, data]
    held = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(type_, n, held, 0 if validity is None else -1)


def _nested_columns(column: tuple[Any, ...], n: int, schema: pa.Schema) -> list[pa.Array]:
    kind, _, _, _, data = column
    if kind != NESTED:
        raise ValueError(f"its nested columns are of kind {kind}")
    fields = [field for field in schema if not is_flat(field.type)]
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema(fields))
    batch.validate(full=True)
    if batch.num_rows != n:
        raise ValueError(f"its nested columns have {batch.num_rows} of {n} rows")
    return cast(list[pa.Array], batch.columns)


def key_hashes(rows: pa.RecordBatch, key: str) -> np.ndarray:
    """Return the hash of each row's key, from `HASH` or from the key itself: int64, shape (n,)."""
    if HASH in rows.schema.names:
        return cast(np.ndarray, rows.column(HASH).to_numpy())
    return hashes_of(rows.column(key))
