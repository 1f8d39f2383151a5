"""A standalone Spark cluster on this machine: a master and two workers, from pyspark's own programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyspark
from local_spark import JAVA_OPTIONS

from timerheap.spark import ensure_java

__all__ = ["Cluster", "cluster", "running"]

SPARK = Path(pyspark.__file__).parent


class Cluster(NamedTuple):
    """The master's URL, and the process ids of the workers' daemons, whose children are the executors."""

    url: str
    workers: list[int]


@cache
def environment() -> dict[str, str]:
    """Return an environment without the tests' Python and Spark, and with fast JVM starts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK_"))}
    return kept | {
        "JAVA_HOME": str(ensure_java()),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYTHONSAFEPATH": "1",
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        # The REST server has a port of its own. Executors that are killed are replaced without end. A worker
        # that is silent for a while is slow, on a busy machine.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false -Dspark.deploy.maxExecutorRetries=-1 "
        "-Dspark.worker.timeout=600",
    }


@contextmanager
def running(program: str, *arguments: object, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of pyspark's programs in its own process group, until the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [SPARK / "bin" / program, *map(str, arguments)],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException as error:
        error.add_note(f"{directory.name}: ...{(directory / 'log').read_text(errors='replace')[-5_000:]}")
        raise
    finally:
        for way in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, way)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


def logged(pattern: str, directory: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until `pattern` occurs in the log; return its first group."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if found := re.search(pattern, (directory / "log").read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"no {pattern} in {directory}/log")


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Start a standalone master and two workers with one core each, on free ports.

    The workers have two addresses, since Spark runs speculative copies of a task on another host only.
    """
    daemon = "org.apache.spark.deploy"
    ports = ("--port", 0, "--webui-port", 0)
    with ExitStack() as stack:
        master = stack.enter_context(
            running(
                "spark-class",
                f"{daemon}.master.Master",
                "--host",
                "127.0.0.1",
                *ports,
                directory=directory / "master",
            )
        )
        url = logged(r"Starting Spark master at (spark://\S+)", directory / "master", master)
        workers = []
        for number in (1, 2):
            home = directory / f"worker-{number}"
            size = ("--cores", 1, "--memory", "1g", "--work-dir", home)
            host = ("--host", f"127.0.0.{number}")
            worker = (f"{daemon}.worker.Worker", *host, *ports, *size, url)
            workers.append(stack.enter_context(running("spark-class", *worker, directory=home)).pid)
        yield Cluster(url, workers)
