"""Hosts that are cut off from each other change no micro-batch; with soak for minutes, at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cut_child
import hosts
import pytest
from cut_child import PARTITIONS, expected, produce, readings
from cuts import KINDS, TRIGGER, Cut, Found, World, cut_while, settings_on, world
from kill_driver import compared, settings_by_chance
from pyspark.sql import SparkSession

BATCHES = 150  # micro-batches of a run
ROWS = 20  # of a partition in a micro-batch
KEYS = 60
# An executor that is not reached is lost after 8 s, and a fetch from Kafka fails after 5.
HASTY = {
    "kafka.request.timeout.ms": 4_000,
    "kafka.default.api.timeout.ms": 5_000,
    "kafkaConsumer.pollTimeoutMs": 5_000,
}


@pytest.fixture(autouse=True)
def may_make_hosts() -> None:
    if reason := hosts.refusal():
        pytest.skip(reason)


class Trial:
    """A topic, what a query must find in it, and what an undisturbed one found.

    Parameters
    ----------
    where : World
    spark : SparkSession
        For the undisturbed query.
    folder : pathlib.Path
    seed : int
    batches : int
        Micro-batches.
    """

    def __init__(self, where: World, spark: SparkSession, folder: Path, seed: int, batches: int) -> None:
        self._where, self._folder, self._batches = where, folder, batches
        rows = readings(seed, batches, ROWS, KEYS)
        self.expected = expected(rows)
        address, topic = where.broker.address, where.broker.topic(PARTITIONS)
        produce(address, topic, rows)
        self._spec: dict[str, Any] = {"broker": address, "topic": topic, "rows": ROWS * PARTITIONS}
        self._settings = {"spark.jars": spark.conf.get("spark.jars")}
        paths = {"work": folder, "checkpoint": folder / "checkpoint"}
        self.undisturbed = cut_child.start(spark, self._spec | {k: str(path) for k, path in paths.items()})

    def run(self, name: str, cuts: list[Cut], draw: random.Random, **spec: Any) -> Found:
        """Run the query on the hosts, cut, and compare."""
        where, work = self._where, self._where.work / name
        paths = {"checkpoint": where.checkpoints / name, "stall": where.stall}
        settings = settings_on(where) | self._settings | spec.pop("settings", {})
        spec = self._spec | paths | spec | {"settings": settings}
        done = cut_while(work, spec, where, cuts, draw, self._batches)
        self.undisturbed.awaitTermination()
        output = compared(self._folder / "out", work / "out")
        done.batches, done.rows, done.redone = output.batches, output.rows, output.redone
        done.differences = output.differences
        found, wanted = (Counter(map(tuple, rows)) for rows in (whole_output(work / "out"), self.expected))
        done.lost, done.doubled = (wanted - found).total(), (found - wanted).total()
        return done

    def assert_right(self, done: Found) -> None:
        assert Counter(map(tuple, whole_output(self._folder / "out"))) == Counter(map(tuple, self.expected))
        assert not done.errors, done.errors[0][-5_000:]
        assert not done.differences
        assert (done.lost, done.doubled) == (0, 0)
        assert done.batches == self._batches
        assert done.rows == len(self.expected) > 0


def whole_output(folder: Path) -> list[list[str]]:
    """Return the rows of all micro-batches, each as its last attempt wrote it."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
    last = {file.name.split(".")[0]: file for file in files}
    return [row for file in last.values() for row in json.loads(file.read_text())]


@pytest.mark.world("kafka")
def test_a_cut_a_zombie_and_a_broker_out_of_reach_change_no_micro_batch(
    spark: SparkSession, tmp_path: Path, tell: Callable[..., None]
) -> None:
    cuts = [Cut("zombie", 10), Cut("broker", 5)]
    with world(tmp_path, executors=2) as where:
        trial = Trial(where, spark, tmp_path / "undisturbed", seed=1, batches=20)
        done = trial.run("work", cuts, random.Random(1), seconds=1, kafka=HASTY)
    trial.assert_right(done)
    assert done.cuts[0].committed == 1
    tell("hosts: a zombie, the broker cut off", kills=2, rows=done.rows, lost=done.lost, doubled=done.doubled)


