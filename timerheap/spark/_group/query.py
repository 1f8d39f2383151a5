"""A query as data: what its key groups compute, from which rows, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._group.computed_columns import visible
from timerheap.spark._group.key_table import NAME
from timerheap.spark._group.processor_work import ProcessorWork
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._group.window_slices import PartialColumns, WindowSpec
from timerheap.types import arrow_type
from timerheap.watermarks import WatermarkStrategy

__all__ = ["TIME", "Late", "Query", "TimeMode", "WindowWork", "nullable_arrow_schema"]

TIME = "__timerheap_time"
"""Name of the event-time column that is not the user's: of two inputs, a timestamp assigner, or cut to ms."""

TimeMode = Literal["None", "ProcessingTime", "EventTime"]
"""The clock that a query follows beside its own watermark.

None, the time of the micro-batches, or Spark's watermark, which then replaces the query's own.
"""

Late = Literal["drop", "emit", "process"]
"""What becomes of rows behind the watermark: nothing, part of the result, or what becomes of all rows."""


@dataclass(frozen=True)
class WindowWork:
    """Windows to aggregate.

    Parameters
    ----------
    spec : WindowSpec
    keys : list of str
        Key columns of the result.
    inputs : dict of str to dtype
        Columns that the aggregates read, and the types they read them as.
    local : {"jvm", "arrow", "operator"}
        Where rows become slices: in Spark's aggregation, in the pack stage, or in the operator.
    parts : list of list of str
        For "jvm", the accumulator columns of each aggregate; empty otherwise.
    results : list of pyarrow.Field
        One for each aggregate.
    emit_every : int or None
        Distance between early results, in ms of event time.
    wall_clock : bool
        The window columns of the result are timestamps without a time zone, as the rows' are.
    """

    spec: WindowSpec
    keys: list[str]
    inputs: dict[str, np.dtype[Any]]
    local: Literal["jvm", "arrow", "operator"]
    parts: list[list[str]]
    results: list[pa.Field]
    emit_every: int | None
    wall_clock: bool


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query, built on the driver and pickled to its workers.

    Parameters
    ----------
    work : KeyedProcessFunction, BatchProcessFunction, WindowWork or ProcessorWork
        What each key group runs.
    key : list of str
        Key columns.
    rows : pyspark.sql.types.StructType
        Type of the input rows, without the columns that timerheap adds.
    result : pyspark.sql.types.StructType
        Type of the results, without the columns of late rows.
    event_time : str or None
        Event-time column, in which null is an error.
    watermarks : tuple of WatermarkStrategy
        One for each input.
    channels : tuple of (str or None)
        For each input, the column whose values have a watermark each.
    order : {"event_time", "arrival"}
        When rows reach the function.
    time_mode : {"None", "ProcessingTime", "EventTime"}
        Time mode of the stateful operator on a stream.
    max_parallelism : int or None
        Number of key groups; None: the default for the running number of partitions.
    late : {"drop", "emit", "process"}
        What becomes of late rows.
    late_row : pyspark.sql.types.StructType, optional
        Type of ``late_row`` in the result, with "emit".
    late_columns : tuple of str
        The columns of `rows` that become the fields of `late_row`.
    drop_state : tuple of str
        Names of states in the checkpoint to drop.
    side_outputs : tuple of OutputTag
        The side outputs of the function.
    broadcast : pyspark.sql.types.StructType, optional
        Type of the rows that go to every key group, for a function with broadcast state.
    has_metrics : bool
        Whether the function has metrics of its own, which the query observes.
    key_names : list of str, optional
        The names of the key columns in the user's rows, by default `key`; fewer if the rest are not theirs.
    """

    work: KeyedProcessFunction | BatchProcessFunction | WindowWork | ProcessorWork
    key: list[str]
    rows: StructType
    result: StructType
    event_time: str | None
    watermarks: tuple[WatermarkStrategy, ...]
    channels: tuple[str | None, ...]
    order: RowOrder
    time_mode: TimeMode
    max_parallelism: int | None
    late: Late = "drop"
    late_row: StructType | None = None
    late_columns: tuple[str, ...] = ()
    drop_state: tuple[str, ...] = ()
    side_outputs: tuple[OutputTag, ...] = ()
    broadcast: StructType | None = None
    has_metrics: bool = False
    key_names: list[str] | None = None

    @property
    def windows(self) -> WindowSpec | None:
        """The windows to aggregate, None for a function."""
        return self.work.spec if isinstance(self.work, WindowWork) else None

    @property
    def one_timer_per_key(self) -> bool:
        """Whether a key has one timer, which a new timestamp moves."""
        return isinstance(self.work, BatchProcessFunction) and self.work.one_timer_per_key

    @property
    def is_batch_function(self) -> bool:
        """Whether the work is a BatchProcessFunction, whose timers may be in any namespace."""
        return isinstance(self.work, BatchProcessFunction)

    @cached_property
    def seen_rows(self) -> StructType:
        """Type of the rows that the function sees: `rows` without `TIME` and computed columns."""
        return StructType([self.rows[name] for name in visible(self.rows.names) if name != TIME])

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows that reach a key group: input rows, or the slices made of them."""
        schema = nullable_arrow_schema(self.rows)
        if isinstance(self.work, WindowWork) and self.work.local == "arrow":
            _, *slices = PartialColumns(self.work.spec).schema  # whose ids each key group assigns itself
            return pa.schema([*(schema.field(name) for name in self.key), *slices])
        return schema

    @cached_property
    def key_fields(self) -> list[pa.Field]:
        """The key columns; the metadata of those that are the user's has their names there."""
        names = self.key if self.key_names is None else self.key_names
        metadata = [{NAME: name.encode()} for name in names] + [None] * (len(self.key) - len(names))
        fields = (self.schema.field(name) for name in self.key)
        return [field.with_metadata(each) for field, each in zip(fields, metadata, strict=True)]

    @cached_property
    def result_schema(self) -> pa.Schema:
        """Arrow schema of the results, without the columns of late rows."""
        return to_arrow_schema(self.result)

    @cached_property
    def late_type(self) -> pa.StructType | None:
        """Arrow type of ``late_row``, None where late rows are dropped."""
        return None if self.late_row is None else pa.struct(list(nullable_arrow_schema(self.late_row)))

    @property
    def outputs(self) -> tuple[pa.Schema, pa.StructType | None, list[pa.Field]]:
        """What a function can emit: results, late rows and side outputs."""
        return self.result_schema, self.late_type, self.side_fields

    @property
    def side_fields(self) -> list[pa.Field]:
        """The ids of side outputs and their Arrow types."""
        tags = self.side_outputs
        return [pa.field(tag.tag_id, arrow_type(tag.type_info, tag.tag_id)) for tag in tags]


def nullable_arrow_schema(rows: StructType) -> pa.Schema:
    """Return the Arrow schema of rows that have been checked before; nullability is ignored."""
    return to_arrow_schema(rows._as_nullable())
