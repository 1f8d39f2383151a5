"""A Spark in this process for the command line, which keeps its output out of the terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

from timerheap._java import ensure_java

CORES = min(os.cpu_count() or 1, 4)


@contextmanager
def local_spark(
    name: str, log: Path, settings: Mapping[str, object] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """Start a local Spark; the output of the JVM and the Python workers goes to the file `log`.

    settings: Spark's settings, beside those of every such Spark
    """
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName(name)
        .config("spark.driver.host", "localhost")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config(map={name: str(value) for name, value in settings.items()})
    )
    interrupted = signal.getsignal(signal.SIGINT)
    own = os.dup(2)  # the JVM inherits standard error when it starts
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        spark = builder.getOrCreate()
        # Spark's own handler calls the JVM, possibly in the middle of another call.
        signal.signal(signal.SIGINT, interrupted)
    except Exception as error:
        error.add_note(log.read_text(errors="replace"))
        raise
    finally:
        os.dup2(own, 2)
        os.close(own)
    try:
        yield spark
    finally:
        spark.stop()
