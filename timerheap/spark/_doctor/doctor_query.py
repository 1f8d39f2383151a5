"""The query that `doctor` runs: state and timers over a restart and a kill of a Python worker."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from timerheap.functions import KeyedProcessFunction, RuntimeContext
from timerheap.spark._compat import on_connect
from timerheap.spark._continued.checkpoint_files import CheckpointFiles
from timerheap.spark._doctor.doctor_software import Finding
from timerheap.spark._process.process import process
from timerheap.state import ValueStateDescriptor
from timerheap.types import Types

_KEYS = 20  # and rows of each micro-batch, one of each key
_STEP = 1000  # ms of event time from one micro-batch to the next
_EACH_RUN = 3  # micro-batches
_TRIES = 5  # of a run
_NO_ROW = -1
_RESULT = "key bigint, value bigint, n bigint, fired bigint"


class _Counted(KeyedProcessFunction):
    """Counts the rows of a key, and has a timer for each; may kill its worker once."""

    def __init__(self, kills_at: int) -> None:
        self._kills_at = kills_at  # a value; -1 never

    def open(self, runtime_context: RuntimeContext) -> None:
        self._n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        task = TaskContext.get()
        if value.value == self._kills_at and task is not None and task.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        n = (self._n.value() or 0) + 1
        self._n.update(n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + _STEP // 2)
        yield ctx.get_current_key(), value.value, n, _NO_ROW

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), _NO_ROW, self._n.value(), timestamp - _STEP // 2


def check_query(spark: SparkSession, checkpoint: str, timeout: float) -> Iterator[Finding]:
    """Run the query three times, and compare its results."""
    folder = f"{checkpoint.rstrip('/')}/timerheap-doctor-{uuid.uuid4().hex}"
    try:
        yield from _runs(spark, folder, timeout)
    finally:
        if not on_connect(spark):
            CheckpointFiles(spark, folder).remove("")


def _runs(spark: SparkSession, folder: str, timeout: float) -> Iterator[Finding]:
    batch, found = _whole_run(spark, folder, _EACH_RUN - 1, timeout)
    yield replace(found, subject="query")
    started = time.monotonic()
    # A row of the next micro-batch but one, so that there is state when it comes.
    try:
        batch = _run(spark, folder, (batch + 2) * _KEYS + 7, batch + _EACH_RUN, timeout)
        survived = "its task was repeated"
    except _Ended:
        survived = "it ended the run, as where tasks are not repeated"
    seconds = time.monotonic() - started
    yield Finding("query, restarted, with a worker killed", "ok", f"{survived}; {seconds:.0f} s")
    batch, found = _whole_run(spark, folder, batch + 2 * _EACH_RUN, timeout)
    yield replace(found, subject="query, restarted")
    wrong = wrong_results(spark.read.schema(_RESULT).parquet(f"{folder}/output"))
    yield Finding(
        "results of the query",
        "failed" if wrong else "ok",
        wrong or "all rows and timers once, with the right state",
        "report it, with this text" if wrong else "",
    )


class _Ended(RuntimeError):
    """A run that Spark has ended."""


def _whole_run(spark: SparkSession, folder: str, until: int, timeout: float) -> tuple[int, Finding]:
    """Run the query, again if Spark ends it, and return the last micro-batch, and how it went."""
    started, ends = time.monotonic(), list[str]()
    while True:
        try:
            batch = _run(spark, folder, _NO_ROW, until, timeout)
        except _Ended as e:
            ends.append(str(e))
            if len(ends) == _TRIES:
                raise
            continue
        found = f"{batch + 1} micro-batches; {time.monotonic() - started:.0f} s"
        if not ends:
            return batch, Finding("", "ok", found)
        text = f"{found}, after Spark had ended {len(ends)} runs: {ends[-1]}"
        return batch, Finding("", "warning", text, "see the log of the driver; is the machine overloaded?")


def _run(spark: SparkSession, folder: str, kills_at: int, until: int, timeout: float) -> int:
    """Run the query until it has committed a micro-batch; return the last one."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", _KEYS)
        .option("numPartitions", 2)
        .option("advanceMillisPerBatch", _STEP)
        .option("startTimestamp", 0)
        .load()
        .withColumn("key", F.col("value") % _KEYS)
    )
    result = process(
        rows, "key", _Counted(kills_at), _RESULT, event_time="timestamp", watermark=0, name="doctor"
    )
    writer = result.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start(f"{folder}/output")
    try:
        return _awaited(query, until, timeout)
    finally:
        query.stop()


def _awaited(query: StreamingQuery, until: int, timeout: float) -> int:
    end, last = time.monotonic() + timeout, -1
    while time.monotonic() < end:
        if not query.isActive:
            error = query.exception()
            raise _Ended(str(error).partition("===")[0] if error is not None else "the query has ended")
        progress: Any = query.lastProgress
        last = last if progress is None else int(progress["batchId"])
        if last >= until:
            return last
        time.sleep(0.2)
    raise TimeoutError(f"after {timeout:.0f} s the query was at micro-batch {last}, where {until} was wanted")


def wrong_results(output: DataFrame) -> str:
    """Return what is wrong in the results, "" if nothing."""
    rows = [(row.key, row.value, row.n, row.fired) for row in output.collect()]
    values = sorted(row[1] for row in rows if row[1] != _NO_ROW)
    timers = sorted((row[3], row[0]) for row in rows if row[1] == _NO_ROW)
    if values != list(range(len(values))) or not values:
        wanted = max(values, default=-1) + 1
        return f"{len(values)} rows, {len(set(values))} different ones, where {wanted} were wanted"
    if counts := [row for row in rows if row[1] != _NO_ROW and row[2] != row[1] // _KEYS + 1]:
        return f"{len(counts)} rows with a wrong count, such as {counts[0]}"
    if timers != [(at * _STEP, key) for at in range(len(timers) // _KEYS) for key in range(_KEYS)]:
        return f"{len(timers)} timers, {len(set(timers))} different ones"
    return "" if timers else "no timer has fired"
