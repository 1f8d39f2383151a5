"""What a StatefulProcessor receives and yields: ``Row`` objects or pandas DataFrames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as is_
from pandas.api.extensions import ExtensionDtype
from pandas.api.types import infer_dtype, is_object_dtype
from pyspark.errors import PySparkValueError
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from timerheap._native._core import RowSource
from timerheap._values import detached
from timerheap.spark._arrow import map_type, narrow
from timerheap.spark._compat import to_frame, to_record_batch
from timerheap.spark._python_rows import column_reader, python_values, row_class
from timerheap.spark._worker.output import ResultBuffer

_MOST = 1 << 16  # rows of results that become columns at once
_CHUNK = 1 << 13  # rows that are Python objects at once
_internals: Any = import_module("pandas.core.internals")  # not a promise of pandas: see `sliced`
_item = tuple.__getitem__


def in_zone(column: pa.Array, zone: str) -> pa.Array:
    """Return a column with this time zone where its type has one."""

    def moved(type_: pa.DataType) -> pa.DataType:
        return pa.timestamp(type_.unit, zone) if is_.is_timestamp(type_) and type_.tz else type_

    type_ = map_type(column.type, moved)
    return column if type_ == column.type else column.cast(type_)


def sliced(frame: pd.DataFrame, start: int, stop: int) -> pd.DataFrame:
    """Return the rows from `start` up to but not including `stop`, numbered from 0; copies no values."""
    try:
        return _by_blocks(frame, start, stop)
    except (AttributeError, TypeError):  # another version of pandas
        return frame.iloc[start:stop].reset_index(drop=True)


def _by_blocks(frame: Any, start: int, stop: int) -> pd.DataFrame:
    manager = frame._mgr
    blocks = tuple([block.slice_block_rows(slice(start, stop)) for block in manager.blocks])
    axes = [manager.axes[0], _row_numbers(stop - start)]
    part = _internals.BlockManager(blocks, axes, verify_integrity=False)
    # Which block a column is in. Without them, each part would find out when its first column is read.
    part._blknos, part._blklocs = manager.blknos.copy(), manager.blklocs.copy()
    return cast(pd.DataFrame, frame._constructor_from_mgr(part, axes))


def frame_columns(frame: Any) -> list[Any]:
    """Return the columns of a DataFrame as arrays of NumPy or pandas."""
    try:
        return [frame._mgr.iget_values(number) for number in range(len(frame.columns))]
    except AttributeError:  # another version of pandas
        columns = (frame.iloc[:, number] for number in range(len(frame.columns)))
        return [
            column.array if isinstance(column.dtype, ExtensionDtype) else column.to_numpy()
            for column in columns
        ]


@lru_cache(maxsize=64)
def _row_numbers(n: int) -> pd.RangeIndex:
    return pd.RangeIndex(n)


@dataclass(frozen=True)
class FrameSettings:
    """Spark's settings that DataFrames depend on."""

    rows: int  # the most in one DataFrame
    nbytes: int  # about how many bytes of Arrow data make a DataFrame full
    ints_to_decimals: bool = False  # whether ints of a result may become decimals
    safe: bool = True  # whether a value of a result that does not fit its type is an error
    by_name: bool = True  # whether the columns of a result are found by name, else by position


