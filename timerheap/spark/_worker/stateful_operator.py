"""The stateful operator: one call for each key group in each micro-batch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
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

from timerheap.functions import BatchProcessFunction
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
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.query import Query, WindowWork
from timerheap.spark._group.row_buffer import KeyedRows
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.batch_runner import BatchRunner
from timerheap.spark._worker.endless import Runs
from timerheap.spark._worker.notices import Notices
from timerheap.spark._worker.output import ResultBuffer, frame
from timerheap.spark._worker.row_runner import RowRunner
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.window_runner import WindowRunner
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.results import lateness

__all__ = ["BatchOperator", "StreamingOperator"]

_DEFAULT_PARTITIONS = 200  # Spark's own default, which no local property shows

_log = logging.getLogger("timerheap")
_cache = Cache()


def _runner_of(query: Query) -> Runner:
    if isinstance(query.work, WindowWork):
        return WindowRunner(query.work, query)
    if isinstance(query.work, BatchProcessFunction):
        return BatchRunner(query.work, query)
    return RowRunner(query.work, query)


def _run(
    query: Query,
    runner: Runner,
    group: KeyGroup,
    rows: pa.RecordBatch | None,
    now: int | None,
    watermark_after: Callable[[WatermarkState], int],
) -> pa.Table:
    """Run one key group in one micro-batch: rows, then the watermark, then the clock."""
    output = ResultBuffer(query.result_schema, query.late_type)
    before = group.watermark_state.watermark
    runner.begin(group, now, output)
    admitted = _admit(query, group, rows, output) if rows is not None else None
    watermark = watermark_after(group.watermark_state)
    if query.order == "event_time":
        if admitted is not None:
            group.rows.append(admitted)
        runner.replay(group.rows.release(watermark), watermark)
    else:
        if admitted is not None:
            runner.process(admitted)
        if query.event_time is not None or watermark > before:
            runner.advance(watermark)
    if now is not None:
        runner.advance_clock(now)
    return output.table()


def _admit(query: Query, group: KeyGroup, rows: pa.RecordBatch, output: ResultBuffer) -> KeyedRows:
    """Return the rows that are not late."""
    schema = query.wide_schema
    timed = query.event_time in schema.names
    columns = [rows.column(field.name).cast(field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    hashes = rows.column(HASH).to_numpy()
    timestamps = event_millis(batch.column(query.event_time)) if timed else np.zeros(len(hashes), np.int64)
    by_watermark = query.windows is None  # in windows a row is late when its slice is over
    if timed and by_watermark and (query.order == "event_time" or query.late_row is not None):
        late = timestamps <= group.watermark_state.watermark
        if late.any():
            _drop_late(query, group, batch.filter(pa.array(late)), timestamps[late], output)
            batch, hashes, timestamps = batch.filter(pa.array(~late)), hashes[~late], timestamps[~late]
    ids = group.keys.resolve(hashes, [batch.column(name) for name in query.key])
    return KeyedRows(batch, ids, timestamps)


def _drop_late(
    query: Query, group: KeyGroup, late: pa.RecordBatch, timestamps: np.ndarray, output: ResultBuffer
) -> None:
    group.watermark_state.late_rows += len(timestamps)
    if query.late_row is not None:
        late_by = lateness(group.watermark_state.watermark, timestamps)
        output.late(late.select(list(query.late_columns)), late_by)
    else:
        _log.warning(
            "dropped %d rows behind the watermark (%d so far in this key group)",
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
    """

    def __init__(self, query: Query, partitions: int, runs: Runs, notices: Notices) -> None:
        # Pickled apart: the worker that Spark starts on the driver calls only init(), and cannot import
        # modules that were sent with addPyFile().
        self._pickled = dumps((query, runs, notices))  # type: ignore[no-untyped-call]
        self._id = uuid.uuid4().hex
        self._partitions = partitions
        self._runner: Runner | None = None

    @cached_property
    def _unpickled(self) -> tuple[Query, Runs, Notices]:
        return cast(tuple[Query, Runs, Notices], loads(self._pickled))

    @property
    def _query(self) -> Query:
        return self._unpickled[0]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state; Spark calls this on the driver, too."""
        self._handle = handle
        self._store = _SparkStore(handle)

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
        query, runs, notices = self._unpickled
        clocked = query.time_mode == "ProcessingTime"
        task = cast(TaskContext, TaskContext.get())
        owner = Owner(task.getLocalProperty("sql.streaming.queryId"), self._id)
        run = task.getLocalProperty("spark.jobGroup.id")
        _cache.begin(owner, run, int(task.getLocalProperty("streaming.sql.batchId") or 0))
        self._check_partitions(task)
        group, stored = self._load(owner, int(label))
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

        table = _run(query, self._runner, group, rows, now, watermark_after)
        if messages := group.notices():
            notices.add(messages)
        self._set_wake_up(group, now)
        group.forget_dead_keys()
        stored.save(self._store, group.parts())
        _cache.put(owner, int(label), stored.manifest.token, (group, stored))
        for batch in table.to_batches():
            yield frame(batch)

    def _check_partitions(self, task: TaskContext) -> None:
        """Raise a ValueError if the query runs with another number of partitions than the labels are for."""
        # The task's partition id does not tell: behind a union it counts the partitions of all inputs.
        running = int(task.getLocalProperty("spark.sql.shuffle.partitions") or _DEFAULT_PARTITIONS)
        if running != self._partitions:
            raise ValueError(partitions_changed(running, self._partitions))

    def _load(self, owner: Owner, label: int) -> tuple[KeyGroup, Stored]:
        query, partitions = self._query, self._partitions
        manifest = self._store.read_manifest()
        if manifest is None:
            return KeyGroup(query), Stored(Manifest(query.max_parallelism, partitions))
        manifest.check(query.max_parallelism, partitions)
        cached = _cache.take(owner, label, manifest.token)
        if cached is not None:
            return cast(tuple[KeyGroup, Stored], cached)
        group = KeyGroup(query)
        stored = Stored.load(self._store, manifest, group.part, query.drop_state)
        return group.loaded(), stored

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
        current = group.watermark_state.wake_up
        if current is not None and current <= over:
            current = None  # it has fired or fires in this batch; Spark deletes it
        if wanted != current:
            if current is not None:
                self._handle.deleteTimer(current)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        group.watermark_state.wake_up = wanted


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
        table = _run(self._query, runner, KeyGroup(self._query), rows, None, WatermarkState.finish)
        runner.close()
        large = pa.types.is_large_binary(packed.schema.field("blob").type)  # spark...arrow.useLargeVarTypes
        return table.cast(to_arrow_schema(self._result_type, timezone="UTC", prefers_large_types=large))
