"""Reads the state of Spark's own operators as tables of states and timers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import BinaryType, StructType

from timerheap._arguments import integer
from timerheap._native._core import KeyTimerHeap, TimerHeap
from timerheap.errors import ArgumentValueError, ForeignCheckpointError
from timerheap.spark._columns import added_name
from timerheap.spark._compat import refuse_connect, state_path, without_globs
from timerheap.spark._state.state_tables import EVENT_TIME, PROCESSING_TIME
from timerheap.spark._state.stored_operators import expect_readable, first_line, path_of
from timerheap.spark._stateful_timers import FIELD

GROUP_STATE = "applyInPandasWithState"
TIMEOUT = "timeout"
"""The name of the timer that a group's timeout becomes."""

_BY_HAND = (
    'with spark.read.format("statestore"), and pass the tables to InitialState(states=, timers=, watermarks=)'
)
_NO_TIMEOUT = -1  # in Spark's state
_DOMAINS = {
    GroupStateTimeout.EventTimeTimeout: EVENT_TIME,
    GroupStateTimeout.ProcessingTimeTimeout: PROCESSING_TIME,
    GroupStateTimeout.NoTimeout: None,
}
_HEAP_TIMERS = "array<struct<epoch_ms: bigint, key_hash: bigint, namespace: bigint>>"

Tables = tuple[dict[str, DataFrame], DataFrame | None, int | None]
"""States by name, timers, and the watermark."""


