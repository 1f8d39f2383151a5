"""Real-time mode from Kafka to Kafka: no result is missing or wrong, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from children import PROGRAMS, import_path
from confluent_kafka import Producer
from connectors import connectors
from kafka_broker import Broker, committed, messages
from kill_driver import settings_of
from object_store import ObjectStore
from postgres import postgres
from processes import below, command, kill, python_workers
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from real_time_kafka import wanted
from standalone import Cluster, cluster

import timerheap.spark

pytestmark = pytest.mark.world("kafka")
CHILD = PROGRAMS / "real_time_kafka.py"
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
        self,
        work: Path,
        broker: Broker,
        rows: str,
        results: str,
        cluster: Cluster | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        settings = {"spark.jars": ",".join(map(str, connectors("kafka", *(["s3a"] if store else []))))}
        if cluster is not None:
            settings |= settings_of(cluster) | {"spark.cores.max": 4}
        if store is not None:
            settings |= store.settings
        self.cluster, self.store, self.bucket = cluster, store, store.bucket() if store else ""
        checkpoint = f"s3a://{self.bucket}/checkpoint" if store else str(work / "checkpoint")
        spec = {"work": str(work), "broker": broker.address, "rows": rows, "results": results}
        spec |= {"checkpoint": checkpoint, "epoch": "2 seconds"}
        work.mkdir()
        self.file, self.work = work / "spec.json", work
        self.file.write_text(json.dumps({**spec, "settings": settings}))
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            [sys.executable, CHILD, self.file],
            env=os.environ | import_path() | environment(self.store),
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
        names = [file.name for file in (self.work / "checkpoint/commits").glob("[0-9]*")]
        if self.store is not None:
            keys = self.store.keys(self.bucket, "checkpoint/commits/")
            names = [name for key in keys if (name := key.rpartition("/")[2]).isdecimal()]
        return max(map(int, names), default=-1) + 1

    def attempts(self) -> list[tuple[int, str]]:
        """Return the epoch and the run of each attempt that has begun, in their order."""
        lines = (self.work / "attempts").read_text().splitlines()
        return [(epoch, run) for epoch, run in map(json.loads, lines)]

    def saves(self) -> set[str]:
        """Return the files that are being written."""
        return {str(file) for file in (self.work / "checkpoint/timerheap").glob("0*/*.draft")}


def environment(store: ObjectStore | None) -> dict[str, str]:
    """Return the variables by which PyArrow reaches a store, as the guide says."""
    if store is None:
        return {}
    secrets = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return {"AWS_ENDPOINT_URL": store.url, "AWS_DEFAULT_REGION": "us-east-1", **secrets}


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
    repeated: int
    broken: int  # attempts of epochs, which had to be repeated
    topic: str  # which has the results
    expected: set[tuple[str, int, int]]

    def tell(self, tell: Callable[..., None], job: str) -> None:
        """Add it to the table."""
        saving, kills = self.kills["while saving"], self.kills.total() - self.kills["while saving"]
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(self.kills.items()) if number)
        job += f": {what}" if kills > 2 or saving else ""
        tell(job, kills=kills, rows=self.rows, lost=0, doubled=self.repeated)


def killed(
    broker: Broker,
    work: Path,
    kinds: list[str],
    draw: random.Random,
    cluster: Cluster | None = None,
    store: ObjectStore | None = None,
) -> Done:
    """Run a query whose processes are killed, and compare its results with those of the model.

    An epoch is committed in the last run that has attempted it. In committed epochs each result must be
    there once: so what is repeated comes from broken ones.
    """
    rows, out = broker.topic(PARTITIONS), broker.topic(1)
    query = Query(work, broker, rows, out, cluster, store)
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
            wait(lambda: query.attempts()[-1][0] >= query.epochs(), query)  # not between two epochs
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
    attempts = query.attempts()
    committed = set(dict(attempts).items())
    assert {result for result, _ in found} == expected
    # The last epoch may have been cut off after its results.
    assert Counter(result for result, attempt in found if attempt in committed) == Counter(expected)
    broken = len(set(attempts) - committed)
    return Done(done, feed.rows, len(found) - len(expected), broken, out, expected)


@pytest.fixture
def draw(seed: int) -> random.Random:
    """A source of random choices."""
    return random.Random(seed)


PAGE = (PROGRAMS.parents[2] / "docs/guides/milliseconds.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block(word: str, replaced: dict[str, str]) -> str:
    """Return the guide's program that has a word, with other names."""
    (program,) = (block for block in BLOCKS if word in block)
    for text, ours in replaced.items():
        assert text in program
        program = program.replace(text, ours)
    return program


