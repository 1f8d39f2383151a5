"""What users say of a query: its columns, found, and its inputs, checked; each error names the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap._arguments import instance, not_negative
from timerheap._values import expect_shallow
from timerheap.spark._columns import HIDDEN, TIME, computed_name, distinct, shown_name
from timerheap.spark._compat import grouping_of, to_arrow_schema
from timerheap.spark._exchange.placement import MAX_KEY_GROUPS
from timerheap.spark._group.key_group import BROADCAST_STATE
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._query import Late, NullTime, Query, TimeColumn, TimeMode
from timerheap.spark._worker.row_runner import AssignedTimes
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy
from timerheap.watermarks.generators import NoWatermarks, changes

ColumnOrName = str | Column

DELAY = "spark.watermarkDelayMs"  # in the metadata of the column that withWatermark() has named

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called once for each partition, with its record batches."""


def data_frame(argument: str, df: object) -> DataFrame:
    if not isinstance(df, DataFrame):
        raise TypeError(f"{argument} must be a pyspark.sql.DataFrame, got {df!r}")
    return df


def key_groups(max_parallelism: object) -> int | None:
    """Return `max_parallelism`, checked to be a valid number of key groups, or None for the default."""
    if max_parallelism is None:
        return None
    if not isinstance(max_parallelism, int) or isinstance(max_parallelism, bool):
        raise TypeError(f"max_parallelism must be an int or None, got {max_parallelism!r}")
    if not 1 <= max_parallelism <= MAX_KEY_GROUPS:
        raise ValueError(f"max_parallelism must be between 1 and {MAX_KEY_GROUPS}, got {max_parallelism}")
    return max_parallelism


