"""How stored state becomes that of a changed query: which types fit, and how their values are converted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pyarrow as pa

from timerheap._values import is_timed
from timerheap.errors import CheckpointMismatchError
from timerheap.spark._arrow import wide, wide_rows, widen
from timerheap.spark._group.user_states import UserState, new_state
from timerheap.spark._memory.blocks import Memory

_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_DIGITS = dict(zip(_WHOLE, (3, 5, 10, 19), strict=True))  # that hold all integers of a type
_BITS = dict(zip(_WHOLE, (8, 16, 32, 64), strict=True))
_EXACT = {pa.float32(): 24, pa.float64(): 53}  # bits of the integers that a float holds


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


def field_paths(type_: pa.DataType, path: str, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of fields at any depth, behind `path` as in `misfit`, and behind their new `names`."""
    if is_timed(type_):
        yield from field_paths(type_.field("value").type, path, names)
    elif pa.types.is_struct(type_):
        for field in type_:
            own = f"{path}.{field.name}"
            for each in {own, names.get(own, own)}:
                yield each
                yield from field_paths(field.type, each, names)
    elif pa.types.is_map(type_):
        yield from field_paths(type_.item_type, path, names)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield from field_paths(type_.value_type, path, names)


def has_time_to_live(shape: str, type_: pa.DataType) -> bool:
    """Return whether the contents of a state of this shape and type have times."""
    if shape != "value":
        type_ = type_.item_type if pa.types.is_map(type_) else type_.value_type
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
        return _struct_of(columns, now, None if inside else values.is_null())
    if pa.types.is_struct(now) and pa.types.is_struct(was):
        rows = pa.RecordBatch.from_arrays(values.flatten(), names=was.names)
        return _struct_of(evolved_columns(rows, pa.schema(list(now)), inside).columns, now, values.is_null())
    if pa.types.is_map(now) or pa.types.is_large_list(now):
        own = pa.concat_arrays([values])  # which begins at 0
        child = evolved(own.values, now.field(0).type, inside=True)
        return pa.Array.from_buffers(now, len(own), own.buffers()[:2], own.null_count, children=[child])
    return values.cast(now)


def _struct_of(columns: list[pa.Array], type_: pa.DataType, mask: pa.Array | None) -> pa.Array:
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


def evolved_state(
    table: UserState,
    path: str,
    shape: str,
    type_: pa.DataType,
    renamed: Mapping[str, str],
    dropped: Collection[str],
    memory: Memory,
) -> UserState:
    """Return a state as one of another type; raise CheckpointMismatchError if that would lose anything.

    path: what names of fields in it begin with
    renamed, dropped: names of fields in ``state_changes``: new ones by old ones, and those whose values go
    """
    was = renamed_fields(table.type, path, renamed)
    why = misfit(was, type_, path=path, dropped=dropped)
    if table.shape != shape:
        why = f"it is a {table.shape} state"
    if why is not None:
        raise CheckpointMismatchError(
            f"state {table.name!r} must stay a {table.shape} state of {table.type}, got a {shape} state "
            f"of {type_}: {why}; keep the type, or choose another name and pass "
            f"state_changes={{{path!r}: None}}"
        )
    new = new_state(table.kind, table.name, shape, type_, memory)
    named = wide_rows(new_state(table.kind, table.name, shape, was).schema)
    columns = [
        column.view(type_) for column, type_ in zip(widen(table.snapshot()).columns, named.types, strict=True)
    ]
    new.replay(evolved_rows(pa.RecordBatch.from_arrays(columns, schema=named), new.schema))
    return new
