"""`run_available_now` and `start`: micro-batches without rows for queries with a clock."""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from timerheap._arguments import int64
from timerheap._moments import epoch_millis
from timerheap.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from timerheap.spark._compat import (
    analyzed_plan,
    hadoop_files,
    hadoop_path,
    jvm,
    on_connect,
    without_globs,
    written_by,
)
from timerheap.spark._run_settings import resolved, start_with
from timerheap.spark._worker.driver_mail import DRAINED, REPEATED

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
_CLOCK = re.compile(r"TransformWithState.*, ProcessingTime, |ProcessingTimeTimeout")
_ROUNDS = 2  # of micro-batches without rows: Spark's operators see in the second what the first has changed

_held: dict[str, str] = {}  # the checkpoints that a call has now, and which one


def run_available_now(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    now: int | datetime | None = None,
) -> StreamingQuery:
    """Run a streaming query until it has read all rows that there are now, and has advanced to the clock.

    This is ``trigger(availableNow=True)`` for queries with a clock, which Spark does not end: those with
    `processing_time`, ``with_idleness`` or ``with_wall_clock``. All rows are read first. Then, also if there
    were none, a micro-batch without rows follows, in which the watermark follows the clock and the timers
    fire that are due. The call returns when the query has ended.

    Time without rows counts from the last row, also while the query does not run. So with a run every five
    minutes and ``with_wall_clock(after="10 minutes", ...)``, the last timers of a source that stops fire two
    or three runs later.

    Parameters
    ----------
    writer : pyspark.sql.streaming.DataStreamWriter
        What ``result.writeStream`` returns, with its options and its sink, such as a format or
        ``foreachBatch``. If the query has a clock, ``checkpointLocation`` must be one of the options.
    path : str, optional
        Where to write, as in ``writer.start(path)``.
    table : str, optional
        The table to write to, as in ``writer.toTable(table)``.
    now : int or datetime, optional
        For tests: the time of the micro-batch without rows, epoch ms or a datetime (without a zone: local
        time), so that timers fire which are due an hour from now. At least the present time, which is the
        default. Rows are read at the present time all the same. The checkpoint then has times to come, so do
        not run a query in production with it.

    Returns
    -------
    pyspark.sql.streaming.StreamingQuery
        The query, which has ended. It knows the progress of its last start only: a query with a clock is
        started once to read rows, and once for each micro-batch without rows.

    Raises
    ------
    ArgumentError
        If an argument is wrong, before the query starts.
    UnsupportedError
        On Spark Connect, if the checkpoint is neither on the server's default file system nor on a disk that
        its executors share.
    RuntimeError
        If the query runs already, here or elsewhere, or its other run has planned a micro-batch meanwhile.
    pyspark.errors.StreamingQueryException
        If the query fails. The next run begins with the micro-batch that has failed, as always in Spark.

    Notes
    -----
    Spark runs a micro-batch without rows only after others of the same start. So this function writes the
    plan of one into the checkpoint, as Spark does before each micro-batch, and starts the query, which runs
    it. A query without a clock is only started with ``trigger(availableNow=True)``.

    Examples
    --------
    ::

        writer = alerts.writeStream.option("checkpointLocation", checkpoint).format("parquet")
        timerheap.spark.run_available_now(writer, "/data/alerts")
    """
    at = _time_to_come(now)
    start, log = _starting(writer, path, table)
    writer.trigger(availableNow=True)
    if log is None:
        if at:
            raise ArgumentValueError(
                f"now must be left out for a query without a clock, got {now!r}; its rows alone advance it"
            )
        return _ended(start())
    with log.held():
        query = _ended(log.started(start, log.pending() or {}))
        for again in range(_ROUNDS):
            batch = log.plan(drained=True, only_for_spark=again > 0, at=at)
            if batch is None:
                break
            query = _ended(log.started(start, {DRAINED: batch}))
        return query


def _time_to_come(now: int | datetime | None) -> int:
    """Return the time to which a test advances the clock, epoch ms, 0 for the present time."""
    if now is None:
        return 0
    at, present = int64("now", epoch_millis("now", now)), time.time_ns() // 1_000_000
    if at < present:
        raise ArgumentValueError(
            f"now must be at least the present time, {present}, got {now!r}; leave it out for that time"
        )
    return at


