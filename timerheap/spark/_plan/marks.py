"""Columns that Spark adds to the rows before they reach a Python worker: hashes, channels, guards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
)

from timerheap.spark._compat import with_columns
from timerheap.spark._exchange.pack import AHEAD, CHANNEL, HASH
from timerheap.spark._plan.arguments import named_column, quoted
from timerheap.spark._query import shown_name
from timerheap.watermarks import WatermarkStrategy

__all__ = ["NULL_MARK", "Input", "hashed", "hashed_when_packed", "marked"]

_AHEAD_METRIC = "timerheap_ahead"
_HASHED_WHEN_PACKED = (StringType, BinaryType, ByteType, ShortType, IntegerType, LongType)
NULL_MARK = 0x6E756C6C << 32  # counts up for each key column; unlikely to be a value of a key


@dataclass(frozen=True)
class Input:
    """An input of a query, whose arguments have been checked.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    event_time : str or None
        Event-time column.
    strategy : WatermarkStrategy
    channel : str or None
        Column whose values have a watermark each.
    """

    df: DataFrame
    event_time: str | None
    strategy: WatermarkStrategy
    channel: str | None


def marked(input: Input, *others: Input) -> DataFrame:
    """Return the rows of `input` with the columns that the query needs, computed in the JVM.

    Parameters
    ----------
    input : Input
    *others : Input
        The other inputs of the query; a column that one input needs is added to all.
    """
    df, inputs = input.df, [input, *others]
    marks: dict[str, Column] = {}
    if any(one.channel is not None for one in inputs):
        no_channel = F.lit(None).cast("string")
        marks[CHANNEL] = no_channel if input.channel is None else _channel(df, input.channel)
    if any(one.strategy.max_ahead is not None for one in inputs):
        marks[AHEAD] = F.lit(False)
        if input.strategy.max_ahead is not None and input.event_time is not None:
            millis = _millis(named_column(df, "event_time", input.event_time), input.event_time)
            now = F.unix_millis(F.current_timestamp())  # the micro-batch's time, the same in every attempt
            marks[AHEAD] = millis > now + F.lit(input.strategy.max_ahead)
    return with_columns(df, marks)


def hashed(df: DataFrame, key: list[str]) -> DataFrame:
    """Return marked rows with the hash of their key if Spark has to compute it; counts rows too far ahead."""
    types = [named_column(df, "key", name) for name in key]
    rows = df if hashed_when_packed(types) else df.withColumn(HASH, _key_hash(key))
    if AHEAD in rows.columns:
        rows = rows.observe(_AHEAD_METRIC, F.count_if(AHEAD).alias("rows"))
    return rows


def hashed_when_packed(types: list[DataType]) -> bool:
    """Return whether the pack stage computes the hash of a key of these types, rather than the JVM."""
    return len(types) == 1 and type(types[0]) in _HASHED_WHEN_PACKED


def _channel(df: DataFrame, name: str) -> Column:
    binary = named_column(df, "channel", name).simpleString() == "binary"
    text = F.hex(quoted(name)) if binary else quoted(name).cast("string")
    null = (
        f"channel: a row has null in column {shown_name(name)!r}; filter such rows out, or give them a value"
    )
    return F.coalesce(text, F.raise_error(F.lit(null)))


def _millis(type_: DataType, name: str) -> Column:
    if isinstance(type_, LongType):
        return quoted(name)
    if isinstance(type_, TimestampType):
        return F.unix_millis(quoted(name))
    return F.timestamp_diff("MILLISECOND", F.lit("1970-01-01").cast("timestamp_ntz"), quoted(name))


def _key_hash(key: list[str]) -> Column:
    """Hash keys with Spark's xxhash64, which skips nulls, and a mark for each null among several columns.

    Without the marks (null, 'a') and ('a', null) would have the same hash.
    """
    if len(key) == 1:
        return F.xxhash64(quoted(key[0]))
    parts = []
    for name, mark in zip(key, count(NULL_MARK), strict=False):
        parts += [quoted(name), F.when(quoted(name).isNull(), F.lit(mark))]
    return F.xxhash64(*parts)