@pytest.mark.world("kafka")
@pytest.mark.soak
@pytest.mark.timeout(3 * 3600)
def test_cuts_at_random_change_no_micro_batch(
    spark: SparkSession, tmp_path: Path, tell: Callable[..., None], seed: int
) -> None:
    draw, total = random.Random(seed), Found()
    left = [Cut(kind, seconds) for kind in ("host", "link", "broker") for seconds in (5, 60, 180)]
    left += [Cut("driver", seconds) for seconds in (5, 60)]
    left += [Cut("zombie", draw.choice((15, 30, 60, 90))) for _ in range(6)]
    left += [Cut("killed") for _ in range(5)]
    draw.shuffle(left)
    with world(tmp_path, executors=3) as where:
        trial = Trial(where, spark, tmp_path / "undisturbed", seed, BATCHES)
        trial.undisturbed.awaitTermination()
        while left:
            cuts = [left.pop()]
            while left and sum(cut.room for cut in cuts) + left[-1].room <= BATCHES:
                cuts.append(left.pop())
            total.add(one_run(trial, cuts, draw, seed, f"run-{len(left)}"))
    assert total.kills >= 20
    for kind in KINDS:
        cuts = sorted((cut for cut in total.cuts if cut.kind == kind), key=lambda cut: cut.seconds)
        pauses = ", ".join(f"{cut.pause:.0f}" for cut in cuts)
        tell(f"hosts: {kind}, pauses of {pauses} s", kills=len(cuts))
    zombies = sum(cut.committed for cut in total.cuts)
    assert zombies > 0
    tell(
        f"hosts, seed {seed}: {total.batches} micro-batches, {zombies} zombies committed",
        kills=total.kills,
        rows=total.rows,
        lost=total.lost,
        doubled=total.doubled,
    )


def one_run(trial: Trial, cuts: list[Cut], draw: random.Random, seed: int, name: str) -> Found:
    """Run with some of the cuts, and settings drawn by chance; print what was seen."""
    chosen, kafka = settings_by_chance(draw, None), draw.choice((HASTY, {}))
    done = trial.run(name, cuts, draw, seconds=TRIGGER, settings=chosen, kafka=kafka)
    settings = ", ".join(f"{key}={value}" for key, value in (chosen | kafka).items())
    counts = f"{done.starts} starts, {done.batches} micro-batches, {len(done.differences)} different"
    endings = (ending[-2_000:] for ending in done.ended)
    print(f"seed {seed}: {settings}", *done.cuts, *endings, counts, sep="\n", flush=True)
    trial.assert_right(done)
    return done


def test_a_host_sees_of_the_others_what_is_shared(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with hosts.Hosts(tmp_path / "hosts", {"one": [shared], "two": [shared], "three": []}) as made:
        for name in ("one", "two", "three"):
            script = f"echo {name} > $0; mkdir -p {shared}; echo {name} >> {shared}/names"
            subprocess.run([*made[name].within, "sh", "-c", script, "/tmp/own"], check=True)
        seen = {
            name: subprocess.run(
                [*made[name].within, "cat", "/tmp/own", shared / "names"], capture_output=True, text=True
            ).stdout.split()
            for name in ("one", "two", "three")
        }
    assert seen == {
        "one": ["one", "one", "two"],
        "two": ["two", "one", "two"],
        "three": ["three", "three"],
    }
    assert (shared / "names").read_text().split() == ["one", "two"]
    assert not Path("/tmp/own").exists()


KILLED = """
import subprocess, sys
from pathlib import Path
from hosts import Hosts
with Hosts(Path(sys.argv[1]), {"one": ()}) as hosts:
    sleeper = subprocess.Popen([*hosts["one"].within, "sleep", "600"])
    print(sleeper.pid, flush=True)
    sleeper.wait()
"""


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path / "killed"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        sleeper = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.pid in {owner for _, owner in hosts.namespaces()}
    assert Path(f"/proc/{sleeper}").exists()

    with hosts.Hosts(tmp_path / "next", {"one": ()}):
        assert child.pid not in {owner for _, owner in hosts.namespaces()}
        assert not Path(f"/sys/class/net/{hosts.link_of(child.pid)}").exists()
        assert not Path(f"/proc/{sleeper}").exists() or is_dead(sleeper)
    assert os.getpid() not in {owner for _, owner in hosts.namespaces()}


def is_dead(process: int) -> bool:
    """Return whether a process has ended, and waits for its parent to ask how."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
