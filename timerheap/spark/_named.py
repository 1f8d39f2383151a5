"""`named`: the name of an operator in the progress of its query."""

from __future__ import annotations

from pyspark.sql import DataFrame

from timerheap.spark._compat import refuse_connect
from timerheap.spark._plan.arguments import data_frame
from timerheap.spark._plan.observation import renamed
from timerheap.spark._plan.side_tags import has_outputs, outputs_of, with_outputs

__all__ = ["named"]


def named(df: DataFrame, name: str) -> DataFrame:
    """Return the result of an operator, named: its metrics in the progress of a query have this name.

    Without it, operators side by side, as in a union or a join of two results, are both called "timerheap",
    and Spark reports only one of two metrics of the same name.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process` or another operator, before it is combined with others. Of operators behind
        each other the last one is named.
    name : str
        A name that no other operator of the query has. It is not part of the checkpoint.

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows. A batch DataFrame, which has no metrics, is returned as it is.

    Raises
    ------
    TypeError, ValueError
        If `df` is not the result of one operator, or one before it has the name.

    Notes
    -----
    PyFlink: ``DataStream.name``.

    Examples
    --------
    ::

        carts = timerheap.spark.named(timerheap.spark.process(clicks, "user", CartAlerts(), ...), "carts")
        retries = timerheap.spark.named(timerheap.spark.process(orders, "id", Retries(), ...), "retries")
        query = carts.union(retries).writeStream...

        timerheap.spark.progress(query, "retries").pending_event_time_timers
    """
    data_frame("df", df)
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    if not name:
        raise ValueError(f"name must not be empty, got {name!r}; it is a key of observedMetrics")
    refuse_connect(df.sparkSession, "named()")
    if not df.isStreaming:
        return df
    result = renamed(df, name)
    return with_outputs(result, renamed(outputs_of(df), name)) if has_outputs(df) else result