def named_column(df: DataFrame, argument: str, name: object) -> T.DataType:
    """Return the type of a column whose name is unique in `df`."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} must be a column name, got {name!r}; pass a str or a Column")
    count = df.columns.count(name)
    if count != 1:
        raise ValueError(
            f"{argument} must name one column, got {name!r}, which names {count or 'none'}; "
            f"the columns are {df.columns}"
        )
    return df.schema[name].dataType


def quoted(name: str) -> Column:
    """Return the column with exactly this name; dots and backticks are part of the name."""
    return F.col(backticks(name))


def backticks(name: str) -> str:
    """Return a name as Spark reads it where dots would separate its parts."""
    return "`" + name.replace("`", "``") + "`"


def key_columns(df: DataFrame, argument: str, key: object) -> list[str]:
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else None
    if not names:
        raise TypeError(f"{argument} must be a column name or a list of column names, got {key!r}")
    for name in names:
        _atomic(argument, name, named_column(df, argument, name))
    return names


def is_atomic(type_: T.DataType) -> bool:
    """Return whether values of a type can be compared: it is not nested, and not variant."""
    return isinstance(type_, T.AtomicType) and not isinstance(type_, T.VariantType)


def _atomic(argument: str, name: str, type_: T.DataType) -> None:
    shown = shown_name(name)
    if not is_atomic(type_):
        raise ValueError(
            f"{argument} must be of an atomic type, got column {shown!r} of type {type_.simpleString()}; "
            "select its fields as separate columns and pass their names"
        )
    collation = collation_of(type_)
    if collation is not None:
        raise ValueError(
            f"{argument} must have the collation UTF8_BINARY, got column {shown!r} with {collation}; values "
            "are compared by their bytes: normalize them first, for example with "
            f"F.collate(F.lower({shown!r}), 'UTF8_BINARY')"
        )


def collation_of(type_: T.DataType) -> str | None:
    """Return the first collation in a type that is not UTF8_BINARY; None if all strings compare by bytes."""
    if isinstance(type_, T.StringType):
        return None if type_.isUTF8BinaryCollation() else type_.collation
    return next((found for found in map(collation_of, types_in(type_)) if found is not None), None)


def types_in(type_: T.DataType) -> list[T.DataType]:
    """Return the types directly inside a type, none if it is not nested."""
    if isinstance(type_, T.StructType):
        return [field.dataType for field in type_]
    if isinstance(type_, T.ArrayType):
        return [type_.elementType]
    return [type_.keyType, type_.valueType] if isinstance(type_, T.MapType) else []


def expect_event_time(
    df: DataFrame,
    event_time: object,
    watermark: object,
    prefix: str = "",
    argument: str = "event_time",
    **needing: object,
) -> WatermarkStrategy:
    """Return the watermark strategy, checked together with the event-time column.

    event_time, watermark: the user's arguments
    prefix, argument: errors call the arguments `prefix` + `argument` and `prefix` + ``watermark``
    **needing: other arguments that are only valid with an event-time column, by name
    """
    named = prefix + argument
    if event_time is None:
        for other, value in {prefix + "watermark": watermark, **needing}.items():
            if value not in (None, False):
                raise ValueError(
                    f"{named} must name the event-time column if {other} is given, got None; "
                    f"pass {named}, or leave {other} out"
                )
        return WatermarkStrategy.no_watermarks()
    type_ = named_column(df, named, event_time)
    if not isinstance(type_, (T.TimestampType, T.TimestampNTZType, T.LongType)):
        raise ValueError(
            f"{named} must be a timestamp or a bigint of epoch milliseconds, got column "
            f"{shown_name(str(event_time))!r} of type {type_.simpleString()}; cast it: "
            "epoch seconds are F.timestamp_seconds(column)"
        )
    if not isinstance(watermark, WatermarkStrategy):
        raise TypeError(
            f"{prefix}watermark must be a WatermarkStrategy, got {watermark!r}; "
            "pass one such as WatermarkStrategy.for_bounded_out_of_orderness(5_000), or its delay, such as "
            "'5 seconds' or 5_000 ms"
        )
    if watermark.timestamp_assigner is not None and event_time != TIME:
        raise ValueError(
            f"{prefix}watermark must have no timestamp assigner, got {watermark!r}, where {named} names the "
            f"column {event_time!r} for the timestamps; leave out one of them"
        )
    if watermark._delay is None:
        generator, new = (watermark.create_watermark_generator() for _ in range(2))
        if generator is new:
            raise ValueError(
                f"{prefix}watermark must make a new generator for each channel, got {watermark!r}, which "
                "returns the same one twice; make it in the function that for_generator() takes"
            )
        changes(generator, new)  # raises TypeError for what cannot be kept in the checkpoint
    return watermark


def row_order(
    order: object, df: DataFrame, event_time: str | None, *strategies: WatermarkStrategy
) -> RowOrder:
    """Return the order in which rows reach the function; None is by event time where rows have one."""
    if order not in (None, "event_time", "arrival"):
        raise ValueError(f'order must be "event_time" or "arrival", got {order!r}')
    if order == "arrival" or (order is None and event_time is None):
        return "arrival"
    if event_time is None:
        raise ValueError(
            'order must be "arrival" without event_time, got "event_time"; name the event-time column, or '
            "leave order out"
        )
    for strategy in strategies:
        silent = isinstance(strategy.create_watermark_generator(), NoWatermarks)
        if df.isStreaming and silent and strategy.idle_timeout is None and strategy.wall_clock is None:
            raise ValueError(
                'order must be "arrival" on a stream with WatermarkStrategy.no_watermarks(), got '
                '"event_time": rows would wait forever; pass order="arrival", or a strategy that makes '
                "watermarks"
            )
    return "event_time"


def tie_columns(df: DataFrame, argument: str, names: object, order: RowOrder) -> tuple[str, ...]:
    """Return the names of the columns that order rows of one key and time."""
    if names is None:
        return ()
    if order == "arrival":
        raise ValueError(
            f'{argument} must be left out with order="arrival", where rows come in their own order, got '
            f"{names!r}"
        )
    return tuple(key_columns(df, argument, names))


def late_rows(late: object, order: RowOrder = "event_time") -> Late:
    """Return what becomes of late rows; None is Flink's way: in order of arrival the function gets them."""
    if late is None:
        return "process" if order == "arrival" else "drop"
    if late == "drop" or late == "emit":
        return "emit" if late == "emit" else "drop"
    raise ValueError(f'late must be "drop" or "emit", got {late!r}')