def test_a_killed_worker_and_a_killed_driver_lose_nothing(
    broker: Broker, spark: SparkSession, tmp_path: Path, tell: Callable[..., None]
) -> None:
    done = killed(broker, tmp_path / "query", ["worker", "driver"], random.Random(4))
    done.tell(tell, "real-time mode")
    assert done.kills["workers"] == done.kills["drivers"] == 1
    assert done.broken >= 1

    # The guide's readers of the topic take each result once.
    names: dict[str, Any] = {"spark": spark, "F": F, "timerheap": timerheap}
    address = {"localhost:9092": broker.address, '"alerts"': f'"{done.topic}"'}
    exec(block("dropDuplicatesWithinWatermark", address), names)
    writer = names["once"].writeStream.format("memory").queryName("once").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "once")).start().awaitTermination()
    found = {"Kafka": [row.value for row in spark.table("once").collect()]}
    topic = broker.topic(1)
    made = {"localhost:9092": broker.address, "alerts-once": topic, "/checkpoints/": f"{tmp_path}/"}
    exec(block("append_kafka", made), names)
    names["writer"].trigger(availableNow=True).start().awaitTermination()
    found["Kafka, in transactions"] = [message.value().decode() for message in committed(broker, topic)]
    with postgres() as server, psycopg.connect(server) as connection:
        made = {"host=database dbname=sensors": server, "/checkpoints/": f"{tmp_path}/"}
        connection.execute("CREATE TABLE alerts (id text PRIMARY KEY, alert text)")
        connection.commit()
        exec(block("ON CONFLICT", made), names)
        names["writer"].trigger(availableNow=True).start().awaitTermination()
        found["PostgreSQL"] = [row[0] for row in connection.execute("SELECT alert FROM alerts")]
    for where, texts in found.items():
        rows = [json.loads(text) for text in texts]
        assert Counter((row["key"], row["at"], row["rows"]) for row in rows) == Counter(done.expected), where


@pytest.mark.world("s3a")
def test_state_in_an_object_store_outlives_the_driver(
    broker: Broker, object_store: ObjectStore, tmp_path: Path, tell: Callable[..., None]
) -> None:
    kinds = ["driver"]
    done = killed(broker, tmp_path / "query", kinds, random.Random(5), store=object_store)
    done.tell(tell, "real-time mode, state on S3")
    saved = {request.key for request in object_store.requests if request.kind == "PUT"}
    assert any(re.search(r"/timerheap/00001/\d+-\d+$", key) for key in saved)


def test_the_program_of_the_page_finds_sensors_that_are_silent(broker: Broker, tmp_path: Path) -> None:
    readings, alerts = broker.topic(PARTITIONS), broker.topic(1)
    names = {"localhost:9092": broker.address, '"readings"': f'"{readings}"', '"alerts"': f'"{alerts}"'}
    program = block("class Silent", names)
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
@pytest.mark.timeout(7200)
def test_executors_that_are_killed_lose_nothing(
    broker: Broker, tmp_path: Path, draw: random.Random, request: Any, tell: Callable[..., None]
) -> None:
    kills = request.config.getoption("kills") // 2
    kinds = draw.choices(["executor", "worker", "driver"], [4, 2, 1], k=kills)
    with cluster(tmp_path / "cluster", cores=2) as started:
        done = killed(broker, tmp_path / "query", kinds, draw, started)
    done.tell(tell, "real-time mode on two executors")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_kills_lose_nothing(
    broker: Broker, tmp_path: Path, draw: random.Random, request: Any, tell: Callable[..., None]
) -> None:
    kills = request.config.getoption("kills")
    kinds = draw.choices(["worker", "driver"], [3, 1], k=kills)
    killed(broker, tmp_path / "query", kinds, draw).tell(tell, "real-time mode")
