"""`transform_with_state`: Spark's StatefulProcessor, run in process."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from timerheap.spark._plan.columns import ColumnOrName
from timerheap.spark._plan.processors import run_processor

__all__ = ["transform_with_state", "transform_with_state_in_pandas"]


def transform_with_state(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    processor: StatefulProcessor | None = None,
    output_schema: str | StructType | None = None,
    output_mode: str | None = None,
    time_mode: str | None = None,
    initial_state: GroupedData | None = None,
    event_time_column_name: str = "",
    *,
    max_parallelism: int | None = None,
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
    initial_state : pyspark.sql.GroupedData, optional
        Rows for ``handleInitialState`` in the first micro-batch, grouped by columns of the types of `key`.
    event_time_column_name : str, optional
        Column of the result that is the event time of stateful operators that follow.
    max_parallelism : int, optional
        Number of key groups, 1 to 32768, which a checkpoint keeps; see `process`.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts.
    PySparkRuntimeError
        Where Spark refuses a call of the handle or of a state, with Spark's error class and text.

    Notes
    -----
    A checkpoint of Spark's own ``transformWithState`` cannot be continued; read its state with
    ``spark.read.format("statestore")`` and pass it as `initial_state`. Streams need the RocksDB state store.
    """
    return run_processor(
        "rows",
        df,
        key,
        processor,
        output_schema,
        output_mode,
        time_mode,
        initial_state,
        event_time_column_name,
        max_parallelism,
    )


def transform_with_state_in_pandas(
    df: DataFrame | GroupedData,
    key: ColumnOrName | Sequence[ColumnOrName] | None = None,
    processor: StatefulProcessor | None = None,
    output_schema: str | StructType | None = None,
    output_mode: str | None = None,
    time_mode: str | None = None,
    initial_state: GroupedData | None = None,
    event_time_column_name: str = "",
    *,
    max_parallelism: int | None = None,
) -> DataFrame:
    """Run a ``pyspark.sql.streaming.StatefulProcessor`` on DataFrames, with state and timers in process.

    Like `transform_with_state`, which describes the parameters, for processors that receive and yield
    ``pandas.DataFrame``, as in ``df.groupBy(key).transformWithStateInPandas(...)``.

    Parameters
    ----------
    df, key, processor, output_schema, output_mode, time_mode
        See `transform_with_state`.
    initial_state, event_time_column_name, max_parallelism
        See `transform_with_state`.

    Returns
    -------
    pyspark.sql.DataFrame
    """
    return run_processor(
        "frames",
        df,
        key,
        processor,
        output_schema,
        output_mode,
        time_mode,
        initial_state,
        event_time_column_name,
        max_parallelism,
    )
