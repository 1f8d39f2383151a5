"""What the driver sees of a running query: the metrics of micro-batches, and what tasks tell it of a run."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyspark import SparkContext
from pyspark.accumulators import Accumulator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from timerheap._arguments import instance
from timerheap.metrics import DistributionResult
from timerheap.spark._columns import METRICS, RESULTS
from timerheap.spark._compat import (
    analyzed,
    analyzed_plan,
    cancel_jobs,
    execution_of,
    hadoop_files,
    hadoop_path,
    jvm,
    logical_plan,
    nullable,
    of_plan,
    on_connect,
    refuse_connect,
    with_plan_id,
)
from timerheap.spark._plan.arguments import data_frame
from timerheap.spark._worker.driver_mail import DRAINED, Letter, Look, Mail, Opener, QueryRun
from timerheap.spark._worker.partition import OF_CHANNEL, TASK_METRICS
from timerheap.spark._worker.spark_store import CHUNKS

OBSERVED = "timerheap"
"""Name of the metrics of a query's first operator; those of later operators are numbered from 2."""

_COLUMN = "metrics"  # among the observed ones
_DATAFRAME = -1  # the id of no DataFrame
_VALUES = {"distributions": "struct<count: bigint, sum: bigint, min: bigint, max: bigint>"}  # others: bigint
_MERGES: dict[str, Callable[[Column, Column], Column]] = {
    "sum": F.try_add,
    "min": F.least,
    "max": F.greatest,
    "counters": F.try_add,
    "distributions": lambda a, b: F.struct(
        F.try_add(a["count"], b["count"]).alias("count"),
        *(_MERGES[name](a[name], b[name]).alias(name) for name in ("sum", "min", "max")),
    ),
}
"""What makes one value of two, for each object in the metrics of a task."""

_HELD = [metric.name for metric in TASK_METRICS if metric.of_all]
_TIMES = ["watermark", "newest_event_time", "event_time_lag", "clock_lag"]
_REPORTED = ["groups", "max_parallelism"]
_COUNTED = [m.name for m in TASK_METRICS if m.name not in (*_HELD, *_TIMES, *_REPORTED)]
_CHANNELS = "channel_watermarks"
_log = logging.getLogger("timerheap")
_OPERATOR = "TransformWithStateIn"  # the beginning of its name, in all versions of PySpark
_boxes: WeakKeyDictionary[SparkContext, Accumulator[tuple[Letter, ...]]] = WeakKeyDictionary()
_sessions: WeakValueDictionary[str, SparkSession] = WeakValueDictionary()


def output_type(result: StructType, flat: bool = False) -> StructType:
    """Return the type of what the operator of a stream returns: results, or arrays of them, and metrics."""
    if flat:  # with a row of metrics, in which they are null
        fields = nullable(result).fields
    else:
        fields = [StructField(RESULTS, ArrayType(result, containsNull=False))]
    return StructType([*fields, StructField(METRICS, StringType())])


def observed(output: DataFrame, df: DataFrame, has_own: bool = False) -> DataFrame:
    """Return the results in the output of an operator, whose input is `df`, and observe its metrics."""
    # They are a map, "metrics". If its function `has_own`, these are two more, "counters" and
    # "distributions".
    own = [_merged(kind).alias(kind) for kind in ("counters", "distributions") if has_own]
    metrics = _merged("sum", "min", "max").alias(_COLUMN)
    return _results(_repeatable(output.observe(_name(df), metrics, *own)))


def _merged(*kinds: str) -> Column:
    """Return the aggregate of objects in the metrics of tasks: one map."""
    # Spark generates code for the aggregates of other functions anew in each task, 0.3 ms of CPU for each of
    # 20 numbers. It does not for collect_list, and merges on the driver what that has collected.
    type_ = ", ".join(f"{kind} map<string, {_VALUES.get(kind, 'bigint')}>" for kind in kinds)

    def merged(kind: str, so_far: Column, one: Column) -> Column:
        return F.map_zip_with(
            so_far[kind],
            one[kind],
            lambda _, a, b: F.when(a.isNull(), b).when(b.isNull(), a).otherwise(_MERGES[kind](a, b)),
        ).alias(kind)

    return F.reduce(
        F.transform(F.collect_list(METRICS), lambda text: F.from_json(text, type_)),
        F.from_json(F.lit(json.dumps({kind: {} for kind in kinds})), type_),
        lambda so_far, one: F.struct(*(merged(kind, so_far, one) for kind in kinds)),
        lambda maps: F.map_concat(*(maps[kind] for kind in kinds)),
    )