def start(writer: DataStreamWriter, path: str | None = None, *, table: str | None = None) -> StreamingQuery:
    """Start a streaming query whose first micro-batch does not wait for a row.

    After a clean stop Spark runs no micro-batch before a source has a new row, so no timer fires until then.
    Here a query with a clock runs one immediately; others follow at every trigger.

    Parameters
    ----------
    writer : pyspark.sql.streaming.DataStreamWriter
        What ``result.writeStream`` returns, with its options, its trigger and its sink. If the query has a
        clock, ``checkpointLocation`` must be one of the options.
    path, table : str, optional
        As in `run_available_now`, which names the errors, too.

    Returns
    -------
    pyspark.sql.streaming.StreamingQuery
        The running query. One without a clock is started as ``writer.start(path)`` does it.

    Examples
    --------
    ::

        writer = alerts.writeStream.option("checkpointLocation", checkpoint).format("parquet")
        query = timerheap.spark.start(writer.trigger(processingTime="10 seconds"), "/data/alerts")
    """
    start, log = _starting(writer, path, table)
    if log is None:
        return start()
    with log.held(by_query=False):
        if log.running() is not None:
            return start()  # which says so
        repeated = log.pending()
        if repeated is None:
            log.plan(drained=False)
            return start()
        return start_with(log.spark, log.checkpoint, repeated, start)


def _starting(
    writer: DataStreamWriter, path: str | None, table: str | None
) -> tuple[Callable[[], StreamingQuery], _Log | None]:
    """Return what starts a query, and its micro-batches if it has a clock."""
    df, checkpoint, start = writing(writer, path, table)
    log = None
    if _CLOCK.search(analyzed_plan(df)):
        if checkpoint is None:
            raise ArgumentValueError(
                "writer must have the option checkpointLocation, got a writer without it; the query has a "
                "clock, and micro-batches without rows are planned in its checkpoint"
            )
        log = _Log(df.sparkSession, checkpoint)
    return start, log


def writing(
    writer: DataStreamWriter, path: str | None, table: str | None
) -> tuple[DataFrame, str | None, Callable[[], StreamingQuery]]:
    """Check a writer and where it writes; return its result, its checkpoint, and what starts it."""
    if not on_connect(writer) and not isinstance(writer, DataStreamWriter):
        raise ArgumentTypeError(
            f"writer must be a DataStreamWriter, such as df.writeStream returns it, got {writer!r}"
        )
    if path is not None and table is not None:
        raise ArgumentValueError(f"table must be None if there is a path, got {table!r} and {path!r}")
    df, checkpoint = written_by(writer)
    return df, checkpoint, lambda: writer.start(path) if table is None else writer.toTable(table)


def _ended(query: StreamingQuery) -> StreamingQuery:
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return query


