"""Windows on Spark DataFrames: `tumble`, `hop` and `cumulate`, which share slices, and `session`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampNTZType, TimestampType

from timerheap._arguments import Length, positive
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
from timerheap.spark._plan.arguments import (
    ColumnOrName,
    Columns,
    EventTime,
    Input,
    key_columns,
    key_groups,
    late_rows,
    query_of,
    quoted,
)
from timerheap.spark._plan.build import build, kept_only, marked, planned
from timerheap.spark._query import Late, TimeColumn
from timerheap.spark._windows.partial_aggregates import PartialColumns, SlicedRows, WindowSpec
from timerheap.spark._windows.spark_aggregates import ResolvedAggregate, UserAggregate, resolve_aggregate
from timerheap.spark._windows.window_runner import WindowWork
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SessionUnsliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy


@dataclass(frozen=True, kw_only=True)
class Source(Input):
    """An input, and how it is cut into windows; those without an event time are of processing time."""

    assigner: SliceAssigner | SessionUnsliceAssigner
    late: Late
    emit_every: int | None = None  # ms of event time
    max_parallelism: int | None = None
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
        late: str,
        emit_every: Length | None = None,
        max_parallelism: int | None = None,
    ) -> Source:
        """Check the arguments of a function that cuts windows; `make_assigner` receives the time zone."""
        what = late_rows(late)
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
            emit_every=None if emit_every is None else positive("emit_every", emit_every),
            max_parallelism=key_groups(max_parallelism),
            local=naive or time_zone is not None,
        )


@dataclass(frozen=True)
class WindowPlan:
    """Aggregates of the windows of a source; its text explains how they are computed."""

    source: Source
    keys: list[str]
    computed: list[ResolvedAggregate]

    def result(self) -> DataFrame:
        source, time = self.source, self.source.event_time
        keys = self.keys or [NO_KEY]
        rows = marked(replace(source, df=self._with_times()))
        if source.where is not None:
            rows = rows.withColumn(KEPT, F.coalesce(source.where, F.lit(False)))
        marks = [name for name in rows.columns if name in (CHANNEL, AHEAD, KEPT)]
        rows = self.with_inputs(rows)
        late_columns = (
            [n for n in source.df.columns if not n.startswith(COMPUTED)] if source.late == "emit" else []
        )
        used = [*keys, *([] if time is None else [time]), *late_columns, *self.dtypes]
        used = list(dict.fromkeys(used))
        rows = rows.select(*map(quoted, [*used, *marks]))
        work = self.work()
        query = query_of(
            work,
            self._result(),
            source,
            order="arrival",
            late=source.late,
            processing_time=time is None,
            max_parallelism=source.max_parallelism,
            key=keys,
            rows=StructType([rows.schema[name] for name in used]),
            late_row=StructType([source.df.schema[name] for name in late_columns]),
            late_columns=tuple(late_columns),
            key_names=self.keys,
            times=() if time is None else (TimeColumn("time", time, "df"),),
            own=work,
            **self._local_stage(keys, work.spec),
        )
        result = build(query, rows, each_batch=source.each_batch)
        shown = list(map(shown_name, result.columns))
        return result if shown == result.columns else result.toDF(*shown)

    def _local_stage(self, keys: list[str], spec: WindowSpec) -> dict[str, Any]:
        """Return what the pack stage makes of rows, as fields of a `Query`."""
        time = self.source.event_time
        if time is None or self._needs_rows:
            return {}
        _, *slices = PartialColumns(spec).schema  # whose ids each key group assigns itself
        return {"reduce": partial(SlicedRows, spec, keys, time, self.dtypes), "reduced": pa.schema(slices)}

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
        """Add the columns that the aggregates read."""
        inputs = {
            name: kept_only(rows, column) for one in self.computed for name, column in one.inputs.items()
        }
        if not self.keys:
            inputs[NO_KEY] = F.lit(0)
        return with_columns(rows, inputs)

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The columns that the aggregates read, and the types they read them as."""
        return {name: one.aggregate.dtype for one in self.computed for name in one.inputs}

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
        if source.emit_every is not None:
            fields.append(StructField(EARLY, BooleanType(), False))
        names = [field.name for field in fields]
        for at, name in enumerate(names):
            if name in names[:at]:  # as in Spark, two columns of the result may have one name
                fields[at] = StructField(computed_name(at, name), fields[at].dataType, fields[at].nullable)
        return StructType(fields)

    def work(self) -> WindowWork:
        fields = list(to_arrow_schema(self._result()))[len(self.keys) :]
        types: dict[str, pa.DataType] = {
            name: one.object_type
            for one in self.computed
            for name in one.inputs
            if one.object_type is not None
        }
        aggregates = [one.aggregate for one in self.computed]
        name = f"{self._windows()}: {', '.join(map(repr, aggregates))}"
        return WindowWork(
            spec=WindowSpec(self.source.assigner, aggregates, types, name),
            keys=self.keys,
            inputs=self.dtypes,
            pre_aggregated=not self._needs_rows,
            bounds=fields[:3],
            results=fields[3 : 3 + len(self.computed)],
            emit_every=self.source.emit_every,
        )

    def _windows(self) -> str:
        assigner = self.source.assigner
        kind = type(assigner).__name__.removesuffix("SliceAssigner").removesuffix("UnsliceAssigner")
        lengths = f"gap {assigner.interval} ms"
        if isinstance(assigner, SliceAssigner):
            lengths = f"size {assigner.size} ms, slice {assigner.interval} ms, offset {assigner.offset} ms"
        if isinstance(assigner, HoppingSliceAssigner) and assigner.slide != assigner.interval:
            lengths = f"slide {assigner.slide} ms, {lengths}"
        time = "processing time" if self.source.event_time is None else f"time zone {assigner.zone.name}"
        return f"{kind} windows, {lengths}, {time}"

    def __str__(self) -> str:
        source = self.source
        kind = "stream" if source.df.isStreaming else "batch"
        slices = isinstance(source.assigner, SliceAssigner)
        keys = ", ".join(map(shown_name, self.keys)) or "no key"
        over = "the last window of its slice" if slices else "its session, all it touches,"
        late = "late_rows() returns it" if source.late == "emit" else "it is dropped"
        local = "rows are aggregated by key and slice before they are sent"
        if self._needs_rows:
            local = f"none: rows are sent as they are ({self._needs_rows})"
        lines = {
            "windows": self._windows(),
            "source": f"{kind}, time {shown_name(source.event_time or 'of the micro-batch')}, "
            f"watermark {source.strategy!r}",
            "local": local,
            "global": f"{planned(source.df, source.max_parallelism).max_parallelism} key groups of "
            f"({keys}), {'slices' if slices else 'sessions'} in Python workers",
            "late": f"a row is late when {over} has fired; {late}",
            "sink": f"append: {', '.join(map(shown_name, self._result().names))}",
        }
        return "\n".join(f"{name:8}{text}" for name, text in lines.items())


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    _source: Source

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"windows have no {name!r}; group them, also without a key, and aggregate: "
            f".groupBy('key').agg({_example(name)})"
        )

    def groupBy(self, *keys: ColumnOrName) -> GroupedWindows:
        """Group by columns of atomic types and the window, or without columns by the window alone.

        Null is a group of its own, as in SQL.
        """
        if not keys:
            return GroupedWindows(self._source)
        columns = Columns("df", self._source.df)
        names = columns.many("keys", keys)
        return GroupedWindows(replace(self._source, df=columns.df), key_columns(columns.df, "keys", names))


