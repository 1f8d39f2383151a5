"""Alerts from Kafka are in tables once each, and in a topic at least once, whatever is killed.

Queries read a topic, one partition of which lags by minutes and one of which is empty. Their driver, its
executors on a standalone cluster, Python workers and the broker are killed at random moments.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from kafka_broker import Broker, committed, messages
from kill_driver import settings_of
from lake_jobs import PARTITIONS, QUERIES, Gate, feed, silences
from lake_run import Run, Sender
from lakes_page import reader
from pyspark.sql import SparkSession
from standalone import cluster

pytestmark = pytest.mark.world("kafka", "delta", "iceberg")

KINDS = ("driver", "worker", "executor", "broker")
SOME = ("rows to Delta", "columns to Iceberg", "rows to Kafka", "rows once to Kafka")
Alert = tuple[str, int]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that may be killed."""
    with Broker(tmp_path / "broker") as started:
        yield started


def on_class_path(settings: dict[str, str]) -> dict[str, str]:
    """Return settings with which executors read the jars where they are, instead of fetching copies."""
    jars = settings["spark.jars"].replace(",", ":")
    others = {name: value for name, value in settings.items() if name != "spark.jars"}
    return others | {"spark.driver.extraClassPath": jars, "spark.executor.extraClassPath": jars}


def of_message(message: Any) -> Alert:
    alert = json.loads(message.value())
    return alert["sensor"], alert["silent_at"]


def of_table(spark: SparkSession, run: Run, namespace: str, name: str) -> list[Alert]:
    name, (_, sink) = name.replace(" ", "_"), QUERIES[name]
    if sink == "delta":
        table = spark.read.format("delta").load(str(run.work / "tables" / name))
    else:
        table = spark.table(f"ice.{namespace}.{name}")
    rows = table.toArrow().to_pylist()
    return [(row["sensor"], round(row["silent_at"].astimezone(UTC).timestamp() * 1000)) for row in rows]


def killed(
    spark: SparkSession,
    broker: Broker,
    settings: dict[str, str],
    work: Path,
    tell: Callable[..., None],
    seed: int,
    queries: Iterable[str],
    kills: list[str],
) -> None:
    """Run queries through kills, in this order, and compare what they have written."""
    draw = random.Random(seed)
    rounds = feed(seed, rounds=20 + 6 * len(kills))
    expected = silences(reading for one in rounds for reading in one)
    topic, sink, once = broker.topic(PARTITIONS), broker.topic(1), broker.topic(3)
    namespace = f"seed_{seed}"
    with cluster(work / "cluster") as where:
        spec = {
            "settings": on_class_path(settings) | settings_of(where) | {"spark.executor.memory": "800m"},
            "broker": broker.address,
            "topic": topic,
            "sink": sink,
            "once": once,
            "namespace": namespace,
            "at_most": 200,
            "queries": list(queries),
        }
        run, sender, gate = (
            Run(work / "run", spec, broker, where),
            Sender(broker, topic),
            Gate(work / "run/gate"),
        )
        sender.send(rounds[0])
        sender.flush()
        each = len(rounds) // (len(kills) + 1)
        with run.started():
            for number, what in enumerate(kills):
                sender.send(reading for one in rounds[1 + number * each :][:each] for reading in one)
                if draw.randrange(4):  # else while it begins anew
                    run.wait_for_batches(draw.randrange(1, 8))
                run.kill(what, draw)
                sender.flush()
            # At last the driver, when a micro-batch is in the topic but not committed.
            gate.closed.touch()
            sender.send(reading for one in rounds[1 + len(kills) * each :] for reading in one)
            run.wait(gate.passed.exists)
            passed = gate.passed.read_text()
            run.wait(lambda: passed in [message.value().decode() for message in messages(broker, sink)])
            run.kill("driver", draw)
            gate.closed.unlink()
            run.finish(sender)
    found = {name: of_table(spark, run, namespace, name) for name in queries if not name.endswith("Kafka")}
    sent = list(messages(broker, sink))
    kept = reader()(sent, {})
    found["rows to Kafka, repeats dropped"] = [(alert["sensor"], alert["silent_at"]) for alert in kept]
    found["rows once to Kafka"] = list(map(of_message, committed(broker, once)))
    for name, alerts in found.items():
        difference, count = Counter(alerts), Counter(expected)
        tell(
            f"silent sensors, {name}",
            kills=run.kills.total(),
            rows=len(expected),
            lost=(count - difference).total(),
            doubled=(difference - count).total(),
        )
    repeated = len(sent) - len(set(map(of_message, sent)))
    print(f"kills {dict(run.kills)}, starts {run.starts}, micro-batches {run.batches()}, repeated {repeated}")
    print(f"failures {[failure[-500:] for failure in run.failures]}")
    assert found == {
        name: alerts if sorted(alerts) == expected else expected for name, alerts in found.items()
    }
    assert repeated
    assert not run.surprises()
    tell(
        "silent sensors, rows to Kafka, all messages",
        kills=run.kills.total(),
        rows=len(expected),
        lost=0,
        doubled=repeated,
    )


def test_each_alert_is_in_the_tables_once(
    spark: SparkSession,
    own_broker: Broker,
    world_settings: dict[str, str],
    tmp_path: Path,
    tell: Callable[..., None],
) -> None:
    killed(spark, own_broker, world_settings, tmp_path, tell, 1, SOME, ["executor", "broker", "worker"])


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_each_alert_is_in_the_tables_once_through_many_kills(
    spark: SparkSession,
    own_broker: Broker,
    world_settings: dict[str, str],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    draw = random.Random(seed)
    kills = [draw.choice(KINDS) for _ in range(request.config.getoption("kills") - 1)]
    killed(spark, own_broker, world_settings, tmp_path, tell, seed, QUERIES, kills)
