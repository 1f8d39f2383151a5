"""Checks what a function yields, and collects it in columns of results and side outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._core import RecordColumns
from timerheap._values import checker, records
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.row import Row
from timerheap.spark._arrow import FITS, fitting, narrow, wide, wide_rows
from timerheap.spark._columns import LATE_ROWS, SIDE_OUTPUT
from timerheap.spark._worker.column_casts import cast

_FORMATS: dict[pa.DataType, tuple[str, int]] = {
    pa.int8(): ("integer", 1),
    pa.int16(): ("integer", 2),
    pa.int32(): ("integer", 4),
    pa.int64(): ("integer", 8),
    pa.float64(): ("float", 8),
    pa.bool_(): ("bool", 0),
    pa.string(): ("string", 0),
    pa.binary(): ("binary", 0),
}
_MOST = 1 << 16  # rows that become columns at once, which take far less memory


class SideBuffer:
    """Collects the values of side outputs during one call of the operator.

    tags: the id and the type of each tag
    """

    most = 1 << 16  # values that become columns at once

    def __init__(self, tags: list[pa.Field]) -> None:
        self._fields = {field.name: field for field in tags}
        self._checks = {field.name: checker(field.type) for field in tags}
        self._values: dict[str, list[Any]] = {field.name: [] for field in tags}
        self._tables: list[pa.Table] = []
        self._marked = False
        self.nothing = pa.schema([(SIDE_OUTPUT, pa.struct(tags))]).empty_table()

    def add(self, tag: OutputTag, value: Any) -> None:
        """Add a value as it is now; None raises ArgumentValueError."""
        tag_id = self._field(tag).name
        if value is None:
            raise ArgumentValueError(f"a value of the side output {tag_id!r} must not be None")
        values = self._values[tag_id]
        try:
            values.append(self._checks[tag_id](value))
        except (ValueError, OverflowError) as e:
            raise ArgumentValueError(
                f"a value does not fit the type of the side output {tag_id!r}: {e}"
            ) from None
        if len(values) >= self.most and not self._marked:
            self._gather(tag.tag_id)

    def add_batch(self, tag: OutputTag, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch with the fields of the tag's type."""
        field = self._field(tag)
        if not pa.types.is_struct(field.type):
            raise ArgumentTypeError(
                f"a record batch of the side output {tag.tag_id!r} needs a tag of rows, got {field.type}; "
                "give the tag a type such as Types.ROW_NAMED([...], [...])"
            )
        names = [child.name for child in field.type]
        if sorted(batch.schema.names) != sorted(names):
            raise ArgumentValueError(
                f"a record batch of the side output {tag.tag_id!r} must have the columns {names}, got "
                f"{batch.schema.names}"
            )
        what = f"a record batch of the side output {tag.tag_id!r} has"
        columns = [_cast_or_refuse(batch.column(child.name), child, what) for child in field.type]
        self._append(field, pa.StructArray.from_arrays(columns, fields=list(field.type)))

    def mark(self) -> tuple[int, list[int]]:
        """Return where the values end, for `rewind`."""
        self._marked = True  # from now on values become columns between calls alone
        for tag_id, values in self._values.items():
            if len(values) >= self.most:
                self._gather(tag_id)
        return len(self._tables), [*map(len, self._values.values())]

    def rewind(self, tables: int, lengths: list[int]) -> None:
        """Remove the values that were added since a `mark`, the last one or an earlier one."""
        del self._tables[tables:]
        for values, length in zip(self._values.values(), lengths, strict=True):
            del values[length:]

    def add_late(self, rows: pa.RecordBatch, late_by: np.ndarray) -> None:
        """Add late rows, and by how many ms each is late."""
        field = self._fields[LATE_ROWS]
        *columns, _ = field.type
        for start, stop in fitting(rows):
            part = narrow(rows.slice(start, stop - start), pa.schema(columns))
            arrays = [*part.columns, pa.array(late_by[start:stop], pa.int64())]
            self._append(field, pa.StructArray.from_arrays(arrays, fields=list(field.type)))

    def gathered(self) -> list[pa.Table]:
        """Remove all values, and return them: tables of the column `SIDE_OUTPUT`."""
        for tag_id in self._values:
            self._gather(tag_id)
        tables, self._tables = self._tables, []
        return tables

    def _field(self, tag: object) -> pa.Field:
        if not isinstance(tag, OutputTag):
            raise ArgumentTypeError(f"tag must be an OutputTag, got {tag!r}")
        field = self._fields.get(tag.tag_id)
        if field is None:
            raise ArgumentValueError(undeclared(tag))
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


