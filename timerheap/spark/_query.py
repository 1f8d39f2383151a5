"""A query as data: its work, rows and order, built on the driver and sent to workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LATE_BY, LATE_ROWS, TIME, distinct, shown_name, visible
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.types import arrow_type
from timerheap.watermarks import WatermarkStrategy

if TYPE_CHECKING:  # a worker that packs rows has no key groups
    from timerheap.spark._group.key_group import GroupLayout
    from timerheap.spark._group.row_buffer import RowOrder
    from timerheap.spark._windows.partial_columns import WindowSpec

TimeMode = Literal["None", "ProcessingTime", "EventTime"]
"""The clock that a query follows beside its own watermark.

None, the time of the micro-batches, or Spark's watermark, which then replaces the query's own.
"""

Late = Literal["drop", "emit", "process"]
"""What becomes of rows behind the watermark: nothing, part of the result, or what becomes of all rows."""

NullTime = Literal["error", "drop"]
"""What becomes of rows whose event time is null."""


@dataclass(frozen=True)
class TimeColumn:
    """What a user has called the event time of an input."""

    argument: str
    column: str
    df: str  # the argument that has the column


@dataclass(frozen=True)
class WindowWork:
    """Windows to aggregate."""

    spec: WindowSpec
    keys: list[str]  # of the result
    inputs: dict[str, np.dtype[Any]]  # columns that the aggregates read, and the types they read them as
    pre_aggregated: bool  # in the pack stage by key and slice; otherwise the operator gets the rows
    results: list[pa.Field]  # one for each aggregate
    emit_every: int | None  # ms of event time
    bounds: list[pa.Field]  # of the result: the start, the end and the time of the window


@dataclass(frozen=True)
class DeclaredState:
    """A state that a processor has asked its handle for."""

    shape: Literal["value", "list", "map"]
    schemas: tuple[StructType, ...]  # of the values; of a map, of its keys and of its values
    ttl: int | None  # ms


@dataclass(frozen=True)
class FrameSettings:
    """Spark's settings that DataFrames depend on."""

    rows: int  # the most in one DataFrame
    nbytes: int  # about how many bytes of Arrow data make a DataFrame full
    ints_to_decimals: bool = False  # whether ints of a result may become decimals
    safe: bool = True  # whether a value of a result that does not fit its type is an error
    by_name: bool = True  # whether the columns of a result are found by name, else by position


@dataclass(frozen=True)
class ProcessorWork:
    """A StatefulProcessor to run."""

    processor: StatefulProcessor
    style: Literal["rows", "frames"]  # what it receives and yields: Row objects or pandas DataFrames
    states: dict[str, DeclaredState]  # that its init declares
    event_time: tuple[str, ...]  # the path of the column with Spark's watermark, whose late rows are dropped
    initial: StructType | None  # the type of the rows of the initial state
    initial_key: tuple[str, ...]  # their key columns, whose names may differ from those of the rows
    zone: str  # time zone of the timestamps that the processor receives
    frames: FrameSettings
    has_event_time: bool = False  # whether a column of the results is the event time of what follows


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query, built on the driver and pickled to its workers."""

    work: KeyedProcessFunction | BatchProcessFunction | WindowWork | ProcessorWork  # what each key group runs
    key: list[str]
    rows: StructType  # the type of the input rows, without the columns that timerheap adds
    result: StructType
    event_time: str | None  # the column
    watermarks: tuple[WatermarkStrategy, ...]  # one for each input
    channels: tuple[str | None, ...]  # for each input, the column whose values have a watermark each
    order: RowOrder  # when rows reach the function
    ties: tuple[str, ...] = ()  # the columns that order rows of one key and time, before the others do
    time_mode: TimeMode  # of the stateful operator on a stream
    max_parallelism: int | None  # None: the default for the running number of partitions
    times: tuple[TimeColumn, ...] = ()  # what `event_time` is to the user in each input, if not of one "df"
    null_time: NullTime = "error"
    late: Late = "drop"
    late_row: StructType | None = None  # the type of late rows in the result, with "emit"
    late_columns: tuple[str, ...] = ()  # of `rows`, which become the fields of late rows
    drop_state: tuple[str, ...] = ()
    rename_state: dict[str, str] = field(default_factory=dict)
    side_outputs: tuple[OutputTag, ...] = ()
    broadcast: StructType | None = None  # the type of the rows that go to every key group
    reduce: Callable[[], Any] | None = None  # makes a Reducer for the rows of each task of the pack stage
    has_metrics: bool = False  # whether the function has metrics of its own, which the query observes
    key_names: list[str] | None = None  # those that the user knows, without keys that only timerheap has
    encrypted: bool = False  # whether Spark encrypts local files, so that live state must stay in memory

    @property
    def windows(self) -> WindowSpec | None:
        """The windows to aggregate, None for a function."""
        return self.work.spec if isinstance(self.work, WindowWork) else None

    @property
    def key_columns(self) -> list[str]:
        """The names of the user's key columns in tables of the state."""
        return distinct(map(shown_name, self.key if self.key_names is None else self.key_names))

    @cached_property
    def seen_rows(self) -> StructType:
        """Type of the rows that the function sees: `rows` without `TIME` and computed columns."""
        return StructType([self.rows[name] for name in visible(self.rows.names) if name != TIME])

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows that reach a key group: input rows, or the slices made of them."""
        schema = nullable_arrow_schema(self.rows)
        if isinstance(self.work, WindowWork) and self.work.pre_aggregated:
            from timerheap.spark._windows.partial_columns import PartialColumns  # with timerheap.tvf

            _, *slices = PartialColumns(self.work.spec).schema  # whose ids each key group assigns itself
            return pa.schema([*(schema.field(name) for name in self.key), *slices])
        return schema

    @cached_property
    def layout(self) -> GroupLayout:
        """What the key groups hold; the fields of key columns that are the user's have the user's names."""
        from timerheap.spark._group.key_group import GroupLayout
        from timerheap.spark._group.keys import NAME

        names = self.key_columns
        metadata = [{NAME: name.encode()} for name in names] + [None] * (len(self.key) - len(names))
        fields = (self.schema.field(name) for name in self.key)
        return GroupLayout(
            key_fields=[field.with_metadata(each) for field, each in zip(fields, metadata, strict=True)],
            rows=self.schema,
            order=self.order,
            ties=self.ties,
            windows=self.windows,
            drop_state=self.drop_state,
            rename_state=self.rename_state,
            encrypted=self.encrypted,
        )

    @cached_property
    def result_schema(self) -> pa.Schema:
        """Arrow schema of the results."""
        return to_arrow_schema(self.result)

    @cached_property
    def side_fields(self) -> list[pa.Field]:
        """The ids of side outputs, with that of late rows, and their Arrow types."""
        tags = self.side_outputs
        fields = [pa.field(tag.tag_id, arrow_type(tag.type_info, tag.tag_id)) for tag in tags]
        if self.late_row is not None:
            late = [*nullable_arrow_schema(self.late_row), pa.field(LATE_BY, pa.int64())]
            fields.append(pa.field(LATE_ROWS, pa.struct(late)))
        return fields

    @property
    def outputs(self) -> tuple[pa.Schema, list[pa.Field]]:
        """What a function can emit: results and side outputs."""
        return self.result_schema, self.side_fields


def nullable_arrow_schema(rows: StructType) -> pa.Schema:
    """Return the Arrow schema of rows that have been checked before; nullability is ignored."""
    return to_arrow_schema(nullable(rows))
