"""`progress`: the metrics of a query's micro-batches, taken out of its results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, StructField, StructType

from timerheap.metrics import DistributionResult
from timerheap.spark._compat import analyzed_plan, of_plan, on_connect, refuse_connect
from timerheap.spark._plan.arguments import data_frame
from timerheap.spark._worker.output import METRICS, NUMBERS, RESULTS, WITH_OWN
from timerheap.spark._worker.partition import TASK_METRICS

OBSERVED = "timerheap"
"""Name of the metrics of a query's first operator; those of later operators are numbered from 2."""

_DATAFRAME = -1  # the id of no DataFrame
_DISTRIBUTION = "struct<count: bigint, sum: bigint, min: bigint, max: bigint>"
_COUNTERS, _DISTRIBUTIONS = "map<string, bigint>", f"map<string, {_DISTRIBUTION}>"


def output_type(result: StructType, flat: bool = False, has_own: bool = False) -> StructType:
    """Return the type of what the operator of a stream returns: results, or arrays of them, and metrics.

    has_own: whether its function has metrics of its own
    """
    if flat:  # with a row of metrics, in which they are null
        fields = result._as_nullable().fields
    else:
        fields = [StructField(RESULTS, ArrayType(result, containsNull=False))]
    return StructType([*fields, StructField(METRICS, from_arrow_type(WITH_OWN if has_own else NUMBERS))])


def observed(output: DataFrame, df: DataFrame, has_own: bool = False) -> DataFrame:
    """Return the results in the output of an operator, whose input is `df`, and observe its metrics.

    If its function has metrics of its own, these are maps beside the others, ``counters`` and
    ``distributions``, since their names may only be known when the query runs. On Spark Connect nothing is
    observed: two operators of one name could not be told apart there.
    """
    if on_connect(df.sparkSession):
        return _results(output)
    # Each node and each expression costs each micro-batch, also one of few rows.
    numbers = f"{METRICS}.numbers" if has_own else METRICS
    combined = [getattr(F, m.combine)(F.get(numbers, i)).alias(m.name) for i, m in enumerate(TASK_METRICS)]
    if has_own:
        own = F.from_json(f"{METRICS}.own", f"counters {_COUNTERS}, distributions {_DISTRIBUTIONS}")
        combined.append(_merged(own.getField("counters"), _COUNTERS, F.try_add).alias("counters"))
        distributions = _merged(own.getField("distributions"), _DISTRIBUTIONS, _merged_distribution)
        combined.append(distributions.alias("distributions"))
    metrics = output.observe(_name(df), *combined)
    return _results(_repeatable(metrics))


def _results(output: DataFrame) -> DataFrame:
    if output.columns == [RESULTS, METRICS]:
        return output.select(F.inline(RESULTS))
    return output.where(F.col(METRICS).isNull()).drop(METRICS)


def _merged(maps: Column, type_: str, merge: Callable[[Column, Column], Column]) -> Column:
    """Return the aggregate of maps: one map, whose values are those of equal keys, merged."""
    return F.reduce(
        F.collect_list(maps),
        F.from_json(F.lit("{}"), type_),
        lambda so_far, one: F.map_zip_with(
            so_far, one, lambda _, a, b: F.when(a.isNull(), b).when(b.isNull(), a).otherwise(merge(a, b))
        ),
    )


def _merged_distribution(a: Column, b: Column) -> Column:
    merges: dict[str, Any] = {"count": F.try_add, "sum": F.try_add, "min": F.least, "max": F.greatest}
    return F.struct(*(merge(a[name], b[name]).alias(name) for name, merge in merges.items()))


def _name(df: DataFrame) -> str:
    """Return a name that no operator before this one has."""
    plan = analyzed_plan(df)
    numbers = [int(number or 1) for number in re.findall(rf"CollectMetrics {OBSERVED}(?:_(\d+))?,", plan)]
    return f"{OBSERVED}_{max(numbers) + 1}" if numbers else OBSERVED


