"""Kills drivers, Python workers and executors at random, and compares the output with an undisturbed run.

The kind `speculation` kills executors, too, and in each micro-batch two attempts of a task commit. With both
kinds a query that ends by itself is a failure; the queries of `SPARKS_OWN` show how Spark itself fares.
The kind `change` kills drivers and workers in calls of `continue_from`, of which there is one after every few
micro-batches, and `change-executor` kills executors in them.

Run as ``make soak-kills ARGS="--kills 40 --seed 1"``. Every choice comes from the seed, but a moment is never
quite the same twice.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from children import import_path
from kill_child import SINKS
from kill_jobs import PLACES, QUERIES, SETTLING, SPARKS_OWN, Twins, write_input
from local_spark import JAVA_OPTIONS
from processes import below, command, kill, python_daemons, python_workers
from standalone import Cluster, cluster

__all__ = ["WANTED", "Child", "Outcome", "Soak", "compared", "run", "settings_of"]

CHILD = Path(__file__).with_name("kill_child.py")
PATH = import_path()
STORE = "spark.sql.streaming.stateStore"
PATIENCE = 600  # seconds without a sign of life
HOPELESS = 8  # restarts without a batch in between
WANTED = "wanted"  # the file that asks a worker to die

# How a query may fail when processes die, or when the machine is too busy to start one in time.
EXPECTED = (
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
    "failed to connect back",
    "Could not recompute",
    "A shuffle map stage with indeterminate output was failed and retried",
    "Connection reset",
    "Connection refused",
    "Broken pipe",
    "EOFException",
    "FetchFailed",
    "CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR",
    "Failed to open socket to Python daemon",
)


class Child:
    """A process that runs a query, and what it tells.

    Parameters
    ----------
    work : pathlib.Path
        Holds checkpoints and output, from one child to the next.
    spec : dict
        See kill_child.py.
    program : pathlib.Path, optional
        A different victim, which takes a `spec` and tells what happens as kill_child.py does.
    within : sequence of str, optional
        A command in front of the victim's own.
    """

    def __init__(
        self, work: Path, spec: dict[str, Any], program: Path = CHILD, within: Sequence[str] = ()
    ) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work = work
        (work / "spec.json").write_text(json.dumps(spec | {"work": str(work)}, default=str))
        self.log = work / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*within, sys.executable, program, work / "spec.json"],
                env=os.environ | PATH,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.jvm: int | None = None
        self.wrote = self.settled = 0
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def listen(self, seconds: float) -> str | None:
        """Return what is told within some seconds, a word, "end" when the process has ended, or None."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            self.process.wait()
            return "end"
        what, *rest = line.split()
        if what == "up":
            self.jvm = int(rest[0])
        self.wrote += what == "wrote"
        if what == "settled":
            self.settled = int(rest[0])
        return what

    def end(self) -> None:
        """Kill the driver and its JVM; the Python workers end when they hear of it."""
        for process in (self.process.pid, self.jvm):
            if process is not None:
                kill(process)
        self.process.wait()

    def failure(self) -> str:
        """Return the error of an ended child and the end of its log; nothing if it was a success."""
        if not (code := self.process.returncode):
            return ""
        log = self.log.read_text(errors="replace")
        # A report may show the first lines alone, and behind the error Spark prints the whole plan.
        error = log[at : at + 4_000] if (at := log.rfind("Traceback (most recent call last)")) >= 0 else ""
        return f"exit code {code}\n{error}\n{log[-200_000:]}"


@dataclass
class Outcome:
    """What has become of one run, from the first start to the end of the query."""

    kills: int = 0
    starts: int = 0
    batches: int = 0
    rows: int = 0
    redone: int = 0
    twins: int = 0
    settled: int = 0
    differences: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


# ---- Kinds of kills: each ends something of a child, and returns whether it found it


