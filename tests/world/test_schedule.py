"""Queries that a schedule runs: each run fires what is due, also without new rows, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import scheduled_jobs
from children import import_path
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_broker import Broker
from pyspark.sql import SparkSession
from scheduled_jobs import AFTER, JOBS, LAG, WAIT

from timerheap import MIN_WATERMARK

PATIENCE = 120  # seconds until a run must have ended
DAY = 86_400_000

Alerts = Counter[tuple[str, int]]


def now() -> int:
    return time.time_ns() // 1_000_000


class Source:
    """A topic of three partitions, and its rows."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.topic = broker, broker.topic(3)
        self.rows: list[list[dict[str, Any]]] = [[], [], []]

    def add(self, *partitions: int, each: int) -> None:
        """Add rows, `each` to some partitions, with event times from now on, the first of them ahead.

        The timers of the clock are due since yesterday, in `AFTER` ms, and tomorrow.
        """
        producer, begun = Producer({"bootstrap.servers": self.broker.address}), now()
        for n in range(each):
            for rank, partition in enumerate(partitions):
                at = begun + 1_000 * n + (0 if rank else 1_300)
                wait = (-DAY, AFTER, DAY)[n % 3]
                row = {"key": f"{partition}-{n}", "at": at, "wait": wait + n}
                self.rows[partition].append(row)
                producer.produce(self.topic, json.dumps(row), partition=partition)
        producer.flush()


