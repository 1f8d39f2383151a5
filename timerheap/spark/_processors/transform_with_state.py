"""`transform_with_state`: unmodified Spark processors on DataFrames, checked and planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from pyspark.cloudpickle import dumps, loads
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DataType, StructType

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._columns import FOLLOWED, distinct
from timerheap.spark._compat import on_connect, refuse_connect
from timerheap.spark._flows import in_flows
from timerheap.spark._functions.sendable import sendable
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._plan.assemble import key_groups
from timerheap.spark._plan.build import build_micro_batches, packed
from timerheap.spark._plan.computed_columns import DELAY, Columns, spark_delay
from timerheap.spark._plan.named_columns import ColumnOrName, data_frame, key_columns, types_in, ungrouped
from timerheap.spark._plan.operator_names import checked_name
from timerheap.spark._plan.schemas import arrow_schema, parsed_ddl, parsed_schema
from timerheap.spark._plan.starts import Start
from timerheap.spark._plan.upstream import effective_strategy
from timerheap.spark._processors.processor_partition import ProcessorWork, initial_query
from timerheap.spark._processors.processor_records import FrameSettings
from timerheap.spark._processors.processor_states import DeclaredState, ProcessorHandle, Scope
from timerheap.spark._query import Query, StateChanges, TimeMode
from timerheap.spark._settings import NO_LIMIT, RECORDS, batch_bytes, is_set
from timerheap.spark._state.initial_contents import start_of
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._worker.driver_mail import Mail
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.work import Rehearsal
from timerheap.watermarks import WatermarkStrategy

_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_SAFELY = "spark.sql.execution.pandas.convertToArrowArraySafely"
_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_TIME_MODES: dict[str, TimeMode] = {mode.lower(): mode for mode in get_args(TimeMode)}


def run_processor(
    style: Literal["rows", "frames"],
    df: object,
    key: object,
    processor: object,
    output_schema: object,
    output_mode: object,
    time_mode: object,
    initial_state: object,
    event_time_column_name: str,
    max_parallelism: int | None,
    name: str | None,
) -> DataFrame:
    """Return the result of a processor; see `timerheap.spark.transform_with_state`."""
    rows, grouping = ungrouped("df", df, "key", key)
    df = data_frame("df", rows)
    keys = _key_columns("df", df, "key", grouping)
    arrow_schema("df", df.schema)
    key_groups(max_parallelism)
    sent: StatefulProcessor = sendable(processor, StatefulProcessor, argument="processor", opener="init")
    mode = _TIME_MODES.get(time_mode.lower()) if isinstance(time_mode, str) else None
    if mode is None:
        raise ArgumentValueError(
            f'time_mode must be "None", "ProcessingTime" or "EventTime", got {time_mode!r}'
        )
    if not isinstance(output_mode, str):
        raise ArgumentTypeError(f'output_mode must be "Append" or "Update", got {output_mode!r}')
    start: Start | None
    initial: DataFrame | None = None
    initial_key: list[str] = []
    if isinstance(initial_state, InitialState):
        start = start_of(initial_state, df)
    else:
        initial, initial_key = _initial_rows(initial_state, df, keys)
        start = None if initial is None else _InitialRows(initial)
    handle = _rehearsed(sent, mode)
    event_time = _watermarked_column(df)
    watermarks: tuple[WatermarkStrategy, ...] = ()
    if mode == "EventTime" and event_time and df.isStreaming:
        delay = spark_delay(df, event_time[0]) or 0
        own = WatermarkStrategy.for_bounded_out_of_orderness(delay)
        strategy = effective_strategy("df", "withWatermark()", df, own)
        watermarks = () if strategy is own else (strategy,)
    query = Query(
        work=ProcessorWork(
            processor=sent,
            style=style,
            states=handle.declared,
            event_time=event_time,
            initial=None if initial is None else initial.schema,
            initial_key=tuple(initial_key),
            zone=str(df.sparkSession.conf.get("spark.sql.session.timeZone")),
            frames=_frame_settings(df.sparkSession),
            has_event_time=bool(event_time_column_name),
        ),
        key=keys,
        key_names=distinct(keys),
        rows=df.schema,
        result=parsed_schema(output_schema),
        event_time=None,
        watermarks=watermarks,
        channels=(FOLLOWED,) * len(watermarks),
        order="arrival",
        time_mode=mode,
        max_parallelism=max_parallelism,
        name=checked_name(name),
        announces=event_time != () and mode == "EventTime",
        state_changes=StateChanges(tuple(sorted(handle.deleted))),
    )
    return build_micro_batches(
        query, df, start=start, output_mode=output_mode, event_time_column=event_time_column_name
    )


@dataclass(frozen=True)
class _InitialRows:
    """Rows for ``handleInitialState``; see `timerheap.spark._plan.starts.Start`."""

    rows: DataFrame

    def group(self, query: Query) -> None:
        """Return None: the rows bring no states."""

    def partitions(
        self, query: Query, letters: Mail, rehearsal: Rehearsal, group: KeyGroup | None
    ) -> GroupedData:
        """Return the rows, packed."""
        return packed(initial_query(query), self.rows, letters)


def _frame_settings(spark: SparkSession) -> FrameSettings:
    """Return the settings of a session for DataFrames, which on Spark Connect may have any size."""
    rows = int(spark.conf.get(RECORDS) or 0)
    return FrameSettings(
        rows=rows if rows > 0 else NO_LIMIT,
        nbytes=NO_LIMIT if on_connect(spark) else batch_bytes(spark),
        ints_to_decimals=is_set(spark, _TO_DECIMAL),
        safe=is_set(spark, _SAFELY),
        by_name=is_set(spark, _BY_NAME),
    )


def _key_columns(source: str, df: DataFrame, argument: str, key: object) -> list[str]:
    """Return the names of the key columns, which a processor sees in its rows."""
    columns = Columns(source, df)
    names = columns.many(argument, key)
    if columns.df is not df:
        raise ArgumentValueError(
            f"{argument} must be columns of {source} for a processor, got the expression {key!r}; add "
            f"it with {source}.withColumn() first"
        )
    return key_columns(df, argument, names)


def _watermarked_column(df: DataFrame) -> tuple[str, ...]:
    """Return the path of the column that has Spark's watermark; of a window, it is the end that counts."""
    for field in df.schema:
        if DELAY in field.metadata:
            return (field.name, "end") if isinstance(field.dataType, StructType) else (field.name,)
    return ()


