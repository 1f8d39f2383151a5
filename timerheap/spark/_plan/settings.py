"""Spark's settings, checked before a query starts: what a query needs, and what makes it slow.

No setting is changed here, since a setting holds for all queries of a session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from timerheap.spark._compat import on_connect
from timerheap.spark._query import FrameSettings

__all__ = ["check_settings", "frame_settings", "is_encrypted"]

_log = logging.getLogger("timerheap")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ENCRYPTION = "spark.io.encryption.enabled"
_REUSE = "spark.python.worker.reuse"
_TO_DECIMAL = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_SAFELY = "spark.sql.execution.pandas.convertToArrowArraySafely"
_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"

_FEWEST_RECORDS = 10_000  # Spark's default; at 1,000 packing takes three times as long
_NO_BYTES = (1 << 31) - 1  # no limit


def check_settings(df: DataFrame) -> None:
    """Check the settings of the session of `df`, and log those that make a query slow in one line.

    Raises
    ------
    ValueError
        If a stream would not use the RocksDB state store, which state variables need.
    """
    spark = df.sparkSession
    if df.isStreaming:
        provider = spark.conf.get(_PROVIDER)
        if provider is None or "RocksDB" not in provider:
            raise ValueError(
                f"{_PROVIDER} must be the RocksDB state store's provider, since process() keeps state "
                f'variables, got {provider}; set it before the query starts: spark.conf.set("{_PROVIDER}", '
                f'"{_ROCKSDB}")'
            )
    if slow := [*_slow_exchange(spark), *(_slow_state(spark) if df.isStreaming else ())]:
        _log.warning("settings of Spark make this query slow: %s", "; ".join(slow))


def frame_settings(spark: SparkSession) -> FrameSettings:
    """Return the settings of a session for the DataFrames of a processor; on Spark Connect of any size."""
    rows = int(spark.conf.get(_RECORDS) or 0)
    return FrameSettings(
        rows=rows if rows > 0 else _NO_BYTES,
        nbytes=_NO_BYTES if on_connect(spark) else _batch_bytes(spark),
        ints_to_decimals=_is_set(spark, _TO_DECIMAL),
        safe=_is_set(spark, _SAFELY),
        by_name=_is_set(spark, _BY_NAME),
    )


def is_encrypted(spark: SparkSession) -> bool:
    """Return whether Spark encrypts what it writes to local disks."""
    return _is_set(spark, _ENCRYPTION, "false")


def _batch_bytes(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(spark.conf.get(_BYTES)))


def _is_set(spark: SparkSession, name: str, *unknown: str) -> bool:
    """Return whether a setting is true; `unknown` is for one that Spark may not know.

    A default that is passed to Spark replaces Spark's own default also for a setting that it knows.
    """
    return str(spark.conf.get(name, *unknown)).lower() == "true"


def _slow_exchange(spark: SparkSession) -> Iterator[str]:
    records = int(spark.conf.get(_RECORDS) or 0)
    if 0 < records < _FEWEST_RECORDS:
        yield f"{_RECORDS} is {records}, set it to {_FEWEST_RECORDS} or more"
    if on_connect(spark):
        return
    if _batch_bytes(spark) < _NO_BYTES:
        yield (
            f"{_BYTES} is {spark.conf.get(_BYTES)}, so Spark computes the size of an Arrow batch after each "
            f"row, set it to {_NO_BYTES}, which is no limit, unless {max(records, _FEWEST_RECORDS)} rows may "
            "exceed it"
        )


def _slow_state(spark: SparkSession) -> Iterator[str]:
    if not _is_set(spark, _CHANGELOG, "false"):
        yield f"{_CHANGELOG} is false, so each micro-batch writes all state, set it to true"
    if not on_connect(spark) and spark.sparkContext.getConf().get(_REUSE, "true").lower() != "true":
        yield f"{_REUSE} is false, so each task starts a Python worker, set it to true for the application"
