"""`InitialState`: the state that a new query starts from, as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import int64
from timerheap.errors import ArgumentTypeError
from timerheap.spark._plan.named_columns import data_frame
from timerheap.spark._state.spark_state import SparkState


class InitialState:
    """State that a new query starts from: tables such as `CheckpointState` returns, or made in any other way.

    `start_from` starts any query from it, and `process` and others take it as `initial_state`.

    Each table has the key columns of the query under their names, in the query's types. Other columns than
    those that are named here, such as ``key_group``, are ignored.

    Parameters
    ----------
    states : dict of str to pyspark.sql.DataFrame, optional
        The contents of states by name, a key a row: ``value``, in the type of the state; an array for a list
        state, a map for a map state. Null and empty ones are left out. A state with a time to live has a
        struct for each value, with ``at``, the time of the last access, in epoch ms, as
        `CheckpointState.state` returns it. A multiset is an array of structs, each a ``value`` and its
        ``weight``, which says how often it is there. A broadcast state needs no key columns: its table has
        one row, or several that are the same.
    timers : pyspark.sql.DataFrame, optional
        Pending timers: ``epoch_ms`` or ``timestamp`` says when they fire, ``time_domain`` is "event_time" or
        "processing_time", and ``name`` is null for a timer without one, as if it is missing. If both times
        are there they must agree: to move a timer, drop one of them.
    buffered_rows : pyspark.sql.DataFrame, optional
        Rows that wait for the watermark, as `CheckpointState.buffered_rows` returns them.
    windows : pyspark.sql.DataFrame, optional
        The open windows of `tumble`, `hop`, `cumulate`, `session` or `sql`, as `CheckpointState.windows`
        returns them. Accumulators of one key and slice are merged.
    watermarks : pyspark.sql.DataFrame or int, optional
        What `CheckpointState.watermarks` returns, or one watermark, epoch ms. By default there is none yet.

    Attributes
    ----------
    states, timers, buffered_rows, windows, watermarks
        As passed.

    Raises
    ------
    ArgumentError
        If an argument is of another type. The query checks the tables.

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
        windows: DataFrame | None = None,
        watermarks: DataFrame | int | None = None,
    ) -> None:
        if states is not None and not isinstance(states, Mapping):
            raise ArgumentTypeError(f"states must be a dict of DataFrames by name, got {states!r}")
        self.states = {name: data_frame(f"states[{name!r}]", table) for name, table in (states or {}).items()}
        self.timers = None if timers is None else data_frame("timers", timers)
        self.buffered_rows = None if buffered_rows is None else data_frame("buffered_rows", buffered_rows)
        self.windows = None if windows is None else data_frame("windows", windows)
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
        timeout_conf: str | None = None,
    ) -> InitialState:
        """Return the state of Spark's operator for a ``StatefulProcessor`` or ``applyInPandasWithState``.

        The input of the new query must begin after the rows that the old one has read, and the old one be
        stopped after its last micro-batch, as ``availableNow`` does.

        Of ``transformWithState`` and ``transformWithStateInPandas``: the same processor continues in
        `transform_with_state` with this `initial_state`. A process function does with tables that are made of
        these: the values are structs, as the processor declared them.

        Of ``applyInPandasWithState``: each field of the state is a value state with its name. The timeout of
        a group is a timer with the name "timeout". If the state ends in a field ``timers binary``, as
        `GroupStateTimers` needs it, the timers are those of the heap: without a name, and with the columns
        ``key_hash`` and ``namespace``.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        checkpoint : str or path
            Checkpoint location of the query.
        operator_id : int, optional
            Number of the operator. It may be left out if only one is of these kinds.
        batch_id : int, optional
            The micro-batch after which to read the state; by default the last one that has finished.
        timeout_conf : {"EventTimeTimeout", "ProcessingTimeTimeout", "NoTimeout"}, optional
            What ``applyInPandasWithState`` was called with, which is not in its checkpoint. Only for this
            operator, for which it is required.

        Raises
        ------
        ArgumentError
            If there is no such operator.
        ForeignCheckpointError
            If there is no such checkpoint, or it cannot be read.
        """
        found = SparkState.find(spark, checkpoint, operator_id, batch_id)
        states, timers, watermark = found.tables(timeout_conf)
        return cls(states=states, timers=timers, watermarks=watermark)