def _results(output: DataFrame) -> DataFrame:
    if output.columns == [RESULTS, METRICS]:
        return output.select(F.inline(RESULTS))
    return output.where(F.col(METRICS).isNull()).drop(METRICS)


def _name(df: DataFrame) -> str:
    """Return a name that no operator before this one has."""
    plan = analyzed_plan(df)
    numbers = [int(number or 1) for number in re.findall(rf"CollectMetrics {OBSERVED}(?:_(\d+))?,", plan)]
    return f"{OBSERVED}_{max(numbers) + 1}" if numbers else OBSERVED


def _repeatable(observed: DataFrame) -> DataFrame:
    """Return a DataFrame of ``observe()`` that may stand twice in a query."""
    # Spark refuses two metrics of one name, as in the union of the results of two operators, unless they
    # belong to one DataFrame. The progress then has the metrics of one of them; see `with_name`.
    if on_connect(observed.sparkSession):
        return with_plan_id(observed, _DATAFRAME)
    node = logical_plan(observed)
    node = node.copy(node.name(), node.metrics(), node.child(), _DATAFRAME)
    return of_plan(observed.sparkSession, node)


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
    null_time_rows : int
        With ``EventTime(null="drop")``, the rows that were dropped since their event time is null.
    ahead_rows : int
        With ``with_max_ahead``, the rows that were too far ahead of the clock to advance the watermark.
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
    channel_watermarks : dict of str to int
        The watermark of each channel that is not idle, by its name, with "right." before those of a second
        input. An input of more than 100 channels has none here; `read_checkpoint` tells of all.
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
    null_time_rows: int
    ahead_rows: int
    out_of_order_rows: int
    keys: int
    buffered_rows: int
    state_bytes: int
    largest_group_bytes: int
    groups_handed_over: int
    groups_loaded: int
    channel_watermarks: dict[str, int]
    counters: dict[str, int]
    distributions: dict[str, DistributionResult]


def progress(query: StreamingQuery, operator: str = OBSERVED) -> Progress | None:
    """Return the metrics of an operator of a streaming query as of its last micro-batch.

    They are also in ``query.lastProgress.observedMetrics[operator].metrics``, a dict, and so in what Spark
    reports to listeners. It is empty if the micro-batch had no rows for the operator; then this function
    returns what the operator still holds.

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
    On Spark Connect, nothing tells of several operators of one name: these are the metrics of one of them.

    A ``foreachBatch`` that reads its DataFrame twice without ``persist()`` runs the operator twice,
    which doubles the numbers.
    """
    if not isinstance(query, StreamingQuery) and not on_connect(query):
        raise TypeError(f"query must be a pyspark.sql.streaming.StreamingQuery, got {query!r}")
    if not isinstance(operator, str):
        raise TypeError(f'operator must be a str such as "timerheap", got {operator!r}')
    batches = [batch for batch in query.recentProgress if batch.stateOperators]  # others had nothing to do
    reported = [batch for batch in batches if operator in operators_of(batch)]
    if reported:
        plan = "" if on_connect(query) else execution_of(query).logicalPlan().toString()
        # The metrics of an operator have an id of their own, also where a result stands twice in the query.
        first = rf"CollectMetrics {re.escape(operator)}, \[.*? AS {_COLUMN}#(\d+)"
        if len(set(re.findall(first, plan))) > 1:
            raise ValueError(
                f"operator must be the name of one operator, got {operator!r}, which several operators of "
                "the query have; give them names with timerheap.spark.with_name(result, name)"
            )
        last = reported[-1]
        found = [operators_of(batch)[operator] for batch in reported]
        return as_progress(last.batchId, reduce(after_batch, found, {}), found[-1])
    if batches:
        names = sorted(batches[-1].observedMetrics)
        raise ValueError(
            f"operator must be the name of an operator of the query, got {operator!r}; the query observes "
            f"{', '.join(map(repr, names)) or 'nothing'}"
        )
    return None