def kill_driver(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Kill the driver and its JVM."""
    child.end()
    return True


def kill_worker(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Kill a Python worker, and now and then the daemon that forks them."""
    assert child.jvm is not None
    of = python_daemons if draw.randrange(5) == 0 else python_workers
    return _one_of(of(child.jvm), draw)


def kill_executor(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Kill the JVM of an executor."""
    assert where is not None
    every = [process for worker in where.workers for process in below(worker)]
    return _one_of([e for e in every if "CoarseGrainedExecutorBackend" in command(e)], draw)


def kill_changing(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Kill the driver, or now and then a Python worker."""
    return (kill_driver if draw.randrange(4) else kill_worker)(child, draw, where)


def kill_in_merge(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Ask a Python worker to die while it writes a run."""
    return _ask_to_die(child, "merge")


def kill_in_release(child: Child, draw: random.Random, where: Cluster | None) -> bool:
    """Ask a Python worker to die before it unlocks a live file, which has its name."""
    return _ask_to_die(child, "release")


def _ask_to_die(child: Child, place: str) -> bool:
    if (wanted := child.work / WANTED).exists():
        return False
    wanted.with_suffix(".draft").write_text(place)
    wanted.with_suffix(".draft").rename(wanted)
    return True


def _one_of(processes: Sequence[int], draw: random.Random) -> bool:
    if processes:
        kill(draw.choice(processes))
    return bool(processes)


KINDS: dict[str, Callable[[Child, random.Random, Cluster | None], bool]] = {
    "driver": kill_driver,
    "worker": kill_worker,
    "executor": kill_executor,
    "speculation": kill_executor,
    "change": kill_changing,
    "change-executor": kill_executor,
    "merge": kill_in_merge,
    "release": kill_in_release,
}
CHANGES = ("change", "change-executor")
MOST = {"driver": 5, "worker": 12, "executor": 8, "speculation": 4, "change": 6, "change-executor": 6}
MOST |= dict.fromkeys(PLACES, 24)
"""Kills in one run."""


def settings_of(where: Cluster | None) -> dict[str, Any]:
    """Return settings of a Spark that survives kills: a local one, or one on a cluster."""
    if where is None:
        return {"spark.master": "local[2,8]"}
    return {
        "spark.master": where.url,
        "spark.cores.max": 2,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": PATH["PYTHONPATH"],
        "spark.task.maxFailures": 20,
        "spark.stage.maxConsecutiveAttempts": 20,
        # Spark hears of a killed executor by its connection; on a busy machine, a living one is only slow.
        "spark.network.timeout": "600s",
        "spark.rpc.askTimeout": "120s",
    }


def settings_by_chance(draw: random.Random, where: Cluster | None) -> dict[str, Any]:
    """Return further settings; with speculation most tasks have a twin on the other executor."""
    return {
        "spark.sql.shuffle.partitions": draw.choice([2, 3, 4]),
        "spark.python.worker.reuse": draw.choice(["true", "true", "false"]),
        f"{STORE}.rocksdb.changelogCheckpointing.enabled": draw.choice(["true", "true", "false"]),
        "spark.sql.streaming.fileSink.log.compactInterval": 1_000_000,  # a file for each micro-batch
        f"{STORE}.maintenanceInterval": draw.choice(["1s", "60s"]),
        f"{STORE}.minDeltasForSnapshot": draw.choice([2, 10]),
        f"{STORE}.checkpointFormatVersion": draw.choice([1, 1, 2]),
        "spark.speculation": draw.choice(["true", "false"]) if where is not None else "false",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": 1.01,
        "spark.speculation.quantile": 0.1,
        "spark.speculation.minTaskRuntime": "0ms",
    }


# ---- Runs


def run(
    work: Path,
    spec: dict[str, Any],
    may_kill: int = 0,
    kind: str = "driver",
    draw: random.Random | None = None,
    where: Cluster | None = None,
) -> Outcome:
    """Run a query to its end, with at most so many kills; start it again after each failure.

    Raises
    ------
    RuntimeError
        If it does not get on.
    """
    draw = draw or random.Random(0)
    found, begun, idle = Outcome(), time.monotonic(), 0
    while True:
        child = Child(work, spec)
        found.starts += 1
        try:
            wounded = _until_its_end(child, found, may_kill, kind, draw, where)
        finally:
            child.end()
        failure = child.failure()
        if not failure:
            found.seconds, found.settled = time.monotonic() - begun, child.settled
            found.kills -= (work / WANTED).exists()  # it has come too late
            return found
        if not wounded:
            expected = any(reason in failure for reason in EXPECTED)
            (found.ended if expected else found.errors).append(failure)
        idle = 0 if child.wrote or wounded else idle + 1
        if idle == HOPELESS:
            raise RuntimeError(
                f"{HOPELESS} starts in {work} without a batch; the last one ended with {failure}"
            )


def _until_its_end(
    child: Child, found: Outcome, may_kill: int, kind: str, draw: random.Random, where: Cluster | None
) -> bool:
    """Listen to a child until it ends, and kill; return whether this has ended it."""
    heard, pace = time.monotonic(), 2.0  # the time between two signs of life
    due: float | None = None  # the moment of the next kill
    while True:
        now = time.monotonic()
        if due is not None and now >= due:
            if KINDS[kind](child, draw, where):
                found.kills, due = found.kills + 1, None
            else:
                due = now + draw.uniform(0, pace)
            if child.process.poll() is not None:
                return True
        told = child.listen(PATIENCE if due is None else max(due - now, 0))
        now = time.monotonic()
        if told == "end":
            return False
        if told is None and due is None:
            raise TimeoutError(f"no sign of life in {PATIENCE} s; see {child.log}")
        if kind in CHANGES:
            if told == "changes" and found.kills < may_kill:
                due = now + draw.uniform(0, pace)
            elif told == "changed":
                due = None
            if told in ("up", "changed"):  # a JVM takes as long to start as a change does
                pace = now - heard
            heard = now if told else heard
        elif told is not None:
            pace, heard = 0.7 * pace + 0.3 * min(now - heard, 20), now
            if due is None and found.kills < may_kill and (told == "wrote" or draw.randrange(2)):
                due = now + draw.uniform(0, 2 * pace)


def compared(expected: Path, found: Path) -> Outcome:
    """Compare outputs of a query, the first from an undisturbed run: each attempt of each micro-batch.

    If a driver dies when Spark has noted the files of a micro-batch, but not planned it, the repeated one has
    the files of two, and all behind it are one earlier. Then the rows of all together are compared.
    """
    outcome = Outcome()
    right, tried = _attempts(expected), _attempts(found)
    for batch in sorted(right.keys() | tried.keys()):
        wanted = right.get(batch, [[]])[0]
        attempts = tried.get(batch, [[]])
        outcome.batches += 1
        outcome.rows += len(wanted)
        outcome.redone += len(attempts) - 1
        for rows in attempts:
            if rows != wanted:
                lost = [row for row in wanted if row not in rows][:3]
                more = [row for row in rows if row not in wanted][:3]
                outcome.differences.append(
                    f"micro-batch {batch}: {len(rows)} rows instead of {len(wanted)}; missing {lost}, "
                    f"unexpected {more}"
                )
    once = all(attempts == attempts[:1] * len(attempts) for attempts in tried.values())
    if once and len(tried) < len(right) and _all_rows(tried) == _all_rows(right):
        outcome.differences.clear()
    return outcome


def _all_rows(attempts: Mapping[int, list[list[list[str]]]]) -> list[list[str]]:
    return sorted(row for rows, *_ in attempts.values() for row in rows)


def _attempts(folder: Path) -> dict[int, list[list[list[str]]]]:
    found: dict[int, list[list[list[str]]]] = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime):
        found.setdefault(int(file.name.split(".")[0]), []).append(json.loads(file.read_text()))
    return found


# ---- The soak


class Soak:
    """Runs with kills, each compared with an undisturbed run of the same query.

    Parameters
    ----------
    scratch : pathlib.Path
        Holds the input in ``in``.
    seed : int
    queries : list of str
    settings : dict, optional
        Further settings of Spark, in the runs with kills.
    checkpoints : str, optional
        The folder of their checkpoints; by default each is on the disk, with the output.
    """

    def __init__(
        self,
        scratch: Path,
        seed: int,
        queries: Sequence[str],
        settings: Mapping[str, Any] = MappingProxyType({}),
        checkpoints: str | None = None,
    ) -> None:
        self._scratch = scratch
        self._seed = seed
        self._queries = queries
        self._settings = settings
        self._checkpoints = checkpoints

    def kill(self, kind: str, kills: int) -> Outcome:
        """Run and kill until there were so many kills of a kind."""
        total, number = Outcome(), 0
        on_cluster = KINDS[kind] is kill_executor
        with cluster(self._scratch / kind) if on_cluster else nullcontext() as where:
            while total.kills < kills:
                total.add(self._one(kind, number, min(MOST[kind], kills - total.kills), where))
                number += 1
        return total

    def _one(self, kind: str, number: int, kills: int, where: Cluster | None) -> Outcome:
        draw = random.Random(f"{self._seed} {kind} {number}")
        changed = kind in CHANGES
        at_a_place = kind in PLACES
        queries = [each for each in self._queries if each in SETTLING or not at_a_place]
        query = "continued" if changed else queries[number % len(queries)]
        right, work = self._undisturbed(query), self._scratch / f"{kind}-{number}"
        chosen, sink = settings_by_chance(draw, where), draw.choice(SINKS)
        twins = kind == "speculation"
        if changed:
            del chosen["spark.sql.shuffle.partitions"]  # each version has another number
            # With the other one Spark cannot go on when a sink skips a micro-batch, not in place either.
            chosen[f"{STORE}.checkpointFormatVersion"] = 1
        if twins:
            chosen |= {"spark.speculation": "true", f"{STORE}.checkpointFormatVersion": 1}
        spec = self._spec(query, {**settings_of(where), **chosen, **self._settings}, sink, twins)
        spec |= {"changed": changed, "settles": at_a_place}
        if at_a_place:
            spec["wanted"] = work / WANTED
        if self._checkpoints is not None:
            spec["checkpoint"] = f"{self._checkpoints}/{work.name}"
        done = run(work, spec, kills, kind, draw, where)
        done.add(compared(right, work / "out"))
        done.twins = Twins.count(work / "twins")
        shown = ", ".join(f"{name.removeprefix('spark.')}={value}" for name, value in chosen.items())
        shown = shown.replace("sql.streaming.stateStore.", "")
        tell(f"{line(kind, done)}  {query}; sink={sink}, {shown}")
        for what in [*done.differences[:10], *map(_cause, done.errors + done.ended)]:
            tell(f"  {what}")
        if query in SPARKS_OWN or KINDS[kind] is not kill_executor:
            done.ended.clear()
        return done

    def _undisturbed(self, query: str) -> Path:
        """Return the output of an undisturbed run."""
        work = self._scratch / f"undisturbed {query}"
        if not work.exists():
            run(work, self._spec(query, settings_of(None), "rows"))
        return work / "out"

    def _spec(self, query: str, settings: dict[str, Any], sink: str, twins: bool = False) -> dict[str, Any]:
        spec = {"input": self._scratch / "in", "query": query, "killer": None, "twins": twins, "sink": sink}
        return spec | {"settings": settings}


COLUMNS = ("kills", "starts", "batches", "redone", "twins", "settled", "rows", "differ", "errors", "ended")
COLUMNS += ("seconds",)
HEADER = f"{'kind':16}" + "".join(f"{name:>9}" for name in COLUMNS)


def line(kind: str, done: Outcome) -> str:
    """Return a line under `HEADER`."""
    counts = (done.kills, done.starts, done.batches, done.redone, done.twins, done.settled, done.rows)
    counts += (len(done.differences), len(done.errors), len(done.ended), round(done.seconds))
    return f"{kind:16}" + "".join(f"{count:9}" for count in counts)


def _cause(failure: str) -> str:
    """Return what matters of a log: the errors that it names, or its end."""
    named = re.findall(r"(?:Exception|Error|Caused by): .*", failure)
    return "\n  ".join(line[:500] for line in dict.fromkeys(named)) or failure[-3_000:]


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--kills", type=int, default=40, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--queries", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--batches", type=int, default=12, help="micro-batches of a run")
    parser.add_argument("--rows", type=int, default=300, help="in a micro-batch")
    options = parser.parse_args()
    tell(f"seed {options.seed}\n{HEADER}")
    with tempfile.TemporaryDirectory(prefix="timerheap-kills-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        write_input(scratch / "in", options.seed, options.batches, options.rows, keys=options.rows // 4)
        soak = Soak(scratch, options.seed, options.queries)
        table = [(kind, soak.kill(kind, options.kills)) for kind in options.kinds]
    print(HEADER, *(line(kind, done) for kind, done in table), sep="\n")
    if any(done.differences or done.errors or done.ended for _, done in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
