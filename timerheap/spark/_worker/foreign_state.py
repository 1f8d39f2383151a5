"""Refuses a checkpoint whose state is that of another operator than timerheap's.

Spark compares the kind of an operator and the types of its states, each by name. So it does not tell
``transformWithStateInPandas`` of a processor from ours, whose states have other names: without this check,
the query would begin with no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from timerheap.spark._worker.result_frames import METRICS
from timerheap.spark._worker.runs import QueryRun
from timerheap.spark._worker.spark_store import CHUNKS

__all__ = ["refuse_foreign_state"]

_OPERATOR = "TransformWithStateIn"  # the beginning of its name, in all versions of PySpark
_NAME = CHUNKS[0].encode()
_OURS = (len(_NAME).to_bytes(2, "big") + _NAME, b'\\"' + _NAME + b'\\"')  # in schemas, and in metadata


def refuse_foreign_state(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Cancel a run, with an error that says why, if it has begun on the state of another operator.

    The driver hears of a run when a task of the stage before the state has ended, and looks at it before it
    starts the next stage: so Spark cancels the micro-batch before a task can end that has reached the state.
    Files that the run has written about its states are deleted, so that the other operator finds its own.
    """
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    for state in _states(execution.lastExecution().executedPlan()):
        operator = _path(spark, f"{state.checkpointLocation()}/{state.operatorId()}")
        files = operator.getFileSystem(conf)
        metadata = _numbered(files, _path(spark, operator, "_metadata/v2"))
        schemas = _numbered(files, _path(spark, operator, "_stateSchema/default"))
        begun = max(batch for batch, _ in metadata)  # Spark writes both when a run begins
        before = [path for batch, path in schemas if batch < begun]
        if before and not any(_is_ours(spark, files, path) for path in before):
            why = (
                f"the checkpoint of query {run.query} must be one that timerheap has written, got "
                f"{execution.resolvedCheckpointRoot()!r}, with the state of Spark's own "
                f"transformWithStateInPandas in operator {state.operatorId()}; start a new checkpoint, and "
                'pass the state of the old one, read with spark.read.format("statestore"), as initial_state'
            )
            spark.sparkContext._jsc.sc().cancelJobGroup(run.run, why)
            for batch, path in [*metadata, *schemas]:
                if batch == begun and _is_ours(spark, files, path):
                    files.delete(path, False)
            return


def _states(plan: Any) -> Iterator[Any]:
    """Return a StatefulOperatorStateInfo of Java's for each of timerheap's operators in a plan."""
    if plan.nodeName().startswith(_OPERATOR) and METRICS in _names(plan.output()):
        yield plan.stateInfo().get()
    for child in _each(plan.children()):
        yield from _states(child)


def _names(attributes: Any) -> list[str]:
    return [attribute.name() for attribute in _each(attributes)]


def _each(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [sequence.apply(i) for i in range(sequence.size())]


def _path(spark: SparkSession, *parts: Any) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(*parts)


def _numbered(files: Any, folder: Any) -> list[tuple[int, Any]]:
    """Return the files of a folder whose names begin with the number of a micro-batch, and the numbers."""
    found = files.listStatus(folder) if files.exists(folder) else ()
    paths = [(each.getPath().getName().partition("_")[0], each.getPath()) for each in found]
    return [(int(batch), path) for batch, path in paths if batch.isdecimal()]


def _is_ours(spark: SparkSession, files: Any, path: Any) -> bool:
    """Return whether a file names the state of timerheap's operators."""
    jvm: Any = spark._jvm
    stream = files.open(path)
    try:
        found = bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()
    return any(name in found for name in _OURS)
