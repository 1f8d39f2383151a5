"""`window_operator`: Flink's DataStream windows on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructField, StructType, TimestampType

from timerheap._arguments import not_negative
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import KeyedProcessFunction
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import map_type
from timerheap.spark._columns import shown_name
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.spark._flows import in_flows
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._functions.side_tags import side_tags
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.event_time import EventTime, late_choice
from timerheap.spark._plan.inputs import Input
from timerheap.spark._plan.named_columns import ColumnOrName, ungrouped
from timerheap.spark._plan.schemas import parsed_schema
from timerheap.spark._windows.operator_runner import HostedWindows, Labelled, late_tagged
from timerheap.types import LOCAL
from timerheap.watermarks import WatermarkStrategy
from timerheap.windows import (
    AggregateFunction,
    Evictor,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessWindowFunction,
    ReduceFunction,
    Trigger,
    WindowAssigner,
    WindowFunction,
    WindowOperator,
)
from timerheap.windows.assigners import CountWindowAssigner
from timerheap.windows.window_functions import as_window_function

_BOUNDS = StructType([StructField(name, TimestampType()) for name in ("window_start", "window_end")])


@dataclass(frozen=True)
class WindowedBy:
    """A window assigner, with when windows fire, what is removed from them, and how long they are kept.

    Parameters
    ----------
    assigner : timerheap.windows.WindowAssigner
        Such as ``TumblingEventTimeWindows.of(60_000)`` or ``EventTimeSessionWindows.with_gap(60_000)``.
    trigger : timerheap.windows.Trigger, optional
        When a window fires; by default at its end. Each firing returns its own rows.
    evictor : timerheap.windows.Evictor, optional
        Removes rows from a window when it fires. The window then keeps all its rows, with any function.
    allowed_lateness : int, timedelta or str
        How long a window is kept after its end, in ms. Each late row in that time fires the window again.
    """

    assigner: WindowAssigner
    _: KW_ONLY
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness: int | timedelta | str = 0


@in_flows
def window_operator(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    assigner: WindowAssigner | WindowedBy | None = None,
    function: AggregateFunction
    | ReduceFunction
    | Callable[[Any, Any], Any]
    | ProcessWindowFunction
    | WindowFunction
    | None = None,
    output_schema: str | StructType | None = None,
    event_time: ColumnOrName | EventTime | None = None,
    *,
    window_function: ProcessWindowFunction | WindowFunction | None = None,
    accumulator_type: object = None,
    late: str = "drop",
    watermark: WatermarkStrategy | int | str | timedelta | None = None,
    order: str = "arrival",
    processing_time: bool = False,
    max_parallelism: int | None = None,
    side_outputs: Sequence[OutputTag] | None = None,
    name: str | None = None,
) -> DataFrame:
    """Assign the rows of each key to windows, on a streaming or batch DataFrame, and return the results.

    Each result is a row with the key columns, ``window_start`` and ``window_end`` (timestamps; the end is
    exclusive; null for the global window and count windows), and the columns of `output_schema`, which the
    function computes. The end of a batch DataFrame is a watermark that ends all event-time windows.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        ``df.groupBy("a", "b")`` names the key columns, too.
    key : str, Column, or list of them
        Key columns, of atomic types; left out if `df` is grouped. Null is a distinct value. An expression is
        a column of the result, but not of the elements.
    assigner : timerheap.windows.WindowAssigner or WindowedBy
        Such as ``TumblingEventTimeWindows.of(60_000)`` or ``EventTimeSessionWindows.with_gap(60_000)``. A
        `WindowedBy` has an assigner with a trigger, an evictor or an allowed lateness.
    function : AggregateFunction, ReduceFunction, ProcessWindowFunction or WindowFunction
        An instance. Elements are the rows of `df`, each a ``pyspark.sql.Row``. A result is a tuple or Row (by
        position) or a dict with the columns of `output_schema`, or a plain value if there is one column. An
        AggregateFunction keeps one accumulator per window, a ReduceFunction one row, the others all rows of
        the window. A plain function ``(value1, value2) -> value`` is a ReduceFunction.
    output_schema : str or pyspark.sql.types.StructType
        Schema of the function's results, without the key and the window.
    event_time : str, Column or EventTime, optional
        Column of the event time: a timestamp (truncated to ms) or a bigint of epoch ms. Event-time windows
        need it, a stream with ``withWatermark``, or a timestamp assigner in `watermark`.
    window_function : ProcessWindowFunction or WindowFunction, optional
        With an AggregateFunction or a ReduceFunction: receives its result as the only element and yields
        rows.
    accumulator_type
        Type of the accumulators; required with an AggregateFunction. A ``Types.*``, a DDL string, a Spark or
        a pyarrow type.
    late : {"drop", "emit"}, default "drop"
        What becomes of a row that is too late for all its windows. With "emit" `timerheap.spark.late_rows`
        returns it.
    order : {"arrival", "event_time"}
        "arrival", as in Flink: a row is added to its windows when it arrives, and is late if they have ended,
        plus the allowed lateness. A result at the end of a window has the same rows in either order.
        "event_time", for functions and triggers that depend on the order of rows: rows are added in the order
        of their event time, once the watermark has passed them. Then every row behind the watermark is late.
    watermark, processing_time, max_parallelism, side_outputs
        As in `timerheap.spark.process`. Processing-time windows require ``processing_time=True`` and a
        stream.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame
        The results, for output mode append.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid, before the query starts.

    Notes
    -----
    Semantics: Flink's ``WindowOperator`` (`timerheap.windows.WindowOperator`), run inside a
    KeyedProcessFunction by `timerheap.spark.process`. Python handles rows one at a time; the cost per row is
    proportional to the number of its windows. A micro-batch writes the accumulators that it has changed and
    the rows that it has added, and a firing reads all that its window keeps, so prefer an AggregateFunction
    for large windows. Timestamps in rows are naive and local, as everywhere in PySpark.

    Examples
    --------
    Return the sessions of each plane's flights as they end, and the rows that were too late::

        class Count(AggregateFunction):
            def create_accumulator(self): return 0
            def add(self, value, accumulator): return accumulator + 1
            def get_result(self, accumulator): return accumulator
            def merge(self, acc_a, acc_b): return acc_a + acc_b

        sessions = timerheap.spark.window_operator(
            flights, "plane", EventTimeSessionWindows.with_gap(Duration.of_hours(3)), Count(),
            "flights bigint", "at", accumulator_type=Types.LONG(), late="emit",
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(5_000))
    """
    rows, grouping = ungrouped("df", df, "key", key)
    if assigner is None or function is None:
        raise ArgumentTypeError(
            "assigner and function must be passed, by name if df is grouped, got "
            f"{assigner!r} and {function!r}"
        )
    by = assigner if isinstance(assigner, WindowedBy) else WindowedBy(assigner)
    source = Input.checked(Columns("df", rows), grouping, event_time, watermark, order=order)
    windows = checked_windows(
        source,
        by,
        function,
        parsed_schema(output_schema),
        window_function=window_function,
        accumulator_type=accumulator_type,
        late=late,
        order=order,
        processing_time=processing_time,
    )
    query = query_of(
        work_of(sendable(windows.hosted, KeyedProcessFunction)),
        windows.result,
        source,
        order=order,
        late=windows.late,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        side_outputs=side_tags(side_outputs, windows.function, window_function),
        name=name,
    )
    return build(replace(query, late_row=windows.late_row or query.late_row), marked(source))


@dataclass(frozen=True)
class CheckedWindows:
    """The windows of an input, checked.

    hosted: the function that tasks run
    function: the user's
    result: the type of the results
    late: what becomes of rows behind the watermark, before they reach a window
    late_row: the type of the rows that the windows themselves return as late, None if they return none
    """

    hosted: HostedWindows
    function: Any
    result: StructType
    late: str | None
    late_row: StructType | None


def checked_windows(
    source: Input,
    by: WindowedBy,
    function: Any,
    result: StructType,
    *,
    window_function: ProcessWindowFunction | WindowFunction | None,
    accumulator_type: object,
    late: str,
    order: str,
    processing_time: bool,
) -> CheckedWindows:
    """Check the user's windows of an input; `result` is the type of the function's results."""
    functions = WindowFunctions.checked(by, function, window_function, accumulator_type, source.rows)
    _expect_fitting_time(by.assigner, source.event_time, processing_time)
    emits = late_choice(late) == "emit"
    by_event_time = order == "event_time"
    _expect_lateness(by, late, emits, by_event_time)
    sends_late = emits and not by_event_time  # with order="event_time" none reaches a window
    return CheckedWindows(
        functions.hosted(len(source.key), result.names, late_tagged if sends_late else None),
        functions.function,
        _result_type(source, result),
        late if by_event_time else None,
        source.rows if sends_late else None,
    )


@dataclass(frozen=True)
class WindowFunctions:
    """The user's functions of windows, and how the windows keep their rows."""

    by: WindowedBy
    function: Any
    window_function: ProcessWindowFunction | WindowFunction | None
    options: dict[str, Any]  # of a `WindowOperator`

    @classmethod
    def checked(
        cls,
        by: WindowedBy,
        function: Any,
        window_function: ProcessWindowFunction | WindowFunction | None,
        accumulator_type: object,
        rows: StructType,
    ) -> WindowFunctions:
        """Check the user's arguments, before they are wrapped."""
        function = as_window_function(function)
        accumulates = isinstance(function, AggregateFunction) and by.evictor is None
        options: dict[str, Any] = {
            "trigger": by.trigger,
            "evictor": by.evictor,
            "allowed_lateness": by.allowed_lateness,
            "accumulator_type": accumulator_type,
            "element_type": None if accumulates else _element_type(to_arrow_schema(nullable(rows))),
        }
        WindowOperator(by.assigner, function, window_function, **options)
        sendable(function, AggregateFunction, ReduceFunction, ProcessWindowFunction, WindowFunction)
        return cls(by, function, window_function, options)

    def hosted(self, keys: int, names: list[str], late: Callable[..., Any] | None) -> HostedWindows:
        """Return the function that tasks run; its results have `keys` columns of the key, and the `names`.

        late: called with an element that is too late, and the context
        """
        label = partial(Labelled, keys=keys, names=names)
        if isinstance(self.function, (AggregateFunction, ReduceFunction)):
            labelled: tuple[Any, ...] = self.function, label(self.window_function)
        else:
            labelled = (label(self.function),)
        hosted = HostedWindows(self.by.assigner, *labelled, late=late, **self.options)
        # Windows that touch are one session: the row that begins where a session ends comes before its timer.
        hosted._timers_wait = int(isinstance(self.by.assigner, MergingWindowAssigner))
        return hosted


