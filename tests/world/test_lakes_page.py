"""The programs of docs/recipes/kafka-and-delta.md write each alert once, killed or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from children import PROGRAMS
from connectors import connectors, published, running
from kafka_broker import Broker, messages
from lake_jobs import PARTITIONS, feed, silences
from lake_run import Run, Sender
from lakes_page import blocks, reader
from local_spark import FILES, JAVA_OPTIONS
from postgres import postgres
from pyspark.sql import SparkSession

pytestmark = pytest.mark.world("kafka", "delta", "iceberg")

PROGRAM = PROGRAMS / "page_child.py"
QUERIES = (
    "silent-to-delta",
    "silent-to-iceberg",
    "status-to-delta",
    "log-to-delta",
    "status-to-iceberg",
    "status-to-postgres",
    "silent-to-kafka",
)
KILLS = (
    # All have written, none is committed.
    ("after-delta", "merge_into_delta", 2, "after"),
    ("after-log", "append_to_delta", 2, "after"),
    ("after-iceberg", "merge_into_iceberg", 2, "after"),
    ("after-postgres", "write_to_postgres", 2, "after"),
    ("in-delta", "merge_into_delta", 3, "middle"),
    ("in-iceberg", "merge_into_iceberg", 3, "middle"),
    ("in-postgres", "write_to_postgres", 3, "middle"),
)


@pytest.fixture
def server() -> Iterator[str]:
    """A PostgreSQL of this machine."""
    with postgres() as started:
        yield started


def session(scratch: Path) -> dict[str, str]:
    """Return settings that say nothing of the jobs, but spare time."""
    return {
        "spark.master": "local[2,8]",
        "spark.driver.host": "localhost",
        "spark.local.dir": f"{scratch}/local",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.streaming.checkpointFileManagerClass": FILES,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def milliseconds(at: datetime) -> int:
    return round(at.astimezone(UTC).timestamp() * 1000)


def versions(table: Path) -> list[int]:
    """Return the micro-batches that a table of Delta has taken, in the order of its versions."""
    logs = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [action["txn"]["version"] for action in actions if "txn" in action]


def test_the_page_writes_each_alert_once(
    spark: SparkSession, broker: Broker, server: str, tmp_path: Path, tell: Callable[..., None]
) -> None:
    topic, sink, work, lake = broker.topic(PARTITIONS), broker.topic(1), tmp_path / "run", tmp_path / "lake"
    rounds = feed(3, rounds=40)[:-1]  # the wall clock lets the last timers fire
    sender, count = Sender(broker, topic), sum(map(len, rounds))
    sender.send(reading for one in rounds for reading in one)
    sender.flush()
    replaced = [
        ("/checkpoints/", f"{work}/checkpoints/"),
        ("/lake/", f"{lake}/"),
        ("broker:9092", broker.address),
        ('"readings")', f'"{topic}")'),
        ('"alerts")', f'"{sink}")'),
        ("1_000_000", str(count // 5)),
        ('after="1 minute"', 'after="1 second"'),
        ("10 seconds", "1 second"),
        ("host=database dbname=sensors", server),
        # Jars that are here already, and a session that starts in less time.
        ('"spark.jars.packages", ",".join(packages)', f'"spark.jars", "{",".join(map(str, connectors()))}"'),
        ("SparkSession.builder.", f"SparkSession.builder.config(map={session(tmp_path)!r})."),
    ]
    spec = {"queries": QUERIES, "replaced": replaced, "kills": KILLS, "lake": str(lake)}
    run = Run(work, spec, broker, program=PROGRAM)
    with run.started():
        run.wait(lambda: all((work / "kills" / name).exists() for name, *_ in KILLS))
        run.finish(sender, seconds=3)
    assert run.surprises() == []

    expected = silences(reading for one in rounds for reading in one)
    last = {sensor: (at, Counter(sensor for sensor, _ in expected)[sensor]) for sensor, at in expected}
    status = sorted((sensor, *figures) for sensor, figures in last.items())
    tables = {
        "silent to Delta": ("delta", lake / "silent"),
        "log to Delta": ("delta", lake / "log"),
        "silent to Iceberg": ("iceberg", lake / "iceberg/sensors/silent"),
        "merge into Delta": ("delta", lake / "status"),
        "merge into Iceberg": ("iceberg", lake / "iceberg/sensors/status"),
    }
    found: dict[str, list[Any]] = {}
    for name, (kind, path) in tables.items():
        rows = spark.read.format(kind).load(str(path)).toArrow().to_pylist()
        columns = ["silences"] if "merge" in name else []
        found[name] = sorted(
            (row["sensor"], milliseconds(row["silent_at"]), *(row[column] for column in columns))
            for row in rows
        )
    with psycopg.connect(server) as connection:
        rows = connection.execute("SELECT sensor, silent_at, silences FROM status").fetchall()
        found["PostgreSQL"] = sorted((sensor, milliseconds(at), many) for sensor, at, many in rows)
        assert len(connection.execute("SELECT * FROM queries").fetchall()) == 1
    distinct = reader()(messages(broker, sink), {})
    found["Kafka"] = sorted((alert["sensor"], alert["silent_at"]) for alert in distinct)
    for name, rows in found.items():
        wanted = status if name.startswith(("merge", "Postgre")) else expected
        lost, doubled = (Counter(wanted) - Counter(rows)).total(), (Counter(rows) - Counter(wanted)).total()
        tell(f"page: {name}", kills=len(run.failures), rows=len(wanted), lost=lost, doubled=doubled)
        assert rows == wanted
    for name in ("silent", "log", "status"):
        batches = versions(lake / name)
        assert batches == sorted(set(batches))


def test_the_page_names_the_packages_of_the_tests() -> None:
    (block,) = (block for block in blocks() if "packages = [" in block)
    named = {line.strip(' ",') for line in block.splitlines() if line.count(":") == 2}
    assert named == {published[running][part][0] for part in ("kafka", "delta", "iceberg")}
