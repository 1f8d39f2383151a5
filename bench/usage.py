"""What the processes of a local Spark have used, from /proc: the JVM, and the Python processes below it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from processes import below

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Cpu", "Memory", "Meter", "compiling", "cpu", "jvm_of", "memory"]

_TICK = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """CPU seconds so far.

    others: of the processes that the JVM has started and that have ended, as the one in Python with which
        Spark starts a query, and the programs that Hadoop runs for files
    """

    jvm: float
    python: float
    others: float

    def since(self, before: Cpu) -> Cpu:
        """Return what has been used since `before`."""
        return Cpu(*(now - then for now, then in zip(self, before, strict=True)))


class Memory(NamedTuple):
    """Bytes of memory."""

    jvm: int
    python: int


def cpu(jvm: int) -> Cpu:
    """Return the CPU time of a JVM, of the Python processes below it, dead workers too, and of others."""
    own, others = _seconds(Path(f"/proc/{jvm}"))
    return Cpu(own, sum(sum(_seconds(Path(f"/proc/{process}"))) for process in below(jvm)), others)


def compiling(jvm: int) -> float:
    """Return the CPU seconds so far of a JVM's just-in-time compilers.

    The JVM must keep their threads: ``-XX:-UseDynamicNumberOfCompilerThreads``.
    """
    threads = Path(f"/proc/{jvm}/task").iterdir()
    return sum(_seconds(thread)[0] for thread in threads if _is_compiler(thread))


def _is_compiler(thread: Path) -> bool:
    try:
        return "CompilerThre" in (thread / "comm").read_text()
    except OSError:  # it has ended
        return False


def jvm_of(spark: SparkSession) -> int:
    """Return the process of the JVM of a session."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


class Meter:
    """The CPU of a JVM from here on; it keeps the threads of its compilers, see `compiling`."""

    def __init__(self, jvm: int) -> None:
        self._jvm = jvm
        self._cpu, self._compiled = cpu(self._jvm), compiling(self._jvm)

    def read(self) -> tuple[Cpu, float]:
        """Return the CPU seconds so far, and those of the compilers among them."""
        return cpu(self._jvm).since(self._cpu), compiling(self._jvm) - self._compiled


def memory(jvm: int) -> Memory:
    """Return the memory of a JVM and of the Python processes below it; a page that they share counts once."""
    return Memory(_proportional(jvm), sum(_proportional(process) for process in below(jvm)))


def _seconds(process: Path) -> tuple[float, float]:
    """Return the CPU seconds of a process, and those of its children that have ended."""
    try:
        stat = (process / "stat").read_text()
    except OSError:  # it has ended
        return 0.0, 0.0
    user, system, children_user, children_system = map(int, stat.rpartition(")")[2].split()[11:15])
    return (user + system) / _TICK, (children_user + children_system) / _TICK


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