def _expect_lateness(by: WindowedBy, late: str, emits: bool, by_event_time: bool) -> None:
    """Raise if the windows have no late rows to emit, or wait for rows that do not reach them."""
    if emits and not by.assigner.is_event_time():
        raise ArgumentValueError(
            f'late must be "drop" with {by.assigner!r}, for which no row is late, got {late!r}'
        )
    if by_event_time and not_negative("allowed_lateness", by.allowed_lateness):
        raise ArgumentValueError(
            f'allowed_lateness must be 0 with order="event_time", got {by.allowed_lateness!r}; no row behind '
            "the watermark reaches a window there: use a watermark with more delay"
        )


def _expect_fitting_time(assigner: WindowAssigner, time: str | None, processing_time: bool) -> None:
    if assigner.is_event_time():
        if time is None:
            raise ArgumentValueError(
                f"event_time must name the event-time column with {assigner!r}, got None"
            )
    elif not processing_time and not isinstance(assigner, (GlobalWindows, CountWindowAssigner)):
        raise ArgumentValueError(f"processing_time must be True with {assigner!r}, got {processing_time!r}")


def _result_type(source: Input, result: StructType) -> StructType:
    keys = [source.df.schema[name] for name in source.key]
    labels = [StructField(shown_name(key.name), key.dataType, key.nullable, key.metadata) for key in keys]
    whole = StructType([*labels, *_BOUNDS, *result])
    taken = sorted({name for name in whole.names if whole.names.count(name) > 1})
    if taken:
        raise ArgumentValueError(
            f"output_schema must not repeat the columns of the key and of the window, got {taken[0]!r}; "
            "leave it out, or rename it"
        )
    return whole


def _element_type(rows: pa.Schema) -> pa.DataType:
    return map_type(pa.struct(list(rows)), _local)


def _local(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column as rows have it, with moments in local time."""
    return pa.timestamp(type_.unit, LOCAL) if getattr(type_, "tz", None) else type_
