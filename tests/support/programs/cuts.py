"""Cuts hosts off from each other while a query runs, and looks at what has become of it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from hosts import Hosts
from kafka_broker import Broker
from kill_driver import EXPECTED, HOPELESS, PATIENCE, Child, Outcome, settings_of
from processes import below, command, kill
from standalone import Cluster, Place, cluster

__all__ = ["KINDS", "TRIGGER", "Cut", "World", "cut_while", "settings_on", "world"]

CHILD = Path(__file__).with_name("cut_child.py")

TRIGGER = 2  # seconds between two micro-batches
ROOM = 6

# How a query may end when the broker, or all executors, cannot be reached for longer than its settings bear.
ENDS = (
    *EXPECTED,
    "TimeoutException",
    "Failed to connect",
    "Connecting to",
    "RpcTimeout",
    "heartbeat timed out",
)


class World(NamedTuple):
    """Hosts by the names "driver", "broker", "executor-1" and so on, and what runs on them.

    The driver sees the folder `work`, and the executors `checkpoints`, which stands in for a shared file
    system, and `stall`, by which a `Stall` is told and tells.
    """

    hosts: Hosts
    cluster: Cluster
    broker: Broker
    executors: list[str]
    work: Path
    checkpoints: Path
    stall: Path


@contextmanager
def world(folder: Path, executors: int) -> Iterator[World]:
    """Start a broker and a standalone cluster, each on a host of its own; the master is on the driver's.

    A worker that is silent for 20 seconds is lost.
    """
    names = [f"executor-{number}" for number in range(1, executors + 1)]
    work, checkpoints, stall, on = (folder / name for name in ("work", "checkpoints", "stall", "cluster"))
    seen = {"driver": [work, checkpoints, stall, on / "master"], "broker": [folder / "broker"]}
    seen |= {name: [checkpoints, stall, on / f"worker-{i}"] for i, name in enumerate(names, 1)}
    for path in (path for name in ("driver", *names) for path in seen[name]):
        path.mkdir(parents=True, exist_ok=True)
    with Hosts(folder / "hosts", seen) as hosts:
        place = {name: Place(hosts[name].address, hosts[name].within) for name in seen}
        kafka = Broker(folder / "broker", *place["broker"])
        starts = Thread(target=kafka.start)
        starts.start()
        try:
            with cluster(on, place["driver"], [place[name] for name in names], 20) as where:
                starts.join()
                yield World(hosts, where, kafka, names, work, checkpoints, stall)
        finally:
            starts.join()
            kafka.kill()


def settings_on(world: World) -> dict[str, Any]:
    """Return settings of a Spark that notices a host that is cut off after 8 to 10 seconds."""
    here = world.hosts["driver"].address
    return settings_of(world.cluster) | {
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        "spark.cores.max": len(world.executors),
        "spark.sql.shuffle.partitions": len(world.executors),
        "spark.locality.wait": 0,
        "spark.executor.heartbeatInterval": "2s",
        "spark.executor.heartbeat.maxFailures": 600,  # else it ends itself after two minutes
        "spark.storage.blockManagerHeartbeatTimeoutMs": "8s",
        "spark.network.timeoutInterval": "2s",
        "spark.network.timeout": "20s",
        "spark.rpc.askTimeout": "10s",
        # What waits for shuffled rows of a lost executor.
        "spark.shuffle.io.connectionTimeout": "8s",
        "spark.shuffle.io.maxRetries": 1,
        "spark.shuffle.io.retryWait": "1s",
    }


@dataclass
class Cut:
    """Something that happens to hosts while a query runs, and what was seen of it.

    `room` is how many micro-batches are kept for it, so that the query does not end before.
    """

    kind: str
    seconds: float = 0.0
    host: str = ""
    begun: float = 0.0
    ended: float = 0.0
    pause: float = 0.0
    zombies: int = 0
    committed: int = 0

    @property
    def room(self) -> int:
        return ROOM + int(self.seconds / TRIGGER)

    def __str__(self) -> str:
        lasted = f"{self.ended - self.begun:.0f} s"
        zombie = f", zombie {'committed' if self.committed else 'did not commit'}" if self.zombies else ""
        return f"{self.kind:9} {self.host:10} {lasted:>10}, longest pause {self.pause:.0f} s{zombie}"


@dataclass
class Found(Outcome):
    """What has become of a run, cut by cut."""

    lost: int = 0
    doubled: int = 0
    cuts: list[Cut] = field(default_factory=list)
    wrote: list[float] = field(default_factory=list)


# ---- Kinds: each does something, yields until it is over, and undoes it


def host_of_an_executor(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Cut a host off from all others."""
    cut.host = draw.choice(world.executors)
    world.hosts.cut(cut.host)
    yield from waiting(cut.seconds)


