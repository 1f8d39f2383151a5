"""`InitialState`: the state that a new query starts from, as DataFrames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap._arguments import int64, integer
from timerheap.spark._columns import added_name
from timerheap.spark._compat import refuse_connect, state_path, without_globs
from timerheap.spark._plan.arguments import data_frame
from timerheap.spark._state.checkpoint_reader import expect_readable, first_line, path_of
from timerheap.spark._state.state_tables import EVENT_TIME, PROCESSING_TIME


class InitialState:
    """State that a new query starts from: tables such as `CheckpointState` returns, or made in any other way.

    Each table has the key columns of the query under their names, in the query's types. Other columns than
    those that are named here, such as ``key_group``, are ignored.

    Parameters
    ----------
    states : dict of str to pyspark.sql.DataFrame, optional
        The contents of states by name, a key a row: ``value``, in the type of the state; an array for a list
        state, a map for a map state. Null and empty ones are left out. A state with a time to live has a
        struct for each value, with ``at``, the time of the last access, in epoch ms, as
        `CheckpointState.state` returns it.
    timers : pyspark.sql.DataFrame, optional
        Pending timers: ``epoch_ms`` or ``timestamp`` says when they fire, ``time_domain`` is "event_time" or
        "processing_time", and ``name`` is null for a timer without one, as if it is missing. If both times
        are there they must agree: to move a timer, drop one of them.
    buffered_rows : pyspark.sql.DataFrame, optional
        Rows that wait for the watermark, as `CheckpointState.buffered_rows` returns them.
    watermarks : pyspark.sql.DataFrame or int, optional
        What `CheckpointState.watermarks` returns, or one watermark, epoch ms. By default there is none yet.

    Attributes
    ----------
    states, timers, buffered_rows, watermarks
        As passed.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type. `process` and the other functions check the tables.

    Examples
    --------
    Read the state of a query, correct it, and start again::

        old = timerheap.spark.read_checkpoint(spark, "/checkpoints/old")
        counts = old.state("count").withColumn("value", F.greatest("value", F.lit(0)))
        repaired = timerheap.spark.InitialState(
            states={"count": counts}, timers=old.timers(), watermarks=old.watermarks()
        )
        result = timerheap.spark.process(..., initial_state=repaired)
    """

    def __init__(
        self,
        *,
        states: Mapping[str, DataFrame] | None = None,
        timers: DataFrame | None = None,
        buffered_rows: DataFrame | None = None,
        watermarks: DataFrame | int | None = None,
    ) -> None:
        if states is not None and not isinstance(states, Mapping):
            raise TypeError(f"states must be a dict of DataFrames by name, got {states!r}")
        self.states = {name: data_frame(f"states[{name!r}]", table) for name, table in (states or {}).items()}
        self.timers = None if timers is None else data_frame("timers", timers)
        self.buffered_rows = None if buffered_rows is None else data_frame("buffered_rows", buffered_rows)
        if isinstance(watermarks, int):
            int64("watermarks", watermarks)
        elif watermarks is not None:
            data_frame("watermarks", watermarks)
        self.watermarks = watermarks

    @classmethod
    def from_spark(
        cls,
        spark: SparkSession,
        checkpoint: str | PathLike[str],
        operator_id: int | None = None,
        *,
        batch_id: int | None = None,
    ) -> InitialState:
        """Return the state of Spark's own ``transformWithState`` or ``transformWithStateInPandas``.

        The same processor then continues in `transform_with_state` with this `initial_state`; a process
        function does with tables that are made of these: the values are structs, as the processor declared
        them. The input of the new query must begin after the rows that the old one has read, and the old one
        be stopped after its last micro-batch, as ``availableNow`` does.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        checkpoint : str or path
            Checkpoint location of the query.
        operator_id : int, optional
            Number of the operator. It may be left out if only one has a processor.
        batch_id : int, optional
            The micro-batch after which to read the state; by default the last one that has finished.

        Raises
        ------
        TypeError, ValueError
            If there is no such checkpoint or operator, or the checkpoint cannot be read.
        """
        refuse_connect(spark, "reading a checkpoint")
        path = path_of(checkpoint)
        wanted = None if operator_id is None else integer("operator_id", operator_id)
        try:
            found = spark.read.format("state-metadata").load(path).collect()
        except Exception as e:
            raise ValueError(
                f"checkpoint must be the checkpoint location of a streaming query, got {path!r}, which "
                f"cannot be read: {first_line(e)}"
            ) from e
        processors = [row for row in found if row.operatorName.startswith("transformWithState")]
        chosen = [row for row in processors if wanted in (None, row.operatorId)]
        if len(chosen) != 1:
            names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
            raise ValueError(
                f"operator_id must be that of an operator with a processor in {path!r}, got "
                f"{operator_id!r}; it has the operators ({names})"
            )
        expect_readable(spark, path, int(chosen[0].operatorId), int(chosen[0].numPartitions))
        batch = int(chosen[0].maxBatchId) if batch_id is None else integer("batch_id", batch_id)
        return _of_spark(cls, spark, path, chosen[0], batch)


def _of_spark(
    class_: type[InitialState], spark: SparkSession, path: str, operator: Any, batch: int
) -> InitialState:
    properties = json.loads(operator.operatorProperties)
    located = state_path(spark, path)
    reader = spark.read.format("statestore").option("operatorId", operator.operatorId)
    reader = reader.option("batchId", batch)
    states = {}
    for variable in properties["stateVariables"]:
        name = variable["stateName"]
        if name.startswith("$"):  # Spark's timers
            continue
        state = reader.option("stateVarName", name).option("flattenCollectionTypes", "false").load(located)
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
    timers = watermark = None
    mode = properties["timeMode"]
    if mode != "NoTime":
        registered = spark.read.format("statestore").option("operatorId", operator.operatorId)
        timers = registered.option("batchId", batch).option("readRegisteredTimers", "true").load(located)
        key = timers.select("key.*").columns
        timers = timers.select(
            "key.*",
            F.col("expiration_timestamp_ms").alias(added_name("epoch_ms", key)),
            F.lit(EVENT_TIME if mode == "EventTime" else PROCESSING_TIME).alias(
                added_name("time_domain", key)
            ),
        )
    if mode == "EventTime":
        commit = spark.read.text(f"{without_globs(path)}/commits/{batch}").collect()
        watermark = int(json.loads(commit[-1].value)["nextBatchWatermarkMs"])
    return class_(states=states, timers=timers, watermarks=watermark)


def _expiring(kept: Column) -> Column:
    """Return a value with a time to live as timerheap keeps it."""
    return F.struct(kept["value"].alias("value"), kept["ttlExpirationMs"].alias("expires"))