def null_times(argument: str, null: object) -> NullTime:
    """Return what becomes of rows whose event time is null."""
    if null == "error" or null == "drop":
        return "drop" if null == "drop" else "error"
    raise ValueError(f'{argument} must be "error" or "drop", got {null!r}')


def time_mode(df: DataFrame, processing_time: bool, *strategies: WatermarkStrategy) -> TimeMode:
    """Return the time mode of a query that makes its own watermarks; some strategies need a clock."""
    if processing_time and not df.isStreaming:
        raise ValueError(
            "processing_time must be False for a batch DataFrame, got True; a batch has no processing time"
        )
    timed = any((strategy.idle_timeout, strategy.wall_clock) != (None, None) for strategy in strategies)
    return "ProcessingTime" if processing_time or (df.isStreaming and timed) else "None"


def sendable(function: object, *classes: type, argument: str = "function", opener: str = "open") -> Any:
    """Return `function`, checked to be an instance of one of `classes` that can be sent to the workers.

    Errors call it by the name of its `argument`, and its first method `opener`.
    """
    instance(argument, function, *classes)
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as e:
        bad = [name for name, value in vars(function).items() if not _serialises(value)]
        where = f" (its attribute {bad[0]!r})" if bad else ""
        raise TypeError(
            f"{argument} must be serialisable, to be sent to the workers, got a {type(function).__name__} "
            f"that is not{where}: {e}; create connections, locks and clients in {opener}()"
        ) from e
    return function


def _serialises(value: object) -> bool:
    try:
        dumps(value)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def changed_states(state_changes: object) -> dict[str, Any]:
    """Return the argument as fields of a `Query`, with the names of broadcast states, too."""
    changes = {} if state_changes is None else state_changes
    if not isinstance(changes, Mapping) or not all(
        isinstance(old, str) and isinstance(new, str | None) for old, new in changes.items()
    ):
        raise TypeError(
            f"state_changes must be a dict of names of states, got {state_changes!r}; write "
            "state_changes={'old': 'new', 'gone': None}"
        )
    renamed = {old: new for old, new in changes.items() if new is not None}
    names = [*changes, *renamed.values()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"state_changes must name each state once, got {twice[0]!r} more than once in {dict(changes)}"
        )
    dropped = tuple(old for old, new in changes.items() if new is None)
    every = {f"{kind}{old}": f"{kind}{new}" for kind in ("", BROADCAST_STATE) for old, new in renamed.items()}
    return {"drop_state": dropped, "rename_state": every}


def parsed_schema(output_schema: object) -> T.StructType:
    """Return the result's type, parsed if it is a DDL string, and checked."""
    type_ = parsed_ddl("output_schema", output_schema)
    arrow_schema("output_schema", type_)
    return cast(T.StructType, type_)


def parsed_ddl(argument: str, schema: object) -> object:
    """Return the type of a DDL string, and everything else as it is."""
    try:
        return T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as e:
        raise ValueError(
            f"{argument} must be a DDL string such as 'plane string, at bigint', got {schema!r}: {e}"
        ) from None


