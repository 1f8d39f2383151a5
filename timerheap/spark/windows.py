"""`tumble`, `hop` and `cumulate`: windows as SQL has them, on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampNTZType, TimestampType

from timerheap.spark.aggregates import Asked, UserAggregate, asked
from timerheap.spark.arguments import (
    arrow_schema,
    channel_column,
    data_frame,
    expect_event_time,
    key_columns,
    key_groups,
    named_column,
    quoted,
)
from timerheap.spark.carry import Carrier, marked
from timerheap.spark.pack import AHEAD, CHANNEL
from timerheap.spark.slices import WindowSpec
from timerheap.spark.window_runner import EARLY, WINDOW, WindowQuery
from timerheap.tvf import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.watermarks import WatermarkStrategy
from timerheap.watermarks.strategy import milliseconds

__all__ = ["GroupedWindows", "Windows", "cumulate", "hop", "tumble"]

_NO_KEY = "__timerheap_key0"


@dataclass(frozen=True)
class Options:
    """What all windows take beside their lengths; see `hop`."""

    watermark: WatermarkStrategy | None = None
    time_zone: str | None = None
    channel: str | None = None
    late_by: bool = False
    emit_every: int | timedelta | None = None
    max_parallelism: int = 128


def tumble(
    df: DataFrame,
    time: str | None,
    size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows of one size, side by side: SQL's ``TUMBLE``.

    Parameters
    ----------
    df, time
        As of `hop`.
    size : int or timedelta
        The windows' length, in ms.
    offset : int or timedelta
        By how much they are moved; less than `size` either way.
    watermark, time_zone, channel, late_by, emit_every, max_parallelism
        As of `hop`.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return TumblingSliceAssigner(size, offset, zone, event_time=time is not None)

    return Windows.of(df, time, make, options)


def hop(
    df: DataFrame,
    time: str | None,
    slide: int | timedelta,
    size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows of one size, one every `slide`: SQL's ``HOP``.

    Spark's own ``window()`` copies each row into every window that it is part of; here a row goes into one
    slice, which the windows share.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        A stream or a batch; a batch ends all its windows.
    time : str or None
        Column of the event time: a timestamp (cut to ms), or a bigint of epoch ms. None: windows of the
        micro-batch's processing time, on a stream.
    slide : int or timedelta
        The distance between windows, in ms.
    size : int or timedelta
        The windows' length, in ms: a multiple of `slide`.
    offset : int or timedelta
        By how much the windows are moved from midnight.
    watermark : WatermarkStrategy, optional
        Needed with `time`.
    time_zone : str, optional
        Whose wall clock the windows are cut on, by default the session's; for times without a zone it
        has no meaning.
    channel : str, optional
        As of `timerheap.spark.process`.
    late_by : bool
        True: a row whose last window is over comes out, with ``late_by``, by how many ms the watermark's
        delay would have had to be longer, and ``late_row``. False: it is dropped. A row of which only the
        first windows are over counts in those that are left.
    emit_every : int or timedelta, optional
        In event time: so often all windows that are open give what they have so far, with ``early`` true; at
        its end a window gives its result all the same, with ``early`` false.
    max_parallelism : int
        Number of key groups, 1 to 32768; a checkpoint fixes it.

    Returns
    -------
    Windows
        To go on with: ``.group_by("key").agg(F.count("*").alias("rows"))``.

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts.

    Notes
    -----
    The semantics are those of Flink's window table functions.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return HoppingSliceAssigner(size, slide, offset, zone, event_time=time is not None)

    return Windows.of(df, time, make, options)


def cumulate(
    df: DataFrame,
    time: str | None,
    step: int | timedelta,
    max_size: int | timedelta,
    *,
    offset: int | timedelta = 0,
    watermark: WatermarkStrategy | None = None,
    time_zone: str | None = None,
    channel: str | None = None,
    late_by: bool = False,
    emit_every: int | timedelta | None = None,
    max_parallelism: int = 128,
) -> Windows:
    """Cut a DataFrame into windows that begin together and grow by a step: SQL's ``CUMULATE``.

    Parameters
    ----------
    df, time
        As of `hop`.
    step : int or timedelta
        By how much a window is longer than the one before, in ms.
    max_size : int or timedelta
        The longest window's length, a multiple of `step`; then they begin anew.
    offset, watermark, time_zone, channel, late_by, emit_every, max_parallelism
        As of `hop`.
    """
    options = Options(watermark, time_zone, channel, late_by, emit_every, max_parallelism)

    def make(zone: str) -> SliceAssigner:
        return CumulativeSliceAssigner(max_size, step, offset, zone, event_time=time is not None)

    return Windows.of(df, time, make, options)


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    df: DataFrame
    time: str | None
    assigner: SliceAssigner
    strategy: WatermarkStrategy
    options: Options

    @classmethod
    def of(
        cls, df: DataFrame, time: str | None, make: Callable[[str], SliceAssigner], options: Options
    ) -> Windows:
        """Check what all windows take."""
        arrow_schema("df", data_frame("df", df).schema)
        strategy = expect_event_time(
            df, time, options.watermark, argument="time", channel=options.channel, late_by=options.late_by
        )
        if options.channel is not None:
            channel_column(df, "channel", options.channel)
        zone = options.time_zone or str(df.sparkSession.conf.get("spark.sql.session.timeZone"))
        if time is not None and not isinstance(named_column(df, "time", time), TimestampType):
            zone = "UTC"
        key_groups(options.max_parallelism)
        if options.emit_every is not None and milliseconds("emit_every", options.emit_every) < 1:
            raise ValueError(f"emit_every: {options.emit_every!r} must be 1 ms or more")
        return cls(df, time, make(zone), strategy, options)

    def group_by(self, *keys: str) -> GroupedWindows:
        """Group by columns of atomic types and the window; without columns by the window alone."""
        return GroupedWindows(self, key_columns(self.df, "keys", keys) if keys else [])


@dataclass(frozen=True)
class GroupedWindows:
    """A DataFrame cut into windows and grouped, to be aggregated."""

    windows: Windows
    keys: list[str] = field(default_factory=list)

    def agg(self, *aggregates: Column | UserAggregate) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or what `timerheap.spark.aggregate` gives
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start`` and ``window_end`` (exclusive), ``window_time`` (the window's last ms),
            and the aggregates; then ``early``, ``late_by`` and ``late_row``, where they were asked for.
        """
        if not aggregates:
            raise ValueError("agg: give at least one aggregate, such as F.count('*').alias('rows')")
        windows, options = self.windows, self.windows.options
        df, time = windows.df, windows.time
        computed = [asked(df, wanted, number) for number, wanted in enumerate(aggregates)]
        rows = marked(
            df,
            time,
            windows.strategy,
            options.channel,
            channels=options.channel is not None,
            guarded=windows.strategy.max_ahead is not None,
            in_order=False,
        )
        marks = [name for name in rows.columns if name in (CHANNEL, AHEAD)]
        keys = self.keys or [_NO_KEY]
        if not self.keys:
            rows = rows.withColumn(_NO_KEY, F.lit(0))
        rows = rows.withColumns({name: column for one in computed for name, column in one.inputs.items()})
        inputs = [name for one in computed for name in one.inputs]
        shown = df.columns if options.late_by else []
        used = list(dict.fromkeys([*keys, *([] if time is None else [time]), *shown, *inputs]))
        result = self._result(computed)
        carrier = Carrier(
            function=self._query(keys, computed, result),
            key=keys,
            columns=[
                *(("group_by", name) for name in self.keys),
                *([] if time is None else [("time", time)]),
            ],
            rows=StructType([rows.schema[name] for name in used]),
            result=result,
            event_time=time,
            watermarks=(windows.strategy,),
            in_order=False,
            late_by=options.late_by,
            processing_time=time is None or (df.isStreaming and windows.strategy.idle_timeout is not None),
            max_parallelism=options.max_parallelism,
            output_event_time=None,
            late_row=df.schema,
            shown=df.columns,
            windows=self._spec(computed),
        )
        return carrier(rows.select(*map(quoted, [*used, *marks])))

    def _result(self, computed: list[Asked]) -> StructType:
        windows = self.windows
        column = None if windows.time is None else windows.df.schema[windows.time].dataType
        bound = TimestampNTZType() if isinstance(column, TimestampNTZType) else TimestampType()
        fields = [windows.df.schema[name] for name in self.keys]
        fields += [StructField(name, bound, False) for name in WINDOW]
        fields += [one.field for one in computed]
        if windows.options.emit_every is not None:
            fields.append(StructField(EARLY, BooleanType(), False))
        return StructType(fields)

    def _query(self, keys: list[str], computed: list[Asked], result: StructType) -> WindowQuery:
        every = self.windows.options.emit_every
        arrow = to_arrow_schema(result, timezone="UTC")
        first = len(self.keys) + len(WINDOW)
        return WindowQuery(
            keys=[(name, name) for name in keys] if self.keys else [],
            inputs={name: one.aggregate.dtype for one in computed for name in one.inputs},
            results=[arrow.field(first + number) for number in range(len(computed))],
            emit_every=None if every is None else milliseconds("emit_every", every),
            wall_clock=isinstance(result[WINDOW[0]].dataType, TimestampNTZType),
            shown=self.windows.df.columns,
        )

    def _spec(self, computed: list[Asked]) -> WindowSpec:
        windows, assigner = self.windows, self.windows.assigner
        kinds = {"size": assigner.size, "slice": assigner.interval, "offset": assigner.offset}
        said = ", ".join(f"{name} {value} ms" for name, value in kinds.items())
        what = ", ".join(repr(one.aggregate) for one in computed)
        clock = "processing time" if windows.time is None else assigner.clock.time_zone
        types: dict[str, pa.DataType] = {
            name: one.object_type for one in computed for name in one.inputs if one.object_type is not None
        }
        name = f"{type(assigner).__name__} of {said}, {clock}: {what}"
        return WindowSpec(assigner, [one.aggregate for one in computed], types, name)
