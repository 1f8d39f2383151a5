"""Text, bytes and lists of any size in one column: 64-bit offsets in memory, the declared types outside.

Arrow's own types for them count with 32 bits, which ends at 2 GiB in one array; a key group may hold more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

__all__ = ["FITS", "fitting", "narrow", "narrow_column", "wide", "wide_rows", "widen"]

FITS = (1 << 31) - 1
"""How many bytes surely fit 32-bit offsets."""


def wide(type_: pa.DataType) -> pa.DataType:
    """Return the type that holds the same with 64-bit offsets, at every depth."""
    if pa.types.is_string(type_):
        return pa.large_string()
    if pa.types.is_binary(type_):
        return pa.large_binary()
    if pa.types.is_list(type_):
        return pa.large_list(_wide_field(type_.value_field))
    if pa.types.is_map(type_):  # of which there is no other kind: its own offsets count entries
        return pa.map_(wide(type_.key_type), _wide_field(type_.item_field))
    if pa.types.is_struct(type_):
        return pa.struct([_wide_field(field) for field in type_])
    return type_


def _wide_field(field: pa.Field) -> pa.Field:
    return field.with_type(wide(field.type))


def wide_rows(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns `wide`."""
    return pa.schema([_wide_field(field) for field in schema])


def widen(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as those of `wide_rows`; text and bytes are not copied."""
    schema = wide_rows(rows.schema)
    columns = [c.cast(field.type) for c, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of `wide_rows` as those of `schema`; OverflowError where a column is too large for that."""
    if rows.schema == schema:
        return rows
    columns = [narrow_column(c, field.type) for c, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow_column(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column of a `wide` type as one of the type itself; OverflowError where it is too large."""
    if column.type == type_:
        return column
    try:
        if not pa.types.is_nested(type_):
            with suppress(pa.ArrowInvalid):
                return column.cast(type_)  # without copying
        # A slice may begin further on than 32 bits can say, and what it was cut from be converted as a whole.
        return pa.concat_arrays([column]).cast(type_)
    except pa.ArrowInvalid:
        raise OverflowError(
            f"{column.nbytes} bytes in one column are more than {type_} can hold; take fewer rows at a time"
        ) from None


def fitting(rows: pa.RecordBatch, aim: int = FITS >> 2, most: int = FITS) -> Iterator[tuple[int, int]]:
    """Cut rows into spans of about `aim` bytes where they are more than `most`; a span may be a single row.

    Yield where each begins and ends.
    """
    yield from _cut(rows, 0, aim, most)


def _cut(rows: pa.RecordBatch, at: int, aim: int, most: int) -> Iterator[tuple[int, int]]:
    n, nbytes = rows.num_rows, rows.nbytes
    if nbytes <= most or n <= 1:
        if n:
            yield at, at + n
        return
    step = -(-n // -(-nbytes // aim))
    for start in range(0, n, step):
        yield from _cut(rows.slice(start, step), at + start, aim, most)
