"""Arrow columns as live structures need them: with 64-bit offsets, as views of buffers, in a newer type.

Arrow's default types for text, bytes and lists have 32-bit offsets, which limit an array to 2 GiB. A key
group may hold more, and so may the new rows of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._core import BITS, FIXED, FLOAT, TEXT, ArrayView
from timerheap._values import is_timed

FITS = (1 << 31) - 1
"""A number of bytes that always fits 32-bit offsets."""

EARLIER = 2
"""What the number of an input is increased by in a row of `_exchange.codec.OBSERVED`."""

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}

_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = dict(zip(_WHOLE, (3, 5, 10, 19), strict=True))  # that hold all integers of a type
_BITS = dict(zip(_WHOLE, (8, 16, 32, 64), strict=True))
_EXACT = {pa.float32(): 24, pa.float64(): 53}  # bits of the integers that a float holds


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
    return map_type(type_, _widened)


def _widened(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):  # Arrow has no large map; the map's own offsets count entries
        return pa.large_list(type_.value_field)
    return _LARGE.get(type_, type_)


def wide_rows(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all columns `wide`."""
    return pa.schema([field.with_type(wide(field.type)) for field in schema])


def widen(rows: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Convert rows to a schema of `wide_rows`, by default their own; text and bytes are not copied."""
    schema = wide_rows(rows.schema) if schema is None else schema
    columns = []
    for field in schema:
        column = rows.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, columns: list[str]) -> KeyedRows:
        """Return the rows with these columns alone, without copying."""
        return KeyedRows(self.rows.select(columns), self.ids, self.timestamps, self.places)

    def take(self, rows: np.ndarray) -> KeyedRows:
        """Return the rows at these positions, without copying if they are all rows in their order."""
        if len(rows) == len(self) and np.count_nonzero(rows == np.arange(len(rows))) == len(rows):
            return self
        places = None if self.places is None else self.places[rows]
        return KeyedRows(self.rows.take(pa.array(rows)), self.ids[rows], self.timestamps[rows], places)

    def where(self, mask: np.ndarray) -> KeyedRows:
        """Return the rows where `mask` is True."""
        (rows,) = mask.nonzero()
        return self.take(rows) if 0 < len(rows) < len(self) else self.slice(0, len(rows))

    def slice(self, start: int, stop: int) -> KeyedRows:
        """Return the rows from `start` up to but not including `stop`, without copying."""
        rows, places = self.rows.slice(start, stop - start), self.places
        places = None if places is None else places[start:stop]
        return KeyedRows(rows, self.ids[start:stop], self.timestamps[start:stop], places)

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
        )


def narrow(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows of `wide_rows` to `schema`; raise OverflowError if a column is too large."""
    if rows.schema == schema:
        return rows
    columns = [narrow_column(c, field.type) for c, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def narrow_column(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert a column of a `wide` type to `type_`; raise OverflowError if it is too large."""
    if column.type == type_:
        return column
    try:
        if not pa.types.is_nested(type_):
            with suppress(pa.ArrowInvalid):
                return column.cast(type_)  # without copying
        # A slice may start beyond 32 bits, and a cast would convert its parent as a whole: copy it first.
        return pa.concat_arrays([column]).cast(type_)
    except pa.ArrowInvalid:
        raise OverflowError(
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
    return FLOAT if type_ in _EXACT else FIXED, type_.bit_width // 8


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


def misfit(
    was: pa.DataType,
    now: pa.DataType,
    where: str = "",
    *,
    path: str = "",
    dropped: Collection[str] | None = None,
) -> str | None:
    """Return why values of a type cannot become those of another one, or None if they can."""
    # Integers, floats and decimals widen. Structs gain and reorder fields by name, and lose those that are
    # among the `dropped` under `path` and their names; by default any. The elements of lists and the values
    # of maps change likewise; the keys of maps do not. A time to live comes and goes.
    if wide(was) == wide(now) or pa.types.is_null(was) or _widens(was, now):
        return None
    if is_timed(was) or is_timed(now):
        return misfit(_untimed(was), _untimed(now), where, path=path, dropped=dropped)
    if pa.types.is_struct(was) and pa.types.is_struct(now):
        if len(twice := {*was.names}) < was.num_fields:
            return f"two fields would have one name, of {sorted(twice)}"
        kept = [field for field in now if was.get_field_index(field.name) >= 0]
        lost = [f"{path}.{name}" for name in was.names if now.get_field_index(name) < 0]
        lost = [] if dropped is None else [each for each in lost if each not in dropped]
        if lost:
            return (
                f"it would lose the values of {', '.join(lost)}; pass state_changes={dict.fromkeys(lost)} "
                f"for that, or {{{lost[0]!r}: {path + '.new'!r}}} for a field that has a new name"
            )
        if not kept:
            return f"{where or 'the rows'} would keep none of the fields {was.names}"
        found = (
            misfit(
                was.field(field.name).type,
                field.type,
                f"{where}.{field.name}".lstrip("."),
                path=f"{path}.{field.name}",
                dropped=dropped,
            )
            for field in kept
        )
        return next((reason for reason in found if reason is not None), None)
    if pa.types.is_map(was) and pa.types.is_map(now):
        if wide(was.key_type) != wide(now.key_type):
            return f"the keys of maps cannot change from {was.key_type} to {now.key_type}"
        return misfit(was.item_type, now.item_type, f"{where}{{}}", path=path, dropped=dropped)
    if pa.types.is_large_list(wide(was)) and pa.types.is_large_list(wide(now)):
        return misfit(was.value_type, now.value_type, f"{where}[]", path=path, dropped=dropped)
    return f"{where + ': ' if where else ''}{was} does not widen to {now}"


def renamed_fields(type_: pa.DataType, path: str, names: Mapping[str, str]) -> pa.DataType:
    """Return a type with new `names` of fields by their old ones, both behind `path`, as in `misfit`."""
    if is_timed(type_):
        inner = renamed_fields(type_.field("value").type, path, names)
        return pa.struct([type_.field("value").with_type(inner), *list(type_)[1:]])
    if pa.types.is_struct(type_):
        fields = []
        for field in type_:
            own = f"{path}.{field.name}"
            name = names.get(own, own).removeprefix(f"{path}.")
            fields.append(pa.field(name, renamed_fields(field.type, own, names)))
        return pa.struct(fields)
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, renamed_fields(type_.item_type, path, names))
    if pa.types.is_list(type_):
        return pa.list_(renamed_fields(type_.value_type, path, names))
    return type_


def has_time_to_live(shape: str, type_: pa.DataType) -> bool:
    """Return whether the contents of a state of this shape and type have times."""
    if shape != "value":
        type_ = type_.value_type if shape == "list" else type_.item_type
    return is_timed(type_)


def _widens(was: pa.DataType, now: pa.DataType) -> bool:
    if pa.types.is_decimal(now):
        digits = now.precision - now.scale
        if pa.types.is_decimal(was):
            return bool(was.scale <= now.scale and was.precision - was.scale <= digits)
        return bool(_DIGITS.get(was, 99) <= digits)
    if was in _BITS:
        return bool(_BITS[was] <= max(_BITS.get(now, 0), _EXACT.get(now, 0)))
    return bool(was == pa.float32() and now == pa.float64())


def _untimed(type_: pa.DataType) -> pa.DataType:
    return type_.field("value").type if is_timed(type_) else type_


def evolved(values: pa.Array, now: pa.DataType, inside: bool = False) -> pa.Array:
    """Return values, of a `wide` type that fits `now`, as values of `now` with 64-bit offsets; O(n)."""
    # What has no time to live yet has the time 0. Also null has one `inside` of a map, where it is a value.
    was, now = values.type, wide(now)
    if was == now:
        return values
    if is_timed(was) and not is_timed(now):
        return evolved(values.flatten()[0], now)
    if is_timed(now) and not is_timed(was):
        times = pa.array(np.zeros(len(values), np.int64))
        columns = [evolved(values, now.field("value").type), times]
        return _struct(columns, now, None if inside else values.is_null())
    if pa.types.is_struct(now) and pa.types.is_struct(was):
        rows = pa.RecordBatch.from_arrays(values.flatten(), names=was.names)
        return _struct(evolved_columns(rows, pa.schema(list(now)), inside).columns, now, values.is_null())
    if pa.types.is_map(now) or pa.types.is_large_list(now):
        own = pa.concat_arrays([values])  # which begins at 0
        child = evolved(own.values, now.field(0).type, inside=True)
        return pa.Array.from_buffers(now, len(own), own.buffers()[:2], own.null_count, children=[child])
    return values.cast(now)


def _struct(columns: list[pa.Array], type_: pa.DataType, mask: pa.Array | None) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)


def evolved_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows whose columns have become others by position."""
    columns = [evolved(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    fields = [field.with_type(wide(field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def evolved_columns(rows: pa.RecordBatch, schema: pa.Schema, inside: bool = False) -> pa.RecordBatch:
    """Return rows whose columns have become others by name; a column that is new is null."""
    columns = [
        evolved(rows.column(field.name), field.type, inside)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, wide(field.type))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def event_millis(column: pa.Array) -> np.ndarray:
    """Return a column of timestamp[us], or int64 in ms, as epoch ms, rounded down: int64, shape (n,)."""
    in_millis = pa.types.is_int64(column.type)
    times: np.ndarray = (column if in_millis else column.view(pa.int64())).to_numpy(zero_copy_only=False)
    return times if in_millis else times // 1000
