"""Real-time mode from Kafka to Kafka: no result is missing or wrong, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from connectors import connectors
from kafka_broker import Broker, messages
from kill_driver import settings_of
from processes import below, command, kill, python_workers
from real_time_kafka import wanted
from standalone import Cluster, cluster

pytestmark = pytest.mark.world("kafka")
CHILD = Path(__file__).resolve().parents[1] / "support/real_time_kafka.py"
PARTITIONS = 2


class Feed:
    """Sends rows of keys, each to the partition of its key, with rising event times."""

    def __init__(self, broker: Broker, topic: str, draw: random.Random) -> None:
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        self._topic, self._draw, self._at = topic, draw, 0
        self.times: dict[str, list[int]] = {}
        self.rows = 0

    def send(self, rows: int) -> None:
        """Send some rows of many keys."""
        for _ in range(rows):
            self._at += self._draw.randrange(40)
            self._row(self._draw.randrange(40), self._at)
        self._producer.flush()

    def end(self) -> None:
        """Send a last row to each partition."""
        for number in range(PARTITIONS):
            self._row(1000 + number, self._at + 3_600_000)
        self._producer.flush()

    def _row(self, number: int, at: int) -> None:
        key = f"key {number}"
        self._producer.produce(self._topic, str(at), key, number % PARTITIONS)
        self.times.setdefault(key, []).append(at)
        self.rows += 1

    def wanted(self) -> set[tuple[str, int, int]]:
        """Return the results of all rows but those of `end`."""
        far = {key: [*times, 1 << 40] for key, times in self.times.items() if int(key.split()[1]) < 1000}
        return wanted(far)


class Query:
    """The process that runs the query, started again after its end."""

    def __init__(
        self, work: Path, broker: Broker, rows: str, results: str, cluster: Cluster | None = None
    ) -> None:
        settings = {"spark.jars": ",".join(map(str, connectors("kafka")))}
        if cluster is not None:
            settings |= settings_of(cluster) | {"spark.cores.max": 4}
        self.cluster = cluster
        spec = {"work": str(work), "broker": broker.address, "rows": rows, "results": results}
        work.mkdir()
        self.file, self.work = work / "spec.json", work
        self.file.write_text(json.dumps({**spec, "epoch": "2 seconds", "settings": settings}))
        self.start()

    def start(self) -> None:
        """Start the process."""
        path = os.pathsep.join(filter(None, [str(CHILD.parent), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, CHILD, self.file],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(self.work / "log").open("ab"),
            text=True,
        )
        assert self.process.stdout is not None
        self.jvm = int(self.process.stdout.readline() or 0)

    def expect_running(self) -> None:
        """Raise an error if the process has ended by itself."""
        if self.process.poll() is not None:
            raise AssertionError((self.work / "log").read_text(errors="replace")[-5000:])

    def end(self) -> None:
        """Kill driver and JVM."""
        for process in (self.process.pid, self.jvm):
            kill(process)
        self.process.wait()

    def python_workers(self) -> list[int]:
        """Return the processes of Python workers."""
        return [worker for jvm in self.executors() or [self.jvm] for worker in python_workers(jvm)]

    def executors(self) -> list[int]:
        """Return the processes of the executors of a cluster."""
        every = (
            [process for worker in self.cluster.workers for process in below(worker)] if self.cluster else []
        )
        return [process for process in every if "CoarseGrainedExecutorBackend" in command(process)]

    def epochs(self) -> int:
        """Return how many epochs have been committed."""
        numbers = (file.name for file in (self.work / "checkpoint/commits").glob("[0-9]*"))
        return max(map(int, numbers), default=-1) + 1

    def saves(self) -> set[str]:
        """Return the files that are being written."""
        return {str(file) for file in (self.work / "checkpoint/timerheap").glob("0*/*.draft")}


def wait(condition: Callable[[], Any], query: Query, patience: float = 120) -> None:
    until = time.monotonic() + patience
    while not condition():
        query.expect_running()
        if time.monotonic() > until:
            log = (query.work / "log").read_text(errors="replace")
            raise TimeoutError(f"{condition} is not met after {query.epochs()} epochs: ...{log[-3000:]}")
        time.sleep(0.002)


def results(broker: Broker, topic: str) -> list[tuple[tuple[str, int, int], tuple[int, str]]]:
    """Return the results, each with its attempt: an epoch and a run."""
    found = (json.loads(message.value()) for message in messages(broker, topic))
    return [((row["key"], row["at"], row["rows"]), (row["epoch"], row["run"])) for row in found]


class Done(NamedTuple):
    """What was killed when, and the rows and results of a query."""

    kills: Counter[str]
    rows: int
    results: int
    repeated: int
    broken: int  # attempts of epochs, which had to be repeated

    def tell(self, tell: Callable[..., None], job: str) -> None:
        """Add it to the table."""
        saving, kills = self.kills["while saving"], self.kills.total() - self.kills["while saving"]
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(self.kills.items()) if number)
        job += f": {what}" if kills > 2 or saving else ""
        tell(job, kills=kills, rows=self.rows, lost=0, doubled=self.repeated)


def killed(
    broker: Broker, work: Path, kinds: list[str], draw: random.Random, cluster: Cluster | None = None
) -> Done:
    """Run a query whose processes are killed, and compare its results with those of the model.

    An epoch is committed in the last run that has attempted it. In committed epochs each result must be
    there once: so what is repeated comes from broken ones.
    """
    rows, out = broker.topic(PARTITIONS), broker.topic(1)
    query = Query(work, broker, rows, out, cluster)
    feed, done = Feed(broker, rows, draw), Counter[str]()
    try:
        for kind in kinds:
            before = query.epochs()
            wait(lambda before=before: feed.send(5) or query.epochs() > before, query)
            if draw.random() < 0.4:  # while a task saves its state
                with suppress(TimeoutError):
                    wait(query.saves, query, 5)
                    done["while saving"] += 1
            else:
                until = time.monotonic() + draw.random() * 3
                wait(lambda until=until: feed.send(5) or time.monotonic() > until, query)
            if kind == "driver":
                query.end()
                query.start()
            else:
                found = query.executors() if kind == "executor" else query.python_workers()
                kill(draw.choice(found))
            done[f"{kind}s"] += 1
        feed.end()
        expected = feed.wanted()
        wait(lambda: time.sleep(0.5) or expected <= dict(results(broker, out)).keys(), query)
    finally:
        query.end()
    found = results(broker, out)
    attempts = [tuple(json.loads(line)) for line in (query.work / "attempts").read_text().splitlines()]
    committed = set(dict(attempts).items())
    assert {result for result, _ in found} == expected
    # The last epoch may have been cut off after its results.
    assert Counter(result for result, attempt in found if attempt in committed) == Counter(expected)
    return Done(done, feed.rows, len(expected), len(found) - len(expected), len(set(attempts) - committed))


@pytest.fixture
def draw(seed: int) -> random.Random:
    """A source of random choices."""
    return random.Random(seed)


def test_a_killed_worker_and_a_killed_driver_lose_nothing(
    broker: Broker, tmp_path: Path, tell: Callable[..., None]
) -> None:
    done = killed(broker, tmp_path / "query", ["worker", "driver"], random.Random(4))
    done.tell(tell, "real-time mode")
    assert done.kills["workers"] == done.kills["drivers"] == 1
    assert done.broken >= 2


def test_the_program_of_the_page_finds_sensors_that_are_silent(broker: Broker, tmp_path: Path) -> None:
    readings, alerts = broker.topic(PARTITIONS), broker.topic(1)
    page = (CHILD.parents[2] / "docs/guides/milliseconds.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    for text, ours in (
        ("localhost:9092", broker.address),
        ('"readings"', f'"{readings}"'),
        ('"alerts"', f'"{alerts}"'),
    ):
        assert text in program
        program = program.replace(text, ours)
    (tmp_path / "silent.py").write_text(program)
    jars = ",".join(map(str, connectors("kafka")))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "silent.py"],
            cwd=tmp_path,
            env=os.environ | {"PYSPARK_SUBMIT_ARGS": f"--master local[4] --jars {jars} pyspark-shell"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        producer = Producer({"bootstrap.servers": broker.address})
        for sensor, at in (("a", "12:00:00"), ("b", "12:00:10"), ("a", "12:00:40"), ("a", "12:03:00")):
            row = json.dumps({"sensor": sensor, "at": f"2026-01-01 {at}"})
            producer.produce(readings, row, sensor, 0)
        producer.flush()
        until = time.monotonic() + 180
        while len(found := list(messages(broker, alerts))) < 3:
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError((tmp_path / "log").read_text(errors="replace")[-5000:])
            time.sleep(0.5)
    finally:
        for child in (*below(process.pid), process.pid):
            kill(child)
        process.wait()
    silent = sorted(
        (row["silent_at"][11:19], row["sensor"]) for row in (json.loads(m.value()) for m in found)
    )
    assert silent == [("12:01:10", "b"), ("12:01:40", "a"), ("12:04:00", "a")]


@pytest.mark.soak
def test_executors_that_are_killed_lose_nothing(
    broker: Broker, tmp_path: Path, draw: random.Random, request: Any, tell: Callable[..., None]
) -> None:
    kills = request.config.getoption("kills") // 2
    kinds = draw.choices(["executor", "worker", "driver"], [4, 2, 1], k=kills)
    with cluster(tmp_path / "cluster", cores=2) as started:
        done = killed(broker, tmp_path / "query", kinds, draw, started)
    done.tell(tell, "real-time mode on two executors")


@pytest.mark.soak
def test_many_kills_lose_nothing(
    broker: Broker, tmp_path: Path, draw: random.Random, request: Any, tell: Callable[..., None]
) -> None:
    kills = request.config.getoption("kills")
    kinds = draw.choices(["worker", "driver"], [3, 1], k=kills)
    killed(broker, tmp_path / "query", kinds, draw).tell(tell, "real-time mode")
