"""What a StatefulProcessor receives and yields: ``Row`` objects or pandas DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as is_

__all__ = ["InputRows", "Records", "in_zone"]


class InputRows(Protocol):
    """The rows of a partition, sorted by key."""

    def keys(self, starts: list[int]) -> list[tuple[Any, ...]]:
        """Return the keys of these rows as the processor receives them."""

    def slice(self, start: int, stop: int) -> Iterator[Any]:
        """Return what the processor receives of the rows of one key."""


class Records(Protocol):
    """Converts the rows of a query and the results of a processor."""

    def inputs(self, rows: pa.RecordBatch, schema: pa.Schema, key: list[str]) -> InputRows:
        """Return rows of a schema, but with 64-bit offsets; `key` names the key columns."""

    def emit(self, results: Iterable[Any]) -> None:
        """Add what a method of the processor has returned, to the end."""

    def flush(self) -> None:
        """Pass what has been added to the output."""


def in_zone(column: pa.Array, zone: str) -> pa.Array:
    """Return a column with this time zone where its type has one."""
    type_ = _in_zone(column.type, zone)
    return column if type_ == column.type else column.cast(type_)


def _in_zone(type_: pa.DataType, zone: str) -> pa.DataType:
    if is_.is_timestamp(type_):
        return pa.timestamp(type_.unit, zone) if type_.tz is not None else type_
    if is_.is_struct(type_):
        return pa.struct([field.with_type(_in_zone(field.type, zone)) for field in type_])
    if is_.is_map(type_):
        return pa.map_(_in_zone(type_.key_type, zone), _in_zone(type_.item_type, zone))
    if is_.is_list(type_):
        return pa.list_(type_.value_field.with_type(_in_zone(type_.value_type, zone)))
    if is_.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_in_zone(type_.value_type, zone)))
    return type_
