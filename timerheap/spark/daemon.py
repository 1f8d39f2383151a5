"""Spark's daemon of Python workers, with their modules imported before it forks them.

Spark runs it where ``spark.python.daemon.module`` is its name, as `timerheap.spark.settings` has it. A worker
of Spark's own daemon imports pandas, PyArrow and the modules of the query when it starts, which takes longer
than most micro-batches, and Spark ends workers that have been idle for a minute.

A library that is imported before a fork must not have started threads, which the fork would lose. NumPy's
OpenBLAS has some if ``spark.task.cpus`` is more than 1, ends them before a fork, and starts them in the
worker when it needs them. PyArrow starts its threads when it needs them, but for one of jemalloc's, which is
switched off. If there are any others, Spark's own daemon is run instead.

A module of a file that ``addPyFile`` ships comes before one that the daemon has imported, unless the package
of the latter has compiled modules, which a process can import once. Python files cannot replace these either.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, PathFinder
from itertools import takewhile
from zipimport import zipimporter

from timerheap.spark._sockets import protect_daemon

MODULES = (
    "numpy.random",
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.daemon",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "pyspark.worker",
    "timerheap.spark._worker.spark_operators",
    "timerheap.spark._asof.corrected_runner",
    "timerheap.spark._asof.versions_runner",
    "timerheap.spark._changes.aggregates.aggregate_changes_runner",
    "timerheap.spark._changes.joins.matches_runner",
    "timerheap.spark._changes.tops.top_runner",
    "timerheap.spark._changes.upserts_runner",
    "timerheap.spark._patterns.match_runner",
    "timerheap.spark._functions.function_kinds",
    "timerheap.spark._processors.processor_partition",
    "timerheap.spark._real_time.stages",
    "timerheap.spark._rules.rules_runner",
    "timerheap.spark._sql.run.grouped_sides_runner",
    "timerheap.spark._sql.run.over_runner",
    "timerheap.spark._sql.run.table_function_runner",
    "timerheap.spark._tvf.revised_runner",
)
"""What workers import, of which each imports more: the modules of all classes of `Work` are among them."""

_JEMALLOC = "JE_ARROW_MALLOC_CONF"


def prepare() -> None:
    """Import the modules of workers; afterwards forks share them."""
    before = os.environ.get(_JEMALLOC)
    os.environ[_JEMALLOC] = ",".join(filter(None, [before, "background_thread:false"]))
    for name in ("pyspark.daemon", "pyspark.worker"):  # what workers of Spark's own daemon have, too
        import_module(name)
    common = set(sys.modules)
    for name in MODULES:
        import_module(name)
    sys.meta_path.append(_ShippedFirst(common))
    if before is None:
        del os.environ[_JEMALLOC]
    else:
        os.environ[_JEMALLOC] = before
    # As if each worker had imported it: with a seed of its own. The module random does so itself.
    os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)
    # Spark has a new worker invalidate all importers. Before CPython 3.13, that of each package in
    # pyspark.zip reads the directory of the archive anew, 150 ms of CPU in all. A worker makes the few that
    # it needs.
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()  # a worker that collects garbage would write to all shared memory


class _ShippedFirst:
    """Drops modules of the daemon which Spark has shipped in files for this worker.

    Spark inserts the files into the path of modules and then has all importers invalidate their caches. This
    is an importer that finds nothing.
    """

    def __init__(self, common: set[str]) -> None:
        """Remember the packages that have been imported since, without those that have compiled modules."""
        compiled = {
            _package(name)
            for name, module in sys.modules.items()
            if isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
        }
        self._packages = {_package(name) for name in sys.modules} - common - compiled
        self._path = set(sys.path)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        pass

    def invalidate_caches(self) -> None:
        files = [*takewhile(lambda entry: entry not in self._path, sys.path[1:])]
        self._path.update(files)
        for package in self._packages if files else ():
            shipped = PathFinder.find_spec(package, files)
            if shipped is not None and shipped.loader is not None:
                for name in [name for name in sys.modules if _package(name) == package]:
                    del sys.modules[name]


def _package(name: str) -> str:
    return name.partition(".")[0]


def threads() -> int:
    """Return the number of threads that this process has after a fork."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))


def spare_workers() -> None:
    """Keep workers running after Spark has terminated this daemon, until they or the JVM have ended.

    If a task is interrupted while it waits for a worker, Spark assumes that the daemon is lost and restarts
    it. Otherwise this would end the workers of all other tasks, and with them queries in real-time mode.
    """
    daemon, jvm = os.getpid(), os.getppid()

    def end(_: int, frame: object) -> None:
        with suppress(ChildProcessError):  # none is left
            while os.getppid() == jvm:
                os.waitpid(-1, os.WNOHANG)
                time.sleep(0.1)
        # Spark's manager ends, and with it all workers. An exception would be lost during a fork.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def handle() -> None:
        if os.getpid() == daemon:  # not in a worker, which may fork, too
            signal.signal(signal.SIGTERM, end)

    # Set it at each fork, since Spark's manager sets a handler of its own before the first one.
    os.register_at_fork(before=handle)


if __name__ == "__main__":
    protect_daemon()
    if sys.platform == "linux":
        prepare()
        if threads() > 1:
            print("timerheap: imported modules start threads, so each worker imports them", file=sys.stderr)
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    spare_workers()
    manager()
