"""Settings that one run of a query has, and no other query of its session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from timerheap.spark._compat import execution_of, hadoop_files, hadoop_path, on_connect

_one_at_a_time = threading.Lock()


def start_with(
    spark: SparkSession, checkpoint: str, settings: Mapping[str, str], start: Callable[[], StreamingQuery]
) -> StreamingQuery:
    """Start the query that has a checkpoint, with settings for this run alone.

    On Spark Connect the session has them while the query starts, so what other threads start meanwhile
    inherits them.
    """
    if on_connect(spark):
        with _configured(spark, settings):
            return start()
    listener = _Settings(spark, resolved(spark, checkpoint), settings)
    spark.streams.addListener(listener)
    try:
        query = start()
    except BaseException:  # Ctrl-C, too, after which nobody could stop what has been started
        if listener.query is not None:
            listener.query.stop()
        raise
    finally:
        spark.streams.removeListener(listener)
    if listener.query is None:
        query.stop()
        raise RuntimeError(
            f"query {query.id} must have settings of its own, but Spark has not called the listener that "
            "sets them; the log of the driver says why"
        )
    return query


def resolved(spark: SparkSession, path: str) -> str:
    """Return the whole path of a folder, without its file system."""
    found = hadoop_path(spark, path)
    return str(hadoop_files(spark, found).makeQualified(found).toUri().getPath())


class _Settings(StreamingQueryListener):
    """Sets settings in the session that Spark has made for a query, which is a copy of the user's.

    Spark calls `onQueryStarted` in the query's own thread, which waits for it, before it reads a setting.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._settings = settings
        self.query: StreamingQuery | None = None  # once it has the settings

    def onQueryStarted(self, event: Any) -> None:
        query = self._spark.streams.get(str(event.id))
        execution = execution_of(query)
        if resolved(self._spark, execution.resolvedCheckpointRoot()) == self._checkpoint:
            conf = execution.sparkSessionForStream().conf()
            for name, value in self._settings.items():
                conf.set(name, value)
            self.query = query

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


@contextmanager
def _configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have a session with settings, in one thread at a time."""
    with _one_at_a_time:
        before = {name: spark.conf.get(name, None) for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, was in before.items():
                if was is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, was)
