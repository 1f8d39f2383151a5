"""`start_real_time` and `run_real_time`: give a run of a query a number, and its state a place."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from threading import Event

from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from timerheap._arguments import instance, integer, not_negative, positive
from timerheap.errors import ArgumentValueError
from timerheap.spark._available_now import writing
from timerheap.spark._compat import has_stopped, real_time_trigger
from timerheap.spark._real_time.epoch_runner import FIRST, LOCATION, RUN, TICK, WITH_FOLLOWERS
from timerheap.spark._real_time.initial_epoch import beginnings
from timerheap.spark._real_time.linger import LINGER
from timerheap.spark._real_time.spark_lookup import operators_in, sending_tasks
from timerheap.spark._run_settings import start_with
from timerheap.spark._settings import IN_REAL_TIME
from timerheap.spark._state.epoch_store import begun_at, last_epoch, next_run, place_of_state, sources_of

_log = logging.getLogger("timerheap")
_LONGEST_WAIT = 60.0
_LOOK = 1  # seconds between two looks at whether a call has to end


def start_real_time(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    epoch: str | int | timedelta = "1 minute",
    tick: str | int | timedelta = "20 milliseconds",
    linger: str | int | timedelta = "30 milliseconds",
) -> StreamingQuery:
    """Start a query over rows of `in_real_time` in Spark's real-time mode. Experimental.

    Rows pass through tasks that live as long as an epoch, and a timer fires a few milliseconds after the
    watermark or the clock has reached it. Between two epochs Spark saves offsets and starts new tasks, and
    rows wait.

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
    linger : str, int or timedelta, default "30 milliseconds"
        How long a row may wait for others on its way, so that they are processed in one step, which costs
        little more for many rows than for one. Rows wait only while many come, from 200 a second and task of
        the source on: one that comes alone is processed as soon as it is there. A timer that is due waits as
        long, at most. 0 for no wait.

    Returns
    -------
    pyspark.sql.streaming.StreamingQuery
        The running query. Spark ends it when a task fails: `run_real_time` starts it again.

    Raises
    ------
    ArgumentError
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
    waits = not_negative("linger", linger)
    if checkpoint is None:
        raise ArgumentValueError(
            "writer must have the option checkpointLocation, got a writer without it; the state is kept there"
        )
    names = operators_in(df)
    location = place_of_state(df.sparkSession, checkpoint)
    files, folder = fs.FileSystem.from_uri(location)
    run = next_run(files, folder)
    before, begun = last_epoch(df.sparkSession, checkpoint), begun_at(files, folder)
    for name in names if before < 0 else ():
        if (beginning := beginnings.get(name)) is not None:
            beginning.write(location, run)
    own = {LOCATION: location, RUN: str(run), TICK: str(between), LINGER: str(waits)}
    own |= {FIRST: str(begun + 1), WITH_FOLLOWERS: " ".join(names[1:])}
    real_time_trigger(writer, f"{length} milliseconds")
    # Else an epoch may begin, and remove the state before the last one, which is not committed yet.
    writer.option("asyncProgressTrackingEnabled", "false")
    query = start_with(df.sparkSession, checkpoint, IN_REAL_TIME | own, start)
    try:
        tasks = sending_tasks(df.sparkSession, query, len(names)) if before == begun else None
        if tasks is not None:
            with files.open_output_stream(sources_of(folder, run)) as out:
                out.write(str(tasks).encode())
    except BaseException:  # Ctrl-C, too: nobody else could stop it
        query.stop()
        raise
    return query


def run_real_time(
    writer: DataStreamWriter,
    path: str | None = None,
    *,
    table: str | None = None,
    epoch: str | int | timedelta = "1 minute",
    tick: str | int | timedelta = "20 milliseconds",
    linger: str | int | timedelta = "30 milliseconds",
    restarts: int = 10,
    backoff: str | int | timedelta = "1 second",
    stop: Event | None = None,
) -> None:
    """Run a query as `start_real_time` does, and start it again when it fails. Experimental.

    Spark does not retry a task in real-time mode: the query ends, and has to be started again. The call
    returns when the query has been stopped, when `stop` is set, or when the application has been stopped.
    An exception such as KeyboardInterrupt stops the query, too.

    Parameters
    ----------
    writer, path, table, epoch, tick, linger : optional
        As in `start_real_time`.
    restarts : int
        How often in a row the query is started again, without an epoch that has succeeded in between.
    backoff : str, int or timedelta, default "1 second"
        How long to wait before the first restart in a row. Each wait is twice as long as the one before it,
        up to a minute. The driver logs why the query has failed.
    stop : threading.Event, optional
        Once another thread, or the handler of a signal, has set it, the query is stopped, and not started
        again, also if it waits for that now.

    Raises
    ------
    ArgumentError
        If an argument is wrong, before the query starts.
    pyspark.errors.StreamingQueryException
        If the query fails more often than `restarts` in a row. If it cannot be started again, that counts
        as a failure, whose error is raised in the end.
    """
    if integer("restarts", restarts) < 0:
        raise ArgumentValueError(f"restarts must be 0 or more, got {restarts}")
    wait = not_negative("backoff", backoff) / 1000
    stop = Event() if stop is None else instance("stop", stop, Event)
    spark, failures = writing(writer, path, table)[0].sparkSession, 0
    while not stop.is_set():
        query = None
        try:
            query = start_real_time(writer, path, table=table, epoch=epoch, tick=tick, linger=linger)
            while not stop.is_set():
                if query.awaitTermination(_LOOK):
                    return
        except Exception as error:
            if has_stopped(spark):
                return
            if query is None and not failures:
                raise  # the first start
            failures = 1 if query is not None and query.lastProgress else failures + 1
            if failures > restarts:
                raise
            pause = min(wait * 2 ** (failures - 1), _LONGEST_WAIT)
            why = str(error).partition("\n=== Streaming Query ===")[0]
            _log.warning("a query in real-time mode starts again in %.1f s, since it failed: %s", pause, why)
            if _has_ended_within(pause, stop, spark):
                return
        finally:
            if query is not None and not has_stopped(spark):
                query.stop()


def _has_ended_within(seconds: float, stop: Event, spark: SparkSession) -> bool:
    """Wait, and return whether meanwhile `stop` has been set or the application has been stopped."""
    until = time.monotonic() + seconds
    while not (ended := stop.is_set() or has_stopped(spark)) and (left := until - time.monotonic()) > 0:
        stop.wait(min(left, _LOOK))
    return ended
