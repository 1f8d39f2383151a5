"""`window_operator`: Flink's DataStream windows on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructField, StructType, TimestampType

from timerheap._arguments import not_negative
from timerheap._values import records
from timerheap.functions import KeyedProcessFunction, RuntimeContext
from timerheap.output_tag import OutputTag, is_tagged
from timerheap.row import Row
from timerheap.spark._arrow import map_type
from timerheap.spark._columns import LATE_ROWS, shown_name
from timerheap.spark._compat import nullable, to_arrow_schema
from timerheap.timer import MAX_WATERMARK
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

if TYPE_CHECKING:
    from timerheap.spark._plan.arguments import ColumnOrName, EventTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATE = OutputTag(LATE_ROWS, "null")  # the type is that of the query
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

    Returns
    -------
    pyspark.sql.DataFrame
        The results, for output mode append.

    Raises
    ------
    TypeError, ValueError
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
    # Here, since workers import this module for `_Windows`.
    from timerheap.spark._plan.arguments import (
        Columns,
        Input,
        late_rows,
        parsed_schema,
        query_of,
        sendable,
        ungrouped,
    )
    from timerheap.spark._plan.build import build, marked
    from timerheap.spark._plan.outputs import side_tags
    from timerheap.spark._process.function_runners import work_of

    rows, grouping = ungrouped("df", df, "key", key)
    if assigner is None or function is None:
        raise TypeError(
            "assigner and function must be passed, by name if df is grouped, got "
            f"{assigner!r} and {function!r}"
        )
    by = assigner if isinstance(assigner, WindowedBy) else WindowedBy(assigner)
    source = Input.checked(Columns("df", rows), grouping, event_time, watermark, order=order)
    fields = [source.df.schema[name] for name in source.key]
    labels = [
        StructField(shown_name(field.name), field.dataType, field.nullable, field.metadata)
        for field in fields
    ]
    result = parsed_schema(output_schema)
    function = as_window_function(function)
    accumulates = isinstance(function, AggregateFunction) and by.evictor is None
    options: dict[str, Any] = {
        "trigger": by.trigger,
        "evictor": by.evictor,
        "allowed_lateness": by.allowed_lateness,
        "accumulator_type": accumulator_type,
        "element_type": None if accumulates else _element_type(to_arrow_schema(nullable(source.rows))),
    }
    # This checks the user's arguments before they are wrapped.
    WindowOperator(by.assigner, function, window_function, **options)
    sendable(function, AggregateFunction, ReduceFunction, ProcessWindowFunction, WindowFunction)
    _times(by.assigner, source.event_time, processing_time)
    emits = late_rows(late) == "emit"
    if emits and not by.assigner.is_event_time():
        raise ValueError(f'late must be "drop" with {by.assigner!r}, for which no row is late, got {late!r}')
    by_event_time = order == "event_time"
    if by_event_time and not_negative("allowed_lateness", by.allowed_lateness):
        raise ValueError(
            f'allowed_lateness must be 0 with order="event_time", got {by.allowed_lateness!r}; no row behind '
            "the watermark reaches a window there: use a watermark with more delay"
        )
    sends_late = emits and not by_event_time  # with order="event_time" none reaches a window
    label = partial(_Labelled, keys=len(source.key), names=result.names)
    if isinstance(function, (AggregateFunction, ReduceFunction)):
        labelled: tuple[Any, ...] = function, label(window_function)
    else:
        labelled = (label(function),)
    hosted = _Windows(by.assigner, *labelled, late=_late if sends_late else None, **options)
    # Windows that touch are one session: the row that begins where a session ends comes before its timer.
    hosted._timers_wait = int(isinstance(by.assigner, MergingWindowAssigner))
    query = query_of(
        work_of(sendable(hosted, KeyedProcessFunction)),
        _result_type(labels, result),
        source,
        order=order,
        late=late if by_event_time else None,
        processing_time=processing_time,
        max_parallelism=max_parallelism,
        side_outputs=side_tags(side_outputs, function, window_function),
    )
    if sends_late:
        query = replace(query, late_row=source.rows)
    return build(query, marked(source))


def _times(assigner: WindowAssigner, time: str | None, processing_time: bool) -> None:
    if assigner.is_event_time():
        if time is None:
            raise ValueError(f"event_time must name the event-time column with {assigner!r}, got None")
    elif not processing_time and not isinstance(assigner, (GlobalWindows, CountWindowAssigner)):
        raise ValueError(f"processing_time must be True with {assigner!r}, got {processing_time!r}")


def _result_type(keys: list[StructField], result: StructType) -> StructType:
    whole = StructType([*keys, *_BOUNDS, *result])
    taken = sorted({name for name in whole.names if whole.names.count(name) > 1})
    if taken:
        raise ValueError(
            f"output_schema must not repeat the columns of the key and of the window, got {taken[0]!r}; "
            "leave it out, or rename it"
        )
    return whole


def _element_type(rows: pa.Schema) -> pa.DataType:
    return map_type(pa.struct(list(rows)), _local)


def _local(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column as rows have it, with moments in local time."""
    return pa.timestamp(type_.unit, LOCAL) if getattr(type_, "tz", None) else type_


class _Windows(WindowOperator, KeyedProcessFunction):
    """The window operator as a function that `process` runs."""

    _any_order = True


def _late(value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
    late_by = ctx.timer_service().current_watermark() + 1 - ctx.timestamp()
    return [(_LATE, (*value, min(late_by, MAX_WATERMARK)))]


class _Labelled(ProcessWindowFunction):
    """Adds the key and the window to the results of a window function."""

    def __init__(self, function: Any, keys: int, names: list[str]) -> None:
        self._function = function  # None if the elements themselves are the results
        self._keys = keys  # the number of columns
        self._names = names

    def open(self, runtime_context: RuntimeContext) -> None:
        if self._function is not None:
            self._function.open(runtime_context)

    def close(self) -> None:
        if self._function is not None:
            self._function.close()

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        if isinstance(self._function, ProcessWindowFunction):
            self._function.clear(context)

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Iterable[Any]:
        function, window = self._function, context.window()
        if isinstance(function, ProcessWindowFunction):
            results = records("process", function.process(key, context, elements))
        elif function is not None:
            results = records("apply", function.apply(key, window, elements))
        else:
            results = elements
        keys = (key,) if self._keys == 1 else key
        label = (*keys, _timestamp(window.start), _timestamp(window.end))
        for result in results:
            if is_tagged(result):
                yield result
                continue
            yield (*label, *self._row(result))

    def _row(self, result: Any) -> tuple[Any, ...]:
        names = self._names
        if isinstance(result, Row):
            result = result.as_dict() if result.has_field_names() else tuple(result)
        if isinstance(result, dict) and result.keys() <= set(names):
            return tuple(result.get(name) for name in names)
        if isinstance(result, tuple if len(names) == 1 else (tuple, list)) and len(result) == len(names):
            return tuple(result)
        if len(names) == 1 and not isinstance(result, (tuple, dict)):
            return (result,)
        raise ValueError(
            f"the window's function must return results that fit output_schema's columns {names}, got "
            f"{result!r}; return a tuple or Row with {len(names)} values, or a dict with these names"
        )


def _timestamp(millis: int | None) -> datetime | None:
    try:
        return None if millis is None else _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        raise ValueError(
            f"window_start and window_end must be between the years 1 and 9999, got {millis} ms"
        ) from None
