"""Plans the windows of a DataFrame: which of two local stages makes slices, and what the operator does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampNTZType, TimestampType

from timerheap._arguments import milliseconds
from timerheap.spark._compat import to_arrow_schema, with_columns
from timerheap.spark._exchange.pack import AHEAD, CHANNEL, KEPT
from timerheap.spark._group.window_slices import SLICE_END, WindowSpec
from timerheap.spark._plan.aggregates import ResolvedAggregate
from timerheap.spark._plan.arguments import (
    bounded_delay,
    named_column,
    quoted,
)
from timerheap.spark._plan.build import build, has_spark_watermark, planned, time_mode
from timerheap.spark._plan.described_state import with_description
from timerheap.spark._plan.marks import Input, marked
from timerheap.spark._plan.window_source import Source
from timerheap.spark._query import TIME, Query, TimeMode, WindowWork, shown_name, visible
from timerheap.spark._worker.window_columns import EARLY, WINDOW_COLUMNS, columns_of_window
from timerheap.tvf import SliceAssigner

__all__ = ["WindowPlan"]

_NO_KEY = "__timerheap_key0"
_ROWS = "__timerheap_rows"


@dataclass(frozen=True)
class WindowPlan:
    """Aggregates of the windows of a source; its text explains how they are computed.

    Parameters
    ----------
    source : Source
    keys : list of str
        Columns that the windows are grouped by, perhaps none.
    computed : list of ResolvedAggregate
    """

    source: Source
    keys: list[str]
    computed: list[ResolvedAggregate]

    @cached_property
    def local(self) -> str:
        """Where rows become slices, "jvm" or "arrow"."""
        wanted, obstacles = self.source.options["local"], self._obstacles()
        if wanted == "jvm" and obstacles:
            raise ValueError(f'local must be "arrow" or left out, got "jvm": {"; ".join(obstacles)}')
        return wanted or ("arrow" if obstacles else "jvm")

    def _obstacles(self) -> list[str]:
        """Return why the local stage cannot be Spark's own aggregation."""
        source, options = self.source, self.source.options
        if source.time is None:
            return ["the windows are of processing time"]
        found = []
        if not isinstance(named_column(source.df, "time", source.time), TimestampType):
            found.append("the time has no time zone")
        if source.assigner.zone.name not in ("UTC", "Etc/UTC", "GMT", "Z"):
            found.append(f"the windows are cut in {source.assigner.zone.name}")
        found += [
            f"Spark computes no parts of {one.field.name}" for one in self.computed if one.parts is None
        ]
        chosen = {"emit_every": options["emit_every"], "channel": source.channel}
        found += ['late is "emit"'] if options["late"] == "emit" else []
        found += [f"{name} is set" for name, value in chosen.items() if value]
        if bounded_delay(source.strategy) is None:
            found.append("the watermark is not only a bounded delay")
        if has_spark_watermark(source.df):
            found.append("df has a withWatermark() already")
        return found

    def result(self) -> DataFrame:
        """Return the DataFrame."""
        if self._one_stage:
            return self._by_spark()
        return self._by_jvm() if self.local == "jvm" else self._by_arrow()

    def _by_arrow(self) -> DataFrame:
        """Make slices in the pack stage, or in the operator if it needs whole rows."""
        source, options, time = self.source, self.source.options, self.source.time
        rows = marked(Input(self._with_times(), time, source.strategy, source.channel))
        if source.where is not None:
            rows = rows.withColumn(KEPT, F.coalesce(source.where, F.lit(False)))
        marks = [name for name in rows.columns if name in (CHANNEL, AHEAD, KEPT)]
        rows = self._with_inputs(rows)
        late_columns = visible(source.df.columns) if options["late"] == "emit" else []
        used = [*self._keys, *([] if time is None else [time]), *late_columns, *self._inputs]
        used = list(dict.fromkeys(used))
        mode = time_mode(source.df, time is None, source.strategy)
        work = self._work("operator" if self._whole_rows else "arrow")
        return self._built(work, rows.select(*map(quoted, [*used, *marks])), used, time, mode)

    def _with_times(self) -> DataFrame:
        """Return the rows that meet the condition of the source, and those that have a time to observe."""
        source = self.source
        if source.where is None:
            return source.df
        timed = F.lit(True)
        for name in (source.time, source.channel):
            timed = timed if name is None else timed & quoted(name).isNotNull()
        return source.df.where(source.where | timed)

    @property
    def _one_stage(self) -> bool:
        """Whether Spark's aggregation makes whole windows, so that no operator has to merge slices."""
        assigner = self.source.assigner
        one_slice = not isinstance(assigner, SliceAssigner) or assigner.size == assigner.interval
        return self.local == "jvm" and one_slice

    @property
    def _whole_rows(self) -> bool:
        """Whether the operator needs the rows as they are."""
        source = self.source
        emits = source.options["late"] == "emit"
        return source.time is None or emits or not isinstance(source.assigner, SliceAssigner)

    def _by_spark(self) -> DataFrame:
        """Aggregate windows in Spark."""
        rows, by = self._sliced(self._with_key(self.source.df))
        grouped = rows.groupBy(*by).agg(*(one.column for one in self.computed if one.column is not None))
        results = grouped.columns[len(by) :]
        keys = [quoted(name).alias(shown_name(name)) for name in self.keys]
        return grouped.select(*keys, *columns_of_window(SLICE_END), *map(quoted, results))

    def _by_jvm(self) -> DataFrame:
        """Make slices in Spark, under its watermark, and merge them in the operator."""
        rows, by = self._sliced(self._with_inputs(self.source.df))
        parts = {name: column for one in self.computed for name, column in (one.parts or {}).items()}
        slices = (
            rows.groupBy(*by)
            .agg(F.count(F.lit(1)).alias(_ROWS), *(column.alias(name) for name, column in parts.items()))
            .withColumn(SLICE_END, F.col(f"{SLICE_END}.end"))
        )
        used = [*self._keys, SLICE_END, _ROWS, *parts]
        by_aggregate = [[_ROWS], *(list(one.parts) for one in self.computed if one.parts)]
        slices = slices.select(*map(quoted, used))
        return self._built(self._work("jvm", by_aggregate), slices, used, None, "EventTime")

    def _sliced(self, rows: DataFrame) -> tuple[DataFrame, list[Column]]:
        """Return the rows with Spark's watermark, and what to group them by: the keys and the slice."""
        by = [*map(quoted, self._keys), self._slice().alias(SLICE_END)]
        # Sessions would not be cut to ms, and the watermark must stand above the description.
        rows = rows.withColumn(TIME, F.date_trunc("millisecond", quoted(str(self.source.time))))
        if not rows.isStreaming:
            return rows, by
        description = self._spec().name
        delay = f"{bounded_delay(self.source.strategy)} milliseconds"
        return with_description(rows, description).withWatermark(TIME, delay), [*by, quoted(description)]

    def _slice(self) -> Column:
        """Return a slice as one of Spark's windows."""
        assigner = self.source.assigner
        length = f"{assigner.interval} milliseconds"
        if not isinstance(assigner, SliceAssigner):
            return F.session_window(TIME, length)
        return F.window(TIME, length, startTime=f"{assigner.offset % assigner.interval} milliseconds")

    def _with_key(self, rows: DataFrame) -> DataFrame:
        return rows if self.keys else rows.withColumn(_NO_KEY, F.lit(0))

    def _with_inputs(self, rows: DataFrame) -> DataFrame:
        inputs = {name: column for one in self.computed for name, column in one.inputs.items()}
        if KEPT in rows.columns:  # an expression may fail on rows that are dropped
            inputs = {name: F.when(quoted(KEPT), column) for name, column in inputs.items()}
        return with_columns(self._with_key(rows), inputs)

    @property
    def _keys(self) -> list[str]:
        return self.keys or [_NO_KEY]

    @property
    def _dtypes(self) -> dict[str, np.dtype[Any]]:
        return {name: one.aggregate.dtype for one in self.computed for name in one.inputs}

    @property
    def _inputs(self) -> list[str]:
        return [name for one in self.computed for name in one.inputs]

    def _built(
        self, work: WindowWork, rows: DataFrame, used: list[str], event_time: str | None, mode: TimeMode
    ) -> DataFrame:
        source, options = self.source, self.source.options
        late_columns = visible(source.df.columns)
        query = Query(
            work=work,
            key=self._keys,
            rows=StructType([rows.schema[name] for name in used]),
            result=self._result(),
            event_time=event_time,
            watermarks=(source.strategy,),
            channels=(source.channel,),
            order="arrival",
            time_mode=mode,
            max_parallelism=options["max_parallelism"],
            late=options["late"],
            late_row=StructType([source.df.schema[name] for name in late_columns])
            if options["late"] == "emit"
            else None,
            late_columns=tuple(late_columns),
            key_names=[shown_name(name) for name in self.keys],
        )
        return build(query, rows)

    def _result(self) -> StructType:
        source = self.source
        column = None if source.time is None else source.df.schema[source.time].dataType
        bound = TimestampNTZType() if isinstance(column, TimestampNTZType) else TimestampType()
        keys = [source.df.schema[name] for name in self.keys]
        fields = [StructField(shown_name(key.name), key.dataType, key.nullable, key.metadata) for key in keys]
        fields += [StructField(name, bound, False) for name in WINDOW_COLUMNS]
        fields += [one.field for one in self.computed]
        if source.options["emit_every"] is not None:
            fields.append(StructField(EARLY, BooleanType(), False))
        return StructType(fields)

    def _work(
        self, local: Literal["jvm", "arrow", "operator"], parts: list[list[str]] | None = None
    ) -> WindowWork:
        every, result = self.source.options["emit_every"], self._result()
        arrow = to_arrow_schema(result)
        first = len(self.keys) + len(WINDOW_COLUMNS)
        return WindowWork(
            spec=self._spec(),
            keys=self.keys,
            inputs=self._dtypes,
            local=local,
            parts=parts or [],
            results=[arrow.field(first + number) for number in range(len(self.computed))],
            emit_every=None if every is None else milliseconds("emit_every", every),
            wall_clock=isinstance(result[WINDOW_COLUMNS[0]].dataType, TimestampNTZType),
        )

    def _spec(self) -> WindowSpec:
        types: dict[str, pa.DataType] = {
            name: one.object_type
            for one in self.computed
            for name in one.inputs
            if one.object_type is not None
        }
        name = f"{self._windows()}: {', '.join(repr(one.aggregate) for one in self.computed)}"
        return WindowSpec(self.source.assigner, [one.aggregate for one in self.computed], types, name)

    def _windows(self) -> str:
        assigner = self.source.assigner
        kind = type(assigner).__name__.removesuffix("SliceAssigner").removesuffix("UnsliceAssigner")
        lengths = f"gap {assigner.interval} ms"
        if isinstance(assigner, SliceAssigner):
            lengths = f"size {assigner.size} ms, slice {assigner.interval} ms, offset {assigner.offset} ms"
        time = "processing time" if self.source.time is None else f"time zone {assigner.zone.name}"
        return f"{kind} windows, {lengths}, {time}"

    def __str__(self) -> str:
        source, options = self.source, self.source.options
        kind = "stream" if source.df.isStreaming else "batch"
        part = "slice" if isinstance(source.assigner, SliceAssigner) else "session"
        if self.local == "jvm":
            local = f"jvm: Spark's own aggregation makes {part}s of the rows"
            late = f"Spark's, per {part}: a row below Spark's watermark whose {part} is over is dropped; "
            late += "local='arrow' has Flink's, and sql() takes it on streams"
        else:
            why = "; ".join(self._obstacles()) or "local='arrow'"
            where = "before they are sent"
            if self._whole_rows:
                where = "in the operator, where whole rows are needed"
            local = f"arrow: rows become {part}s in the Python workers, {where} ({why})"
            over = "the last window of its slice" if part == "slice" else "its session, all it touches,"
            late = f"Flink's: a row is late when {over} has fired; "
            late += "it is part of the result" if options["late"] == "emit" else "it is dropped"
        groups = planned(source.df, options["max_parallelism"]).max_parallelism
        merged = (
            f"{groups} key groups of ({', '.join(map(shown_name, self.keys)) or 'no key'}), {part}s in "
            "Python workers, state in Spark's state store"
        )
        time = shown_name(source.time or "of the micro-batch")
        lines = {
            "windows": self._windows(),
            "source": f"{kind}, time {time}, watermark {source.strategy!r}",
            "local": local,
            "global": f"none: a window is one {part}" if self._one_stage else merged,
            "late": late,
            "sink": f"append: {', '.join(self._result().names)}",
        }
        return "\n".join(f"{name:8}{text}" for name, text in lines.items())
