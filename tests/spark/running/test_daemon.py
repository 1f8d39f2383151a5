"""A daemon that Spark terminates waits for its Python workers, and none outlives the JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

SECRET = b"some secret"
# Stands in for the JVM: starts the daemon, and prints its process id, its port and its exit status.
JVM = """
import subprocess, sys
command = [sys.executable, *sys.argv[1:], "pyspark.worker"]
daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(daemon.pid, int.from_bytes(daemon.stdout.read(4), "big"), flush=True)
print(daemon.wait())
"""
# Terminates itself at the fork of its first worker.
TERMINATED_AT_FORK = """
import os, runpy, signal

def terminate():
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        signal.raise_signal(signal.SIGTERM)

os.register_at_fork(after_in_parent=terminate)
runpy.run_module("timerheap.spark.daemon", run_name="__main__", alter_sys=True)
"""


class Running(NamedTuple):
    jvm: subprocess.Popen[str]
    said: IO[str]
    daemon: int
    worker: socket.socket


@contextmanager
def running(program: Sequence[str] = ("-m", "timerheap.spark.daemon")) -> Iterator[Running]:
    """Start a daemon with one worker."""
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", JVM, *program]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as jvm:
        try:
            assert jvm.stdout is not None
            daemon, port = map(int, jvm.stdout.readline().split())
            with socket.create_connection(("127.0.0.1", port), timeout=60) as worker:
                assert int.from_bytes(worker.recv(4), "big") > 0  # the process id of the worker
                yield Running(jvm, jvm.stdout, daemon, worker)
        finally:
            jvm.kill()  # and so the daemon, whatever has failed


def assert_answers(worker: socket.socket) -> None:
    worker.sendall(len(SECRET).to_bytes(4, "big") + SECRET)
    assert worker.recv(6) == b"\0\0\0\2ok"


def test_a_terminated_daemon_waits_for_its_worker() -> None:
    with running() as here:
        os.kill(here.daemon, signal.SIGTERM)
        time.sleep(0.5)  # otherwise the worker ends within this time
        assert_answers(here.worker)
        here.worker.close()
        assert here.said.read() == "1\n"


def test_a_daemon_terminated_at_a_fork_waits_for_its_worker() -> None:
    with running(["-c", TERMINATED_AT_FORK]) as here:
        assert_answers(here.worker)
        here.worker.close()
        assert here.said.read() == "1\n"


def test_a_worker_of_a_terminated_daemon_ends_with_the_jvm() -> None:
    with running() as here:
        assert_answers(here.worker)
        os.kill(here.daemon, signal.SIGTERM)
        here.jvm.kill()
        assert here.worker.recv(1) == b""


def test_a_worker_of_a_running_daemon_ends_with_the_jvm() -> None:
    with running() as here:
        assert_answers(here.worker)
        here.jvm.kill()
        assert here.worker.recv(1) == b""
