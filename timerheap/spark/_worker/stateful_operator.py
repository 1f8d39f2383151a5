"""The stateful operator: one call for each key group in each micro-batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from timerheap.functions import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._exchange.labels import partition_of
from timerheap.spark._exchange.pack import HASH, event_millis, unpack
from timerheap.spark._group.checkpoint import (
    CHUNKS_KEY,
    CHUNKS_VALUE,
    FORMAT,
    MANIFEST,
    Cache,
    Manifest,
    Owner,
    Run,
    Stored,
    partitions_changed,
)
from timerheap.spark._group.key_group import GroupSpec, KeyGroup
from timerheap.spark._group.offsets import wide_rows
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.batch_runner import BatchRunner
from timerheap.spark._worker.endless import Runs
from timerheap.spark._worker.notices import Notices
from timerheap.spark._worker.output import ResultBuffer, frame
from timerheap.spark._worker.row_runner import KeyedRunner
from timerheap.spark._worker.window_runner import WindowQuery, WindowRunner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.results import how_late

__all__ = ["BatchOperator", "Plan", "StreamingOperator"]

Runner = KeyedRunner | BatchRunner | WindowRunner

_log = logging.getLogger("timerheap")
_cache = Cache()


@dataclass(frozen=True)
class Plan:
    """A whole query, as its workers need it.

    Parameters
    ----------
    id : str
        Of this operator, unique.
    function : KeyedProcessFunction, BatchProcessFunction or WindowQuery
    spec : GroupSpec
    row_type : pyspark.sql.types.StructType
        Of the input's rows.
    output : pyarrow.Schema
    late_row : pyarrow.StructType or None
        What is shown of a late row, where such rows come out.
    shown : list of str
        The columns of the rows that its fields are.
    event_time : str or None
    time_mode : {"None", "ProcessingTime", "EventTime"}
        Whose clock the operator follows beside its own watermark: none, the micro-batches', or Spark's
        watermark, which is then the only one.
    runs : Runs
        Where tasks of a query with processing time say which query they are of.
    notices : Notices
        Takes what the driver is to log.
    """

    id: str
    function: KeyedProcessFunction | BatchProcessFunction | WindowQuery
    spec: GroupSpec
    row_type: StructType
    output: pa.Schema
    late_row: pa.StructType | None
    shown: list[str]
    event_time: str | None
    time_mode: str
    runs: Runs
    notices: Notices

    def runner(self) -> Runner:
        """Open the function."""
        if isinstance(self.function, WindowQuery):
            return WindowRunner(self.function)
        if isinstance(self.function, BatchProcessFunction):
            return BatchRunner(self.function, self.event_time is not None, self.spec.max_parallelism)
        return KeyedRunner(
            self.function,
            self.spec.key,
            self.row_type,
            self.event_time is not None,
            self.spec.max_parallelism,
        )


def _run(
    plan: Plan,
    runner: Runner,
    group: KeyGroup,
    rows: pa.RecordBatch | None,
    now: int | None,
    watermark_after: Callable[[WatermarkState], int],
) -> pa.Table:
    """One key group's share of one micro-batch: rows, then the watermark, then the clock."""
    output = ResultBuffer(plan.output, plan.late_row)
    before = group.watermark_state.watermark
    runner.begin(group, now, output)
    runner.set_watermark(before)
    waiting = _admit(plan, group, rows, output) if rows is not None else None
    watermark = watermark_after(group.watermark_state)
    if plan.spec.order == "event_time":
        if waiting is not None:
            group.rows.append(waiting)
        runner.replay(group.rows.release(watermark), watermark)
    else:
        if waiting is not None:
            runner.process(waiting)
        if plan.event_time is not None or watermark > before:
            runner.advance(watermark)
    if now is not None:
        runner.advance_clock(now)
    return output.table()