@dataclass(frozen=True)
class GroupedWindows:
    """A DataFrame cut into windows and grouped, to be aggregated."""

    _source: Source
    _keys: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"grouped windows have no {name!r}; aggregate them: .agg({_example(name)})")

    def count(self) -> DataFrame:
        """Count the rows of each key and window, in a column ``count``; the rest is as in `agg`."""
        return self.agg(F.count("*").alias("count"))

    def agg(self, *aggregates: Column | UserAggregate | dict[str, str]) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or result of `timerheap.spark.udaf`
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias. Or, as in Spark, one dict from columns to names of these functions.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start``, ``window_end`` (exclusive), ``window_time`` (the window's last ms)
            and the aggregates; then ``early`` with the option `emit_every`. With a `time_zone` the start and
            the end are local times, of the type timestamp_ntz; ``window_time`` has the type of the time
            column, or is a timestamp.
        """
        return self._plan(aggregates).result()

    def explain(self, *aggregates: Column | UserAggregate | dict[str, str]) -> None:
        """Print how `agg` computes these aggregates: which stage runs where, and which rows are late."""
        print(self._plan(aggregates))

    def _plan(self, aggregates: tuple[Column | UserAggregate | dict[str, str], ...]) -> WindowPlan:
        if len(aggregates) == 1 and isinstance(aggregates[0], dict):
            aggregates = tuple(
                F.count("*") if (column, name) == ("*", "count") else F.call_function(name, quoted(column))
                for column, name in aggregates[0].items()
            )
        if not aggregates:
            raise ValueError(
                "aggregates must be one or more, got none; pass one such as F.count('*').alias('rows')"
            )
        df = self._source.df
        return WindowPlan(
            self._source, self._keys, [resolve_aggregate(df, one, at) for at, one in enumerate(aggregates)]
        )


def _example(name: str) -> str:
    """Return the aggregate that a method of Spark's grouped DataFrames would compute."""
    known = {"mean": "avg", "avg": "avg", "sum": "sum", "min": "min", "max": "max"}
    return f"F.{known[name]}('column')" if name in known else "F.count('*').alias('rows')"


def tumble(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    size: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
) -> Windows:
    """Cut a DataFrame into adjacent windows of one size: SQL's ``TUMBLE``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A stream or a batch. The end of a batch ends all its windows.
    time : str, Column, EventTime or None
        Event-time column: a timestamp (cut to ms), or a bigint of epoch ms. An `EventTime` also says which
        column has a watermark for each of its values, and what becomes of rows without a time. None: the
        windows are cut from the processing time of micro-batches, on a stream.
    size : int, timedelta or str
        Length of a window, in ms.
    offset : int, timedelta or str
        Distance of the first window from midnight, in ms; less than `size` either way.
    watermark : WatermarkStrategy, int, str or timedelta
        Required with an event-time column, unless Spark's ``withWatermark`` names it; "5 seconds" is
        ``WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")``.
    time_zone : str, optional
        Time zone whose wall clock cuts the windows, such as "Europe/Berlin". The bounds of the windows are
        then local times (timestamp_ntz), since an instant cannot be a bound where clocks change. By default
        windows follow UTC, and the bounds are timestamps. Times of the type timestamp_ntz are cut as they
        are.
    late : {"drop", "emit"}, default "drop"
        What becomes of late rows. With "emit" `timerheap.spark.late_rows` returns them. A row is late when
        its last window is over, or for sessions, when its session and all sessions that it touches are over.
        A row that is only behind its first windows counts in the others.
    emit_every : int, timedelta or str, optional
        Distance between early results, in ms of event time. An early result of each open window has ``early``
        true; the result at the end of the window has it false.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768, as in `timerheap.spark.process`. A checkpoint keeps it.

    Returns
    -------
    Windows
        To be grouped: ``.groupBy("key").agg(F.count("*").alias("rows"))``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts.

    Notes
    -----
    The semantics are those of Flink's window table functions.
    """
    make = partial(TumblingSliceAssigner, size, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism))


