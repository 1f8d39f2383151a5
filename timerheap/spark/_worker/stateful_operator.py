"""The stateful operator: one call for each key group in each micro-batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction
from timerheap.spark._exchange.pack import unpack
from timerheap.spark._group.checkpoint import partitions_changed
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.query import Query, WindowWork
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.batch_runner import BatchRunner
from timerheap.spark._worker.endless import Runs
from timerheap.spark._worker.hand_overs import HandOvers
from timerheap.spark._worker.key_group_batch import run_key_group
from timerheap.spark._worker.live_groups import LiveGroups, Owner
from timerheap.spark._worker.notices import Notices
from timerheap.spark._worker.output import frame
from timerheap.spark._worker.row_runner import RowRunner
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.spark_store import SparkStore
from timerheap.spark._worker.window_runner import WindowRunner
from timerheap.timer import MAX_WATERMARK

__all__ = ["BatchOperator", "StreamingOperator"]

_DEFAULT_PARTITIONS = 200  # Spark's own default, which no local property shows


def _runner_of(query: Query) -> Runner:
    if isinstance(query.work, WindowWork):
        return WindowRunner(query.work, query)
    if isinstance(query.work, BatchProcessFunction):
        return BatchRunner(query.work, query)
    return RowRunner(query.work, query)


class StreamingOperator(StatefulProcessor):
    """Runs key groups of a stream, whose state Spark keeps (``transformWithStateInPandas``).

    Parameters
    ----------
    query : Query
    partitions : int
        Number of shuffle partitions that the labels of the key groups are made for.
    runs : Runs
        Receives the runs of a query with processing time.
    notices : Notices
        Receives messages that the driver logs.
    hand_overs : HandOvers
        Receives where the key groups came from.
    """

    def __init__(
        self, query: Query, partitions: int, runs: Runs, notices: Notices, hand_overs: HandOvers
    ) -> None:
        # Pickled apart: the worker that Spark starts on the driver calls only init(), and cannot import
        # modules that were sent with addPyFile().
        self._pickled = dumps((query, runs, notices, hand_overs))  # type: ignore[no-untyped-call]
        self._id = uuid.uuid4().hex
        self._partitions = partitions
        self._runner: Runner | None = None

    @cached_property
    def _unpickled(self) -> tuple[Query, Runs, Notices, HandOvers]:
        return cast(tuple[Query, Runs, Notices, HandOvers], loads(self._pickled))

    @property
    def _query(self) -> Query:
        return self._unpickled[0]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; Spark calls this on the driver, too."""
        self._handle = handle
        self._store = SparkStore(handle)

    def handleInputRows(  # type: ignore[override]  # which allows Rows, too
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process what the pack stage has sent to a key group."""
        packed = (pair for df in rows for pair in zip(df["sequence"], df["blob"], strict=True))
        return self._micro_batch(key[0], *unpack(packed), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Process a key group whose wake-up, a timer of Spark's, has fired."""
        return self._micro_batch(key[0], *unpack(()), timerValues)

    def close(self) -> None:
        """End the task."""
        if self._runner is not None:
            self._runner.close()

    def _micro_batch(
        self, label: int, rows: pa.RecordBatch | None, observed: pa.Table, timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        query, runs, notices, hand_overs = self._unpickled
        clocked = query.time_mode == "ProcessingTime"
        task = cast(TaskContext, TaskContext.get())
        owner = Owner(task.getLocalProperty("sql.streaming.queryId"), self._id)
        run = task.getLocalProperty("spark.jobGroup.id")
        self._check_partitions(task)
        groups = LiveGroups(query, self._store, owner, hand_overs, notices)
        groups.begin(run, int(task.getLocalProperty("streaming.sql.batchId") or 0))
        group, stored = groups.load(int(label))
        if self._runner is None:
            runner = _runner_of(query)
            runner.open()
            self._runner = runner
            if clocked:
                runs.add(frozenset({(owner.query, run)}))
        now = timer_values.getCurrentProcessingTimeInMs() if clocked else None

        def watermark_after(state: WatermarkState) -> int:
            if query.time_mode != "EventTime":
                return state.observe(observed, now, run)
            # Rows at Spark's watermark may still come; rows at ours may not.
            return state.follow(timer_values.getCurrentWatermarkInMs() - 1)

        table = run_key_group(query, self._runner, group, rows, now, watermark_after)
        if messages := group.notices():
            notices.add(messages)
        self._set_wake_up(group, now)
        group.forget_dead_keys()
        groups.save(int(label), group, stored)
        for batch in table.to_batches():
            yield frame(batch)

    def _check_partitions(self, task: TaskContext) -> None:
        """Raise a ValueError if the query runs with another number of partitions than the labels are for."""
        # The task's partition id does not tell: behind a union it counts the partitions of all inputs.
        running = int(task.getLocalProperty("spark.sql.shuffle.partitions") or _DEFAULT_PARTITIONS)
        if running != self._partitions:
            raise ValueError(partitions_changed(running, self._partitions))

    def _set_wake_up(self, group: KeyGroup, now: int | None) -> None:
        """Keep one Spark timer after now; Spark would drop one for the time that is firing."""
        if self._query.time_mode == "None":
            return
        window = None if group.slices is None else group.slices.windows.next_timer()
        if now is None:  # Spark fires a timer once its watermark is above it
            times, after, over = [window], 0, group.watermark_state.watermark + 1
        else:
            head = group.processing_timers.heap.peek()
            times = [group.watermark_state.next_idle(), None if head is None else head.timestamp]
            times += [] if self._query.event_time is not None else [window]
            after, over = 1, now
        next_ = min((time for time in times if time is not None), default=MAX_WATERMARK)
        wanted = max(next_ + after, over + 1) if next_ < MAX_WATERMARK else None  # MAX_WATERMARK never passes
        current = group.wake_up
        if current is not None and current <= over:
            current = None  # it has fired or fires in this batch; Spark deletes it
        if wanted != current:
            if current is not None:
                self._handle.deleteTimer(current)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        group.wake_up = wanted


class BatchOperator:
    """Runs key groups of a batch DataFrame (``applyInArrow``); at its end all timers fire.

    Parameters
    ----------
    query : Query
    result_type : pyspark.sql.types.StructType
        Type of the result, with the columns of late rows if the query has them.
    """

    def __init__(self, query: Query, result_type: StructType) -> None:
        self._query = query
        self._result_type = result_type

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Process one key group."""
        columns = (packed.column(name).to_pylist() for name in ("sequence", "blob"))
        rows, _ = unpack(zip(*columns, strict=True))
        runner = _runner_of(self._query)
        runner.open()
        table = run_key_group(self._query, runner, KeyGroup(self._query), rows, None, WatermarkState.finish)
        runner.close()
        large = pa.types.is_large_binary(packed.schema.field("blob").type)  # spark...arrow.useLargeVarTypes
        return table.cast(to_arrow_schema(self._result_type, timezone="UTC", prefers_large_types=large))