def link_to_the_driver(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Cut the link of the driver, and of the master, to a host that still reaches all others."""
    cut.host = draw.choice(world.executors)
    world.hosts.part("driver", cut.host)
    yield from waiting(cut.seconds)


def broker(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Cut the broker off from all others."""
    cut.host = "broker"
    world.hosts.cut(cut.host)
    yield from waiting(cut.seconds)


def driver(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Cut the driver and the master off from all others."""
    cut.host = "driver"
    world.hosts.cut(cut.host)
    yield from waiting(cut.seconds)


def killed(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Kill an executor."""
    while not cut.host:
        workers = zip(world.executors, world.cluster.workers, strict=True)
        of = [(name, process) for name, worker in workers for process in below(worker)]
        living = [(name, process) for name, process in of if "CoarseGrainedExecutor" in command(process)]
        if living:
            cut.host, process = draw.choice(living)
            kill(process)
        yield


def zombie(world: World, cut: Cut, found: Found, draw: random.Random) -> Iterator[None]:
    """Cut an executor off whose task has not committed, and let it commit when others have moved on."""
    folder = world.stall
    for file in folder.iterdir():
        file.unlink()
    (folder / "wanted").touch()
    while not (taken := [*folder.glob("taken.*")]):
        yield
    _, attempt, address = taken[0].name.split(".", 2)
    (cut.host,) = (name for name in world.executors if world.hosts[name].address == address)
    committed = folder / f"committed.{attempt}"
    if draw.randrange(2):
        world.hosts.cut(cut.host)
    else:
        world.hosts.part("driver", cut.host)
    cut.zombies = 1
    # The micro-batch in which the task was given up, and one more.
    before, until = len(found.wrote), time.monotonic() + cut.seconds
    while len(found.wrote) < before + 2 or time.monotonic() < until:
        yield
    if draw.randrange(2):
        (folder / "release").touch()
        yield from waiting(30, committed.exists)
    # It is told to end when it is back; whether it commits before is a matter of moments.
    world.hosts.mend()
    (folder / "release").touch()
    yield from waiting(20, committed.exists)
    cut.committed = int(committed.exists())


def waiting(seconds: float, over: Callable[[], bool] = lambda: False) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not over():
        yield


KINDS: dict[str, Callable[[World, Cut, Found, random.Random], Iterator[None]]] = {
    "host": host_of_an_executor,
    "link": link_to_the_driver,
    "broker": broker,
    "driver": driver,
    "killed": killed,
    "zombie": zombie,
}


# ---- Runs


def cut_while(
    work: Path, spec: dict[str, Any], world: World, cuts: Sequence[Cut], draw: random.Random, batches: int
) -> Found:
    """Run a query on the driver's host to its end, and cut, one after the other, while it runs.

    It is started again when it fails. Of its micro-batches some wait for the next cut: there must be as many
    as the cuts have `room` for.

    Raises
    ------
    RuntimeError
        If the query does not get on.
    """
    assert sum(cut.room for cut in cuts) <= batches
    found, begun, idle = Found(), time.monotonic(), 0
    work.mkdir(parents=True)
    gate = work / "gate"
    acts = one_by_one(world, cuts, found, draw, gate, batches)
    next(acts)
    try:
        while True:
            child = Child(work, spec | {"gate": gate}, CHILD, world.hosts["driver"].within)
            found.starts += 1
            before = len(found.wrote)
            try:
                until_its_end(child, found, acts)
            finally:
                child.end()
            failure = child.failure()
            if not failure:
                break
            (found.ended if any(reason in failure for reason in ENDS) else found.errors).append(failure)
            idle = 0 if len(found.wrote) > before or is_cut(found) else idle + 1
            if idle == HOPELESS:
                raise RuntimeError(f"{HOPELESS} starts in {work} without a batch; the last: {failure}")
    finally:
        acts.close()
        world.hosts.mend()
        (world.stall / "release").touch()
    found.seconds = time.monotonic() - begun
    found.kills = len(found.cuts)
    for cut in found.cuts:
        cut.pause = longest_pause(found.wrote, cut.begun, cut.ended)
    return found


def is_cut(found: Found) -> bool:
    return bool(found.cuts) and not found.cuts[-1].ended


def one_by_one(
    world: World, cuts: Sequence[Cut], found: Found, draw: random.Random, gate: Path, batches: int
) -> Iterator[None]:
    """Begin each cut at a moment drawn by chance, when the query has got over the one before."""

    def let_pass(count: int) -> None:
        gate.with_suffix(".draft").write_text(str(count))
        gate.with_suffix(".draft").rename(gate)

    for number, cut in enumerate(cuts, 1):
        most = batches - sum(later.room for later in cuts[number:])
        let_pass(most - cut.room + ROOM // 2)
        before = len(found.wrote)
        while len(found.wrote) < before + 2:
            yield
        yield from waiting(draw.uniform(0, 3))
        cut.begun = time.monotonic()
        found.cuts.append(cut)
        let_pass(most)
        yield from KINDS[cut.kind](world, cut, found, draw)
        world.hosts.mend()
        cut.ended = time.monotonic()
    let_pass(sys.maxsize)
    while True:
        yield


def until_its_end(child: Child, found: Found, acts: Iterator[None]) -> None:
    heard = time.monotonic()
    while (told := child.listen(0.1)) != "end":
        next(acts)
        now = time.monotonic()
        if told is not None:
            heard = now
        if told == "wrote":
            found.wrote.append(now)
        if now - heard > PATIENCE:
            raise TimeoutError(f"no sign of life in {PATIENCE} s; see {child.log}")


def longest_pause(moments: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time between two moments, from `begin` to the second moment after `end`."""
    last = [*(moment for moment in moments if moment > end), end][:2][-1]
    pairs = pairwise(moments)
    return max((after - before for before, after in pairs if begin < after <= last), default=0)
