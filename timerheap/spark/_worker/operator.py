"""The stateful operator as Spark receives it, on a stream or a batch.

Spark starts a Python process on the driver for each start of a query, which calls only ``init()`` to hear of
the state. To import this package there would take most of its time, and it cannot import modules that were
sent with ``addPyFile()``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._compat import in_types_of_spark
from timerheap.spark._exchange.packer import broadcast_rows, pairs_of, unpack, unpacked_rows
from timerheap.spark._exchange.placement import Placement, key_group_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._process.wrapped_runners import Broadcasting, BroadcastRunner
from timerheap.spark._query import ProcessorWork, Query, WindowWork
from timerheap.spark._worker.batch_runner import BatchRunner
from timerheap.spark._worker.driver_mail import DRAINED, Mail
from timerheap.spark._worker.function_errors import reported
from timerheap.spark._worker.live_groups import LiveGroups, Owner
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.partition import FunctionPartition, Runner, run_key_group
from timerheap.spark._worker.row_runner import RowRunner
from timerheap.spark._worker.spark_store import CHUNKS, SparkStore
from timerheap.timer import MAX_WATERMARK

if TYPE_CHECKING:
    from timerheap.spark._processors.processor_partition import ProcessorPartition


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
                from timerheap.spark._freezing import freeze_modules

                freeze_modules(lambda: loads(pickled))
                self._operator = loads(pickled)
                self._operator.init(handle)
                from timerheap.spark._worker.function_errors import reported

                self._reported = reported

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


def runner_of(query: Query, placement: Placement) -> Runner:
    """Return what runs the work of a query."""
    if isinstance(query.work, WindowWork):
        from timerheap.spark._windows.window_runner import (
            WindowRunner,  # with timerheap.tvf, for windows alone
        )

        return WindowRunner(query.work, query)
    if isinstance(query.work, BatchProcessFunction):
        return BatchRunner(query.work, query, placement.max_parallelism)
    if isinstance(query.work, Broadcasting):
        return BroadcastRunner(query.work, query, placement.max_parallelism)
    assert isinstance(query.work, KeyedProcessFunction)
    return RowRunner(query.work, query, placement.max_parallelism)


class StreamingOperator(StatefulProcessor):
    """Runs the key groups of a stream, whose state Spark keeps (``transformWithStateInPandas``)."""

    def __init__(self, query: Query, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._id = uuid.uuid4().hex
        self._partition: FunctionPartition | ProcessorPartition | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Begin a task."""
        self._store = SparkStore(handle)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Start with the state of another query, or with rows for a processor."""
        self._begun(timerValues).restore(initialState)

    def handleInputRows(  # type: ignore[override]  # which allows Rows, too
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a partition, under the label of its first key group."""
        packed = [pair for df in rows for pair in zip(df["sequence"], df["blob"], strict=True)]
        query, partition = self._query, self._begun(timerValues)
        parts, observed = unpack(query, packed)
        rules = None if query.broadcast is None else broadcast_rows(query.broadcast, packed)
        return partition.run(key_group_of(key[0]), parts, observed, rules)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Process a key group whose wake-up, a Spark timer, has fired."""
        fired = expiredTimerInfo.getExpiryTimeInMs()
        return self._begun(timerValues).wake_up(key_group_of(key[0]), fired)

    def close(self) -> None:
        """End the task."""
        if self._partition is not None:
            self._partition.close()
        else:
            self._begin_store()
        self._store.end()

    def _begun(self, timer_values: Any) -> FunctionPartition | ProcessorPartition:
        """Return the partition of this task; Spark has a new operator in each."""
        if self._partition is None:
            query = self._query
            groups, placement, run, drained = self._task()
            if isinstance(query.work, ProcessorWork):
                from timerheap.spark._processors.processor_partition import (
                    ProcessorPartition,  # for processors alone
                )

                self._partition = ProcessorPartition(query, placement, self._store, groups, timer_values)
            else:
                runner = runner_of(query, placement)
                runner.open()
                self._partition = FunctionPartition(
                    query, placement, runner, self._store, groups, self._mail, run, timer_values, drained
                )
        return self._partition

    def _task(self) -> tuple[LiveGroups, Placement, str | None, bool]:
        """Begin this task; return the key groups, their placement, the run, and if sources are drained."""
        query = self._query
        task = cast(TaskContext, TaskContext.get())
        placement = self._begin_store()
        owner = Owner(task.getLocalProperty("sql.streaming.queryId"), self._id)
        run = task.getLocalProperty("spark.jobGroup.id")
        if query.time_mode == "ProcessingTime":
            self._mail.tell("for an end")
        groups = LiveGroups(query.layout, self._store, owner, placement.max_parallelism, self._mail)
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        groups.begin(run, batch)
        return groups, placement, run, task.getLocalProperty(DRAINED) == str(batch)

    def _begin_store(self) -> Placement:
        task = cast(TaskContext, TaskContext.get())
        placement = Placement.running(self._query.max_parallelism)
        batch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
        self._store.begin(task.getLocalProperty("sql.streaming.queryId") or "", batch, placement)
        return placement


class BatchOperator:
    """Runs the keys of one partition of a batch DataFrame as one key group (``applyInArrow``).

    result_type: type of the result, with the columns of late rows if the query has them
    """

    def __init__(self, query: Query, result_type: StructType, mail: Mail) -> None:
        self._query = query
        self._mail = mail
        self._result_type = result_type

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Process one partition."""
        with reported():
            return self._processed(packed)

    def _processed(self, packed: pa.Table) -> pa.Table:
        query = self._query
        rows, broadcast = unpacked_rows(query, packed), None
        if query.broadcast is not None:
            broadcast = broadcast_rows(query.broadcast, pairs_of(packed))
        runner = runner_of(query, Placement.running(query.max_parallelism))
        output = ResultBuffer(*query.outputs)
        runner.open()
        run_key_group(query, runner, KeyGroup(query.layout), rows, None, MAX_WATERMARK, output, broadcast)
        runner.close()
        for about, message in runner.rows_ahead.warnings.items():
            self._mail.warn([message], about)
        return in_types_of_spark(output.table(), self._result_type, packed)