def renamed(result: DataFrame, name: str) -> DataFrame:
    """Return the result of an operator, whose metrics have this name."""
    plan = result._jdf.queryExecution().analyzed()
    above: list[Any] = []
    node = plan
    while not _is_of_operator(node):
        if node.children().size() != 1:
            raise ValueError(
                "df must be the result of one operator, such as timerheap.spark.process() returns it, got "
                f"{result!r}; call with_name() before results are combined"
            )
        above.append(node)
        node = node.children().head()
    if name != node.name() and f"CollectMetrics {name}," in plan.toString():
        raise ValueError(f"name must differ from the other metrics of the query, got {name!r}")
    spark = result.sparkSession
    to_seq = spark._jvm.PythonUtils.toSeq  # type: ignore[union-attr]
    node = node.copy(name, node.metrics(), node.child(), _DATAFRAME)
    for parent in reversed(above):
        node = parent.withNewChildren(to_seq([node]))
    return of_plan(spark, node)


def _is_of_operator(node: Any) -> bool:
    """Return whether a node of a plan is the observation of an operator."""
    return node.nodeName() == "CollectMetrics" and METRICS in node.child().schema().fieldNames()


def has_namesakes(query: StreamingQuery, name: str) -> bool:
    """Return whether several operators of a query that has had a micro-batch have this name."""
    execution: Any = query._jsq.streamingQuery()
    # The first metric of an operator has an id of its own, also where a result stands twice in the query.
    first = rf"CollectMetrics {re.escape(name)}, \[.*? AS {TASK_METRICS[0].name}#(\d+)L"
    return len(set(re.findall(first, execution.logicalPlan().toString()))) > 1


def _repeatable(observed: DataFrame) -> DataFrame:
    """Return a DataFrame of ``observe()`` that may stand twice in a query.

    Spark refuses two metrics of one name, as in the union of the results of two operators, unless they belong
    to one DataFrame. The progress then has the metrics of one of them; see `renamed`.
    """
    node = observed._jdf.logicalPlan()
    node = node.copy(node.name(), node.metrics(), node.child(), _DATAFRAME)
    return of_plan(observed.sparkSession, node)


_HELD = [metric.name for metric in TASK_METRICS if metric.of_all]
_TIMES = ["watermark", "newest_event_time", "event_time_lag", "clock_lag"]
_REPORTED = ["groups", "max_parallelism"]
_COUNTED = [m.name for m in TASK_METRICS if m.name not in (*_HELD, *_TIMES, *_REPORTED)]


@dataclass(frozen=True)
class Progress:
    """The metrics of one operator as of a micro-batch; `progress` returns them.

    Times are in epoch milliseconds.

    Parameters
    ----------
    batch_id : int
        The micro-batch.
    watermark : int or None
        None before the first row with an event time.
    newest_event_time : int or None
        The largest event time so far. It is None, too, for a `StatefulProcessor`.
    event_time_lag : int or None
        By how many ms the watermark is behind `newest_event_time`.
    clock_lag : int or None
        By how many ms it was behind the time of the micro-batch.
    pending_event_time_timers, pending_processing_time_timers : int
        The timers that have yet to fire. For windows they are the ends of windows, by key and slice.
    next_event_time_timer, next_processing_time_timer : int or None
        When the next of them is due; None if there is none.
    fired_timers : int
        The timers that have fired in the micro-batch, or the windows that have ended.
    late_rows : int
        The rows of the micro-batch behind the watermark.
    dropped_rows : int
        Those of them that were neither processed nor part of the result.
    out_of_order_rows : int
        With ``order="arrival"``, the rows that were processed ahead of a timer that was due before them.
    keys : int
        The keys with timers, state or waiting rows, and some that had them until lately.
    buffered_rows : int
        The rows that wait for the watermark.
    state_bytes : int
        The size of the state in the checkpoint.
    largest_group_bytes : int
        The size of the largest key group.
    groups_handed_over : int
        The key groups that came from another Python worker of the executor, which costs little.
    groups_loaded : int
        The key groups that were loaded from the state store, which costs as much as their state.
    counters : dict of str to int
        The counters of the function, by how much they have changed in the micro-batch, and the events of its
        meters, by name. See `timerheap.MetricGroup`.
    distributions : dict of str to DistributionResult
        The distributions of the function that have had values in the micro-batch.
    """

    batch_id: int
    watermark: int | None
    newest_event_time: int | None
    event_time_lag: int | None
    clock_lag: int | None
    pending_event_time_timers: int
    pending_processing_time_timers: int
    next_event_time_timer: int | None
    next_processing_time_timer: int | None
    fired_timers: int
    late_rows: int
    dropped_rows: int
    out_of_order_rows: int
    keys: int
    buffered_rows: int
    state_bytes: int
    largest_group_bytes: int
    groups_handed_over: int
    groups_loaded: int
    counters: dict[str, int]
    distributions: dict[str, DistributionResult]


