"""Checks what a function yields, and collects it in columns of results and side outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from timerheap._native._core import RecordColumns
from timerheap._values import checker, exact_class, records
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.row import Row
from timerheap.spark._arrow import FITS, fitting, narrow, wide, wide_rows
from timerheap.spark._columns import LATE_ROWS, SIDE_OUTPUT

_ROWS = 1 << 12  # results in an array, which Spark copies as a whole
_AIM, _MOST_IN_FRAME = 1 << 20, 1 << 22  # bytes of an array
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


def column_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Build a column with 64-bit offsets from values; raise ValueError if one does not pass `checker`."""
    # Where all values have the class that Arrow expects, its own checks are enough; `checker` words errors.
    if set(map(type, values)) <= {exact_class(type_)[0], type(None)}:
        with suppress(pa.ArrowException, OverflowError):
            return pa.array(values, wide(type_))
    return pa.array(list(map(checker(type_), values)), wide(type_))


def cast(column: Any, type_: pa.DataType) -> Any:
    """Cast an Array or ChunkedArray; integers are epoch ms where `type_` has timestamps.

    The fields of structs are matched by name, and a missing one is null, as in a dict.

    TypeError, pyarrow.ArrowException: if a value does not fit, or the cast would change what values say, as
        from text to numbers
    """
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    for moments in (False, True):  # integers of any width are numbers first
        column = column.cast(_replaced(column.type, type_, moments))
    return column.cast(type_)


def _replaced(type_: pa.DataType, wanted: pa.DataType, moments: bool) -> pa.DataType:
    """Return `type_` with int64, or moments in ms, in place of integers where `wanted` has timestamps."""
    if pa.types.is_integer(type_) and pa.types.is_timestamp(wanted):
        return pa.timestamp("ms", wanted.tz) if moments else pa.int64()
    if pa.types.is_struct(type_) and pa.types.is_struct(wanted):
        if unknown := [name for name in type_.names if name not in wanted.names]:
            raise TypeError(f"its fields must be of {wanted.names}, got {unknown[0]!r}")
        inner = [_replaced(field.type, wanted.field(field.name).type, moments) for field in type_]
        return pa.struct([field.with_type(new) for field, new in zip(type_, inner, strict=True)])
    if pa.types.is_map(type_) and pa.types.is_map(wanted):
        key = _replaced(type_.key_type, wanted.key_type, moments)
        return pa.map_(key, _replaced(type_.item_type, wanted.item_type, moments))
    if _is_list(type_) and _is_list(wanted):
        element = type_.value_field.with_type(_replaced(type_.value_type, wanted.value_type, moments))
        return pa.list_(element) if pa.types.is_list(type_) else pa.large_list(element)
    _expect_same_sense(type_, wanted)
    return type_