def hop(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    size: Length,
    slide: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
) -> Windows:
    """Cut a DataFrame into windows of one size that start every `slide`: SQL's ``HOP``.

    Spark's own ``window()`` copies each row into every window that contains it. Here a row is added to one
    slice, which the windows share.

    Parameters
    ----------
    df, time, offset, watermark, time_zone, late, emit_every, max_parallelism
        As in `tumble`.
    size : int, timedelta or str
        Length of a window, in ms: at least `slide`. It need not be a multiple, but windows cost least if it
        is: a slice is as long as the greatest common divisor of the two.
    slide : int, timedelta or str
        Distance between the starts of two windows, in ms. The order is that of Spark's ``window()``.

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """
    make = partial(HoppingSliceAssigner, size, slide, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism))


def cumulate(
    df: DataFrame,
    time: ColumnOrName | EventTime | None,
    max_size: Length,
    step: Length,
    *,
    offset: Length = 0,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
) -> Windows:
    """Cut a DataFrame into windows that start together and grow by a step: SQL's ``CUMULATE``.

    Parameters
    ----------
    df, time, offset, watermark, time_zone, late, emit_every, max_parallelism
        As in `tumble`.
    max_size : int, timedelta or str
        Length of the longest window, a multiple of `step`. After it the next windows start.
    step : int, timedelta or str
        Difference in length between a window and the next, in ms.

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """
    make = partial(CumulativeSliceAssigner, max_size, step, offset, event_time=time is not None)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism))


def session(
    df: DataFrame,
    time: ColumnOrName | EventTime,
    gap: Length,
    *,
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    time_zone: str | None = None,
    late: str = "drop",
    emit_every: Length | None = None,
    max_parallelism: int | None = None,
) -> Windows:
    """Collect rows of a key that follow each other within `gap` into one window: SQL's ``SESSION``.

    For sessions of processing time, custom triggers and functions over whole sessions, use
    `timerheap.spark.window_operator` with an assigner such as `EventTimeSessionWindows`.

    Parameters
    ----------
    df, watermark, time_zone, late, emit_every, max_parallelism
        As in `tumble`. With a `time_zone` its wall clock measures the gap: where it skips an hour, a shorter
        gap ends a session.
    time : str, Column or EventTime
        Event-time column, as in `tumble`.
    gap : int, timedelta or str
        Time from the last row of a session to its end, in ms.

    Raises
    ------
    TypeError, ValueError
        As in `tumble`.
    """
    if time is None:
        raise TypeError(
            "time must be the name of a column, got None; for processing time use window_operator()"
        )
    make = partial(SessionUnsliceAssigner, gap)
    return Windows(Source.cut(df, time, make, watermark, time_zone, late, emit_every, max_parallelism))
