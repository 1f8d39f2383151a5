"""Hosts on one machine: network namespaces with addresses of their own, on a switch whose links can be cut.

Each host has its own ``/tmp``, too: of the others it sees what is shared with it, as machines see a shared
file system. Only process ids are common.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from timerheap.spark import ensure_java

__all__ = ["Host", "Hosts", "refusal"]

PREFIX = "timerheap"
ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "02:00:00:00:00:ff"  # no interface has it
ENTER = """#!/bin/sh -e
# Mounts are seen by this process and those that it starts: ip netns exec has given it mounts of its own.
{mounts}
cd {directory}
exec "$@"
"""


class Host(NamedTuple):
    """A host: its address, and the command in front of each command that runs there."""

    name: str
    address: str
    within: tuple[str, ...]


def ip(*arguments: str) -> str:
    """Run iproute2's ``ip``; an error has what it says."""
    try:
        return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from None


def refusal() -> str | None:
    """Return why this machine cannot have hosts, or None if it can."""
    if missing := [program for program in ("ip", "mount") if shutil.which(program) is None]:
        return f"needs {' and '.join(missing)} (Debian: apt-get install iproute2 mount)"
    try:
        with tempfile.TemporaryDirectory() as folder, Hosts(Path(folder), {"probe": ()}) as hosts:
            subprocess.run([*hosts["probe"].within, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs the right to make network namespaces, bridges and mounts: {error}"
    return None


class Hosts:
    """Hosts with addresses in a network of this machine alone, until the end of the block.

    This process reaches all of them, and they reach it, at `here`.

    Parameters
    ----------
    folder : pathlib.Path
        Gets a folder for each host, which is its ``/tmp``.
    shared : mapping of str to a collection of pathlib.Path
        By name of a host, at most 12 characters: the folders below ``/tmp`` that it sees. All see the
        checkout, Python and Java.

    Attributes
    ----------
    here : str
        The address of this process.
    """

    def __init__(self, folder: Path, shared: Mapping[str, Collection[Path]]) -> None:
        self._folder = folder
        self._shared = shared
        self._parted: set[tuple[str, str]] = set()
        self._cut: set[str] = set()
        self._hosts: dict[str, Host] = {}
        self.here = ""

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __enter__(self) -> Self:
        remove_leftovers()
        network = free_network()
        self.here = f"{network}.1"
        try:
            self._wire(network)
        except BaseException:
            remove(os.getpid())
            raise
        return self

    def __exit__(self, *_: object) -> None:
        remove(os.getpid())

    def _wire(self, network: str) -> None:
        switch, here = namespace("switch"), link_of(os.getpid())
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        ip("link", "add", "here", "netns", switch, "type", "veth", "peer", "name", here)
        ip("-n", switch, "link", "set", "here", "master", "bridge", "up")
        ip("address", "add", f"{self.here}/24", "dev", here)
        ip("link", "set", here, "up")
        for number, name in enumerate(self._shared, 10):
            inside, address = namespace(name), f"{network}.{number}"
            ip("netns", "add", inside)
            ip("link", "add", name, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", inside)
            ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            ip("-n", inside, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                ip("-n", inside, "link", "set", link, "up")
            within = ("ip", "netns", "exec", inside, str(self._enter(name)))
            self._hosts[name] = Host(name, address, within)

    def _enter(self, name: str) -> Path:
        """Write the program that runs a command with the host's own ``/tmp``; return its path."""
        own = self._folder / name
        environment = {ROOT, Path(sys.prefix).parent, Path(sys.base_prefix), ensure_java()}
        seen = outermost(environment | {*self._shared[name]})
        mounts = []
        temporary = Path(tempfile.gettempdir())
        for number, cover in enumerate(outermost({Path("/tmp"), temporary})):
            inside = own / str(number)
            inside.mkdir(parents=True)
            for path in (path for path in seen if path.is_relative_to(cover)):
                point = inside / path.relative_to(cover)
                point.mkdir(parents=True, exist_ok=True)
                mounts.append(f"mount --bind '{path}' '{point}'")
            if temporary.is_relative_to(cover):
                (inside / temporary.relative_to(cover)).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --rbind '{inside}' '{cover}'")
        program = own / "enter"
        program.write_text(ENTER.format(mounts="\n".join(mounts), directory=temporary))
        program.chmod(0o700)
        return program

    def cut(self, name: str) -> None:
        """Cut the cable of a host: nobody hears of it but by waiting."""
        ip("-n", namespace("switch"), "link", "set", name, "down")
        self._cut.add(name)

    def part(self, one: str, other: str) -> None:
        """Drop what two hosts send to each other; both reach all others."""
        for host, away in ((one, other), (other, one)):
            place = ("dev", "eth0", "nud", "permanent")
            ip(
                "-n",
                namespace(host),
                "neighbor",
                "replace",
                self[away].address,
                "lladdr",
                NOWHERE,
                *place,
            )
        self._parted.add((one, other))

    def mend(self) -> None:
        """Undo all cuts."""
        for name in self._cut:
            ip("-n", namespace("switch"), "link", "set", name, "up")
        for one, other in self._parted:
            for host, away in ((one, other), (other, one)):
                ip("-n", namespace(host), "neighbor", "delete", self[away].address, "dev", "eth0")
        self._cut.clear()
        self._parted.clear()


def outermost(paths: Collection[Path]) -> list[Path]:
    """Return the paths that are not below one of the others."""
    return sorted(
        path for path in paths if not any(path != other and path.is_relative_to(other) for other in paths)
    )


def link_of(owner: int) -> str:
    """Return the name of the interface with which a process reaches its hosts."""
    return f"hosts{owner}"


def namespace(name: str, owner: int | None = None) -> str:
    """Return the name of a network namespace; it says which process must live for it to be kept."""
    return f"{PREFIX}-{owner or os.getpid()}-{name}"


def free_network() -> str:
    """Return the first three numbers of a network in which this machine has no address.

    It is one of those that are set aside for measuring networks, so no other machine is there.
    """
    first = os.getpid() % 256
    for number in (*range(first, 256), *range(first)):
        if not ip("-4", "-oneline", "address", "show", "to", f"198.18.{number}.0/24"):
            return f"198.18.{number}"
    raise OSError("198.18.0.0/16 has no free network")


def namespaces() -> list[tuple[str, int]]:
    """Return the names of all namespaces of `Hosts`, each with the process that made it."""
    lines = ip("netns", "list").splitlines()
    names = [line.split()[0] for line in lines if line.startswith(f"{PREFIX}-")]
    return [(name, int(name.split("-")[1])) for name in names]


def remove_leftovers() -> None:
    """Remove the namespaces of processes that were killed, and what still runs in them."""
    for owner in {owner for _, owner in namespaces()}:
        if not Path(f"/proc/{owner}").exists():
            remove(owner)


def remove(owner: int) -> None:
    """End all processes in the namespaces of a process, and remove these with their links."""
    names = [name for name, its in namespaces() if its == owner]
    until = time.monotonic() + 30
    while living := [int(pid) for name in names for pid in ip("netns", "pids", name).split()]:
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {living} do not end")
        time.sleep(0.05)
    with suppress(OSError):  # there is none
        ip("link", "delete", link_of(owner))  # else it lives on until the kernel gets to it
    for name in names:
        ip("netns", "delete", name)