def arrow_schema(argument: str, type_: object) -> pa.Schema:
    """Return the Arrow schema of a StructType with unique column names."""
    if not isinstance(type_, T.StructType):
        raise TypeError(
            f"{argument} must be a DDL string such as 'plane string, at bigint', or a StructType, got "
            f"{type_!r}"
        )
    taken = [n for n in type_.names if n.startswith(HIDDEN) or type_.names.count(n) > 1]
    if taken:
        raise ValueError(
            f"{argument} must have unique column names that do not begin with {HIDDEN!r}, got "
            f"{min(taken)!r}; rename the column"
        )
    try:
        schema = to_arrow_schema(type_)
    except Exception as e:
        raise ValueError(
            f"{argument} must have column types that Arrow supports, got {type_.simpleString()}: {e}"
        ) from e
    for field in schema:
        expect_shallow(field.type, f"{argument}: column {field.name!r}")
    return schema


class Columns:
    """The columns of a DataFrame that arguments name.

    An argument that is an expression becomes a computed column, at the end of the rows, which functions do
    not see; see `timerheap.spark._columns`.

    argument: what the user calls the DataFrame
    df: with the computed columns so far
    """

    def __init__(self, argument: str, df: object) -> None:
        self.argument = argument
        self.df = self._source = data_frame(argument, df)

    def one(self, argument: str, column: Any) -> Any:
        """Return the name of a column if `column` is a Column, else `column` itself."""
        # A text that is no name of a column is read as in F.col, if it has parts or backticks. Raises
        # ValueError if Spark cannot compute the column from a row of the DataFrame.
        if isinstance(column, str) and column not in self._source.columns and set(column) & {".", "`"}:
            column = F.col(column)
        if not isinstance(column, Column):
            return column
        try:
            selected = self._source.select(column)
            if len(selected.columns) != 1:
                raise ValueError(f"it stands for {len(selected.columns)} columns")
            name = selected.columns[0]
            for known in self._source.columns:
                if known.lower() == name.lower() and selected.sameSemantics(
                    self._source.select(quoted(known))
                ):
                    return known
            added = computed_name(len(self.df.columns), name)
            df = self.df.select("*", column.alias(added))
            named_column(df, argument, added)  # fails here if Spark cannot compute it row by row
        except (AnalysisException, ValueError) as e:
            raise ValueError(
                f"{argument} must be a column that each row of {self.argument} has, got {column!r}: {e}"
            ) from None
        self.df = df
        return added

    def many(self, argument: str, columns: Any) -> Any:
        """Return the names of one or more columns, as `one` does for each."""
        if isinstance(columns, (str, Column)):
            return [self.one(argument, columns)]
        if isinstance(columns, Sequence):
            return [self.one(argument, column) for column in columns]
        return columns

    def timed(
        self, prefix: str, argument: str, event_time: Any, watermark: Any, *, by_default: bool = True
    ) -> tuple[Any, Any]:
        """Return the event-time column, whose name is None if there is none, and the watermark strategy.

        `by_default`, they are what ``withWatermark`` sets. A timestamp assigner adds its column to `df`, so
        that no other column can be computed afterwards. Errors call the arguments `prefix` + `argument` and
        `prefix` + ``watermark``.
        """
        if by_default and event_time is None and assigns_time(watermark):
            self.df = self.with_assigned_time(watermark.timestamp_assigner)
            return TIME, watermark
        if by_default or event_time is not None:
            event_time = self.event_time(prefix + argument, event_time)
        return event_time, self.watermark(prefix + "watermark", watermark, event_time)

    def with_assigned_time(self, assigner: TimestampAssigner) -> DataFrame:
        """Return the rows with the event time that an assigner computes, in the column `TIME`."""
        fields = [T.StructField(field.name, field.dataType) for field in self.df.schema]
        timed = T.StructType([*fields, T.StructField(TIME, T.LongType())])
        return map_batches(self.df, AssignedTimes(assigner, self.df.schema), timed)

    def event_time(self, argument: str, column: Any) -> Any:
        """Return the name of the event-time column, by default of the one that ``withWatermark`` names."""
        # Spark forgets withWatermark on a batch DataFrame.
        if column is not None:
            return self.one(argument, column)
        marked = [
            field.name
            for field in self._source.schema
            if DELAY in field.metadata and isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType))
        ]
        if len(marked) > 1:
            raise ValueError(
                f"{argument} must name the event-time column, got None, and {self.argument} has a "
                f"withWatermark() on {marked}; pass one of them"
            )
        return marked[0] if marked else None

    def watermark(self, argument: str, watermark: Any, event_time: Any) -> Any:
        """Return the strategy of a delay, by default of the delay in ``withWatermark`` on this column."""
        if watermark is None and event_time in self.df.columns:
            delay = spark_delay(self.df, event_time)
            return None if delay is None else WatermarkStrategy.for_bounded_out_of_orderness(delay)
        return strategy_of(argument, watermark)


