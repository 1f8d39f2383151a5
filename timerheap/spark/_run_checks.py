"""What tasks have the driver look at in a running query: whether it will end, and whose its state is."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyspark import SparkContext
from pyspark.accumulators import Accumulator
from pyspark.sql import SparkSession

from timerheap.spark._columns import METRICS
from timerheap.spark._compat import (
    cancel_jobs,
    execution_of,
    hadoop_files,
    hadoop_path,
    jvm,
    on_connect,
)
from timerheap.spark._worker.driver_mail import DRAINED, Letter, Look, Mail, Opener, QueryRun
from timerheap.spark._worker.spark_store import CHUNKS

_log = logging.getLogger("timerheap")
_OPERATOR = "TransformWithStateIn"  # the beginning of its name, in all versions of PySpark
_boxes: WeakKeyDictionary[SparkContext, Accumulator[tuple[Letter, ...]]] = WeakKeyDictionary()
_sessions: WeakValueDictionary[str, SparkSession] = WeakValueDictionary()


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
    for state in _stateful_operators(execution.lastExecution().executedPlan()):
        operator = hadoop_path(spark, f"{state.checkpointLocation()}/{state.operatorId()}")
        files = hadoop_files(spark, operator)
        metadata = _by_batch(files, hadoop_path(spark, operator, "_metadata/v2"))
        schemas = _by_batch(files, hadoop_path(spark, operator, "_stateSchema/default"))
        begun = max(batch for batch, _ in metadata)  # Spark writes both when a run begins
        before = [path for batch, path in schemas if batch < begun]
        if before and not any(_is_state_of_timerheap(spark, files, path) for path in before):
            why = (
                f"the checkpoint of query {run.query} must be one that timerheap has written, got "
                f"{execution.resolvedCheckpointRoot()!r}, with the state of Spark's own "
                f"transformWithStateInPandas in operator {state.operatorId()}; start a new checkpoint, and "
                'pass the state of the old one, read with spark.read.format("statestore"), as initial_state'
            )
            cancel_jobs(spark, run.run, why)
            for batch, path in [*metadata, *schemas]:
                if batch == begun and _is_state_of_timerheap(spark, files, path):
                    files.delete(path, False)
            return


def _stateful_operators(plan: Any) -> Iterator[Any]:
    """Return a Java StatefulOperatorStateInfo for each of timerheap's operators in a plan."""
    if plan.nodeName().startswith(_OPERATOR) and METRICS in [
        each.name() for each in _scala_elements(plan.output())
    ]:
        yield plan.stateInfo().get()
    for child in _scala_elements(plan.children()):
        yield from _stateful_operators(child)


def _scala_elements(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _by_batch(files: Any, folder: Any) -> list[tuple[int, Any]]:
    """Return the files of a folder whose names begin with the number of a micro-batch, and the numbers."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    paths = [(each.getPath().getName().partition("_")[0], each.getPath()) for each in found]
    return [(int(batch), path) for batch, path in paths if batch.isdecimal()]


def _is_state_of_timerheap(spark: SparkSession, files: Any, path: Any) -> bool:
    """Return whether a file names the state of timerheap's operators, as schemas or metadata do."""
    name = CHUNKS[0].encode()
    stream = files.open(path)
    try:
        found = bytes(jvm(spark).org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
    return len(name).to_bytes(2, "big") + name in found or b'\\"' + name + b'\\"' in found
