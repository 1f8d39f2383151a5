"""The inputs of a function under test: one, or the two of a KeyedCoProcessFunction as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ByteType, StructField, StructType

from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.functions import BatchProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from timerheap.spark._exchange.pack import INPUT
from timerheap.spark._exchange.unpack import HashedRows
from timerheap.spark._plan.arguments import arrow_schema, expect_event_time, key_columns
from timerheap.spark._plan.columns import strategy_of
from timerheap.spark._plan.time_column import assigns_time
from timerheap.spark._query import TIME, Query
from timerheap.spark._worker.broadcast_runner import Broadcasting
from timerheap.spark._worker.two_inputs import KEY, SIDES, Tagged
from timerheap.testing.input_rows import PushedRows, columns_type
from timerheap.watermarks import WatermarkStrategy

__all__ = ["Function", "Inputs"]

Function = (
    KeyedProcessFunction | BatchProcessFunction | KeyedCoProcessFunction | KeyedBroadcastProcessFunction
)


class Inputs:
    """The rows of one or two inputs, checked as on Spark."""

    def __init__(self) -> None:
        self._sides: list[PushedRows] = []

    def __len__(self) -> int:
        return len(self._sides)

    @property
    def left(self) -> PushedRows:
        """The only input, or the left of two."""
        return self._sides[0]

    def add(
        self, argument: str, schema: object, prefix: str, key: object, event_time: Any, watermark: Any
    ) -> None:
        """Add an input.

        Parameters
        ----------
        argument : str
            Name of the argument that `schema` is.
        schema, key, event_time, watermark : object
            The user's arguments.
        prefix : str
            Errors call the arguments `prefix` + ``key``, and so on.
        """
        type_ = columns_type(argument, schema)
        arrow_schema(argument, type_)
        assigner = None
        if event_time is None and assigns_time(watermark):
            event_time, assigner = TIME, watermark.timestamp_assigner
        rows: Any = PushedRows(type_, [], event_time, assigner)
        if event_time is not None and watermark is None:
            watermark = WatermarkStrategy.for_monotonous_timestamps()
        expect_event_time(rows, event_time, strategy_of(prefix + "watermark", watermark), prefix)
        keys = key_columns(rows, prefix + "key", key)
        self._sides.append(PushedRows(type_, keys, event_time, assigner))

    def expect_to_match(self) -> None:
        """Raise ValueError unless both inputs have keys and event times of the same types."""
        types = [
            [
                each.schema[name].dataType.simpleString()
                for name in [*each.key, *([each.event_time] if each.event_time else [])]
            ]
            for each in self._sides
        ]
        if types[0] != types[1]:
            raise ValueError(
                f"right_key and right_event_time must have the types of the left, {types[0]}, got {types[1]}"
            )

    def query(self, function: Function, emits_late: bool, **options: Any) -> Query:
        """Return the query that runs a function on the inputs, with other arguments of `Query`."""
        left = self.left
        if not isinstance(function, KeyedCoProcessFunction):
            return Query(
                work=Broadcasting(function)
                if isinstance(function, KeyedBroadcastProcessFunction)
                else function,
                key=left.key,
                rows=left.schema,
                event_time=left.event_time,
                late_row=left.type if emits_late else None,
                late_columns=tuple(left.type.names),
                **options,
            )
        keys = [left.schema[name] for name in left.key]
        fields = [StructField(f"{KEY}{number}", field.dataType) for number, field in enumerate(keys)]
        if left.event_time is not None:
            fields.append(StructField(TIME, left.schema[left.event_time].dataType))
        fields.append(StructField(INPUT, ByteType()))
        sides = [StructField(side, each.type) for side, each in zip(SIDES, self._sides, strict=True)]
        both = zip(("left", "right"), self._sides, strict=True)
        late = [StructField(name, each.type) for name, each in both]
        return Query(
            work=Tagged(function),
            key=[field.name for field in fields[: len(keys)]],
            rows=StructType([*fields, *sides]),
            event_time=None if left.event_time is None else TIME,
            late_row=StructType(late) if emits_late else None,
            late_columns=SIDES,
            key_names=left.key,
            **options,
        )

    def hashed(self, number: int, rows: object, query: Query) -> HashedRows:
        """Return the rows of an input as they reach a key group of the query.

        Raises
        ------
        TypeError, ValueError
            If a row does not fit.
        """
        side = self._sides[number]
        batch = side.table(rows)
        seen = batch if len(self) == 1 else self._tagged(number, batch, query)
        return side.hashed(batch, seen)

    def _tagged(self, number: int, batch: pa.RecordBatch, query: Query) -> pa.RecordBatch:
        """Return rows in the columns of both inputs."""
        side, n = self._sides[number], batch.num_rows
        columns = [batch.column(name) for name in side.key]
        if side.event_time is not None:
            columns.append(batch.column(side.event_time))
        columns.append(pa.array(np.full(n, number, np.int8)))
        schema = query.schema
        for other, name in enumerate(SIDES):
            type_ = schema.field(name).type
            rows = batch.columns[: len(type_)]  # without assigned times, which come last
            row = pa.StructArray.from_arrays(rows, fields=list(type_)) if other == number else None
            columns.append(pa.nulls(n, type_) if row is None else row)
        return pa.RecordBatch.from_arrays(columns, names=schema.names[: len(columns)])

    def untagged(self, rows: list[Row]) -> list[Row]:
        """Return rows of the query as the rows of the inputs."""
        return rows if len(self) == 1 else [row[SIDES[row[INPUT]]] for row in rows]
