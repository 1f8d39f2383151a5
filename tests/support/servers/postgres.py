"""A PostgreSQL server of the machine's own packages, on loopback, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from jars import Unreachable
from kafka_broker import free_ports

__all__ = ["postgres"]


def program(name: str) -> str:
    """Return the path of a program; Debian has those of the server outside of the PATH."""
    found = [str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")]
    path = shutil.which(name) or max(found, default=None)
    if path is None:
        raise Unreachable(f"no PostgreSQL: {name} is not installed")
    return path


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server until the end of the block; give what `psycopg.connect` takes."""
    # Its user has to be able to enter all folders above.
    folder = Path(tempfile.mkdtemp(prefix="timerheap-postgres-", dir="/tmp" if os.getuid() == 0 else None))
    shared: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "cwd": folder}
    if os.getuid() == 0:  # it does not run as root
        shutil.chown(folder, "postgres", "postgres")
        shared |= {"user": "postgres", "group": "postgres", "extra_groups": []}
    (port,) = free_ports("127.0.0.1", 1)
    url = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    data = str(folder / "data")
    try:
        with (folder / "log").open("wb") as log:
            made = [program("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
            made += ["--locale=C", "--encoding=UTF8"]
            subprocess.run(made, stdout=log, check=True, **shared)
            run = [program("postgres"), "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
            server = subprocess.Popen(run, stdout=log, **shared)
        try:
            wait(url, server, folder / "log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # it ends all sessions
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"PostgreSQL does not answer: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)
