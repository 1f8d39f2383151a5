"""Queries in real-time mode that are forgotten, interrupted, or start beside others; see `real_time_child`.

Its argument is a folder. Prints a JSON object a line: what the test has seen.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.readwriter import DataStreamWriter
from real_time_child import EPOCH, SCHEMA, Child, PausesInColumns, pauses, wait

import timerheap.spark
from timerheap.spark._compat import execution_of

PATIENCE = 60.0


class Stops(Child):
    def run(self) -> None:
        """Run all parts."""
        self.forgotten()
        self.interrupted()
        self.spark.stop()

    def forgotten(self) -> None:
        """Tell how many initial states are kept while results are there, and when all but one have gone."""
        counts = self.spark.createDataFrame([("a", 1)], "key string, value bigint")
        state = timerheap.spark.InitialState(states={"count": counts})

        def result() -> DataFrame:
            return pauses(self.source.rows(), PausesInColumns(), initial_state=state)

        results = [result() for _ in range(3)]
        kept = self._beginnings()
        results = results[:1]
        until = time.monotonic() + PATIENCE
        last: DataFrame | None = None
        while True:
            last = None
            self._collect()
            last = result()
            if (left := self._beginnings()) <= 2 or time.monotonic() > until:
                break
        self.tell(**{"initial states of three results": kept, "of two": left})
        assert results[0].columns == last.columns  # which are kept until here

    def _beginnings(self) -> int:
        """Return how many groups of initial states Python has."""
        gc.collect()
        return sum(type(each) is GroupedData for each in gc.get_objects())

    def _collect(self) -> None:
        gc.collect()
        time.sleep(1.5)  # py4j tells the JVM once a second
        jvm: Any = self.spark.sparkContext._jvm
        jvm.java.lang.System.gc()

    def interrupted(self) -> None:
        """Press Ctrl-C in a call once its query has given results; another query starts beside it."""
        source = type(self.source)(self.spark)
        own = ["spark.sql.execution.arrow.maxRecordsPerBatch", "spark.timerheap.realTime.location"]
        writer = self.writer("interrupted", pauses(source.rows(), PausesInColumns()), "memory")
        others: list[Any] = []
        start = DataStreamWriter.start

        def start_another(started: DataStreamWriter, *arguments: Any, **options: Any) -> Any:
            if not others:
                (self.folder / "files").mkdir()
                rows = self.spark.readStream.schema(SCHEMA).json(str(self.folder / "files"))
                others.append(start(rows.writeStream.format("noop")))
            return start(started, *arguments, **options)

        def press() -> None:
            source.send(0, ("a", 1000, ""), ("b", 1500, ""), ("a", 9000, ""))
            source.send(1, ("c", 9000, ""))
            name = "interrupted"
            wait(lambda: self.spark.catalog.tableExists(name), others[0])
            wait(lambda: len(self.found(name)) >= 2, others[0])
            self.tell(results=sorted(self.found(name)))
            conf = execution_of(others[0]).sparkSessionForStream().conf()
            inherited = [name for name in own if conf.contains(name) and conf.get(name) in ("1", "8")]
            self.tell(**{"settings of another query": inherited})
            others[0].stop()

        def press_after_the_start() -> None:
            until = time.monotonic() + PATIENCE
            while not others and time.monotonic() < until:
                time.sleep(0.1)
            try:
                press()
            except BaseException as error:
                self.tell(error=repr(error))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        DataStreamWriter.start = start_another  # type: ignore[method-assign]
        threading.Thread(target=press_after_the_start, daemon=True).start()
        try:
            timerheap.spark.run_real_time(writer, epoch=EPOCH)
        except KeyboardInterrupt:
            self.tell(interrupted=True)
        self.tell(**{"active afterwards": [query.name for query in self.spark.streams.active]})


if __name__ == "__main__":
    try:
        Stops(Path(sys.argv[1])).run()
    except BaseException:
        print(traceback.format_exc(), flush=True)
        raise
