"""A driver that runs the programs of lakes_page.py, and kills itself around the writes of its functions.

Its argument is a JSON file: `work`, `replaced`, pairs of texts of the page and what is there instead, `lake`,
the folder of the tables, and `kills`, each a name, a function of the page, a micro-batch and a moment: in
the "middle" of its write, or "after" it. Those after a write wait for each other, and then one of them kills.
Each happens once. Until all have, only queries with functions run. It tells its JVM's process id on standard
output.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from lakes_page import START, blocks
from local_spark import home_without_archives

from timerheap.spark import ensure_java


class Killer:
    """Kills the driver where a plan says so; see above."""

    def __init__(self, work: Path, plan: list[tuple[str, str, int, str]], lake: Path) -> None:
        self._done, self._lake, self.jvm = work / "kills", lake, 0
        self._done.mkdir(exist_ok=True)
        self._plan = [entry for entry in plan if not (self._done / entry[0]).exists()]
        together = [name for name, _, _, moment in self._plan if moment == "after"]
        self._barrier = threading.Barrier(max(len(together), 1), timeout=300)

    def remain(self) -> bool:
        return bool(self._plan)

    def around(self, function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Return a function for foreachBatch."""

        def write(batch: Any, batch_id: int) -> None:
            name, moment = self._due(function.__name__, batch_id)
            if moment == "middle":
                self._kill_in_the_middle(name, function.__name__)
            function(batch, batch_id)
            if moment == "middle":
                time.sleep(60)  # a busy machine kills a little later, which is as good
                raise AssertionError(f"{function.__name__} has written nothing in micro-batch {batch_id}")
            if moment == "after":
                (self._done / name).touch()
                self._barrier.wait()
                self._kill(name)

        return write

    def _due(self, function: str, batch_id: int) -> tuple[str, str]:
        found = [(name, moment) for name, of, at, moment in self._plan if (of, at) == (function, batch_id)]
        return found[0] if found else ("", "")

    def _kill(self, name: str) -> NoReturn:
        (self._done / name).touch()
        # A driver whose JVM dies first may fail before it is killed.
        os.kill(self.jvm, signal.SIGSTOP)
        os.execv("/bin/sh", ["sh", "-c", f"kill -KILL {self.jvm} $$"])

    def _kill_in_the_middle(self, name: str, function: str) -> None:
        """Kill when rows are written, but not committed."""
        if "postgres" in function:
            many = psycopg.Cursor.executemany

            def executemany(*arguments: Any) -> None:
                many(*arguments)
                self._kill(name)

            psycopg.Cursor.executemany = executemany  # type: ignore[method-assign,assignment]
            return
        pattern = f"{'iceberg' if 'iceberg' in function else 'status'}/**/*.parquet"
        before = set(self._lake.glob(pattern))

        def watch() -> None:
            while set(self._lake.glob(pattern)) <= before:
                time.sleep(0.001)
            self._kill(name)

        threading.Thread(target=watch, daemon=True).start()


def main(spec: dict[str, Any]) -> None:
    ensure_java()
    os.environ["SPARK_HOME"] = str(home_without_archives(Path(spec["work"])))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["TZ"] = "America/New_York"  # neither the session's nor that of a database
    time.tzset()
    killer = Killer(Path(spec["work"]), spec["kills"], Path(spec["lake"]))
    names: dict[str, Any] = {"__name__": "__main__", "killed": killer.around}
    for block in blocks():
        if "StreamingQueryListener" in block:  # which test_kafka_lag.py runs
            continue
        for old, new in spec["replaced"]:
            block = block.replace(old, new)
        if killer.remain() and "foreachBatch" not in block:
            block = block.partition(START)[0]
        exec(re.sub(r"foreachBatch\((\w+)\)", r"foreachBatch(killed(\1))", block), names)
        if "spark" in names and not killer.jvm:
            names["spark"].sparkContext.setLogLevel("OFF")
            killer.jvm = names["spark"].sparkContext._gateway.proc.pid
            print("up", killer.jvm, flush=True)
    names["spark"].streams.awaitAnyTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