def _expect_same_sense(type_: pa.DataType, wanted: pa.DataType) -> None:
    """Raise TypeError for casts that Arrow knows and that change what a value says."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_null(type_):
        return
    if any(is_one(type_) != is_one(wanted) for is_one in (_is_text, pa.types.is_boolean)):
        raise TypeError(f"pass values of {wanted}")
    if pa.types.is_floating(type_) and pa.types.is_decimal(wanted):  # which rounds
        raise TypeError("pass decimals")
    if pa.types.is_timestamp(type_) and pa.types.is_date(wanted):  # which drops the time
        raise TypeError("pass dates")
    if pa.types.is_timestamp(type_) and type_.tz and pa.types.is_timestamp(wanted) and not wanted.tz:
        raise TypeError("pass timestamps without a time zone")


def _is_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    )


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


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
        self.nothing = pa.schema([(SIDE_OUTPUT, pa.struct(tags))]).empty_table()

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
        what = f"a record batch of the side output {tag.tag_id!r} has"
        columns = [_cast(batch.column(child.name), child, what) for child in field.type]
        self._append(field, pa.StructArray.from_arrays(columns, fields=list(field.type)))

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


def _cast(column: Any, field: pa.Field, what: str) -> Any:
    try:
        return column if column.type == field.type else cast(column, field.type)
    except (pa.ArrowException, TypeError) as e:
        raise ValueError(
            f"{what} column {field.name!r} as {column.type}, which does not fit {field.type}: {e}"
        ) from None


def undeclared(tag: OutputTag) -> str:
    """Return the error for a tag that the query does not know."""
    return (
        f"side_outputs must have the tag {tag.tag_id!r}, to which the function sends values; pass "
        f"side_outputs=[OutputTag({tag.tag_id!r}, ...)]"
    )


def result_frames(results: pa.Table, metrics: pa.Array | None = None) -> Iterator[pd.DataFrame]:
    """Yield DataFrames of the columns `RESULTS` and `METRICS`, which is set in the last row if passed."""
    # Observing the metrics has a cost for each row that passes, so a row has many results.
    *before, last = [_arrays(batch) for batch in results.to_batches()] or [pa.nulls(1)]
    for arrays in before:
        yield _frame([arrays, pa.nulls(len(arrays))])
    told = [pa.nulls(len(last))] if metrics is None else [pa.nulls(len(last) - 1, metrics.type), metrics]
    yield _frame([last, pa.concat_arrays(told)])


def flat_frames(results: pa.Table, metrics: pa.Array) -> Iterator[pd.DataFrame]:
    """Yield DataFrames of the columns of results and `METRICS`, which is set in the last row only."""
    # In that row the other columns are null, also those that must not be null in results.
    for batch in results.to_batches():
        yield _frame([*batch.columns, pa.nulls(batch.num_rows)])
    yield _frame([*(pa.nulls(1, type_) for type_ in results.schema.types), metrics])


def _arrays(batch: pa.RecordBatch) -> pa.ListArray:
    """Return the rows of a batch in arrays of a limited size."""
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    starts = [
        start + first
        for start in range(0, batch.num_rows, _ROWS)
        for first, _ in fitting(batch.slice(start, _ROWS), _AIM, _MOST_IN_FRAME)
    ]
    type_ = pa.list_(pa.field("element", rows.type, nullable=False))
    return pa.ListArray.from_arrays(pa.array([*starts, batch.num_rows], pa.int32()), rows, type=type_)


def _frame(columns: list[pa.Array]) -> pd.DataFrame:
    # Spark reads numbered columns by position, which is faster than by name.
    return _Frame({number: _ArrowColumn(column) for number, column in enumerate(columns)}, copy=False)


class _ArrowColumn(pd.arrays.ArrowExtensionArray):
    """An Arrow column that Spark receives unchanged.

    Plain pandas would lose large ints beside nulls, and years outside 1677-2262; Python objects, which Spark
    makes of nested columns, take far longer.
    """

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        column = super().__arrow_array__()
        return column if type is None else column.cast(type)


class _Series(pd.Series):
    """A column for Spark, which converts its values by `apply`: values of Arrow need no conversion."""

    @property
    def _constructor(self) -> type[_Series]:
        return _Series

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return self


class _Frame(pd.DataFrame):
    _constructor_sliced = _Series


class ResultBuffer:
    """Checks and collects what a function yields during one call of the operator.

    A value is kept as it is when it comes: the function may change a list, a dict or an array afterwards.

    side_outputs: the id and the type of each side output, with that of late rows
    columns: rows may be appended to it; `rows` takes what does not fit
    side, late: `SideBuffer.add` and `SideBuffer.add_late`
    """

    def __init__(self, schema: pa.Schema, side_outputs: Sequence[pa.Field] = ()) -> None:
        self._schema = schema
        self._names = schema.names  # which pyarrow makes anew each time
        self._takes_nulls = all(field.nullable for field in schema)
        self._known = set(self._names)
        self._side = SideBuffer(list(side_outputs))
        self._has_side = bool(side_outputs)
        self.side, self.late = self._side.add, self._side.add_late
        self.takes_late = any(field.name == LATE_ROWS for field in side_outputs)
        self._keep = [_keeper(field) for field in schema]
        formats = [_FORMATS.get(field.type, keep) for field, keep in zip(schema, self._keep, strict=True)]
        self.columns = RecordColumns(formats, _MOST, OutputTag)
        self._others: list[tuple[Any, ...]] = []  # rows that follow on those in `columns`
        self._batches: list[pa.RecordBatch] = []

    def rows(self, rows: object, source: str) -> None:
        """Add rows; errors name `source`, the method that has yielded them."""
        width = len(self._names)
        for row in records(source, rows):
            if self._has_side and is_tagged(row):
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
        if not isinstance(batch, (pa.RecordBatch, pa.Table)):
            if is_tagged(batch):
                return self._side.add_batch(*batch)
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
        """Return the number of results so far, without side outputs."""
        return sum(map(len, [self.columns, self._others, *self._batches]))

    def table(self) -> pa.Table:
        """Remove the results and side outputs, and return them, in one chunk unless it would be too large."""
        self._gather()
        batches, self._batches = self._batches, []
        table = pa.Table.from_batches(batches, self._schema)
        if self._has_side:
            parts = [table, self._side.nothing, *self._side.gathered()]
            table = pa.concat_tables(parts, promote_options="default").select(
                [*table.schema.names, SIDE_OUTPUT]
            )
        one = len(batches) == 1 and not self._has_side
        return table if one or table.nbytes > FITS else table.combine_chunks()


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
    fitting = _cast(column, field, f"{source} yielded")
    if fitting.null_count and not field.nullable:
        raise ValueError(
            f"{source} yielded null in column {field.name!r}, which output_schema says is not null"
        )
    return fitting