def progress(query: StreamingQuery, operator: str = OBSERVED) -> Progress | None:
    """Return the metrics of an operator of a streaming query as of its last micro-batch.

    They are also in ``query.lastProgress.observedMetrics[operator]``, and so in what Spark reports to
    listeners. There they are null if the micro-batch had no rows for the operator; then this function returns
    what the operator still holds.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
    operator : str, default "timerheap"
        Name of the operator. The first one of a query is "timerheap", unless `with_name` has given it another
        name; one whose input is the result of "timerheap" is "timerheap_2", and so on.

    Returns
    -------
    Progress or None
        None before the end of the first micro-batch.

    Raises
    ------
    TypeError, ValueError
        If `query` is not a streaming query, or has no such operator, or several of the name side by side, as
        in a union of two results, of which Spark reports one: `with_name` tells them apart.

    Notes
    -----
    A ``foreachBatch`` that reads its DataFrame twice without ``persist()`` runs the operator twice,
    which doubles the numbers.
    """
    if type(query).__module__.startswith("pyspark.sql.connect."):
        raise NotImplementedError("progress() is not supported on Spark Connect, where nothing is observed")
    if not isinstance(query, StreamingQuery):
        raise TypeError(f"query must be a pyspark.sql.streaming.StreamingQuery, got {query!r}")
    if not isinstance(operator, str):
        raise TypeError(f'operator must be a str such as "timerheap", got {operator!r}')
    batches = [batch for batch in query.recentProgress if batch.stateOperators]  # others had nothing to do
    reported = [batch for batch in batches if operator in batch.observedMetrics]
    if reported:
        if has_namesakes(query, operator):
            raise ValueError(
                f"operator must be the name of one operator, got {operator!r}, which several operators of "
                "the query have; give them names with timerheap.spark.with_name(result, name)"
            )
        metrics = [batch.observedMetrics[operator].asDict() for batch in reported]
        return _combined(reported[-1].batchId, metrics)
    if batches:
        names = sorted(batches[-1].observedMetrics)
        raise ValueError(
            f"operator must be the name of an operator of the query, got {operator!r}; the query observes "
            f"{', '.join(map(repr, names)) or 'nothing'}"
        )
    return None


def _combined(batch_id: int, metrics: list[dict[str, Any]]) -> Progress | None:
    """Return the metrics of the last of these micro-batches; what it leaves out has not changed before it."""
    held = next((values for values in reversed(metrics) if _of_all_groups(values)), None)
    if held is None:
        return None
    times = next((values for values in reversed(metrics) if values["watermark"] is not None), held)
    values = {name: metrics[-1][name] or 0 for name in _COUNTED}  # in the micro-batch
    values |= {name: times[name] for name in _TIMES} | {name: held[name] for name in _HELD}
    distributions = metrics[-1].get("distributions") or {}
    return Progress(
        batch_id=batch_id,
        counters=metrics[-1].get("counters") or {},
        distributions={name: DistributionResult(**each) for name, each in distributions.items()},
        **values,
    )


def _of_all_groups(values: dict[str, Any]) -> bool:
    """Return whether the metrics of a micro-batch are those of all key groups."""
    groups, all_groups = (values[name] for name in _REPORTED)
    return groups is not None and groups >= all_groups


def with_name(df: DataFrame, name: str) -> DataFrame:
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
        The same rows. A batch DataFrame, which has no metrics, is returned unchanged.

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

        carts = timerheap.spark.with_name(timerheap.spark.process(clicks, "user", CartAlerts(), ...), "carts")
        retries = timerheap.spark.with_name(timerheap.spark.process(orders, "id", Retries(), ...), "retries")
        query = carts.union(retries).writeStream...

        timerheap.spark.progress(query, "retries").pending_event_time_timers
    """
    data_frame("df", df)
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    if not name:
        raise ValueError(f"name must not be empty, got {name!r}; it is a key of observedMetrics")
    refuse_connect(df.sparkSession, "with_name()")
    if not df.isStreaming:
        return df
    return renamed(df, name)
