"""Checks users' arguments before a query starts; each error names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from timerheap._values import expect_shallow
from timerheap.spark._columns import HIDDEN, TIME, shown_name
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._exchange.placement import MAX_KEY_GROUPS
from timerheap.spark._group.key_group import BROADCAST_STATE
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._query import Late, NullTime, TimeMode
from timerheap.watermarks import NoWatermarks, WatermarkStrategy
from timerheap.watermarks.generators import changes


def data_frame(argument: str, df: object) -> DataFrame:
    """Return `df`, checked to be a DataFrame."""
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


def named_column(df: DataFrame, argument: str, name: object) -> DataType:
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
    """Return the names of the key columns."""
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else None
    if not names:
        raise TypeError(f"{argument} must be a column name or a list of column names, got {key!r}")
    for name in names:
        _atomic(argument, name, named_column(df, argument, name))
    return names


def is_atomic(type_: DataType) -> bool:
    """Return whether values of a type can be compared: it is not nested, and not variant."""
    return isinstance(type_, AtomicType) and not isinstance(type_, VariantType)


def _atomic(argument: str, name: str, type_: DataType) -> None:
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


def collation_of(type_: DataType) -> str | None:
    """Return the first collation in a type that is not UTF8_BINARY; None if all strings compare by bytes."""
    if isinstance(type_, StringType):
        return None if type_.isUTF8BinaryCollation() else type_.collation
    inner: list[DataType] = []
    if isinstance(type_, StructType):
        inner = [field.dataType for field in type_]
    elif isinstance(type_, ArrayType):
        inner = [type_.elementType]
    elif isinstance(type_, MapType):
        inner = [type_.keyType, type_.valueType]
    return next((found for found in map(collation_of, inner) if found is not None), None)


def channel_column(df: DataFrame, argument: str, name: object) -> None:
    """Check that a column can identify channels: it must be of an atomic type."""
    _atomic(argument, str(name), named_column(df, argument, name))


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
    if not isinstance(type_, (TimestampType, TimestampNTZType, LongType)):
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
    """Return the order in which rows reach the function; None is by event time where rows have one.

    `strategies` are those of all inputs.
    """
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
    if isinstance(function, type):
        raise TypeError(
            f"{argument} must be an instance, got the class {function.__name__}; pass {function.__name__}() "
            "instead"
        )
    if not isinstance(function, classes):
        names = " or ".join(class_.__name__ for class_ in classes)
        raise TypeError(f"{argument} must be a {names}, got {function!r}")
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


def parsed_schema(output_schema: object) -> StructType:
    """Return the result's type, parsed if it is a DDL string, and checked."""
    try:
        type_ = StructType.fromDDL(output_schema) if isinstance(output_schema, str) else output_schema
        arrow_schema("output_schema", type_)
        return cast(StructType, type_)
    except ParseException as e:
        raise ValueError(
            f"output_schema must be a DDL string such as 'plane string, at bigint', got {output_schema!r}: "
            f"{e}"
        ) from None


def arrow_schema(argument: str, type_: object) -> pa.Schema:
    """Return the Arrow schema of a StructType with unique column names."""
    if not isinstance(type_, StructType):
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