def operators_of(batch: StreamingQueryProgress) -> dict[str, dict[str, Any]]:
    """Return what each operator has reported of a micro-batch, by its name."""
    found = {name: _fields(row.asDict()) for name, row in batch.observedMetrics.items()}
    return {name: row for name, row in found.items() if _COLUMN in row}  # not an observe() of the user's


def _fields(row: Any) -> Any:
    """Return a row by its names; the client of Spark Connect takes its values and schema for two fields."""
    if row.keys() != {"values", "schema"}:
        return row
    return dict(zip((field["name"] for field in row["schema"]["fields"]), row["values"], strict=True))


def after_batch(before: dict[str, Any], observed: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of an operator after a micro-batch; what it leaves out has not changed in it."""
    metrics = observed[_COLUMN]
    groups, all_groups = (metrics.get(name) for name in _REPORTED)
    held = _HELD if groups is not None and groups >= all_groups else []
    times = [name for name in _TIMES if metrics.get(name) is not None]
    counted: dict[str, Any] = {name: metrics.get(name) or 0 for name in _COUNTED}
    if groups is not None:  # the first partition has run, which tells of all channels
        marks = {name: mark for name, mark in metrics.items() if name.startswith(OF_CHANNEL)}
        counted[_CHANNELS] = {name.removeprefix(OF_CHANNEL): mark for name, mark in marks.items()}
    return before | {name: metrics[name] for name in (*held, *times)} | counted


def as_progress(batch_id: int, values: dict[str, Any], observed: dict[str, Any]) -> Progress | None:
    """Return the metrics after a micro-batch, given its own; None before one of all key groups."""
    if not values.keys() >= set(_HELD):
        return None
    distributions = {  # dicts in recentProgress, rows in what a listener receives
        name: DistributionResult(d["count"], d["sum"], d["min"], d["max"])
        for name, d in observed.get("distributions", {}).items()
    }
    numbers: dict[str, Any] = dict.fromkeys(_TIMES) | {_CHANNELS: {}} | values
    return Progress(batch_id, **numbers, counters=observed.get("counters", {}), distributions=distributions)


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
    instance("name", name, str)
    if not name:
        raise ValueError(f"name must not be empty, got {name!r}; it is a key of observedMetrics")
    refuse_connect(df.sparkSession, "with_name()")
    if not df.isStreaming:
        return df
    plan = analyzed(df)
    above: list[Any] = []
    node = plan
    while node.nodeName() != "CollectMetrics" or METRICS not in node.child().schema().fieldNames():
        if node.children().size() != 1:
            raise ValueError(
                "df must be the result of one operator, such as timerheap.spark.process() returns it, got "
                f"{df!r}; call with_name() before results are combined"
            )
        above.append(node)
        node = node.children().head()
    if name != node.name() and f"CollectMetrics {name}," in plan.toString():
        raise ValueError(f"name must differ from the other metrics of the query, got {name!r}")
    spark = df.sparkSession
    to_seq = jvm(spark).PythonUtils.toSeq
    node = node.copy(name, node.metrics(), node.child(), _DATAFRAME)
    for parent in reversed(above):
        node = parent.withNewChildren(to_seq([node]))
    return of_plan(spark, node)


def mail(spark: SparkSession) -> Mail:
    """Return the mail of a new query."""
    owner = uuid.uuid4().hex
    if on_connect(spark):
        return Mail(None, "", owner)
    context, session = spark.sparkContext, str(id(spark))
    _sessions[session] = spark
    if context not in _boxes:
        _boxes[context] = context.accumulator((), Opener(_look))
    return Mail(_boxes[context], session, owner)


def _look(session: str, look: Look, run: QueryRun) -> None:
    """Do what a task asks for, in the thread in which PySpark adds to accumulators."""
    # An error there would end the connection through which all other tasks report, so none may pass. Most
    # come from a query that ends meanwhile; of one that goes on, the log has to tell that it has not been
    # checked.
    spark = _sessions.get(session)
    if spark is None:
        return
    try:
        looks = {"for an end": _warn_if_endless, "at the state": _refuse_foreign_state}
        looks[look](spark, run, execution_of(spark.streams.get(run.query)))
    except Exception as e:
        with suppress(Exception):
            if any(query.id == run.query for query in spark.streams.active):
                _log.warning("cannot look %s of query %s: %s", look, run.query, e)


def _warn_if_endless(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Warn if ``availableNow`` will not end a run with processing time, or before the clock is read."""
    # Only a running query knows its trigger.
    conf = execution.sparkSessionForStream().conf()
    if execution.trigger().toString() != "AvailableNowTrigger" or conf.contains(DRAINED):
        return
    _log.warning(
        "query %s must be started with timerheap.spark.run_available_now(writer), got "
        "trigger(availableNow=True).start(): it uses processing time, with_idleness or with_wall_clock, for "
        "which Spark runs micro-batches without rows for ever, or none if "
        "spark.sql.streaming.noDataMicroBatches.enabled is false",
        run.query,
    )


def _refuse_foreign_state(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Cancel a run, with an error that says why, if it has begun on the state of another operator."""
    # Spark compares the kind of an operator and the types of its states, each by name. So it does not tell
    # transformWithStateInPandas of a processor from ours, whose states have other names: without this
    # check, the query would begin with no state. The driver hears of a run when a task of the stage before
    # the state has ended, and looks at it before it starts the next stage: so Spark cancels the micro-batch
    # before a task can end that has reached the state. Files that the run has written about its states are
    # deleted, so that the other operator finds its own.
    for state in _states(execution.lastExecution().executedPlan()):
        operator = hadoop_path(spark, f"{state.checkpointLocation()}/{state.operatorId()}")
        files = hadoop_files(spark, operator)
        metadata = _numbered(files, hadoop_path(spark, operator, "_metadata/v2"))
        schemas = _numbered(files, hadoop_path(spark, operator, "_stateSchema/default"))
        begun = max(batch for batch, _ in metadata)  # Spark writes both when a run begins
        before = [path for batch, path in schemas if batch < begun]
        if before and not any(_is_ours(spark, files, path) for path in before):
            why = (
                f"the checkpoint of query {run.query} must be one that timerheap has written, got "
                f"{execution.resolvedCheckpointRoot()!r}, with the state of Spark's own "
                f"transformWithStateInPandas in operator {state.operatorId()}; start a new checkpoint, and "
                'pass the state of the old one, read with spark.read.format("statestore"), as initial_state'
            )
            cancel_jobs(spark, run.run, why)
            for batch, path in [*metadata, *schemas]:
                if batch == begun and _is_ours(spark, files, path):
                    files.delete(path, False)
            return


def _states(plan: Any) -> Iterator[Any]:
    """Return a Java StatefulOperatorStateInfo for each of timerheap's operators in a plan."""
    if plan.nodeName().startswith(_OPERATOR) and METRICS in [each.name() for each in _each(plan.output())]:
        yield plan.stateInfo().get()
    for child in _each(plan.children()):
        yield from _states(child)


def _each(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _numbered(files: Any, folder: Any) -> list[tuple[int, Any]]:
    """Return the files of a folder whose names begin with the number of a micro-batch, and the numbers."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    paths = [(each.getPath().getName().partition("_")[0], each.getPath()) for each in found]
    return [(int(batch), path) for batch, path in paths if batch.isdecimal()]


def _is_ours(spark: SparkSession, files: Any, path: Any) -> bool:
    """Return whether a file names the state of timerheap's operators, as schemas or metadata do."""
    name = CHUNKS[0].encode()
    stream = files.open(path)
    try:
        found = bytes(jvm(spark).org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
    return len(name).to_bytes(2, "big") + name in found or b'\\"' + name + b'\\"' in found