class FrameRecords:
    """Makes DataFrames of the rows of a query, and columns of the DataFrames that a processor yields.

    result: type of the results
    zone: time zone of the timestamps in the frames, which have none
    """

    def __init__(self, result: StructType, zone: str, settings: FrameSettings, output: ResultBuffer) -> None:
        self._result = result
        self._zone = zone
        self._settings = settings
        self._output = output
        types = [field.dataType for field in result]
        self._constant = not any(
            isinstance(each, (ArrayType, MapType, StructType, BinaryType)) for each in types
        )
        self._shape: tuple[Any, ...] = ()  # of the frames that wait: their columns and dtypes
        self._pending: list[list[Any]] = []
        self._rows = 0

    def inputs(self, rows: pa.RecordBatch, schema: pa.Schema, key: list[str]) -> _Frames:
        """Return rows of a schema, but with 64-bit offsets, sorted by their `key` columns."""
        rows = narrow(rows, schema)
        keys = {name: rows.column(name) for name in key}
        columns = [_as_in_frame(in_zone(column, self._zone)) for column in rows.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
        frame = to_frame(batch, self._zone)
        frame.columns = pd.Index(rows.schema.names)
        return _Frames(frame, keys, self._frame_rows(rows))

    def _frame_rows(self, rows: pa.RecordBatch) -> int:
        """Return after how many of these rows a frame is full."""
        most, nbytes, total = self._settings.rows, self._settings.nbytes, int(rows.nbytes)
        return most if total <= nbytes else min(most, max(1, math.ceil(nbytes * rows.num_rows / total)))

    def emit(self, results: Iterable[Any]) -> None:
        """Add what a method of the processor has returned, DataFrames, to the end."""
        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the "
                    "specified return type is StructType."
                )
            if not len(frame):
                continue
            columns = frame_columns(frame)
            shape = (tuple(frame.columns), *(column.dtype for column in columns))
            if shape != self._shape:
                self.flush()
                self._shape = shape
            self._pending.append([self._kept(column) for column in columns])
            self._rows += len(frame)
            if self._rows >= _MOST:
                self.flush()

    def _kept(self, column: Any) -> Any:
        """Return a column of a frame that changes of the frame do not reach."""
        if self._constant or column.dtype != object:
            return column.copy()
        kept = np.empty(len(column), object)
        kept[:] = [detached(value) for value in column]
        return kept

    def flush(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._rows = self._pending, [], 0
        for batch in self._batches(pending):
            self._output.batch(batch, "the processor")

    def _batches(self, pending: list[list[Any]]) -> list[pa.RecordBatch]:
        """Return what Spark makes of these frames, which it converts one by one."""
        # They are joined where each value becomes one of its column's type by itself. Elsewhere one type
        # would be inferred for the values of all frames; and an error is to be that of its frame.
        if len(pending) > 1:
            with suppress(Exception):
                return [self._batch([_as_one(parts) for parts in zip(*pending, strict=True)], infer=False)]
        return [self._batch(columns) for columns in pending]

    def _batch(self, columns: list[Any], infer: bool = True) -> pa.RecordBatch:
        frame = pd.concat(list(map(pd.Series, columns)), axis=1)
        frame.columns = pd.Index(self._shape[0])
        settings = self._settings
        return to_record_batch(
            frame,
            self._result,
            self._zone,
            safe=settings.safe,
            ints_to_decimals=settings.ints_to_decimals,
            by_name=settings.by_name,
            infer=infer,
        )


def _as_one(parts: tuple[Any, ...]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])._concat_same_type(parts)  # an extension array of pandas


def _as_in_frame(column: pa.Array) -> pa.Array:
    """Return a column in the type that a frame of Python numbers has."""
    if is_.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if is_.is_float32(column.type) else column


class _Frames:
    """The rows of a partition, sorted by key."""

    def __init__(self, frame: pd.DataFrame, keys: dict[str, pa.Array], most: int) -> None:
        self._frame = frame
        self._keys = keys
        self._most = most
        # None makes a column of bools one of objects, also for keys that have no None.
        self._unsure = [
            i
            for i, name in enumerate(frame.columns)
            if is_object_dtype(frame.dtypes.iloc[i]) and infer_dtype(frame.iloc[:, i]) == "boolean"
        ]

    def keys(self, starts: list[int]) -> list[tuple[Any, ...]]:
        """Return the keys of these rows as the processor receives them."""
        columns = []
        for name, column in self._keys.items():
            if is_.is_timestamp(column.type):
                columns.append(self._frame[name].iloc[starts].tolist())
            else:
                columns.append(python_values(column.take(pa.array(starts))))
        return list(zip(*columns, strict=True))

    def slice(self, start: int, stop: int) -> Iterator[pd.DataFrame]:
        """Return what the processor receives of the rows of one key."""
        for first in range(start, stop, self._most):
            frame = sliced(self._frame, first, min(stop, first + self._most))
            for i in self._unsure:
                column = frame.iloc[:, i]
                if column.notna().all():
                    frame.isetitem(i, column.to_numpy(bool))
            yield frame


