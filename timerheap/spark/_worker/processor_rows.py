"""The `Records` of ``transform_with_state``: ``Row`` objects, converted as Spark does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from timerheap._native._heap import RowSource
from timerheap._returned import detached
from timerheap.spark._group.python_values import column_reader, python_values
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.processor_records import in_zone
from timerheap.spark._worker.row_classes import row_class

__all__ = ["RowRecords"]

_item = tuple.__getitem__
_CHUNK = 1 << 13  # rows that are Python objects at once
_MOST = 1 << 16  # results that become columns at once


class RowRecords:
    """See `timerheap.spark._worker.processor_records.Records`.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the results.
    zone : str
        Time zone of the timestamps in the rows.
    output : ResultBuffer
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
        """See `Records`."""
        columns = [in_zone(column, self._zone) for column in rows.columns]
        return _Rows(pa.RecordBatch.from_arrays(columns, names=rows.schema.names), key)

    def emit(self, results: Iterable[Any]) -> None:
        """See `Records`; a result is a Row, whose fields are found by name."""
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
        """See `Records`."""
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