def all_of(broker: Broker, topic: str) -> Alerts:
    """Return what a topic of one partition holds."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "tests", "enable.auto.commit": False}
    )
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(end, timeout=60) if end else []
    assert len(found) == end
    consumer.close()
    return Counter((alert["key"], alert["at"]) for alert in (json.loads(each.value()) for each in found))


class Batches:
    """The micro-batches of a checkpoint: their runs, their times, their rows with partitions."""

    def __init__(self, checkpoint: Path, source: Source) -> None:
        self.folder, self.source = checkpoint / "offsets", source
        self.known: list[tuple[int, int, list[tuple[int, dict[str, Any]]]]] = []
        self.read = [0, 0, 0]

    def ran(self, run: int) -> None:
        """Read the micro-batches of a run that has ended."""
        while (file := self.folder / str(len(self.known))).exists():
            _, metadata, offsets = file.read_text().splitlines()
            until = [json.loads(offsets)[self.source.topic].get(str(number), 0) for number in range(3)]
            rows = [
                (number, row)
                for number in range(3)
                for row in self.source.rows[number][self.read[number] : until[number]]
            ]
            self.known.append((run, json.loads(metadata)["batchTimestampMs"], rows))
            self.read = until


def alarms(batches: Batches) -> dict[int, Alerts]:
    """Compute what `Alarm` yields in each run."""
    pending = set[tuple[str, int]]()
    found: dict[int, Alerts] = defaultdict(Counter)
    for run, at, rows in batches.known:
        pending |= {(row["key"], at + row["wait"]) for _, row in rows}
        due = {timer for timer in pending if timer[1] < at}
        pending -= due
        found[run].update(due)
    return found


def silences(job: str, batches: Batches) -> dict[int, Alerts]:
    """Compute what `Silence` yields in each run, with the watermark that a job has for each partition."""
    marks: dict[int, int] = {}
    arrived: dict[int, int] = {}
    idle, begun = set[int](), dict[int, int]()
    watermark, waiting, pending = MIN_WATERMARK, list[Any](), set[tuple[str, int]]()
    found: dict[int, Alerts] = defaultdict(Counter)
    for run, at, rows in batches.known:
        if rows:
            begun.setdefault(run, at)
        for partition, row in rows:
            assert row["at"] > watermark, "no row is late"
            marks[partition] = max(marks.get(partition, MIN_WATERMARK), row["at"] - 1)
            arrived[partition] = at
            idle.discard(partition)
            waiting.append(row)
        watermark = max(watermark, min((marks[each] for each in marks.keys() - idle), default=MIN_WATERMARK))
        for partition, last in arrived.items():
            quiet = at - (max(last, begun[run]) if rows else last)
            if job == "with_wall_clock" and quiet >= AFTER:
                marks[partition] = max(marks[partition], at - LAG)
            if job == "with_idleness" and quiet > AFTER:
                idle.add(partition)
        counting = [marks[each] for each in marks.keys() - idle] or [
            max(marks.values(), default=MIN_WATERMARK)
        ]
        watermark = max(watermark, min(counting))
        pending.update((row["key"], row["at"] + WAIT) for row in waiting if row["at"] <= watermark)
        waiting = [row for row in waiting if row["at"] > watermark]
        due = {timer for timer in pending if timer[1] <= watermark}
        pending -= due
        found[run].update(due)
    return found


def expected(job: str, batches: Batches) -> dict[int, Alerts]:
    """Compute what a job yields in each run."""
    return alarms(batches) if job == "clock" else silences(job, batches)


def wait_until(time_ms: int) -> None:
    while now() <= time_ms:
        time.sleep(0.1)


def check(job: str, found: list[Alerts], batches: Batches) -> int:
    """Compare what each run has fired, and the micro-batches that it had; return how many alerts are lost.

    The first and the third run have new rows, the second has none.
    """
    runs = expected(job, batches)
    assert found == [runs[number] for number in range(len(found))], job
    with_rows = [run for run, _, rows in batches.known if rows]
    without = [run for run, _, rows in batches.known if not rows]
    assert with_rows == [0, 0, 2, 2][: len(with_rows)], "micro-batches of four rows"
    if job != "event time":
        assert without == list(range(len(found))), "the last micro-batch of each run"
        assert found[1], "a run without new rows fires what the clock has made due"
    return sum((sum(runs.values(), Counter()) - sum(found, Counter())).values())


@pytest.mark.world("kafka")
def test_each_run_in_a_driver_of_its_own_fires_what_is_due(
    broker: Broker, world_settings: Mapping[str, str], tmp_path: Path, tell: Callable[..., None]
) -> None:
    source, sinks = Source(broker), {job: broker.topic(1) for job in JOBS}
    spec = {"work": str(tmp_path), "settings": dict(world_settings), "servers": broker.address}
    spec |= {"topic": source.topic, "sinks": sinks}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    program = [sys.executable, scheduled_jobs.__file__, str(tmp_path / "spec.json")]
    environment = os.environ | import_path()
    batches = {job: Batches(tmp_path / job, source) for job in JOBS}
    found: dict[str, list[Alerts]] = {job: [] for job in JOBS}

    def run() -> None:
        with (tmp_path / "log").open("ab") as log:
            ended = subprocess.run(
                program,
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
                timeout=PATIENCE,
                check=False,
            )
        assert not ended.returncode, (tmp_path / "log").read_text(errors="replace")[-5_000:]
        for job in JOBS:
            batches[job].ran(len(found[job]))
            found[job].append(all_of(broker, sinks[job]) - sum(found[job], Counter()))

    source.add(0, 1, each=4)
    run()
    wait_until(max(each.known[-1][1] for each in batches.values()) + AFTER)
    run()
    source.add(0, 2, each=4)  # partition 1 is silent
    run()
    for job in JOBS:
        lost = check(job, found[job], batches[job])
        tell(f"schedule, {job}", kills=0, rows=16, lost=lost, doubled=0)


@pytest.mark.world("kafka", "delta")
def test_runs_add_to_a_table(
    spark: SparkSession, broker: Broker, tmp_path: Path, tell: Callable[..., None]
) -> None:
    job, table = "with_wall_clock", str(tmp_path / "table")
    source, found = Source(broker), list[Alerts]()
    batches = Batches(tmp_path / "checkpoint", source)

    def run() -> None:
        out = scheduled_jobs.alerts(spark, job, broker.address, source.topic).writeStream.format("delta")
        scheduled_jobs.run(job, out.option("checkpointLocation", str(tmp_path / "checkpoint")), table)
        batches.ran(len(found))
        written = Counter(tuple(row) for row in spark.read.format("delta").load(table).collect())
        found.append(written - sum(found, Counter()))

    source.add(0, 1, each=4)
    run()
    wait_until(batches.known[-1][1] + AFTER)
    run()
    tell("schedule, to Delta", kills=0, rows=8, lost=check(job, found, batches), doubled=0)