class _Log:
    """The micro-batches in a checkpoint: those that have been planned, and those that have been committed."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self.spark = spark
        self.checkpoint = checkpoint

    def _read(self, name: str) -> list[Any]:
        """Return the text of a file or of the files in a folder, with their paths, and the time."""
        columns = "value", "_metadata.file_path", F.unix_millis(F.current_timestamp())
        try:
            files = self.spark.read.text(f"{without_globs(self.checkpoint)}/{name}", wholetext=True)
            return files.select(*columns).collect()
        except AnalysisException as e:
            if e.getCondition() != "PATH_NOT_FOUND":
                raise
            return []

    def _last(self, kind: str) -> tuple[int, list[str], str, int]:
        """Return the number of the last micro-batch, -1 without one, its lines, its file, and the time."""
        found = self._read(kind)
        named = [(file.rpartition("/")[2], text.split("\n"), file, now) for text, file, now in found]
        return max(((int(name), *rest) for name, *rest in named if name.isdigit()), default=(-1, [], "", 0))

    @contextmanager
    def held(self, by_query: bool = True) -> Iterator[None]:
        """Keep other runs of this application away; raise RuntimeError if there is one.

        by_query: whether a query that runs, and plans its micro-batches itself, is one, too
        """
        name = self.checkpoint if on_connect(self.spark) else resolved(self.spark, self.checkpoint)
        begun = f"one of thread {threading.current_thread().name!r} since {datetime.now():%H:%M:%S}"
        other = _held.setdefault(name, begun)
        if other is not begun:
            raise self._in_use(other)
        try:
            if by_query and (run := self.running()) is not None:
                raise self._in_use(f"run {run}")
            yield
        finally:
            del _held[name]

    def started(self, start: Callable[[], StreamingQuery], settings: Mapping[str, str]) -> StreamingQuery:
        """Start the query, which then runs no micro-batches without rows of its own accord."""
        settings = {NO_DATA: "false", DRAINED: "", **settings}
        return start_with(self.spark, self.checkpoint, settings, start)

    def running(self) -> str | None:
        """Return the run of the query that is active in this session, None without one."""
        runs = {query.id: query.runId for query in self.spark.streams.active}
        ids = (json.loads(text)["id"] for text, *_ in self._read("metadata")) if runs else ()
        return next((str(runs[id_]) for id_ in ids if id_ in runs), None)

    def _in_use(self, other: str) -> RuntimeError:
        return RuntimeError(
            f"checkpointLocation must be that of a query that does not run, got {self.checkpoint!r}, which "
            f"another run has, {other}; wait until that has ended, or stop it"
        )

    def pending(self) -> dict[str, str] | None:
        """Return the settings that repeat a micro-batch which has not been committed; None without one."""
        batch, lines, _, _ = self._last("offsets")
        if batch == self._last("commits")[0]:
            return None
        marks = json.loads(lines[1])["conf"]
        if drained := marks.get(DRAINED):
            return {DRAINED: drained}
        begins = batch == 0 or DRAINED in marks  # which `plan` leaves when a run begins
        return {REPEATED: f"{batch} begins" if begins else f"{batch}"}

    def plan(self, drained: bool, only_for_spark: bool = False, at: int = 0) -> str | None:
        """Plan a micro-batch without rows; return its number, None if there is nothing that it could do.

        at: its time, if that is to come
        """
        # Its plan is that of the last micro-batch, at the present time and with Spark's watermark after that.
        # It gets a mark if the sources are `drained`. One `only_for_spark` is needed only if Spark's
        # watermark has advanced.
        last, lines, file, now = self._last("offsets")
        committed, commit, _, _ = self._last("commits")
        if last < 0 or committed != last:  # it was stopped in a micro-batch
            return None
        batch, metadata = str(last + 1), json.loads(lines[1])
        before = metadata["batchWatermarkMs"]
        after = json.loads(commit[1])["nextBatchWatermarkMs"]
        if only_for_spark and after <= before:
            return None
        metadata["batchWatermarkMs"] = max(before, after)
        metadata["batchTimestampMs"] = max(metadata["batchTimestampMs"], now, at)  # a clock may be set back
        metadata["conf"][DRAINED] = batch if drained else ""  # Spark reads none but its own
        metadata.pop("controlBatchInfo", None)  # which tells that Spark has moved state to other partitions
        text = "\n".join([lines[0], json.dumps(metadata), *lines[2:]])
        if not self._write(f"{file.rpartition('/')[0]}/{batch}", text):
            raise self._in_use(f"one that has planned micro-batch {batch} meanwhile")
        return batch

    def _write(self, file: str, text: str) -> bool:
        """Write a file that is there whole or not at all; return False if there is one already."""
        url = urlsplit(file)
        path = unquote(url.path)
        if not on_connect(self.spark):
            return _publish(path, text) if url.scheme == "file" else self._rename(file, text)
        if url.scheme == "file":

            def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    _publish(path, text)
                    yield batch

            self.spark.range(0, 1, 1, 1).mapInArrow(write, "id long").collect()
        else:  # there is no way to write only a new one
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "plan").write_text(text)
                self.spark.copyFromLocalToFs(f"{folder}/plan", path)
        _, lines, found, _ = self._last("offsets")
        if found != file:
            raise UnsupportedError(
                "checkpointLocation must be on the server's default file system on Spark Connect, or on a "
                f"disk that its executors share, got {file!r}"
            )
        return lines == text.split("\n")  # a task that is retried finds its own

    def _rename(self, file: str, text: str) -> bool:
        target = hadoop_path(self.spark, jvm(self.spark).java.net.URI(file))
        draft = hadoop_path(self.spark, target.getParent(), f".{uuid.uuid4().hex}.tmp")
        files = hadoop_files(self.spark, target)
        stream = files.create(draft)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if files.rename(draft, target):
            return True
        files.delete(draft, False)
        if not files.exists(target):
            raise OSError(f"cannot write {file}")
        return False


def _publish(path: str, text: str) -> bool:
    """Write a file on a local disk, whole or not at all; return False if there is one already."""
    target = Path(path)
    draft = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        draft.write_text(text)
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)  # of one that has been deleted
        os.link(draft, target)
    except FileExistsError:
        return False
    except OSError:
        if not draft.exists() or target.exists():
            raise
        draft.rename(target)  # this file system has no links
    finally:
        draft.unlink(missing_ok=True)
    return True
