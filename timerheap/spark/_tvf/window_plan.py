"""The plan of aggregates of windows: how a DataFrame is cut, and what is computed where, also in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampNTZType, TimestampType

from timerheap._arguments import Length, positive
from timerheap.errors import ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import ResolvedAggregate, calls_of, input_columns
from timerheap.spark._changes.corrections import Corrections, lateness_of
from timerheap.spark._changes.guarantees import changelog_type
from timerheap.spark._columns import (
    AHEAD,
    CHANNEL,
    COMPUTED,
    EARLY,
    KEPT,
    NO_KEY,
    WINDOW_COLUMNS,
    computed_name,
    shown_name,
)
from timerheap.spark._compat import to_arrow_schema, with_columns
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import key_groups, query_of
from timerheap.spark._plan.build import marked, planned_placement
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime, late_choice
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import ColumnOrName, quoted
from timerheap.spark._plan.operator_names import checked_name
from timerheap.spark._query import Late, Reduction, TimeColumn
from timerheap.spark._tvf.revised_part import ShownLayout, UnshownLayout
from timerheap.spark._tvf.revised_runner import RevisedWork
from timerheap.spark._tvf.sliced_rows import PartialColumns, SlicedRows, WindowSpec
from timerheap.spark._tvf.window_runner import WindowWork
from timerheap.tvf.slices import HoppingSliceAssigner, SessionUnsliceAssigner, SliceAssigner
from timerheap.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from timerheap.spark._group.layout import OwnLayout


@dataclass(frozen=True, kw_only=True)
class Source(Input):
    """An input, and how it is cut into windows; those without an event time are of processing time."""

    assigner: SliceAssigner | SessionUnsliceAssigner
    late: Late
    lateness: int | None = None  # ms for which windows that have ended are corrected
    emit_every: int | None = None  # ms of event time, 0 for each micro-batch
    max_parallelism: int | None = None
    operator: str | None = None  # the name that the user has given to the operator
    local: bool  # whether the bounds of windows are local times, or instants
    where: Column | None = None  # rows that do not meet it only advance the watermark
    each_batch: bool = False  # whether each micro-batch is aggregated by itself, and ends all windows

    @classmethod
    def cut(
        cls,
        df: DataFrame,
        time: ColumnOrName | EventTime | None,
        make_assigner: Callable[[str], SliceAssigner | SessionUnsliceAssigner],
        watermark: WatermarkStrategy | int | str | timedelta | None,
        time_zone: str | None,
        late: str | Corrections,
        emit_every: Length | None = None,
        max_parallelism: int | None = None,
        name: str | None = None,
    ) -> Source:
        """Check the arguments of a function that cuts windows; `make_assigner` receives the time zone."""
        lateness, early, later = lateness_of(late)
        if lateness is not None and time is None:
            raise ArgumentValueError(
                f"late must be left out if time is None, got {late!r}: by the clock no row is late"
            )
        if early and emit_every is not None:
            raise ArgumentValueError(
                f"emit_every must be left out with early=True, got {emit_every!r}; early results come in "
                "each micro-batch then"
            )
        what = late_choice(later)
        emits = None if what == "drop" else "emit"
        found = Input.checked(
            Columns("df", df),
            None,
            time,
            watermark,
            order="arrival",
            late=emits,
            keyed=False,
            time_argument="time",
        )
        column = None if found.event_time is None else found.df.schema[found.event_time].dataType
        naive = isinstance(column, TimestampNTZType)
        return cls(
            **vars(found),
            assigner=make_assigner("UTC" if naive or time_zone is None else time_zone),
            late=what,
            lateness=lateness,
            emit_every=_distance(emit_every, early),
            max_parallelism=key_groups(max_parallelism),
            operator=checked_name(name),
            local=naive or time_zone is not None,
        )


def _distance(emit_every: Length | None, early: bool) -> int | None:
    """Return how far early results are apart, in ms of event time; 0 for each micro-batch."""
    if emit_every is None:
        return 0 if early else None
    return positive("emit_every", emit_every)


@dataclass(frozen=True)
class WindowPlan:
    """Aggregates of the windows of a source; its text explains how they are computed."""

    source: Source
    keys: list[str]
    computed: list[ResolvedAggregate]

    def result(self) -> DataFrame:
        source, time, work = self.source, self.source.event_time, self.work()
        keys = self.keys or [NO_KEY]
        rows = marked(replace(source, df=self._with_times()))
        if source.where is not None:
            rows = rows.withColumn(KEPT, F.coalesce(source.where, F.lit(False)))
        marks = [name for name in rows.columns if name in (CHANNEL, AHEAD, KEPT)]
        rows = self.with_inputs(rows)
        late_columns = (
            [n for n in source.df.columns if not n.startswith(COMPUTED)] if source.late == "emit" else []
        )
        used = [*keys, *([] if time is None else [time]), *late_columns, *work.inputs]
        used = list(dict.fromkeys(used))
        rows = rows.select(*map(quoted, [*used, *marks]))
        query = query_of(
            work,
            self._result(),
            source,
            order="arrival",
            late=source.late,
            processing_time=time is None,
            max_parallelism=source.max_parallelism,
            name=source.operator,
            key=keys,
            rows=StructType([rows.schema[name] for name in used]),
            late_row=StructType([source.df.schema[name] for name in late_columns]),
            late_columns=tuple(late_columns),
            key_names=self.keys,
            times=() if time is None else (TimeColumn("time", time, "df"),),
            own=self._own(work),
            leads=source.lateness is None,
            reduction=self._local_stage(keys, work),
        )
        result = build(query, rows, each_batch=source.each_batch)
        shown = list(map(shown_name, result.columns))
        return result if shown == result.columns else result.toDF(*shown)

    def _local_stage(self, keys: list[str], work: WindowWork) -> Reduction | None:
        """Return what the pack stage makes of rows, None if it sends them as they are."""
        time = self.source.event_time
        if time is None or self._needs_rows:
            return None
        _, *slices = PartialColumns(work.spec).schema  # whose ids each key group assigns itself
        return Reduction(partial(SlicedRows, work.spec, keys, time, work.inputs), pa.schema(slices))

    def _with_times(self) -> DataFrame:
        """Return the rows that meet the condition of the source, and those that have a time to observe."""
        source = self.source
        if source.where is None:
            return source.df
        timed = F.lit(True)
        for name in (source.event_time, source.channel):
            timed = timed if name is None else timed & quoted(name).isNotNull()
        return source.df.where(source.where | timed)

    def with_inputs(self, rows: DataFrame) -> DataFrame:
        """Add the columns that the aggregates read, and a key for windows without one."""
        no_key = {} if self.keys else {NO_KEY: F.lit(0)}
        return with_columns(rows, {**input_columns(rows, self.computed), **no_key})

    @property
    def _needs_rows(self) -> str:
        """Why the operator needs whole rows; "" if slices of rows suffice."""
        if not isinstance(self.source.assigner, SliceAssigner):
            return "the windows are sessions"
        if self.source.event_time is None:
            return "the windows are of processing time"
        return 'late is "emit"' if self.source.late == "emit" else ""

    def _result(self) -> StructType:
        source = self.source
        column = None if source.event_time is None else source.df.schema[source.event_time].dataType
        bound = TimestampNTZType() if source.local else TimestampType()
        last = column if isinstance(column, TimestampNTZType) else TimestampType()
        keys = [source.df.schema[name] for name in self.keys]
        fields = [StructField(shown_name(key.name), key.dataType, key.nullable, key.metadata) for key in keys]
        bounds = zip(WINDOW_COLUMNS, (bound, bound, last), strict=True)
        fields += [StructField(name, type_, False) for name, type_ in bounds]
        fields += [one.field for one in self.computed]
        if source.emit_every is not None and source.lateness is None:
            fields.append(StructField(EARLY, BooleanType(), False))
        names = [field.name for field in fields]
        for at, name in enumerate(names):
            if name in names[:at]:  # as in Spark, two columns of the result may have one name
                fields[at] = StructField(computed_name(at, name), fields[at].dataType, fields[at].nullable)
        if source.lateness is None:
            return StructType(fields)
        return changelog_type(fields, [field.name for field in fields[: len(keys) + 2]])

    def work(self) -> WindowWork:
        fields = list(to_arrow_schema(self._result()))[len(self.keys) :]
        calls = calls_of(self.computed)
        name = f"{self._windows()}: {', '.join(map(repr, calls.aggregates))}"
        lateness, early = self.source.lateness, self.source.emit_every
        folds = lateness is None  # what was shown is computed again, from the same slices
        known: dict[str, Any] = {
            "spec": WindowSpec(self.source.assigner, calls.aggregates, calls.object_types, name, folds),
            "keys": self.keys,
            "inputs": calls.inputs,
            "pre_aggregated": not self._needs_rows,
            "bounds": fields[:3],
            "results": fields[3 : 3 + len(self.computed)],
        }
        if lateness is None:
            return WindowWork(**known, emit_every=early)
        return RevisedWork(**known, emit_every=None, lateness=lateness, early=early)

    def _own(self, work: WindowWork) -> tuple[OwnLayout, ...]:
        """Return the layouts of what key groups have."""
        if not isinstance(work, RevisedWork):
            return (work,)
        shown = ShownLayout(work.spec, work.lateness)
        return (shown,) if work.early is None else (shown, UnshownLayout(work.spec))

    def _windows(self) -> str:
        assigner = self.source.assigner
        kind = type(assigner).__name__.removesuffix("SliceAssigner").removesuffix("UnsliceAssigner")
        lengths = f"gap {assigner.interval} ms"
        if isinstance(assigner, SliceAssigner):
            lengths = f"size {assigner.size} ms, slice {assigner.interval} ms, offset {assigner.offset} ms"
        if isinstance(assigner, HoppingSliceAssigner) and assigner.slide != assigner.interval:
            lengths = f"slide {assigner.slide} ms, {lengths}"
        time = "processing time" if self.source.event_time is None else f"time zone {assigner.zone.name}"
        corrected = ""
        if self.source.lateness is not None:
            early = "" if self.source.emit_every is None else ", early results"
            corrected = f", corrected for {self.source.lateness} ms{early}"
        return f"{kind} windows, {lengths}, {time}{corrected}"

    def __str__(self) -> str:
        source = self.source
        kind = "stream" if source.df.isStreaming else "batch"
        slices = isinstance(source.assigner, SliceAssigner)
        keys = ", ".join(map(shown_name, self.keys)) or "no key"
        over = "the last window of its slice" if slices else "its session, all it touches,"
        over += " has fired" if source.lateness is None else " is final"
        late = "late_rows() returns it" if source.late == "emit" else "it is dropped"
        mode = "append" if source.lateness is None else "append of changes"
        local = "rows are aggregated by key and slice before they are sent"
        if self._needs_rows:
            local = f"none: rows are sent as they are ({self._needs_rows})"
        lines = {
            "windows": self._windows(),
            "source": f"{kind}, time {shown_name(source.event_time or 'of the micro-batch')}, "
            f"watermark {source.strategy!r}",
            "local": local,
            "global": f"{planned_placement(source.df, source.max_parallelism).max_parallelism} key groups of "
            f"({keys}), {'slices' if slices else 'sessions'} in Python workers",
            "late": f"a row is late when {over}; {late}",
            "sink": f"{mode}: {', '.join(map(shown_name, self._result().names))}",
        }
        return "\n".join(f"{name:8}{text}" for name, text in lines.items())