def strategy_of(argument: str, watermark: Any) -> Any:
    """Return the strategy of a delay; other values as they are."""
    if isinstance(watermark, (str, timedelta)) or (
        type(watermark) is not bool and hasattr(watermark, "__index__")
    ):
        return WatermarkStrategy.for_bounded_out_of_orderness(not_negative(argument, watermark))
    return watermark


def spark_delay(df: DataFrame, name: str) -> int | None:
    """Return the delay in ms that ``withWatermark`` has set for a column of a stream, None if it has not."""
    return df.schema[name].metadata.get(DELAY)


def ungrouped(argument: str, df: Any, key_argument: str, key: Any) -> tuple[Any, Any]:
    """Return the DataFrame and the key columns of ``df.groupBy(...)``; other arguments as they are."""
    grouping = grouping_of(df)
    if grouping is None:
        return df, key
    rows, kind, columns = grouping
    if kind != "groupby":
        raise ValueError(f"{argument} must be grouped by groupBy(), got a {kind}() of it")
    if key is not None:
        raise TypeError(
            f"{key_argument} must be left out if {argument} is grouped, which names the key columns, got "
            f"{key!r}; pass the other arguments by name"
        )
    if not columns:
        raise ValueError(f"{argument} must be grouped by one or more columns, got {argument}.groupBy()")
    return rows, columns


def assigns_time(watermark: object) -> bool:
    return isinstance(watermark, WatermarkStrategy) and watermark.timestamp_assigner is not None


def map_batches(df: DataFrame, stage: Stage, result: T.StructType | str) -> DataFrame:
    """Return what a stage makes of the rows of `df`, whose columns may have any names."""
    # mapInArrow takes no dots in the names of its input, so Spark passes numbered columns.
    names = df.columns
    numbered = df.toDF(*(f"c{i}" for i in range(len(names))))
    return numbered.mapInArrow(
        lambda batches: stage(batch.rename_columns(names) for batch in batches), result
    )


@dataclass(frozen=True)
class EventTime:
    """The event time of an input, with what depends on it.

    Where an argument takes this, a column alone is the same as ``EventTime(column)``.

    Parameters
    ----------
    column : str or Column, optional
        A timestamp (cut to ms), or a bigint of epoch ms. By default, the column of a stream that Spark's
        ``withWatermark`` names.
    channel : str or Column, optional
        Column of an atomic type without nulls whose values have a watermark each: Kafka's partition, a
        device, an airport. Event time is the lowest of them (Flink's StatusWatermarkValve), so a channel that
        lags behind the others loses no row. A new value counts from its first row on that is not behind the
        watermark. Meant for up to some 10,000 values, since every task keeps all of them.
    tie_break : str, Column, or list of them, optional
        Columns or expressions that order the rows of one key and timestamp, such as a sequence number or
        Kafka's ``["partition", "offset"]``; null comes last. By default, and where they are equal, rows are
        in the order of all of their columns, from the first to the last: "cancelled" before "created". Only
        with ``order="event_time"``.
    null : {"error", "drop"}, default "error"
        What becomes of rows whose event time is null. "drop": they are dropped, and the metric
        ``null_time_rows`` counts them.

    Examples
    --------
    ::

        timerheap.spark.process(
            readings, "sensor", Silent(), "sensor string, at timestamp",
            event_time=EventTime("at", channel="partition", null="drop"), watermark="5 seconds")
    """

    column: ColumnOrName | None = None
    _: KW_ONLY
    channel: ColumnOrName | None = None
    tie_break: ColumnOrName | Sequence[ColumnOrName] | None = None
    null: str = "error"

    @classmethod
    def of(cls, given: Any) -> EventTime:
        """Return what an argument says."""
        return given if isinstance(given, EventTime) else cls(given)


