"""`in_real_time`: marks rows that operators take as they come, rather than in micro-batches."""

from __future__ import annotations

from pyspark.sql import DataFrame

from timerheap.spark._columns import REAL_TIME
from timerheap.spark._compat import analyzed_plan, on_connect, refuse_connect
from timerheap.spark._plan.named_columns import data_frame


def in_real_time(df: DataFrame) -> DataFrame:
    """Return the rows of a stream for an operator in Spark's real-time mode. Experimental.

    Any function of this module over them, or `timerheap.spark.sql`, makes a query for
    `timerheap.spark.start_real_time`, in which rows pass through tasks that live as long as an epoch. Behind
    an operator, and between it and the next one, Spark may change columns and leave out rows.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        What a source has read; Spark may have changed columns and left out rows. A batch DataFrame is
        returned as it is. Of two inputs it is enough to mark one.

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows.

    Raises
    ------
    ArgumentTypeError
        If `df` is not a DataFrame.
    UnsupportedError
        On Spark Connect.

    Examples
    --------
    ::

        readings = timerheap.spark.in_real_time(readings)
        silent = timerheap.spark.process(readings, "sensor", Silent(), "sensor string, at timestamp", "at")
        timerheap.spark.start_real_time(silent.writeStream.option("checkpointLocation", "checkpoint"))
    """
    checked = data_frame("df", df)
    if not checked.isStreaming:
        return checked
    refuse_connect(checked.sparkSession, "in_real_time")
    return checked.alias(REAL_TIME)


def is_marked(df: DataFrame) -> bool:
    """Return whether some rows of a DataFrame are of `in_real_time`."""
    return not on_connect(df.sparkSession) and f"SubqueryAlias {REAL_TIME}" in analyzed_plan(df)
