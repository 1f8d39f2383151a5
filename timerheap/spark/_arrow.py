"""Arrow columns as live structures need them: with 64-bit offsets, as views of buffers, in a newer type.

Arrow's default types for text, bytes and lists have 32-bit offsets, which limit an array to 2 GiB. A key
group may hold more, and so may the new rows of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import BITS, FIXED, FLOAT, TEXT, ArrayView
from timerheap.errors import ArgumentRangeError

FITS = (1 << 31) - 1
"""A number of bytes that always fits 32-bit offsets."""

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}

_FLOATS = (pa.float32(), pa.float64())


def map_type(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type after `change` of each type in it, the innermost first, and of itself."""
    fields = [type_.field(i) for i in range(type_.num_fields)]
    fields = [field.with_type(map_type(field.type, change)) for field in fields]
    if pa.types.is_struct(type_):
        type_ = pa.struct(fields)
    elif pa.types.is_map(type_):
        type_ = pa.map_(*fields[0].type)
    elif pa.types.is_list(type_):
        type_ = pa.list_(*fields)
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(*fields)
    return change(type_)


@lru_cache(maxsize=256)
def wide(type_: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets at every depth."""
    return map_type(type_, _widened_type)


def _widened_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):  # Arrow has no large map; the map's own offsets count entries
        return pa.large_list(type_.value_field)
    return _LARGE.get(type_, type_)


def wide_rows(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns `wide`."""
    return pa.schema([field.with_type(wide(field.type)) for field in schema])


def widen(rows: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Convert rows to a schema of `wide_rows`, by default their own; text and bytes are not copied."""
    schema = wide_rows(rows.schema) if schema is None else schema
    columns = [_in_type(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widen_column(column: pa.Array) -> pa.Array:
    """Convert a column to its `wide` type; text and bytes are not copied."""
    return _in_type(column, wide(column.type))


def struct_of(
    columns: Sequence[pa.Array], type_: pa.StructType, mask: np.ndarray | None = None
) -> pa.StructArray:
    """Return columns as structs of a type, or of its `wide` one; null where `mask` is True."""
    fields = [field.with_type(column.type) for field, column in zip(type_, columns, strict=True)]
    null = None if mask is None else pa.array(mask)
    return pa.StructArray.from_arrays(columns, fields=fields, mask=null)


def _in_type(column: pa.Array, type_: pa.DataType) -> pa.Array:
    return column if column.type == type_ else column.cast(type_)


def concatenated(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of one or more batches, with 64-bit offsets if one has them or the rows need them."""
    schema = parts[0].schema
    if any(part.schema != schema for part in parts) or sum(part.nbytes for part in parts) > FITS:
        parts = [widen(part) for part in parts]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Rows with the ids of their keys and their event times in epoch ms: each int64, shape (n,).

    Before a key group has admitted them, the ids are the hashes of their keys. The rows have 64-bit offsets
    if they need them, or if they have waited for the watermark. In a query without event time it is 0.
    """

    rows: pa.RecordBatch
    ids: np.ndarray
    timestamps: np.ndarray
    places: np.ndarray | None = None  # of the keys in their table, until it changes, if they are known
    channels: pa.Array | None = None  # of rows that have just arrived, if they are sent beside them

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, columns: list[str]) -> KeyedRows:
        """Return the rows with these columns alone, without copying."""
        return KeyedRows(self.rows.select(columns), self.ids, self.timestamps, self.places, self.channels)

    def take(self, rows: np.ndarray) -> KeyedRows:
        """Return the rows at these positions, without copying if they are all rows in their order."""
        if len(rows) == len(self) and np.count_nonzero(rows == np.arange(len(rows))) == len(rows):
            return self
        places = None if self.places is None else self.places[rows]
        at = pa.array(rows)
        channels = None if self.channels is None else self.channels.take(at)
        return KeyedRows(self.rows.take(at), self.ids[rows], self.timestamps[rows], places, channels)

    def where(self, mask: np.ndarray) -> KeyedRows:
        """Return the rows where `mask` is True."""
        (rows,) = mask.nonzero()
        return self.take(rows) if 0 < len(rows) < len(self) else self.slice(0, len(rows))

    def slice(self, start: int, stop: int) -> KeyedRows:
        """Return the rows from `start` up to but not including `stop`, without copying."""
        rows, places = self.rows.slice(start, stop - start), self.places
        places = None if places is None else places[start:stop]
        channels = None if self.channels is None else self.channels.slice(start, stop - start)
        return KeyedRows(rows, self.ids[start:stop], self.timestamps[start:stop], places, channels)

    @staticmethod
    def concatenated(parts: list[KeyedRows]) -> KeyedRows:
        """Return the rows of all parts, one or more; of several, the places are not known."""
        parts = [rows for rows in parts if len(rows)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return KeyedRows(
            concatenated([rows.rows for rows in parts]),
            np.concatenate([rows.ids for rows in parts]),
            np.concatenate([rows.timestamps for rows in parts]),
            channels=_joined_channels([rows.channels for rows in parts]),
        )


def _joined_channels(columns: list[pa.Array | None]) -> pa.Array | None:
    known = [column for column in columns if column is not None]
    return pa.concat_arrays(known) if len(known) == len(columns) else None


def narrow(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows of `wide_rows` to `schema`; raise ArgumentRangeError if a column is too large."""
    if rows.schema == schema:
        return rows
    columns = [narrow_column(c, field.type) for c, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow_column(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert a column of a `wide` type to `type_`; raise ArgumentRangeError if it is too large."""
    if column.type == type_:
        return column
    try:
        if not pa.types.is_nested(type_):
            with suppress(pa.ArrowInvalid):
                return column.cast(type_)  # without copying
        # A slice may start beyond 32 bits, and a cast would convert its parent as a whole: copy it first.
        return pa.concat_arrays([column]).cast(type_)
    except pa.ArrowInvalid:
        raise ArgumentRangeError(
            f"a column must fit {type_}, got {column.nbytes} bytes; process fewer rows at a time"
        ) from None


def size_of(rows: pa.RecordBatch) -> int:
    """Return a size in bytes that depends on the values alone, at most ``rows.nbytes``."""
    return sum(map(_size, rows.columns))


def _size(column: pa.Array) -> int:
    type_, n = column.type, len(column)
    if pa.types.is_struct(type_):
        return sum(map(_size, column.flatten()))
    if pa.types.is_map(type_):  # which Arrow flattens only as a list
        entries = pa.struct([type_.key_field, type_.item_field])
        return 4 * n + _size(column.cast(pa.list_(entries)).flatten())
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return 4 * n + _size(column.flatten())
    if pa.types.is_null(type_):
        return 0
    if pa.types.is_boolean(type_):
        return -(-n // 8)
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return n * int(type_.bit_width) // 8
    return 4 * n + (pc.sum(pc.binary_length(column)).as_py() or 0)


def fitting(
    rows: pa.RecordBatch, aim: int = FITS >> 2, most: int = FITS, at: int = 0
) -> Iterator[tuple[int, int]]:
    """Split rows larger than `most` bytes into spans of about `aim` bytes, of at least one row.

    Yields the start and stop of each span; the first row has the number `at`.
    """
    n = rows.num_rows
    if n <= 1 or rows.nbytes <= most or (nbytes := size_of(rows)) <= most:
        if n:
            yield at, at + n
        return
    step = -(-n // -(-nbytes // aim))
    for start in range(0, n, step):
        yield from fitting(rows.slice(start, step), aim, most, at + start)


def is_flat(type_: pa.DataType) -> bool:
    """Return whether `view_of` takes arrays of a type: all types but null and nested ones."""
    return bool(
        pa.types.is_primitive(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_fixed_size_binary(type_)
        or _offset_width(type_)
    )


@lru_cache(maxsize=256)
def kind_of(type_: pa.DataType) -> tuple[int, int]:
    """Return the kind and the width of views of a type."""
    if width := _offset_width(type_):
        return TEXT, width
    if pa.types.is_boolean(type_):
        return BITS, 0
    return FLOAT if type_ in _FLOATS else FIXED, type_.bit_width // 8


def view_of(array: pa.Array) -> ArrayView:
    """Return a view of an array, without copying."""
    kind, width = kind_of(array.type)
    validity, *offsets, data = array.buffers()
    nulls, ends = validity if array.null_count else None, offsets[0] if offsets else None
    return ArrayView(kind, width, array.offset, len(array), nulls, ends, data)


def _offset_width(type_: pa.DataType) -> int:
    """Return the size of the offsets of text or bytes, 0 for other types."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return 4
    return 8 if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_) else 0


def event_millis(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch ms, rounded down: int64, shape (n,)."""
    times = event_times(column)
    return times if pa.types.is_int64(column.type) else times // 1000


def event_times(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch us or ms: int64, shape (n,)."""
    times = column if pa.types.is_int64(column.type) else column.view(pa.int64())
    found: np.ndarray = times.to_numpy(zero_copy_only=False)
    return found