@dataclass(frozen=True)
class RightInput:
    """The right of two inputs, where it differs from the left in more than its rows.

    Parameters
    ----------
    rows : pyspark.sql.DataFrame or pyspark.sql.GroupedData
        For a `timerheap.testing.ProcessTester`, the schema of the rows.
    key : str, Column, or list of them, optional
        Its key columns, of the types of those of the left; by default they have the same names.
    event_time : str, Column or EventTime, optional
        By default that of the left, without its channel.
    watermark : WatermarkStrategy, int, str or timedelta, optional
        By default that of the left.
    """

    rows: Any
    _: KW_ONLY
    key: ColumnOrName | Sequence[ColumnOrName] | None = None
    event_time: ColumnOrName | EventTime | None = None
    watermark: WatermarkStrategy | int | str | timedelta | None = None


@dataclass(frozen=True)
class Input:
    """An input of a query, whose arguments have been checked.

    df: the rows, with the columns that arguments have computed
    rows: the type of the user's rows
    key: empty for rows that are grouped later
    event_time: the event-time column
    channel: the column whose values have a watermark each
    ties: the columns that order rows of one key and time
    name, prefix: errors call the input `name`, and its arguments `prefix` + their names
    """

    df: DataFrame
    rows: T.StructType
    key: list[str]
    event_time: str | None
    strategy: WatermarkStrategy
    channel: str | None
    ties: tuple[str, ...]
    null_time: NullTime
    name: str = "df"
    prefix: str = ""

    @classmethod
    def checked(
        cls,
        columns: Columns,
        key: Any,
        event_time: Any,
        watermark: Any,
        *,
        order: object = None,
        late: object = None,
        prefix: str = "",
        keyed: bool = True,
        time_argument: str = "event_time",
    ) -> Input:
        """Check the arguments of an input, whose columns these are.

        order, late: arguments that need an event time, or depend on it
        keyed: whether the rows have a key; others are grouped later, and have no event time by default
        time_argument: what the event time is called, without the prefix
        """
        given, rows = EventTime.of(event_time), columns.df.schema
        arrow_schema(columns.argument, rows)
        keys = columns.many(prefix + "key", key)
        channel = columns.one(prefix + "channel", given.channel)
        ties = columns.many(prefix + "tie_break", given.tie_break)
        time, delay = columns.timed(prefix, time_argument, given.column, watermark, by_default=keyed)
        df = columns.df
        if keyed:
            keys = key_columns(df, prefix + "key", keys)
        nulls = null_times(prefix + "null", given.null)
        needing = {"late": late, prefix + "channel": channel, prefix + "null": nulls == "drop" and nulls}
        strategy = expect_event_time(df, time, delay, prefix, time_argument, **needing)
        if channel is not None:
            _atomic(prefix + "channel", str(channel), named_column(df, prefix + "channel", channel))
        ties = tie_columns(df, prefix + "tie_break", ties, row_order(order, df, time))
        return cls(df, rows, keys or [], time, strategy, channel, ties, nulls, columns.argument, prefix)

    def time_column(self) -> TimeColumn:
        """Return what the event time is to the user."""
        return TimeColumn(f"{self.prefix}event_time", str(self.event_time), self.name)

    def expect_to_match(self, other: Input) -> None:
        """Raise an error unless both inputs are of one kind, with keys and event times of the same types."""
        if (self.event_time is None) != (other.event_time is None):
            timed, untimed = (self, other) if other.event_time is None else (other, self)
            raise ValueError(
                f"{untimed.prefix}event_time must name the event-time column, since {timed.name} has one in "
                f"{timed.event_time!r}, got None; pass it, with {untimed.prefix}watermark"
            )
        if self.df.isStreaming != other.df.isStreaming:
            kinds = ["a stream" if side.df.isStreaming else "a batch" for side in (self, other)]
            raise ValueError(f"{other.name} must be {kinds[0]} like {self.name}, got {kinds[1]}")
        if self.null_time != other.null_time:
            raise ValueError(
                f"{other.prefix}null must be {self.null_time!r}, as of {self.name}, got {other.null_time!r}"
            )
        pairs = []
        for argument, own, others in (("key", self.key, other.key), ("tie_break", self.ties, other.ties)):
            if len(own) != len(others):
                raise ValueError(
                    f"{other.prefix}{argument} must have as many columns as {argument}, which is "
                    f"{[*map(shown_name, own)]}, got {[*map(shown_name, others)]}"
                )
            pairs += [(argument, *names) for names in zip(own, others, strict=True)]
        if self.event_time is not None and other.event_time is not None:
            pairs.append(("event_time", self.event_time, other.event_time))
        for argument, mine, theirs in pairs:
            types = self.df.schema[mine].dataType, other.df.schema[theirs].dataType
            if types[0] != types[1]:
                raise ValueError(
                    f"{other.prefix}{argument} must be of type {types[0].simpleString()} like column "
                    f"{shown_name(mine)!r} of {self.name}, got {shown_name(theirs)!r} of type "
                    f"{types[1].simpleString()}; cast one of them"
                )


