"""A standalone Spark cluster: a master and workers, from pyspark's own programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyspark
from local_spark import JAVA_OPTIONS

from timerheap.spark import ensure_java

__all__ = ["Cluster", "Place", "cluster", "running"]

SPARK = Path(pyspark.__file__).parent


class Place(NamedTuple):
    """An address, and a command in front of each command that runs there."""

    address: str
    within: tuple[str, ...] = ()


# Spark runs speculative copies of a task on another host only.
LOOPBACK = (Place("127.0.0.1"), Place("127.0.0.2"))


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
        # The REST server has a port of its own. Executors that are killed are replaced without end.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false -Dspark.deploy.maxExecutorRetries=-1",
    }


@contextmanager
def running(
    program: str,
    *arguments: object,
    directory: Path,
    within: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of pyspark's programs in its own process group, until the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*within, SPARK / "bin" / program, *map(str, arguments)],
            cwd=directory,
            env=environment() | environ,
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
def cluster(
    directory: Path,
    master: Place = LOOPBACK[0],
    workers: Sequence[Place] = LOOPBACK,
    silence: int = 600,
    cores: int = 1,
) -> Iterator[Cluster]:
    """Start a standalone master and workers, on free ports.

    Parameters
    ----------
    directory : pathlib.Path
        For their logs and files: ``master``, ``worker-1`` and so on.
    master : Place
    workers : sequence of Place
    silence : int, default 600
        Seconds after which the master takes a worker for lost. On a busy machine, a living one is only slow.
    cores : int, default 1
        Of each worker.
    """
    daemon = "org.apache.spark.deploy"
    ports = ("--port", 0, "--webui-port", 0)

    def started(name: str, kind: str, place: Place, *arguments: object) -> Any:
        options = f"{environment()['SPARK_MASTER_OPTS']} -Dspark.worker.timeout={silence}"
        environ = {"SPARK_LOCAL_IP": place.address} if place.within else {}
        environ["SPARK_MASTER_OPTS"] = options
        environ["SPARK_WORKER_OPTS"] = f"-Dspark.worker.timeout={silence}"  # a fourth of it is its pulse
        program = (f"{daemon}.{kind}", "--host", place.address, *ports, *arguments)
        return running(
            "spark-class", *program, directory=directory / name, within=place.within, environ=environ
        )

    with ExitStack() as stack:
        first = stack.enter_context(started("master", "master.Master", master))
        url = logged(r"Starting Spark master at (spark://\S+)", directory / "master", first)
        processes = []
        for number, place in enumerate(workers, 1):
            name = f"worker-{number}"
            size = ("--cores", cores, "--memory", "1g", "--work-dir", directory / name)
            worker = started(name, "worker.Worker", place, *size, url)
            processes.append(stack.enter_context(worker).pid)
        yield Cluster(url, processes)
