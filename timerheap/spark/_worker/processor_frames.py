"""The `Records` of ``transform_with_state_in_pandas``: DataFrames, converted as Spark does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as is_
from pandas.api.types import infer_dtype, is_object_dtype
from pyspark.errors import PySparkValueError
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from timerheap._returned import detached
from timerheap.spark._compat import to_frame, to_record_batch
from timerheap.spark._group.offsets import narrow
from timerheap.spark._group.python_values import python_values
from timerheap.spark._query import FrameSettings
from timerheap.spark._worker.frame_slices import columns_of, sliced
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_records import in_zone

__all__ = ["FrameRecords"]

_MOST = 1 << 16  # rows of results that become columns at once


class FrameRecords:
    """See `timerheap.spark._worker.processor_records.Records`.

    Parameters
    ----------
    result : pyspark.sql.types.StructType
        Type of the results.
    zone : str
        Time zone of the timestamps in the frames, which have none.
    settings : FrameSettings
    output : ResultBuffer
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
        """See `Records`."""
        rows = narrow(rows, schema)
        keys = {name: rows.column(name) for name in key}
        columns = [_widened(in_zone(column, self._zone)) for column in rows.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
        frame = to_frame(batch, self._zone)
        frame.columns = pd.Index(rows.schema.names)
        return _Frames(frame, keys, self._frame_rows(rows))

    def _frame_rows(self, rows: pa.RecordBatch) -> int:
        """Return after how many of these rows a frame is full."""
        most, nbytes, total = self._settings.rows, self._settings.nbytes, int(rows.nbytes)
        return most if total <= nbytes else min(most, max(1, math.ceil(nbytes * rows.num_rows / total)))

    def emit(self, results: Iterable[Any]) -> None:
        """See `Records`; a result is a DataFrame."""
        for frame in results:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a pandas.DataFrame when the "
                    "specified return type is StructType."
                )
            if not len(frame):
                continue
            columns = columns_of(frame)
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
        """See `Records`."""
        if not self._pending:
            return
        pending, self._pending, self._rows = self._pending, [], 0
        for batch in self._batches(pending):
            self._output.batch(batch, "the processor")

    def _batches(self, pending: list[list[Any]]) -> list[pa.RecordBatch]:
        """Return what Spark makes of these frames, which it converts one by one.

        They are joined where each value becomes one of its column's type by itself. Elsewhere one type would
        be inferred for the values of all frames; and an error is to be that of its frame.
        """
        if len(pending) > 1:
            with suppress(Exception):
                return [self._batch([_joined(parts) for parts in zip(*pending, strict=True)], infer=False)]
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


def _joined(parts: tuple[Any, ...]) -> Any:
    """Return the arrays of one column as one."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])._concat_same_type(parts)  # an extension array of pandas


def _widened(column: pa.Array) -> pa.Array:
    """Return a column in the type that a frame of Python numbers has."""
    if is_.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64()) if is_.is_float32(column.type) else column


class _Frames:
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
        columns = []
        for name, column in self._keys.items():
            if is_.is_timestamp(column.type):
                columns.append(self._frame[name].iloc[starts].tolist())
            else:
                columns.append(python_values(column.take(pa.array(starts))))
        return list(zip(*columns, strict=True))

    def slice(self, start: int, stop: int) -> Iterator[pd.DataFrame]:
        for first in range(start, stop, self._most):
            frame = sliced(self._frame, first, min(stop, first + self._most))
            for i in self._unsure:
                column = frame.iloc[:, i]
                if column.notna().all():
                    frame.isetitem(i, column.to_numpy(bool))
            yield frame
