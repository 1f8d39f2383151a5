"""Checks what a function yields, and collects it in columns of the output schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._native._heap import RecordColumns
from timerheap._returned import records
from timerheap._values import checker
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.row import Row
from timerheap.spark._group.offsets import FITS, fitting, narrow, wide
from timerheap.spark._group.value_columns import cast
from timerheap.spark._worker.side_buffer import SIDE_OUTPUT, SideBuffer, undeclared

__all__ = ["LATE_BY", "LATE_ROW", "ResultBuffer"]

LATE_BY = "late_by"
"""Name of the result column that says by how many ms a row is late."""

LATE_ROW = "late_row"
"""Name of the result column with a late row, a struct."""

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


class ResultBuffer:
    """Checks and collects what a function yields during one call of the operator.

    A value is kept as it is when it comes: the function may change a list, a dict or an array afterwards.

    Parameters
    ----------
    schema : pyarrow.Schema
        Schema of the results.
    late_row : pyarrow.StructType, optional
        Type of late rows; by default the result has none.
    side_outputs : list of pyarrow.Field
        The id and the type of each side output.

    Attributes
    ----------
    columns : RecordColumns
        Rows may be appended to it; `rows` takes what does not fit.
    """

    def __init__(
        self,
        schema: pa.Schema,
        late_row: pa.StructType | None = None,
        side_outputs: Sequence[pa.Field] = (),
    ) -> None:
        self._schema = schema
        self._names = schema.names  # which pyarrow makes anew each time
        self._takes_nulls = all(field.nullable for field in schema)
        self._known = set(self._names)
        self._side = SideBuffer(list(side_outputs)) if side_outputs else None
        self._late_fields = [] if late_row is None else list(late_row)
        self._keep = [_keeper(field) for field in schema]
        formats = [_FORMATS.get(field.type, keep) for field, keep in zip(schema, self._keep, strict=True)]
        self.columns = RecordColumns(formats, _MOST, OutputTag)
        self._others: list[tuple[Any, ...]] = []  # rows that follow on those in `columns`
        self._batches: list[pa.RecordBatch] = []
        self._late: list[pa.Table] = []

    def rows(self, rows: object, source: str) -> None:
        """Add rows; errors name `source`, the method that has yielded them."""
        width = len(self._names)
        for row in records(source, rows):
            if self._side is not None and is_tagged(row):
                self._side.add(*row)
                continue
            fits = isinstance(row, tuple) and len(row) == width
            record = row if fits else self._as_tuple(row, source)
            if len(self.columns) + len(self._others) >= _MOST:
                self._gather()
            if not self.columns.append(record):
                self._others.append(
                    tuple(keep(value) for keep, value in zip(self._keep, record, strict=True))
                )

    def side(self, tag: OutputTag, value: Any) -> None:
        """Add a value of a side output."""
        if not isinstance(tag, OutputTag):
            raise TypeError(f"tag must be an OutputTag, got {tag!r}")
        if self._side is None:
            raise ValueError(undeclared(tag))
        self._side.add(tag, value)

    def _as_tuple(self, row: Any, source: str) -> tuple[Any, ...]:
        names = self._names
        if isinstance(row, Row):
            row = row.as_dict() if row.has_field_names() else list(row)
        if isinstance(row, dict) and row.keys() <= self._known:
            return tuple(map(row.get, names))
        if isinstance(row, list) and len(row) == len(names):
            return tuple(row)
        if len(names) == 1 and not isinstance(row, (tuple, list, dict)):
            return (row,)
        if is_tagged(row):
            raise ValueError(undeclared(row[0]))
        columns = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        raise ValueError(
            f"{source} yielded {row!r}, which does not fit output_schema ({columns}); "
            f"yield a tuple or Row of {len(names)} values, or a dict with these names"
        )

    def batch(self, batch: Any, source: str) -> None:
        """Add a record batch, or a tag and one; errors name `source`, the method that has yielded it."""
        if is_tagged(batch):
            if self._side is None:
                raise ValueError(undeclared(batch[0]))
            self._side.add_batch(*batch)
            return
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            raise TypeError(f"{source} yielded a {type(batch).__name__}; yield a pyarrow.RecordBatch")
        if self._takes_nulls and isinstance(batch, pa.RecordBatch) and batch.schema.equals(self._schema):
            self._gather()
            self._batches.append(batch)
            return
        if sorted(batch.schema.names) != sorted(self._schema.names):
            raise ValueError(
                f"{source} yielded the columns {batch.schema.names}; output_schema has {self._schema.names}"
            )
        self._gather()
        columns = [_fitting(batch.column(field.name), field, source) for field in self._schema]
        if isinstance(batch, pa.Table):
            self._batches += pa.Table.from_arrays(columns, schema=self._schema).to_batches()
        else:
            self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _gather(self) -> None:
        if len(self.columns):
            n = len(self.columns)
            pairs = zip(self.columns.take(), self._schema, strict=True)
            self._add_batch([_taken(part, n, field) for part, field in pairs])
        if self._others:
            rows = self._others.copy()
            self._others.clear()
            pairs = zip(zip(*rows, strict=True), self._schema, strict=True)
            self._add_batch([_column(values, field) for values, field in pairs])

    def _add_batch(self, columns: list[pa.Array]) -> None:
        """Add columns, which may have 64-bit offsets."""
        gathered = pa.RecordBatch.from_arrays(columns, self._names)
        for start, stop in fitting(gathered):
            self._batches.append(narrow(gathered.slice(start, stop - start), self._schema))

    def __len__(self) -> int:
        """Return the number of results so far, without late rows and side outputs."""
        return sum(map(len, [self.columns, self._others, *self._batches]))

    @property
    def takes_late(self) -> bool:
        """Whether the result has late rows."""
        return bool(self._late_fields)

    def late(self, rows: pa.RecordBatch, late_by: np.ndarray) -> None:
        """Add late rows, whose columns are the fields of `late_row`, and by how many ms each is late."""
        for start, stop in fitting(rows):
            part = narrow(rows.slice(start, stop - start), pa.schema(self._late_fields))
            struct = pa.StructArray.from_arrays(part.columns, fields=self._late_fields)
            self._late.append(
                pa.table([pa.array(late_by[start:stop], pa.int64()), struct], [LATE_BY, LATE_ROW])
            )

    def table(self) -> pa.Table:
        """Return the results, late rows and side outputs, in one chunk unless it would be too large."""
        self._gather()
        table = pa.Table.from_batches(self._batches, self._schema)
        if self._late_fields:
            columns = pa.schema([(LATE_BY, pa.int64()), (LATE_ROW, pa.struct(self._late_fields))])
            names = [*self._schema.names, *columns.names]
            parts = [table, columns.empty_table(), *self._late]
            table = pa.concat_tables(parts, promote_options="default").select(names)
        if self._side is not None:
            parts = [table, pa.schema([self._side.field]).empty_table(), *self._side.gathered()]
            table = pa.concat_tables(parts, promote_options="default").select(
                [*table.schema.names, SIDE_OUTPUT]
            )
        return table.combine_chunks() if table.nbytes <= FITS else table


def _taken(part: Any, n: int, field: pa.Field) -> pa.Array:
    """Return a column of `RecordColumns.take`."""
    if isinstance(part, list):
        return _column(part, field)
    buffers = [None if array is None else pa.py_buffer(array) for array in part]
    if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        del buffers[1]  # offsets
    return _checked(pa.Array.from_buffers(field.type, n, buffers), field)


def _keeper(field: pa.Field) -> Callable[[Any], Any]:
    """Return the function that checks a value of a column, and copies it if it can be changed."""
    check = checker(field.type)

    def keep(value: Any) -> Any:
        try:
            return check(value)
        except (ValueError, OverflowError) as e:
            if isinstance(value, OutputTag):
                raise ValueError(undeclared(value)) from None
            raise ValueError(
                f"an output row does not fit output_schema: column {field.name!r}: {e}"
            ) from None

    return keep


def _column(kept: Sequence[Any], field: pa.Field) -> pa.Array:
    return _checked(pa.array(kept, wide(field.type)), field)


def _checked(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise ValueError(
            f"an output row has None in column {field.name!r}, which output_schema says is not null"
        )
    return column


def _fitting(column: Any, field: pa.Field, source: str) -> Any:
    try:
        fitting = column if column.type == field.type else cast(column, field.type)
    except (pa.ArrowException, TypeError) as e:
        raise ValueError(
            f"{source} yielded column {field.name!r} as {column.type}, which does not fit output_schema's "
            f"{field.type}: {e}"
        ) from None
    if fitting.null_count and not field.nullable:
        raise ValueError(
            f"{source} yielded null in column {field.name!r}, which output_schema says is not null"
        )
    return fitting