def _admit(plan: Plan, group: KeyGroup, rows: pa.RecordBatch, output: ResultBuffer) -> KeyedRows:
    """Give the rows that may reach the function, now or in their order."""
    schema = wide_rows(plan.spec.schema)
    timed = plan.event_time in schema.names
    columns = [rows.column(field.name).cast(field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    hashes = rows.column(HASH).to_numpy()
    timestamps = event_millis(batch.column(plan.event_time)) if timed else np.zeros(len(hashes), np.int64)
    by_watermark = plan.spec.windows is None  # else a row is late by its slice
    if timed and by_watermark and (plan.spec.order == "event_time" or plan.late_row is not None):
        late = timestamps <= group.watermark_state.watermark
        if late.any():
            _turn_away(plan, group, batch.filter(pa.array(late)), timestamps[late], output)
            batch, hashes, timestamps = batch.filter(pa.array(~late)), hashes[~late], timestamps[~late]
    ids = group.keys.resolve(hashes, [batch.column(name) for name in plan.spec.key])
    return KeyedRows(batch, ids, timestamps)


def _turn_away(
    plan: Plan, group: KeyGroup, late: pa.RecordBatch, timestamps: np.ndarray, output: ResultBuffer
) -> None:
    group.watermark_state.late_rows += len(timestamps)
    if plan.late_row is not None:
        # What a longer delay would have let in: the watermark itself says that its own time is over.
        output.late(late.select(plan.shown), how_late(group.watermark_state.watermark, timestamps))
    else:
        _log.warning(
            "%d rows came behind the watermark and were dropped (now %d in this key group)",
            len(timestamps),
            group.watermark_state.late_rows,
        )


class _SparkStore:
    """The `ChunkStore` over the state variables of the group that Spark has made current."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._chunks = handle.getMapState("chunks", CHUNKS_KEY, CHUNKS_VALUE)
        self._manifest = handle.getValueState("manifest", MANIFEST)

    def read_all(self) -> Iterator[tuple[int, int, bytes]]:
        for (kind, id_), (data,) in self._chunks.iterator():
            yield kind, id_, bytes(data)

    def write(self, kind: int, id_: int, data: bytes) -> None:
        self._chunks.updateValue((kind, id_), (data,))

    def remove(self, kind: int, id_: int) -> None:
        self._chunks.removeKey((kind, id_))

    def read_manifest(self) -> Manifest | None:
        row = self._manifest.get()
        if row is None:
            return None
        format_, token, max_parallelism, partitions, runs = row
        if format_ != FORMAT:
            raise ValueError(
                f"this checkpoint has timerheap's state format {format_}, and this version reads {FORMAT}: "
                "use the version that wrote it, or start a new checkpoint"
            )
        return Manifest(max_parallelism, partitions, bytes(token), [Run(*run) for run in runs])

    def write_manifest(self, manifest: Manifest) -> None:
        runs = [(run.kind, run.name, run.count) for run in manifest.runs]
        self._manifest.update((FORMAT, manifest.token, manifest.max_parallelism, manifest.partitions, runs))


class StreamingOperator(StatefulProcessor):
    """Key groups whose state is Spark's (``transformWithStateInPandas``).

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        # By itself: the worker that Spark starts on the driver calls only init(), and cannot import the
        # modules that addPyFile() has sent.
        self._pickled_plan = dumps(plan)  # type: ignore[no-untyped-call]
        self._runner: Runner | None = None

    @cached_property
    def _plan(self) -> Plan:
        return cast(Plan, loads(self._pickled_plan))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; on the driver, too."""
        self._handle = handle
        self._store = _SparkStore(handle)

    def handleInputRows(  # type: ignore[override]  # which allows Rows, too
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Take all that the pack stage has sent to a key group."""
        packed = (pair for df in rows for pair in zip(df["sequence"], df["blob"], strict=True))
        return self._micro_batch(key[0], *unpack(packed), timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Take a wake-up: Spark's timer for the earliest processing-time timer of a key group."""
        return self._micro_batch(key[0], *unpack(()), timerValues)

    def close(self) -> None:
        """End of the task."""
        if self._runner is not None:
            self._runner.close()

    def _micro_batch(
        self, label: int, rows: pa.RecordBatch | None, observed: pa.Table, timer_values: Any
    ) -> Iterator[pd.DataFrame]:
        plan = self._plan
        task = cast(TaskContext, TaskContext.get())
        owner = Owner(task.getLocalProperty("sql.streaming.queryId"), plan.id)
        run = task.getLocalProperty("spark.jobGroup.id")
        _cache.begin(owner, run, int(task.getLocalProperty("streaming.sql.batchId") or 0))
        group, stored = self._load(owner, int(label), task.partitionId())
        if self._runner is None:
            self._runner = plan.runner()
            if plan.time_mode == "ProcessingTime":
                plan.runs.add(frozenset({(owner.query, run)}))
        now = timer_values.getCurrentProcessingTimeInMs() if plan.time_mode == "ProcessingTime" else None

        def watermark_after(clock: WatermarkState) -> int:
            if plan.time_mode != "EventTime":
                return clock.observe(observed, now, run)
            # Spark's says that nothing below it will come, ours that nothing up to it will.
            return clock.follow(timer_values.getCurrentWatermarkInMs() - 1)

        table = _run(plan, self._runner, group, rows, now, watermark_after)
        if notices := group.notices():
            plan.notices.add(notices)
        self._set_wake_up(group, now)
        group.forget_dead_keys()
        stored.save(self._store, group.parts())
        _cache.put(owner, int(label), stored.manifest.token, (group, stored))
        for batch in table.to_batches():
            yield frame(batch)

    def _load(self, owner: Owner, label: int, partition: int) -> tuple[KeyGroup, Stored]:
        spec = self._plan.spec
        manifest = self._store.read_manifest()
        if manifest is not None:
            manifest.check(spec.max_parallelism, spec.partitions)
        if partition_of(np.array([label]), spec.partitions)[0] != partition:
            raise ValueError(partitions_changed(None, spec.partitions))
        group = KeyGroup(spec)
        if manifest is None:
            return group, Stored(Manifest(spec.max_parallelism, spec.partitions))
        cached = _cache.take(owner, label, manifest.token)
        if cached is not None:
            return cast(tuple[KeyGroup, Stored], cached)
        stored = Stored.load(self._store, manifest, group.part, spec.drop_state)
        return group.loaded(), stored

    def _set_wake_up(self, group: KeyGroup, now: int | None) -> None:
        """Keep one Spark timer, later than now: one for the very moment that is firing would be lost."""
        if self._plan.time_mode == "None":
            return
        window = None if group.slices is None else group.slices.windows.next_timer()
        if now is None:  # Spark calls once its own watermark is above a timer
            times, after, over = [window], 0, group.watermark_state.watermark + 1
        else:
            head = group.processing_timers.heap.peek()
            times = [group.watermark_state.next_idle(), None if head is None else head.timestamp]
            times += [] if self._plan.event_time is not None else [window]
            after, over = 1, now
        next_ = min((time for time in times if time is not None), default=MAX_WATERMARK)
        wanted = max(next_ + after, over + 1) if next_ < MAX_WATERMARK else None  # whose time never passes
        current = group.watermark_state.wake_up
        if current is not None and current <= over:
            current = None  # it has fired, or fires in this batch, and Spark deletes it
        if wanted != current:
            if current is not None:
                self._handle.deleteTimer(current)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        group.watermark_state.wake_up = wanted


class BatchOperator:
    """The same on a batch DataFrame (``applyInArrow``): nothing is kept, and at its end all timers fire.

    Parameters
    ----------
    plan : Plan
    result_type : pyspark.sql.types.StructType
        Of the results, with the late rows where they come out.
    """

    def __init__(self, plan: Plan, result_type: StructType) -> None:
        self._plan = plan
        self._result_type = result_type

    def __call__(self, packed: pa.Table) -> pa.Table:
        """Take a whole key group."""
        columns = (packed.column(name).to_pylist() for name in ("sequence", "blob"))
        rows, _ = unpack(zip(*columns, strict=True))
        runner = self._plan.runner()
        table = _run(self._plan, runner, KeyGroup(self._plan.spec), rows, None, WatermarkState.finish)
        runner.close()
        large = pa.types.is_large_binary(packed.schema.field("blob").type)  # spark...arrow.useLargeVarTypes
        return table.cast(to_arrow_schema(self._result_type, timezone="UTC", prefers_large_types=large))