class RowRecords:
    """Makes ``Row`` objects of the rows of a query, and columns of those that a processor yields.

    schema: of the results
    zone: time zone of the timestamps in the rows
    """

    def __init__(self, schema: pa.Schema, zone: str, output: ResultBuffer) -> None:
        self._schema = schema
        self._names = list(schema.names)
        self._zone = zone
        self._output = output
        self._flat = not any(pa.types.is_nested(type_) for type_ in schema.types)
        self._constant = (
            self._flat and pa.binary() not in schema.types
        )  # results hold nothing that can change
        self._fields: list[str] = []
        self._places: list[int | None] = []
        self._pending: list[tuple[Any, ...]] = []

    def inputs(self, rows: pa.RecordBatch, schema: pa.Schema, key: list[str]) -> _Rows:
        columns = [in_zone(column, self._zone) for column in rows.columns]
        return _Rows(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), key)

    def emit(self, results: Iterable[Any]) -> None:
        """Add rows, whose fields are found by name."""
        names, pending = self._names, self._pending
        for row in results:
            fields = getattr(row, "__fields__", None) if self._flat and isinstance(row, Row) else None
            record = row if fields == names and len(row) == len(names) else self._by_name(row, fields)
            pending.append(record if self._constant else tuple(map(detached, record)))
        if len(pending) >= _MOST:
            self.flush()

    def _by_name(self, row: Any, fields: Sequence[str] | None) -> tuple[Any, ...]:
        if fields is None or len(row) != len(fields):
            found = row.asDict(True)
            return tuple(found.get(name) for name in self._names)
        if fields != self._fields:
            self._fields = list(fields)
            places = {name: place for place, name in enumerate(self._fields)}
            self._places = [places.get(name) for name in self._names]
        return tuple(None if place is None else _item(row, place) for place in self._places)

    def flush(self) -> None:
        if self._pending:
            pending = self._pending.copy()
            self._pending.clear()
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(zip(*pending, strict=True), self._schema, strict=True)
            ]
            self._output.batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema), "the processor")


class _Rows:
    def __init__(self, rows: pa.RecordBatch, key: list[str]) -> None:
        self._all = rows
        self._key = key
        self._begin = self._end = 0
        self._chunk: list[Any] = []

    def keys(self, starts: list[int]) -> list[tuple[Any, ...]]:
        taken = pa.array(starts)
        return list(
            zip(*(python_values(self._all.column(name).take(taken)) for name in self._key), strict=True)
        )

    def slice(self, start: int, stop: int) -> Iterator[Any]:
        if self._begin <= start and stop <= self._end:
            return iter(self._chunk[start - self._begin : stop - self._begin])
        return self._across(start, stop)

    def _across(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            if not self._begin <= start < self._end:
                self._load(start)
            some = self._chunk[start - self._begin : stop - self._begin]
            start += len(some)
            yield from some

    def _load(self, start: int) -> None:
        part = self._all.slice(start, _CHUNK)
        columns = [column_reader(column) or python_values(column) for column in part.columns]
        self._chunk = RowSource(row_class(tuple(part.schema.names)), part.schema.names, columns, []).tolist()
        self._begin, self._end = start, start + part.num_rows


Records: TypeAlias = FrameRecords | RowRecords
"""Converts the rows of a query and the results of a processor."""
