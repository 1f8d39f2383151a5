"""Which changes of a type keep what was stored, and the stored values as the new type has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._values import is_timed
from timerheap.spark._arrow import wide

_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = dict(zip(_WHOLE, (3, 5, 10, 19), strict=True))  # that hold all integers of a type
_BITS = dict(zip(_WHOLE, (8, 16, 32, 64), strict=True))
_EXACT = {pa.float32(): 24, pa.float64(): 53}  # bits of the integers that a float holds


def misfit(was: pa.DataType, now: pa.DataType, where: str = "") -> str | None:
    """Return why values of a type cannot become those of another one, or None if they can.

    Integers, floats and decimals widen. Structs gain, lose and reorder fields by name. The elements of lists
    and the values of maps change likewise; the keys of maps do not. A time to live comes and goes.
    """
    if wide(was) == wide(now) or pa.types.is_null(was) or _widens(was, now):
        return None
    if is_timed(was) != is_timed(now):
        return misfit(_untimed(was), _untimed(now), where)
    if pa.types.is_struct(was) and pa.types.is_struct(now):
        kept = [field for field in now if was.get_field_index(field.name) >= 0]
        if not kept:
            return f"{where or 'the rows'} would keep none of the fields {was.names}"
        found = (misfit(was.field(f.name).type, f.type, f"{where}.{f.name}".lstrip(".")) for f in kept)
        return next((reason for reason in found if reason is not None), None)
    if pa.types.is_map(was) and pa.types.is_map(now):
        if wide(was.key_type) != wide(now.key_type):
            return f"the keys of maps cannot change from {was.key_type} to {now.key_type}"
        return misfit(was.item_type, now.item_type, f"{where}{{}}")
    if pa.types.is_large_list(wide(was)) and pa.types.is_large_list(wide(now)):
        return misfit(was.value_type, now.value_type, f"{where}[]")
    return f"{where + ': ' if where else ''}{was} does not widen to {now}"


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


def evolved(values: pa.Array, now: pa.DataType) -> pa.Array:
    """Return values, of a `wide` type that fits `now`, as values of `now` with 64-bit offsets; O(n).

    What has no time to live yet has the time 0.
    """
    was, now = values.type, wide(now)
    if was == now:
        return values
    if is_timed(was) and not is_timed(now):
        return evolved(values.flatten()[0], now)
    if is_timed(now) and not is_timed(was):
        times = pa.array(np.zeros(len(values), np.int64))
        return _struct([evolved(values, now.field("value").type), times], now, values)
    if pa.types.is_struct(now) and pa.types.is_struct(was):
        rows = pa.RecordBatch.from_arrays(values.flatten(), names=was.names)
        return _struct(evolved_columns(rows, pa.schema(list(now))).columns, now, values)
    if pa.types.is_map(now) or pa.types.is_large_list(now):
        own = pa.concat_arrays([values])  # which begins at 0
        child = evolved(own.values, now.field(0).type)
        return pa.Array.from_buffers(now, len(own), own.buffers()[:2], own.null_count, children=[child])
    return values.cast(now)


def _struct(columns: list[pa.Array], type_: pa.DataType, like: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=like.is_null())


def evolved_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows whose columns have become others by position."""
    columns = [evolved(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    fields = [field.with_type(wide(field.type)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def evolved_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows whose columns have become others by name; a column that is new is null."""
    columns = [
        evolved(rows.column(field.name), field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, wide(field.type))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
