"""The stateful operator as Spark receives it, on a stream or a batch, and the work that it is given.

Spark starts a Python process on the driver for each start of a query, which calls only ``init()`` to hear of
the state. To import this package there would take most of its time, and it cannot import modules that were
sent with ``addPyFile()``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, cast

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from timerheap.spark._compat import in_types_of_spark
from timerheap.spark._exchange.placement import Placement, key_group_of
from timerheap.spark._exchange.reached import Reached, leave
from timerheap.spark._group.watermark import repeated_run
from timerheap.spark._live.live_cache import Owner
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._query import Query
from timerheap.spark._worker.driver_mail import CONTINUED_AFTER, DRAINED, REPEATED, Mail
from timerheap.spark._worker.errors import reported_errors
from timerheap.spark._worker.spark_store import CHUNKS, SparkStore
from timerheap.spark._worker.work import Task, TaskPartition, Work
from timerheap.timer import MIN_WATERMARK


def deferred(operator: StatefulProcessor) -> StatefulProcessor:
    """Return an operator that declares the state on the driver, and elsewhere does what `operator` does."""
    pickled = dumps(operator)  # type: ignore[no-untyped-call]
    state = CHUNKS

    class Deferred(StatefulProcessor):  # in a function, so that it is pickled by value
        _operator: Any = None
        _reported: Any = None

        def init(self, handle: StatefulProcessorHandle) -> None:
            if TaskContext.get() is None:
                handle.getMapState(*state)
            else:
                from timerheap.spark._frozen_modules import freeze_operator_modules

                freeze_operator_modules(lambda: loads(pickled))
                self._operator = loads(pickled)
                self._operator.init(handle)
                from timerheap.spark._worker.errors import reported_errors

                self._reported = reported_errors

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            with self._reported():
                self._operator.handleInitialState(key, initialState, timerValues)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            with self._reported():
                yield from self._operator.handleInputRows(key, rows, timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            with self._reported():
                yield from self._operator.handleExpiredTimer(key, timerValues, expiredTimerInfo)

        def close(self) -> None:
            if self._operator is not None:
                with self._reported():
                    self._operator.close()

    return Deferred()


class StreamingOperator(StatefulProcessor):
    """Runs the key groups of a stream, whose state Spark keeps (``transformWithStateInPandas``)."""

    def __init__(self, query: Query, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._id = uuid.uuid4().hex
        self._partition: TaskPartition | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkStore(handle)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Start with the state of another query, or with rows for a processor."""
        self._begun(timerValues).restore(initialState)

    def handleInputRows(  # type: ignore[override]  # which allows Rows, too
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a partition, under the label of its first key group."""
        packed = [pair for df in rows for pair in zip(df["sequence"], df["blob"], strict=True)]
        return self._begun(timerValues).run(key_group_of(key[0]), packed)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Process a key group whose wake-up, a Spark timer, has fired."""
        fired = expiredTimerInfo.getExpiryTimeInMs()
        return self._begun(timerValues).wake_up(key_group_of(key[0]), fired)

    def close(self) -> None:
        watermark = None
        if self._partition is not None:
            self._partition.close()
            watermark = self._partition.reached()
        else:
            self._begin_store()
        if self._query.has_watermark:
            self._leave(self._store.watermark_before() if watermark is None else watermark)
        self._store.end()

    def _leave(self, watermark: int | None) -> None:
        """Leave the watermark for the next operator; None if the task has no key groups."""
        work: Work = self._query.work
        behind = work.results_behind
        if watermark is not None:
            watermark = max(watermark - (behind or 0), MIN_WATERMARK)
        leave(TaskContext.get(), Reached(bytes.fromhex(self._id), watermark, unbounded=behind is None))

    def _begun(self, timer_values: Any) -> TaskPartition:
        """Return the partition of this task; Spark has a new operator in each."""
        if self._partition is None:
            query = self._query
            task = cast(TaskContext, TaskContext.get())
            placement = self._begin_store()
            owner = Owner(task.getLocalProperty("sql.streaming.queryId"), self._id)
            run = task.getLocalProperty("spark.jobGroup.id")
            if query.time_mode == "ProcessingTime":
                self._mail.tell("for an end")
            groups = LiveGroups(query.layout, self._store, owner, placement.max_parallelism, self._mail)
            batch = _micro_batch(task)
            groups.begin(run, batch)
            drained = task.getLocalProperty(DRAINED) == str(batch)
            known = repeated_run(task.getLocalProperty(REPEATED), batch) or run
            work: Work = query.work
            self._partition = work.partition(
                Task(query, placement, self._store, groups, self._mail, known, timer_values, drained)
            )
        return self._partition

    def _begin_store(self) -> Placement:
        task = cast(TaskContext, TaskContext.get())
        placement = Placement.running(self._query.max_parallelism)
        query, begins = task.getLocalProperty("sql.streaming.queryId") or "", _spark_batch(task) == 0
        name, watched = cast(str, self._query.name), self._mail.has_driver
        self._store.begin(query, _micro_batch(task), placement, name, begins, watched)
        return placement


def _spark_batch(task: TaskContext) -> int:
    return int(task.getLocalProperty("streaming.sql.batchId") or 0)


def _micro_batch(task: TaskContext) -> int:
    """Return the number of the micro-batch: of the first one, that after which the query continues."""
    return int(task.getLocalProperty(CONTINUED_AFTER) or 0) if _spark_batch(task) == 0 else _spark_batch(task)


class BatchOperator:
    """Runs the keys of one partition of a batch DataFrame as one key group (``applyInArrow``).

    result_type: type of the result, with the columns of late rows if the query has them
    """

    def __init__(self, query: Query, result_type: StructType, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._result_type = result_type

    def __call__(self, packed: pa.Table, initial: pa.Table | None = None) -> pa.Table:
        """Process one partition; `initial` are rows to start with, packed, too."""
        with reported_errors():
            work: Work = self._query.work
            results = work.batch(self._query, packed, initial, self._mail)
            return in_types_of_spark(results.table(), self._result_type, packed)
