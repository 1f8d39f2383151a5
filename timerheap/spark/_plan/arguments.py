"""What users hand in, checked before a query starts; each error names the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyspark.cloudpickle import dumps
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
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

from timerheap.spark._group.row_buffer import RowOrder
from timerheap.watermarks import BoundedOutOfOrdernessWatermarks, NoWatermarks, WatermarkStrategy

__all__ = [
    "arrow_schema",
    "bounded_delay",
    "channel_column",
    "collation_of",
    "data_frame",
    "expect_event_time",
    "expect_state_store",
    "key_columns",
    "key_groups",
    "named_column",
    "parsed_schema",
    "quoted",
    "row_order",
    "sendable",
    "state_names",
]

_MOST_GROUPS = 1 << 15
_RESERVED = "__timerheap_"


def data_frame(argument: str, df: object) -> DataFrame:
    """Give a DataFrame."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{argument}: {df!r} is no pyspark.sql.DataFrame")
    return df


def key_groups(max_parallelism: object) -> int:
    """Give a number of key groups."""
    if not isinstance(max_parallelism, int) or isinstance(max_parallelism, bool):
        raise TypeError(f"max_parallelism: {max_parallelism!r} is no int")
    if not 1 <= max_parallelism <= _MOST_GROUPS:
        raise ValueError(f"max_parallelism: {max_parallelism} key groups; give 1 to {_MOST_GROUPS}")
    return max_parallelism


def named_column(df: DataFrame, argument: str, name: object) -> DataType:
    """Give the type of a column of `df` that there is once."""
    if not isinstance(name, str):
        raise TypeError(f"{argument}: {name!r} is no column name; give a str")
    if df.columns.count(name) != 1:
        there = "no" if name not in df.columns else "more than one"
        raise ValueError(f"{argument}: there is {there} column {name!r}; the columns are {df.columns}")
    return df.schema[name].dataType


def quoted(name: str) -> Column:
    """Give the column whose whole name this is, dots and backticks included."""
    return F.col("`" + name.replace("`", "``") + "`")


def key_columns(df: DataFrame, argument: str, key: object) -> list[str]:
    """Give the names of the key columns."""
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else None
    if not names:
        raise TypeError(f"{argument}: {key!r} names no column; give a column name or a list of them")
    for name in names:
        _atomic(argument, name, named_column(df, argument, name))
    return names


def _atomic(argument: str, name: str, type_: DataType) -> None:
    if not isinstance(type_, AtomicType) or isinstance(type_, VariantType):
        raise ValueError(
            f"{argument}: column {name!r} is {type_.simpleString()}, which is no atomic type; "
            "select its fields as columns of their own and list them"
        )
    collation = collation_of(type_)
    if collation is not None:
        raise ValueError(
            f"{argument}: column {name!r} must have the collation UTF8_BINARY, got {collation}; values are "
            "told apart by their bytes: give the column one spelling of each value, such as "
            f"F.collate(F.lower({name!r}), 'UTF8_BINARY')"
        )


def collation_of(type_: DataType) -> str | None:
    """Return the first collation in a type that is not the default one, by which strings are their bytes."""
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
    """Expect a column whose values can tell channels apart."""
    _atomic(argument, str(name), named_column(df, argument, name))


def expect_event_time(
    df: DataFrame,
    event_time: object,
    watermark: object,
    prefix: str = "",
    argument: str = "event_time",
    **needing: object,
) -> WatermarkStrategy:
    """Give the strategy of an event-time column; `needing`: what makes no sense without the column.

    The arguments are called `prefix` + `argument` and `prefix` + ``watermark``.
    """
    named = prefix + argument
    if event_time is None:
        for other, value in {prefix + "watermark": watermark, **needing}.items():
            if value not in (None, False):
                raise ValueError(f"{named}: {other} needs the name of the event-time column")
        return WatermarkStrategy.no_watermarks()
    type_ = named_column(df, named, event_time)
    if not isinstance(type_, (TimestampType, TimestampNTZType, LongType)):
        raise ValueError(
            f"{named}: column {event_time!r} is {type_.simpleString()}; "
            "make it a timestamp, or a bigint of epoch milliseconds"
        )
    if not isinstance(watermark, WatermarkStrategy):
        raise TypeError(
            f"{prefix}watermark: {watermark!r} is no WatermarkStrategy; "
            "give one, such as WatermarkStrategy.for_bounded_out_of_orderness(5_000)"
        )
    if watermark.timestamp_assigner is not None:
        raise ValueError(
            f"{prefix}watermark: {named} names the column of the timestamps, so a strategy with a timestamp "
            "assigner makes no sense; leave with_timestamp_assigner out"
        )
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
        if df.isStreaming and silent and strategy.idle_timeout is None:
            raise ValueError(
                'order must be "arrival" on a stream with WatermarkStrategy.no_watermarks(), got '
                '"event_time": rows would wait for ever; pass order="arrival", or a strategy that makes '
                "watermarks"
            )
    return "event_time"