@dataclass(frozen=True)
class SparkState:
    """The state of one operator of Spark after a micro-batch.

    properties: what a processor has written of its states; None for ``applyInPandasWithState``
    """

    spark: SparkSession
    path: str
    operator: int
    batch: int
    properties: dict[str, Any] | None

    @classmethod
    def find(
        cls,
        spark: SparkSession,
        checkpoint: str | PathLike[str],
        operator_id: int | None,
        batch_id: int | None,
    ) -> SparkState:
        """Return the operator of a checkpoint whose state can be read, checked."""
        refuse_connect(spark, "reading a checkpoint")
        path = path_of(checkpoint)
        wanted = None if operator_id is None else integer("operator_id", operator_id)
        try:
            found = spark.read.format("state-metadata").load(path).collect()
        except Exception as e:
            raise ForeignCheckpointError(
                f"checkpoint must be the checkpoint location of a streaming query, got {path!r}, which "
                f"cannot be read: {first_line(e)}"
            ) from e
        readable = [
            row
            for row in found
            if row.operatorName == GROUP_STATE or row.operatorName.startswith("transformWithState")
        ]
        chosen = [row for row in readable if wanted in (None, row.operatorId)]
        if len(chosen) != 1:
            names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
            raise ArgumentValueError(
                f"operator_id must be that of an operator with a processor or of {GROUP_STATE} in {path!r}, "
                f"got {operator_id!r}; it has the operators ({names}). Read the state of other operators "
                f"{_BY_HAND}"
            )
        (row,) = chosen
        expect_readable(spark, path, int(row.operatorId), int(row.numPartitions))
        batch = int(row.maxBatchId) if batch_id is None else integer("batch_id", batch_id)
        properties = None if row.operatorName == GROUP_STATE else json.loads(row.operatorProperties)
        return cls(spark, path, int(row.operatorId), batch, properties)

    def tables(self, timeout_conf: str | None) -> Tables:
        if self.properties is None:
            return self._of_groups(timeout_conf)
        if timeout_conf is not None:
            raise ArgumentValueError(
                f"timeout_conf must be None for a processor, whose checkpoint has its time mode, got "
                f"{timeout_conf!r}"
            )
        return self._of_processor(self.properties)

    def _of_processor(self, properties: dict[str, Any]) -> Tables:
        located = state_path(self.spark, self.path)
        states = {}
        for variable in properties["stateVariables"]:
            name = variable["stateName"]
            if name.startswith("$"):  # Spark's timers
                continue
            reader = self._reader().option("stateVarName", name).option("flattenCollectionTypes", "false")
            state = reader.load(located)
            (column,) = (each for each in ("value", "list_value", "map_value") if each in state.columns)
            contents = F.col(column)
            if variable["ttlEnabled"] and column == "value":
                contents = _expiring(contents)
            elif variable["ttlEnabled"] and column == "list_value":
                contents = F.transform(contents, _expiring)
            elif variable["ttlEnabled"]:
                contents = F.transform_values(contents, lambda _, value: _expiring(value))
            key = state.select("key.*").columns
            states[name] = state.select("key.*", contents.alias(added_name("value", key)))
        timers = None
        mode = properties["timeMode"]
        if mode != "NoTime":
            registered = self._reader().option("readRegisteredTimers", "true").load(located)
            domain = EVENT_TIME if mode == "EventTime" else PROCESSING_TIME
            timers = _timers(registered, domain, epoch_ms=F.col("expiration_timestamp_ms"))
        return states, timers, self._watermark() if mode == "EventTime" else None

    def _of_groups(self, timeout_conf: str | None) -> Tables:
        if timeout_conf not in tuple(_DOMAINS):
            raise ArgumentValueError(
                f"timeout_conf must be what {GROUP_STATE} was called with, "
                f"{', '.join(map(repr, _DOMAINS))}, got {timeout_conf!r}: the checkpoint does not have it"
            )
        domain = _DOMAINS[timeout_conf]
        rows = self._reader().load(state_path(self.spark, self.path))
        key = rows.select("key.*").columns
        if "groupState" not in rows.select("value.*").columns:
            raise ForeignCheckpointError(
                f"checkpoint must have the state of {GROUP_STATE} in version 2 of its format, got "
                f"{self.path!r}, whose query ran with version 1 (spark.sql.streaming."
                f"flatMapGroupsWithState.stateFormatVersion). Read it {_BY_HAND}"
            )
        kept = F.col("value.groupState")
        type_ = rows.select(kept).schema[0].dataType
        assert isinstance(type_, StructType)
        names = type_.fieldNames()
        heap = names[-1:] == [FIELD] and isinstance(type_[FIELD].dataType, BinaryType)
        states = {
            name: rows.select("key.*", kept.getField(name).alias(added_name("value", key)))
            for name in (names[:-1] if heap else names)
        }
        timers = None
        if domain is not None and heap:
            read = F.udf(_heap_timers, _HEAP_TIMERS, useArrow=False)
            each = rows.select("key", F.explode(read(kept.getField(FIELD))).alias("timer"))
            columns = {name: F.col(f"timer.{name}") for name in ("epoch_ms", "key_hash", "namespace")}
            timers = _timers(each, domain, **columns)
        elif domain is not None:
            due = F.col("value.timeoutTimestamp")
            timers = _timers(rows.where(due != _NO_TIMEOUT), domain, epoch_ms=due, name=F.lit(TIMEOUT))
        return states, timers, self._watermark() if domain == EVENT_TIME else None

    def _reader(self) -> DataFrameReader:
        reader = self.spark.read.format("statestore").option("operatorId", self.operator)
        return reader.option("batchId", self.batch)

    def _watermark(self) -> int:
        commit = self.spark.read.text(f"{without_globs(self.path)}/commits/{self.batch}").collect()
        return int(json.loads(commit[-1].value)["nextBatchWatermarkMs"])


def _timers(rows: DataFrame, domain: str, **columns: Column) -> DataFrame:
    """Return rows of one timer as `InitialState` takes them, with these columns beside those of the key."""
    key = rows.select("key.*").columns
    columns["time_domain"] = F.lit(domain)
    return rows.select("key.*", *(column.alias(added_name(name, key)) for name, column in columns.items()))


def _expiring(kept: Column) -> Column:
    """Return a value with a time to live as timerheap keeps it."""
    return F.struct(kept["value"].alias("value"), kept["ttlExpirationMs"].alias("expires"))


def _heap_timers(data: bytes | None) -> list[tuple[int, int, int]]:
    """Return the timers that `GroupStateTimers` has written, of either kind of heap."""
    if data is None:
        return []
    heap: TimerHeap | KeyTimerHeap
    try:
        heap = TimerHeap.from_bytes(bytes(data))
    except ValueError:
        heap = KeyTimerHeap.from_bytes(bytes(data))
    return [(timer.timestamp, timer.key_hash, timer.namespace) for timer in heap]
