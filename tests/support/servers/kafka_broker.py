"""A Kafka broker of one node, from its published jars, on loopback."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from jars import jars

from timerheap.spark import ensure_java

__all__ = ["KAFKA", "Broker", "committed", "free_ports", "messages"]

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
log.retention.ms=-1
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def free_ports(host: str, count: int) -> list[int]:
    """Return ports on which nothing listens."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Broker:
    """A broker that keeps its topics in a folder, also when it is killed and started again.

    Parameters
    ----------
    folder : pathlib.Path
        For its data and its log.
    host : str, default "127.0.0.1"
        The address on which it listens.
    within : sequence of str, optional
        A command in front of its own, such as one that enters a network namespace.

    Attributes
    ----------
    address : str
        For ``kafka.bootstrap.servers``.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", within: tuple[str, ...] = ()) -> None:
        self.folder, self.within = folder, within
        self.jars = jars(KAFKA, beside_spark=False)
        folder.mkdir(parents=True)
        port, controller = free_ports(host, 2) if not within else (9092, 9093)
        self.address = f"{host}:{port}"
        properties = PROPERTIES.format(host=host, port=port, controller=controller, folder=folder)
        (folder / "server.properties").write_text(properties)
        name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", f"--cluster-id={name}", "-c").wait()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.kill(signal.SIGTERM)

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        java = [str(ensure_java() / "bin/java"), *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, self.jars))]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*self.within, *java, *arguments, str(self.folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self, patience: float = 120) -> None:
        """Start the broker, and wait until it answers."""
        self.process = self._run("kafka.Kafka")
        until = time.monotonic() + patience
        while True:
            try:
                self.admin().list_topics(timeout=2)
                return
            except KafkaException:
                if self.process.poll() is None and time.monotonic() < until:
                    continue
                log = (self.folder / "log").read_text(errors="replace")
                raise TimeoutError(f"the broker does not answer: ...{log[-2000:]}") from None

    def kill(self, way: signal.Signals = signal.SIGKILL) -> None:
        """End the broker; what it has acknowledged is in its folder."""
        assert self.process
        with suppress(ProcessLookupError):
            self.process.send_signal(way)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def admin(self) -> Any:
        """Return a client that can make and change topics."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def topic(self, partitions: int, name: str = "") -> str:
        """Make a topic; return its name."""
        name = name or f"topic-{uuid.uuid4()}"
        admin = self.admin()
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(30)
        return name


def messages(broker: Broker, topic: str) -> Iterator[Any]:
    """Yield the messages that are in a topic of one partition, in their order."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "tests", "log_level": 0})
    try:
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=60)
        consumer.assign([place])
        found, until = 0, time.monotonic() + 60
        while found < end:
            for message in consumer.consume(end - found, timeout=1):
                assert not message.error(), message.error()
                found = message.offset() + 1
                yield message
            assert time.monotonic() < until, (found, end)
    finally:
        consumer.close()


def committed(broker: Broker, topic: str) -> Iterator[Any]:
    """Yield the committed messages of a topic, partition by partition; all transactions have ended."""
    settings = {"group.id": "tests", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": broker.address, **settings})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        for number in partitions:
            consumer.assign([TopicPartition(topic, number, 0)])
            until = time.monotonic() + 60
            while True:
                message = consumer.poll(1)
                assert time.monotonic() < until, "a transaction is open"
                if message is None:
                    continue
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    break
                yield message
    finally:
        consumer.close()