def _initial_rows(
    initial_state: object, df: DataFrame, keys: list[str]
) -> tuple[DataFrame | None, list[str]]:
    if initial_state is None:
        return None, []
    refuse_connect(df.sparkSession, "initial_state")
    if not isinstance(initial_state, GroupedData):
        raise ArgumentTypeError(
            "initial_state must be a grouped DataFrame, such as initial.groupBy('key'), or an InitialState, "
            f"got {type(initial_state).__name__}"
        )
    rows, key = ungrouped("initial_state", initial_state, "key", None)
    names = _key_columns("initial_state", rows, "initial_state", key)
    types = [rows.schema[name].dataType for name in names]
    wanted = [df.schema[name].dataType for name in keys]
    if types != wanted:
        raise ArgumentValueError(
            "initial_state must be grouped by columns of the types of key, "
            f"{[t.simpleString() for t in wanted]}, got {[t.simpleString() for t in types]}; cast them"
        )
    arrow_schema("initial_state", rows.schema)
    return rows, names


class _RecordingHandle(ProcessorHandle):
    """Records the states that ``init`` asks for, on the driver, which can parse their schemas."""

    def __init__(self, time_mode: TimeMode) -> None:
        super().__init__(time_mode, Scope(), self._parsed)
        self.declared: dict[str, DeclaredState] = {}

    def _parsed(
        self, name: str, shape: str, schemas: tuple[StructType | str, ...], ttl: int | None
    ) -> DeclaredState:
        parsed = tuple(_state_schema(name, schema) for schema in schemas)
        declared = self.declared[name] = DeclaredState(cast(Literal["value"], shape), parsed, ttl)
        return declared


def _state_schema(name: str, schema: object) -> StructType:
    parsed = parsed_ddl(f"the schema of state {name!r}", schema)
    if not isinstance(parsed, StructType):
        raise ArgumentTypeError(
            f"the schema of state {name!r} must be a StructType, or a DDL string such as 'n bigint', got "
            f"{schema!r}"
        )
    twice = [field for names in _field_names(parsed) for field in names if names.count(field) > 1]
    if twice:
        raise ArgumentValueError(
            f"the schema of state {name!r} must have unique field names, got {twice[0]!r} more than once; "
            "rename the field"
        )
    return parsed


def _field_names(type_: DataType) -> Iterator[list[str]]:
    if isinstance(type_, StructType):
        yield type_.names
    for each in types_in(type_):
        yield from _field_names(each)


