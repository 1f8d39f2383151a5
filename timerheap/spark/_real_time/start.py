"""`start_real_time` and `run_real_time`: give a run of a query a number, and its state a place."""

from __future__ import annotations

import logging
import re
import time
from datetime import timedelta

from pyarrow import fs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from timerheap._arguments import integer, not_negative, positive
from timerheap.spark._available_now import configured, writing
from timerheap.spark._compat import analyzed_plan, real_time_trigger
from timerheap.spark._real_time.beginning import beginnings
from timerheap.spark._real_time.epoch import LOCATION, RUN, TICK, sources_of
from timerheap.spark._real_time.stages import OPERATOR
from timerheap.spark._settings import IN_REAL_TIME
from timerheap.spark._state.epoch_store import last_epoch, place_of_state

_log = logging.getLogger("timerheap")
_LONGEST_WAIT = 60.0


def start_real_time(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    epoch: str | int | timedelta = "1 minute",
    tick: str | int | timedelta = "20 milliseconds",
) -> StreamingQuery:
    """Start a query of ``process(..., real_time=True)`` in Spark's real-time mode. Experimental.

    Rows pass through tasks that live as long as an epoch, and a timer fires a few milliseconds after the
    watermark or the clock has reached it. Between two epochs Spark saves offsets and starts new tasks, which
    takes some 0.3 to 0.6 s in which rows wait.

    Parameters
    ----------
    writer : pyspark.sql.streaming.DataStreamWriter
        What ``result.writeStream`` returns, with its sink, in update mode. ``checkpointLocation`` must be one
        of its options: a path or URI that pyarrow's file systems reach (local, ``s3://``, ``hdfs://``, ...),
        since the state is kept beside Spark's own files there, in the folder ``timerheap``.
    path, table : str, optional
        As in `timerheap.spark.start`.
    epoch : str, int or timedelta, default "1 minute"
        The length of an epoch, after which state and offsets are saved. What a failure repeats is at most the
        last epoch. Spark's shortest is 5 seconds.
    tick : str, int or timedelta, default "20 milliseconds"
        How often the watermark moves while it follows the clock (``with_wall_clock``), in each partition.

    Returns
    -------
    pyspark.sql.streaming.StreamingQuery
        The running query. Spark ends it when a task fails: `run_real_time` starts it again.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts.

    Notes
    -----
    Results are delivered at least once: those of an epoch that has failed come again. State is exactly that
    of the rows of the epochs that have succeeded.

    The session needs ``settings(real_time=True)``, with a switch that Spark keeps private, since Spark itself
    does not run Python in this mode: ``spark.sql.streaming.realTimeMode.allowlistCheck``.
    """
    df, checkpoint, start = writing(writer, path, table)
    length, between = positive("epoch", epoch), positive("tick", tick)
    if checkpoint is None:
        raise ValueError(
            "writer must have the option checkpointLocation, got a writer without it; the state is kept there"
        )
    name = _operator_of(df)
    location = place_of_state(df.sparkSession, checkpoint)
    files, folder = fs.FileSystem.from_uri(location)
    run = _next_run(files, folder)
    beginning = beginnings.get(name)
    if beginning is not None and last_epoch(df.sparkSession, checkpoint) < 0:
        beginning.write(location, run)
    settings = IN_REAL_TIME | {LOCATION: location, RUN: str(run), TICK: str(between)}
    with configured(df.sparkSession, settings):
        real_time_trigger(writer, f"{length} milliseconds")
        # Else an epoch may begin, and remove the state before the last one, which is not committed yet.
        writer.option("asyncProgressTrackingEnabled", "false")
        query = start()
    tasks = _tasks_of_source(df.sparkSession, query)
    if tasks is not None:
        with files.open_output_stream(sources_of(folder, run)) as out:
            out.write(str(tasks).encode())
    return query


def run_real_time(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    epoch: str | int | timedelta = "1 minute",
    tick: str | int | timedelta = "20 milliseconds",
    restarts: int = 10,
    backoff: str | int | timedelta = "1 second",
) -> None:
    """Run a query as `start_real_time` does, and start it again when it fails. Experimental.

    Spark does not retry a task in real-time mode: the query ends, and has to be started again. The call
    returns when the query has been stopped.

    Parameters
    ----------
    writer, path, table, epoch, tick : optional
        As in `start_real_time`.
    restarts : int
        How often in a row the query is started again, without an epoch that has succeeded in between.
    backoff : str, int or timedelta, default "1 second"
        How long to wait before the first restart in a row. Each wait is twice as long as the one before it,
        up to a minute. The driver logs why the query has failed.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before the query starts.
    pyspark.errors.StreamingQueryException
        If the query fails more often than `restarts` in a row.
    """
    if integer("restarts", restarts) < 0:
        raise ValueError(f"restarts must be 0 or more, got {restarts}")
    wait, failures = not_negative("backoff", backoff) / 1000, 0
    while True:
        query = start_real_time(writer, path, table=table, epoch=epoch, tick=tick)
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            failures = 1 if query.lastProgress else failures + 1
            if failures > restarts:
                raise
            pause = min(wait * 2 ** (failures - 1), _LONGEST_WAIT)
            why = str(error).partition("\n=== Streaming Query ===")[0]
            _log.warning("a query in real-time mode starts again in %.1f s, since it failed: %s", pause, why)
        time.sleep(pause)


def _next_run(files: fs.FileSystem, folder: str) -> int:
    """Return the number of a new run, above all before it, which it leaves in the folder of the state."""
    runs = f"{folder}/runs"
    files.create_dir(runs, recursive=True)
    known = files.get_file_info(fs.FileSelector(runs))
    run = 1 + max((int(info.base_name) for info in known if info.base_name.isdecimal()), default=0)
    with files.open_output_stream(f"{runs}/{run}"):
        pass
    return run


def _operator_of(df: DataFrame) -> str:
    """Return the name of the operator in real-time mode that a query has."""
    plan = analyzed_plan(df)
    names = set(re.findall(rf"MapInArrow {OPERATOR}([0-9a-f]{{32}})\(", plan))
    others = " and an operator in micro-batches" if "TransformWithState" in plan else ""
    if len(names) != 1 or others:
        raise ValueError(
            "writer must write the result of one process(..., real_time=True) alone, got "
            f"{len(names)} of them{others}; windows, SQL, two inputs and stateful processors run in "
            "micro-batches, in queries of their own"
        )
    return str(names.pop())


def _tasks_of_source(spark: SparkSession, query: StreamingQuery) -> int | None:
    """Return the number of tasks that send rows to the operator, once they run; None if the query ends."""
    tracker = spark.sparkContext.statusTracker()
    while query.isActive:
        for job in tracker.getJobIdsForGroup(str(query.runId)):
            found = tracker.getJobInfo(job)
            if found is not None and len(found.stageIds) > 1:
                stage = tracker.getStageInfo(sorted(found.stageIds)[-2])
                if stage is not None:
                    return stage.numTasks
        time.sleep(0.02)
    return None
