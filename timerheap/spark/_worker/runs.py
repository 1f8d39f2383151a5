"""Lets the driver look at a query once a run: tasks tell it of the run, and only the driver has the query."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from timerheap.spark._compat import accumulator

__all__ = ["QueryRun", "Runs", "Telling", "runs", "tell"]

_log = logging.getLogger("timerheap")


class QueryRun(NamedTuple):
    """A run of a query, by their ids."""

    query: str
    run: str


Runs = Accumulator[frozenset[QueryRun]]
"""Runs that tasks have told of."""

Look = Callable[[SparkSession, QueryRun, Any], None]
"""Looks at a run on the driver, with Java's ``StreamExecution``."""


class _LooksOnce(AccumulatorParam[frozenset[QueryRun]]):
    """Looks at each new run; `spark` is the session of the queries, None in a task."""

    def __init__(self, spark: SparkSession | None, look: Look | None) -> None:
        self._spark = spark
        self._look = look

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, None)

    def zero(self, value: frozenset[QueryRun]) -> frozenset[QueryRun]:
        return frozenset()

    def addInPlace(self, value1: frozenset[QueryRun], value2: frozenset[QueryRun]) -> frozenset[QueryRun]:
        for run in value2 - value1:
            if self._spark is not None and self._look is not None:
                try:
                    query: Any = self._spark.streams.get(run.query)
                    self._look(self._spark, run, query._jsq.streamingQuery())
                except Exception as e:  # it has ended, or Spark's internals differ; the query must go on
                    _log.debug("cannot look at query %s: %s", run.query, e)
        return value1 | value2


def runs(spark: SparkSession, look: Look) -> Runs:
    """Return an accumulator that looks at each run that tasks tell of."""
    return accumulator(spark, frozenset(), _LooksOnce(spark, look))


def tell(runs: Runs) -> None:
    """Tell the driver of the run of this task; the driver hears of it when the task has succeeded.

    The first task of a stage tells for all: what tasks tell takes the driver's time in each micro-batch.
    """
    task = TaskContext.get()
    if task is None or task.partitionId() > 0:
        return
    query = task.getLocalProperty("sql.streaming.queryId")
    if query is not None:
        runs.add(frozenset({QueryRun(query, task.getLocalProperty("spark.jobGroup.id") or "")}))


class Telling:
    """A stage of `timerheap.spark._plan.stages` that tells of its run.

    Parameters
    ----------
    stage : callable
        What it does with the rows.
    runs : Runs
    """

    def __init__(
        self, stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], runs: Runs
    ) -> None:
        self._stage = stage
        self._runs = runs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process the rows of a task."""
        tell(self._runs)
        return self._stage(batches)
