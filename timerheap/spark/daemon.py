"""Spark's daemon of Python workers, with their modules imported before it forks them.

Spark runs it where ``spark.python.daemon.module`` is its name, as `timerheap.spark.settings` has it. A worker
of Spark's own daemon imports pandas, PyArrow and the modules of the query when it starts, which takes longer
than most micro-batches, and Spark ends workers that have been idle for a minute.

A library that is imported before a fork must not have started threads, which the fork would lose. NumPy's
OpenBLAS has some if ``spark.task.cpus`` is more than 1, ends them before a fork, and starts them in the
worker when it needs them. PyArrow starts its threads when it needs them, but for one of jemalloc's, which is
switched off. If there are any others, Spark's own daemon is run instead.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
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
    "timerheap.spark._worker.operator",
    "timerheap.spark._worker.processor",
    "timerheap.spark._worker.window_runner",
)
"""What workers import, of which each imports more."""

_JEMALLOC = "JE_ARROW_MALLOC_CONF"


def prepare() -> None:
    """Import the modules of workers; afterwards forks share them."""
    before = os.environ.get(_JEMALLOC)
    os.environ[_JEMALLOC] = ",".join(filter(None, [before, "background_thread:false"]))
    for name in MODULES:
        import_module(name)
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


def threads() -> int:
    """Return the number of threads that this process has after a fork."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))


if __name__ == "__main__":
    protect_daemon()
    if sys.platform == "linux":
        prepare()
        if threads() > 1:
            print(
                "timerheap: modules that workers import start threads, so each imports them", file=sys.stderr
            )
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    manager()
