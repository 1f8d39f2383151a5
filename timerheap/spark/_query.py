"""A query as data: its work, rows and order, built on the driver and sent to workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.types import StructType

from timerheap.output_tag import OutputTag
from timerheap.spark._columns import COMPUTED, LATE_BY, LATE_ROWS, TIME
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.types import arrow_type
from timerheap.watermarks import WatermarkStrategy

if TYPE_CHECKING:  # a worker that packs rows has no key groups
    from timerheap.spark._group.layout import GroupLayout, OwnLayout
    from timerheap.spark._group.row_buffer import RowOrder

TimeMode = Literal["None", "ProcessingTime", "EventTime"]
"""The clock that a query follows beside its own watermark.

None, the time of the micro-batches, or Spark's watermark, which then replaces the query's own.
"""

Late = Literal["drop", "emit", "process"]
"""What becomes of rows behind the watermark: nothing, part of the result, or what becomes of all rows."""

NullTime = Literal["error", "drop"]
"""What becomes of rows whose event time is null."""


DEFAULT_NAME = "timerheap"
"""The name of a query's first operator without one; those behind it are numbered from 2."""


def is_default_name(name: str) -> bool:
    """Return whether a name is one that an operator has by its place in a query."""
    return re.fullmatch(rf"{DEFAULT_NAME}(_\d+)?", name) is not None


@dataclass(frozen=True)
class TimeColumn:
    """What a user has called the event time of an input."""

    argument: str
    column: str
    df: str  # the argument that has the column


@dataclass(frozen=True)
class StateChanges:
    """What becomes of states that a checkpoint has under other names than the function.

    drop: the names of states that the function no longer has
    rename: the new names by the old ones
    expected: the names among both that the checkpoint must have
    drop_below: how the names of other states begin that the function no longer has
    """

    drop: tuple[str, ...] = ()
    rename: dict[str, str] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    drop_below: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reduction:
    """How the stage that packs rows makes fewer of them.

    reducer: makes a Reducer for the rows of each task
    columns: what it makes of all columns but the key; None: it leaves them as they are
    """

    reducer: Callable[[], Any]
    columns: pa.Schema | None = None


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query, built on the driver and pickled to its workers."""

    work: Any  # what each key group runs: a `timerheap.spark._worker.work.Work`, which is above this module
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
    state_changes: StateChanges = field(default_factory=StateChanges)
    side_outputs: tuple[OutputTag, ...] = ()
    broadcast: StructType | None = None  # the type of the rows that go to every key group
    reduction: Reduction | None = None  # of the rows, before they are sent
    leads: bool = True  # whether the times of results are behind its watermark, so that others can follow it
    announces: bool = False  # whether a task of the pack stage without rows says so to all partitions
    own: tuple[OwnLayout, ...] = ()  # what key groups have besides keys, timers, rows and states
    has_metrics: bool = False  # whether the function has metrics of its own, which the query observes
    key_names: list[str] | None = None  # distinct ones for users, without keys that only timerheap has
    encrypted: bool = False  # whether Spark encrypts local files, so that live state must stay in memory
    name: str | None = None  # of the operator; None before it gets a default one

    @property
    def has_watermark(self) -> bool:
        """Whether operators behind this one can follow its watermark."""
        return self.leads and (self.event_time is not None or self.time_mode == "EventTime")

    @property
    def follows(self) -> int | None:
        """How far the watermark stays behind those of the operators whose results the rows are, in ms.

        None if no input has results of other operators.
        """
        delays = [each._follows for each in self.watermarks if each._follows is not None]
        return max(delays, default=None)

    @property
    def key_columns(self) -> list[str]:
        """The names of the user's key columns in tables of the state."""
        return self.key if self.key_names is None else self.key_names

    @cached_property
    def seen_rows(self) -> StructType:
        """Type of the rows that the function sees: `rows` without `TIME` and computed columns."""
        return StructType([f for f in self.rows if f.name != TIME and not f.name.startswith(COMPUTED)])

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows that reach a key group: input rows, or what is made of them."""
        schema = nullable_arrow_schema(self.rows)
        if self.reduction is None or self.reduction.columns is None:
            return schema
        return pa.schema([*map(schema.field, self.key), *self.reduction.columns])

    @cached_property
    def layout(self) -> GroupLayout:
        """What the key groups hold; the fields of key columns that are the user's have the user's names."""
        from timerheap.spark._group.key_table import NAME
        from timerheap.spark._group.layout import GroupLayout

        names = self.key_columns
        metadata = [{NAME: name.encode()} for name in names] + [None] * (len(self.key) - len(names))
        fields = (self.schema.field(name) for name in self.key)
        return GroupLayout(
            key_fields=[field.with_metadata(each) for field, each in zip(fields, metadata, strict=True)],
            rows=self.schema,
            order=self.order,
            event_time=self.event_time if self._is_finer_than_ms else None,
            ties=self.ties,
            own=self.own,
            drop_state=self.state_changes.drop,
            drop_below=self.state_changes.drop_below,
            rename_state=self.state_changes.rename,
            expected=self.state_changes.expected,
            encrypted=self.encrypted,
        )

    @property
    def _is_finer_than_ms(self) -> bool:
        """Whether the event time is a timestamp among the rows, and not their ms."""
        schema, name = self.schema, self.event_time
        return name in schema.names and pa.types.is_timestamp(schema.field(name).type)

    @cached_property
    def result_schema(self) -> pa.Schema:
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
