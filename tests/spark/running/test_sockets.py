"""Spark's Unix sockets are where no other user can connect to them, and none is left behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from timerheap.spark import _sockets, settings
from timerheap.spark._sockets import socket_directory
from timerheap.spark._worker.spark_store import _remove_path

DIRECTORY = "spark.python.unix.domain.socket.dir"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    monkeypatch.setattr(_sockets, "_ROOT", str(tmp_path))
    monkeypatch.setattr(_sockets, "_mine", {})
    return tmp_path


ENDS = """
import os, sys
from timerheap.spark import _sockets
_sockets._ROOT = sys.argv[1]
os.umask(0)
directory = _sockets.socket_directory()
assert _sockets.socket_directory() == directory
open(directory + "/.some.sock", "w").close()
if not os.fork():
    sys.exit()
os.wait()
print(directory, oct(os.lstat(directory).st_mode), *os.listdir(directory))
"""


def test_the_directory_is_private_whatever_the_umask_and_removed_at_the_end(root: Path) -> None:
    said = subprocess.check_output([sys.executable, "-c", ENDS, root], text=True)
    directory, mode, *files = said.split()
    assert mode == "0o40700"
    assert files == [".some.sock"], "a child that has ended leaves it"
    assert len(directory) - len(str(root)) + len("/tmp") < 104 - 43, "Spark needs the rest for the name"
    assert list(root.iterdir()) == []


def test_the_directories_of_killed_processes_are_removed(root: Path) -> None:
    child = os.fork()
    if not child:
        socket_directory()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (left,) = root.iterdir()
    (left / ".some.sock").touch()
    (root / "${env:timerheap_x}").symlink_to(root)
    (root / "others").mkdir()
    mine = socket_directory()
    _sockets._remove_dead()
    assert {path.name for path in root.iterdir()} == {os.path.basename(mine), "${env:timerheap_x}", "others"}


def test_a_directory_that_was_opened_to_others_is_replaced(root: Path) -> None:
    first = socket_directory()
    os.chmod(first, 0o755)
    second = socket_directory()
    assert second != first
    os.rmdir(second)
    assert socket_directory() not in (first, second)


def test_without_a_safe_place_there_are_no_unix_sockets(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timerheap.spark._settings._chosen_settings", lambda names: set())
    root.chmod(0o777)  # where others can replace what is in it
    assert not [name for name in settings() if "unix" in name]
    assert "sticky bit" in caplog.text
    root.chmod(0o1777)
    found = settings()
    directory = found[DIRECTORY]
    variable = os.path.basename(directory)[len("${env:") : -1]
    assert found[f"spark.executorEnv.{variable}"] == "."


def test_a_directory_that_was_chosen_is_used_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerheap.spark._settings._chosen_settings", lambda names: {DIRECTORY})
    assert [name for name in settings() if "unix" in name] == ["spark.python.unix.domain.socket.enabled"]
    assert not [name for name in settings() if "executorEnv.timerheap" in name]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000])
def test_the_daemon_listens_in_a_directory_of_its_own(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    environment = {**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "True"}
    environment["PYTHON_WORKER_FACTORY_SOCK_DIR"] = str(tmp_path)
    arguments = [sys.executable, "-m", "timerheap.spark.daemon", "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        arguments, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, umask=umask
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        path = Path(os.fsdecode(daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big"))))
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        daemon.stdin.close()
        said = daemon.stderr.read().decode()
    assert ("the umask of this executor is" in said) == (umask != 0o022)
    assert not path.parent.exists()


def test_the_path_of_a_connection_to_the_state_store_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ".some.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(path))
        server.listen()
        client.connect(str(path))
        _remove_path(client)
        assert not path.exists()
        client.sendall(b"still connected")
        assert server.accept()[0].recv(100) == b"still connected"
        _remove_path(client)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        _remove_path(client)
    _remove_path(None)