def _cast_or_refuse(column: Any, field: pa.Field, what: str) -> Any:
    try:
        return column if column.type == field.type else cast(column, field.type)
    except (pa.ArrowException, TypeError) as e:
        raise ArgumentValueError(
            f"{what} column {field.name!r} as {column.type}, which does not fit {field.type}: {e}"
        ) from None


def undeclared(tag: OutputTag) -> str:
    """Return the error for a tag that the query does not know."""
    return (
        f"side_outputs must have the tag {tag.tag_id!r}, to which the function sends values; pass "
        f"side_outputs=[OutputTag({tag.tag_id!r}, ...)]"
    )


class RecordShape:
    """The columns of the rows that a function yields, in whichever form it yields them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.names = schema.names  # which pyarrow makes anew each time
        self._known = set(self.names)

    def tuple_of(self, row: Any, source: str) -> tuple[Any, ...]:
        """Return a row as a tuple of its columns; errors name `source`, the method that has yielded it."""
        names = self.names
        if isinstance(row, tuple) and len(row) == len(names):
            return row
        if isinstance(row, Row):
            row = row.as_dict() if row.has_field_names() else list(row)
        if isinstance(row, dict) and row.keys() <= self._known:
            return tuple(map(row.get, names))
        if isinstance(row, list) and len(row) == len(names):
            return tuple(row)
        if len(names) == 1 and not isinstance(row, (tuple, list, dict)):
            return (row,)
        if is_tagged(row):
            raise ArgumentValueError(undeclared(row[0]))
        columns = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        raise ArgumentValueError(
            f"{source} yielded {row!r}, which does not fit output_schema ({columns}); "
            f"yield a tuple or Row of {len(names)} values, or a dict with these names"
        )


class ResultBuffer:
    """Checks and collects what a function yields during one call of the operator.

    A value is kept as it is when it comes: the function may change a list, a dict or an array afterwards.

    side_outputs: the id and the type of each side output, with that of late rows
    columns: rows may be appended to it; `rows` takes what does not fit
    side, late: `SideBuffer.add` and `SideBuffer.add_late`
    """

    def __init__(self, schema: pa.Schema, side_outputs: Sequence[pa.Field] = ()) -> None:
        self._schema = schema
        self._shape = RecordShape(schema)
        self._takes_nulls = all(field.nullable for field in schema)
        self._side = SideBuffer(list(side_outputs))
        self._has_side = bool(side_outputs)
        self.side, self.late = self._side.add, self._side.add_late
        self.takes_late = any(field.name == LATE_ROWS for field in side_outputs)
        self._keep = [_keeper(field) for field in schema]
        formats = [_FORMATS.get(field.type, keep) for field, keep in zip(schema, self._keep, strict=True)]
        self.columns = RecordColumns(formats, _MOST, OutputTag)
        self._others: list[tuple[Any, ...]] = []  # rows that follow on those in `columns`
        self._batches: list[pa.RecordBatch] = []

    def beside(self, schema: pa.Schema) -> ResultBuffer:
        """Return a buffer of other results, whose side outputs go to this one."""
        other = ResultBuffer(schema)
        other._side, other._has_side = self._side, self._has_side
        other.side, other.late = self.side, self.late
        return other

    def rows(self, rows: object, source: str) -> None:
        """Add rows; errors name `source`, the method that has yielded them."""
        width = len(self._shape.names)
        for row in records(source, rows):
            if self._has_side and is_tagged(row):
                self._side.add(*row)
                continue
            fits = isinstance(row, tuple) and len(row) == width
            record = row if fits else self._shape.tuple_of(row, source)
            if len(self.columns) + len(self._others) >= _MOST:
                self._gather()
            if not self.columns.append(record):
                self._others.append(
                    tuple(keep(value) for keep, value in zip(self._keep, record, strict=True))
                )

    def batch(self, batch: Any, source: str) -> None:
        """Add a record batch, or a tag and one; errors name `source`, the method that has yielded it."""
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            if is_tagged(batch):
                return self._side.add_batch(*batch)
            raise ArgumentTypeError(f"{source} yielded a {type(batch).__name__}; yield a pyarrow.RecordBatch")
        if self._takes_nulls and isinstance(batch, pa.RecordBatch) and batch.schema.equals(self._schema):
            self._gather()
            self._batches.append(batch)
            return
        if sorted(batch.schema.names) != sorted(self._schema.names):
            raise ArgumentValueError(
                f"{source} yielded the columns {batch.schema.names}; output_schema has {self._schema.names}"
            )
        self._gather()
        columns = [_fitting(batch.column(field.name), field, source) for field in self._schema]
        if isinstance(batch, pa.Table):
            self._batches += pa.Table.from_arrays(columns, schema=self._schema).to_batches()
        else:
            self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def mark(self, columns: int | None = None) -> tuple[Any, ...]:
        """Return how to remove what is added from now on: a function and its arguments.

        columns: the number of rows in `columns` to go back to, by default what there are
        """
        kept = len(self.columns) if columns is None else columns
        return self._rewind, len(self._batches), kept, len(self._others), self._side.mark()

    def mark_side(self) -> tuple[Any, ...]:
        """Do the same for values of side outputs alone."""
        return self._side.rewind, *self._side.mark()

    def _rewind(self, batches: int, columns: int, others: int, side: tuple[int, list[int]]) -> None:
        self._side.rewind(*side)
        if len(self._batches) == batches:
            del self._others[others:]
            self.columns.rewind(columns, bool(self._others))
            return
        self._gather()  # as has been done since then, or a record batch was added
        left, kept = columns + others + sum(map(len, self._batches[:batches])), []
        for batch in self._batches:
            if left > 0:
                kept.append(batch.slice(0, left))
            left -= len(batch)
        self._batches[:] = kept

    def _gather(self) -> None:
        if len(self.columns):
            n = len(self.columns)
            pairs = zip(self.columns.take(), self._schema, strict=True)
            self._add_batch([_taken_column(part, n, field) for part, field in pairs])
        if self._others:
            rows = self._others.copy()
            self._others.clear()
            pairs = zip(zip(*rows, strict=True), self._schema, strict=True)
            self._add_batch([_kept_column(values, field) for values, field in pairs])

    def _add_batch(self, columns: list[pa.Array]) -> None:
        """Add columns, which may have 64-bit offsets."""
        gathered = pa.RecordBatch.from_arrays(columns, self._shape.names)
        for start, stop in fitting(gathered):
            self._batches.append(narrow(gathered.slice(start, stop - start), self._schema))

    def __len__(self) -> int:
        """Return the number of results so far, without side outputs."""
        return sum(map(len, [self.columns, self._others, *self._batches]))

    def take(self) -> list[pa.RecordBatch]:
        """Remove the results, and return them without side outputs."""
        self._gather()
        batches, self._batches = self._batches, []
        return batches

    def table(self) -> pa.Table:
        """Remove the results and side outputs, and return them, in one chunk unless it would be too large."""
        batches = self.take()
        table = pa.Table.from_batches(batches, self._schema)
        if self._has_side:
            parts = [table, self._side.nothing, *self._side.gathered()]
            table = pa.concat_tables(parts, promote_options="default").select(
                [*table.schema.names, SIDE_OUTPUT]
            )
        one = len(batches) == 1 and not self._has_side
        return table if one or table.nbytes > FITS else table.combine_chunks()


def _taken_column(part: Any, n: int, field: pa.Field) -> pa.Array:
    """Return a column of `RecordColumns.take`."""
    if isinstance(part, list):
        return _kept_column(part, field)
    buffers = [None if array is None else pa.py_buffer(array) for array in part]
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        del buffers[1]  # offsets
    return _nulls_checked(pa.Array.from_buffers(field.type, n, buffers), field)


def _keeper(field: pa.Field) -> Callable[[Any], Any]:
    """Return the function that checks a value of a column, and copies it if it can be changed."""
    check = checker(field.type)

    def keep(value: Any) -> Any:
        try:
            return check(value)
        except (ValueError, OverflowError) as e:
            if isinstance(value, OutputTag):
                raise ArgumentValueError(undeclared(value)) from None
            raise ArgumentValueError(
                f"an output row does not fit output_schema: column {field.name!r}: {e}"
            ) from None

    return keep


def _kept_column(kept: Sequence[Any], field: pa.Field) -> pa.Array:
    return _nulls_checked(pa.array(kept, wide(field.type)), field)


def _nulls_checked(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise ArgumentValueError(
            f"an output row has None in column {field.name!r}, which output_schema says is not null"
        )
    return column


def _fitting(column: Any, field: pa.Field, source: str) -> Any:
    fitting = _cast_or_refuse(column, field, f"{source} yielded")
    if fitting.null_count and not field.nullable:
        raise ArgumentValueError(
            f"{source} yielded null in column {field.name!r}, which output_schema says is not null"
        )
    return fitting
