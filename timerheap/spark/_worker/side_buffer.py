"""Checks what a function sends to side outputs, and collects it in a column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from timerheap._values import checker
from timerheap.output_tag import OutputTag
from timerheap.spark._group.offsets import fitting, narrow, wide, wide_rows
from timerheap.spark._group.value_columns import cast

__all__ = ["SIDE_OUTPUT", "SideBuffer", "undeclared"]

SIDE_OUTPUT = "side_output"
"""Name of the result column with the value of a side output: a struct with one field for each tag."""


class SideBuffer:
    """Collects the values of side outputs during one call of the operator.

    Parameters
    ----------
    tags : list of pyarrow.Field
        The id and the type of each tag.
    """

    most = 1 << 16  # values that become columns at once

    def __init__(self, tags: list[pa.Field]) -> None:
        self._fields = {field.name: field for field in tags}
        self._checks = {field.name: checker(field.type) for field in tags}
        self._values: dict[str, list[Any]] = {field.name: [] for field in tags}
        self._tables: list[pa.Table] = []
        self.field = pa.field(SIDE_OUTPUT, pa.struct(tags))

    def add(self, tag: OutputTag, value: Any) -> None:
        """Add a value as it is now; None raises ValueError."""
        tag_id = self._field(tag).name
        if value is None:
            raise ValueError(f"a value of the side output {tag_id!r} must not be None")
        values = self._values[tag_id]
        try:
            values.append(self._checks[tag_id](value))
        except (ValueError, OverflowError) as e:
            raise ValueError(f"a value does not fit the type of the side output {tag_id!r}: {e}") from None
        if len(values) >= self.most:
            self._gather(tag.tag_id)

    def add_batch(self, tag: OutputTag, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch with the fields of the tag's type."""
        field = self._field(tag)
        if not pa.types.is_struct(field.type):
            raise TypeError(
                f"a record batch of the side output {tag.tag_id!r} needs a tag of rows, got {field.type}; "
                "give the tag a type such as Types.ROW_NAMED([...], [...])"
            )
        names = [child.name for child in field.type]
        if sorted(batch.schema.names) != sorted(names):
            raise ValueError(
                f"a record batch of the side output {tag.tag_id!r} must have the columns {names}, got "
                f"{batch.schema.names}"
            )
        columns = [_fitting(batch.column(child.name), child, tag) for child in field.type]
        self._append(field, pa.StructArray.from_arrays(columns, fields=list(field.type)))

    def gathered(self) -> list[pa.Table]:
        """Return all values: tables of the column `SIDE_OUTPUT`."""
        for tag_id in self._values:
            self._gather(tag_id)
        return self._tables

    def _field(self, tag: object) -> pa.Field:
        if not isinstance(tag, OutputTag):
            raise TypeError(f"tag must be an OutputTag, got {tag!r}")
        field = self._fields.get(tag.tag_id)
        if field is None:
            raise ValueError(undeclared(tag))
        return field

    def _gather(self, tag_id: str) -> None:
        values, field = self._values[tag_id], self._fields[tag_id]
        if not values:
            return
        column = pa.array(values, wide(field.type))
        values.clear()
        rows = pa.RecordBatch.from_arrays([column], schema=wide_rows(pa.schema([field])))
        for start, stop in fitting(rows):
            part = narrow(rows.slice(start, stop - start), pa.schema([field]))
            self._append(field, part.column(0))

    def _append(self, field: pa.Field, column: pa.Array) -> None:
        fields = list(self._fields.values())
        children = [column if each is field else pa.nulls(len(column), each.type) for each in fields]
        struct = pa.StructArray.from_arrays(children, fields=fields)
        self._tables.append(pa.table([struct], [SIDE_OUTPUT]))


def _fitting(column: pa.Array, field: pa.Field, tag: OutputTag) -> pa.Array:
    try:
        return cast(column, field.type)
    except (pa.ArrowException, TypeError) as e:
        raise ValueError(
            f"a record batch of the side output {tag.tag_id!r} has the column {field.name!r} as "
            f"{column.type}, which does not fit {field.type}: {e}"
        ) from None


def undeclared(tag: OutputTag) -> str:
    """Return the error for a tag that the query does not know."""
    return (
        f"side_outputs must have the tag {tag.tag_id!r}, to which the function sends values; pass "
        f"side_outputs=[OutputTag({tag.tag_id!r}, ...)]"
    )