def two_inputs(
    left: Any,
    right: Any,
    key: Any,
    event_time: Any,
    watermark: Any,
    *,
    order: object = None,
    late: object = None,
) -> tuple[Input, Input]:
    """Return two inputs, checked; what a `RightInput` leaves out is that of the left."""
    other = right if isinstance(right, RightInput) else RightInput(right)
    left_rows, left_by = ungrouped("left", left, "key", key)
    right_rows, right_by = ungrouped("right", other.rows, "right.key", other.key)
    time = other.event_time
    if time is None and not assigns_time(other.watermark):
        time = replace(EventTime.of(event_time), channel=None)
    one = Input.checked(Columns("left", left_rows), left_by, event_time, watermark, order=order, late=late)
    two = Input.checked(
        Columns("right", right_rows),
        left_by if right_by is None else right_by,
        time,
        watermark if other.watermark is None else other.watermark,
        order=order,
        late=late,
        prefix="right.",
    )
    return one, two


def query_of(
    work: Any,
    result: T.StructType,
    *inputs: Input,
    order: object = None,
    late: object = None,
    processing_time: bool = False,
    max_parallelism: object = None,
    **fields: Any,
) -> Query:
    """Return the query of some inputs, given what users say of it.

    **fields: other fields of the `Query`, or in place of those of the first input
    """
    first, strategies = inputs[0], tuple(one.strategy for one in inputs)
    rows_order = row_order(order, first.df, first.event_time, *strategies)
    of_first: dict[str, Any] = {
        "key": first.key,
        "rows": first.df.schema,
        "event_time": first.event_time,
        "ties": first.ties,
        "late_row": first.rows,
        "late_columns": tuple(first.rows.names),
        "key_names": first.key,
    }
    known = {**of_first, **fields}
    known["key_names"] = distinct(map(shown_name, known["key_names"]))
    if late != "emit":
        known["late_row"] = None
    return Query(
        work=work,
        result=result,
        null_time=first.null_time,
        watermarks=strategies,
        channels=tuple(one.channel for one in inputs),
        order=rows_order,
        time_mode=time_mode(first.df, processing_time, *strategies),
        max_parallelism=key_groups(max_parallelism),
        late=late_rows(late, rows_order),
        **known,
    )