def bounded_delay(strategy: WatermarkStrategy) -> int | None:
    """Give the delay of a watermark that is nothing else, in ms; Spark's own is like that."""
    generator = strategy.create_watermark_generator()
    if strategy.idle_timeout is not None or strategy.max_ahead is not None:
        return None
    if not isinstance(generator, BoundedOutOfOrdernessWatermarks):
        return None
    return generator.max_out_of_orderness


def sendable(function: object, *classes: type) -> None:
    """Expect an instance of one of `classes` that can travel to the workers."""
    if isinstance(function, type):
        raise TypeError(
            f"function: {function.__name__} is a class; give an instance of it: {function.__name__}()"
        )
    if not isinstance(function, classes):
        names = [class_.__name__ for class_ in classes]
        wanted = f"neither a {' nor a '.join(names)}" if len(names) > 1 else f"no {names[0]}"
        raise TypeError(f"function: {function!r} is {wanted}")
    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as e:
        bad = [name for name, value in vars(function).items() if not _serialises(value)]
        where = f" (its attribute {bad[0]!r})" if bad else ""
        raise TypeError(
            f"function: {type(function).__name__} cannot be sent to the workers{where}: {e}; "
            "make in open() what cannot be serialised: connections, locks, Spark objects"
        ) from e


def _serialises(value: object) -> bool:
    try:
        dumps(value)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def state_names(drop_state: object) -> tuple[str, ...]:
    """Return the names of the states that are to be dropped."""
    if (
        isinstance(drop_state, str)
        or not isinstance(drop_state, Sequence)
        or not all(isinstance(name, str) for name in drop_state)
    ):
        raise TypeError(
            f"drop_state must be a list of names of states, got {drop_state!r}; "
            "write drop_state=['n'] for a state 'n'"
        )
    return tuple(drop_state)


def parsed_schema(output_schema: object) -> StructType:
    """Give the result's type, of DDL or as it is."""
    if not isinstance(output_schema, str):
        return cast(StructType, output_schema)
    try:
        return cast(StructType, StructType.fromDDL(output_schema))
    except ParseException as e:
        raise ValueError(f"output_schema: {output_schema!r} is no DDL: {e}") from None


def arrow_schema(argument: str, type_: object) -> pa.Schema:
    """Give the Arrow schema of rows whose columns have names of their own."""
    if not isinstance(type_, StructType):
        raise TypeError(
            f"{argument}: {type_!r} is no schema; give a DDL string such as 'plane string, at bigint'"
        )
    taken = [n for n in type_.names if n.startswith(_RESERVED) or type_.names.count(n) > 1]
    if taken:
        raise ValueError(f"{argument}: rename column {min(taken)!r}: its name is taken")
    try:
        return to_arrow_schema(type_, timezone="UTC")
    except Exception as e:
        raise ValueError(f"{argument}: Arrow has no type for a column of {type_.simpleString()}: {e}") from e


def expect_state_store(df: DataFrame) -> None:
    """Expect the state store that state variables need."""
    conf = "spark.sql.streaming.stateStore.providerClass"
    needed = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    provider = df.sparkSession.conf.get(conf)
    if provider is None or "RocksDB" not in provider:
        raise ValueError(
            f"{conf} is {provider}, whose state store cannot hold the state variables that process() needs; "
            f'set it before the query starts: spark.conf.set("{conf}", "{needed}")'
        )