def _rehearsed(processor: StatefulProcessor, time_mode: TimeMode) -> _RecordingHandle:
    """Call ``init`` and ``close`` of a copy, as Spark does on the driver; return what it has asked for."""
    handle = _RecordingHandle(time_mode)
    copy = cast(StatefulProcessor, loads(dumps(processor)))  # type: ignore[no-untyped-call]
    try:
        copy.init(handle)
        copy.close()
    except Exception as e:
        add_call(
            e,
            "in init() or close() on the driver, which calls both on a copy of the processor to learn its "
            "states, as Spark does",
        )
        raise
    return handle


@in_flows
def transform_with_state(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    processor: StatefulProcessor | None = None,
    output_schema: str | StructType | None = None,
    output_mode: str | None = None,
    time_mode: str | None = None,
    initial_state: GroupedData | InitialState | None = None,
    event_time_column_name: str = "",
    *,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Run a ``pyspark.sql.streaming.StatefulProcessor`` on ``Row`` objects, with state and timers in process.

    The processor runs unchanged, as in ``df.groupBy(key).transformWithState(...)``, with Spark's semantics:
    all rows of a micro-batch by key, then the timers that are due. Spark serves each call of the handle by a
    message to its JVM; here state and timers are in the Python worker, and what has changed is saved in the
    checkpoint once a micro-batch.

    Parameters
    ----------
    df : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        A streaming or batch DataFrame; ``df.groupBy("a", "b")`` names the key columns, too. In the time mode
        "EventTime", the column that its ``withWatermark`` names is the event time: rows that are not after
        the watermark of the micro-batch before are dropped.
    key : str, Column, or list of them
        Key columns, of atomic types; left out if `df` is grouped.
    processor : pyspark.sql.streaming.StatefulProcessor
        An instance, pickled to the workers by cloudpickle. ``init`` and ``close`` are called once on a copy
        on the driver, as Spark does.
    output_schema : str or pyspark.sql.types.StructType
        Schema of the result.
    output_mode : {"Append", "Update"}
        Output mode, for Spark's checks of the operators around this one.
    time_mode : {"None", "ProcessingTime", "EventTime"}
        The clock of timers; time to live needs "ProcessingTime".
    initial_state : pyspark.sql.GroupedData or InitialState, optional
        Rows for ``handleInitialState`` in the first micro-batch, grouped by columns of the types of `key`. Or
        states and timers that the processor continues with: `InitialState.from_spark` reads those of a
        checkpoint of Spark's own ``transformWithState``.
    event_time_column_name : str, optional
        Column of the result that is the event time of stateful operators that follow.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768, which a checkpoint keeps; see `process`.
    name : str, optional
        Name of the operator, by which its metrics are reported and its state is found when a changed query
        continues: see `continue_from`. By default "timerheap", and "timerheap_2" behind that.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    ArgumentError
        If an argument is wrong, before the query starts.
    PySparkRuntimeError
        Where Spark refuses a call of the handle or of a state, with Spark's error class and text.

    Notes
    -----
    A checkpoint of Spark's own ``transformWithState`` cannot be continued in place; pass its state as
    `initial_state`. Streams need the RocksDB state store.
    """
    given = df, key, processor, output_schema, output_mode, time_mode, initial_state
    return run_processor("rows", *given, event_time_column_name, max_parallelism, name)


@in_flows
def transform_with_state_in_pandas(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    processor: StatefulProcessor | None = None,
    output_schema: str | StructType | None = None,
    output_mode: str | None = None,
    time_mode: str | None = None,
    initial_state: GroupedData | InitialState | None = None,
    event_time_column_name: str = "",
    *,
    max_parallelism: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Run a ``pyspark.sql.streaming.StatefulProcessor`` on DataFrames, with state and timers in process.

    Like `transform_with_state`, which describes the parameters, for processors that receive and yield
    ``pandas.DataFrame``, as in ``df.groupBy(key).transformWithStateInPandas(...)``.

    Parameters
    ----------
    df, key, processor, output_schema, output_mode, time_mode
        See `transform_with_state`.
    initial_state, event_time_column_name, max_parallelism, name
        See `transform_with_state`.

    Returns
    -------
    pyspark.sql.DataFrame
    """
    given = df, key, processor, output_schema, output_mode, time_mode, initial_state
    return run_processor("frames", *given, event_time_column_name, max_parallelism, name)
