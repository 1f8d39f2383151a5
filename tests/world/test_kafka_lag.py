"""How far behind Kafka a query is: Prometheus is told, and the listener of the page commits its offsets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_broker import Broker
from lakes_page import blocks
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

import timerheap.spark
from timerheap.spark import PrometheusMetrics

pytestmark = pytest.mark.world("kafka")

PARTITIONS, EACH = 2, 50
PATIENCE = 60  # seconds until the test gives up waiting


class Behind(StreamingQueryListener):
    """Notes after each micro-batch what Prometheus is told of a topic."""

    def __init__(self, topic: str) -> None:
        self.topic, self.seen = topic, list[list[float | None]]()
        self.metrics, self.registry = PrometheusMetrics(), CollectorRegistry()
        self.registry.register(self.metrics)

    def onQueryStarted(self, event: Any) -> None:
        self.metrics.onQueryStarted(event)

    def onQueryProgress(self, event: Any) -> None:
        self.metrics.onQueryProgress(event)
        labels = {"query": "counts", "topic": self.topic}
        name = "timerheap_partition_rows_behind"
        values = [
            self.registry.get_sample_value(name, labels | {"partition": str(number)})
            for number in range(PARTITIONS)
        ]
        self.seen.append(values)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def test_how_far_behind_a_query_is(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(PARTITIONS * EACH):
        producer.produce(topic, key=str(number % 7), value=str(number), partition=number % PARTITIONS)
    producer.flush()
    (block,) = (block for block in blocks() if "class CommitOffsets" in block)
    behind, names = Behind(topic), dict[str, Any]()
    exec(block.rpartition("\n\n")[0], names)
    commits = names["CommitOffsets"](broker.address)
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PARTITIONS * EACH // 5)
        .load()
    )
    counts = timerheap.spark.aggregate_changes(rows, F.col("key").cast("string"), F.count("*").alias("n"))
    writer = counts.writeStream.format("noop").queryName("counts").trigger(availableNow=True)
    for listener in (behind, commits):
        spark.streams.addListener(listener)
    try:
        timerheap.spark.start(writer.option("checkpointLocation", str(tmp_path))).awaitTermination()
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "counts"})
        wanted, end = [EACH] * PARTITIONS, time.monotonic() + PATIENCE
        while True:
            found = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)])
            if [one.offset for one in found] == wanted and len(behind.seen) >= 5:
                break
            assert time.monotonic() < end, (found, behind.seen)
            time.sleep(0.1)
        consumer.close()
    finally:
        for listener in (behind, commits):
            spark.streams.removeListener(listener)
        for committing in commits.consumers.values():
            committing.close()
    assert behind.seen[:5] == [[EACH - EACH // 5 * (number + 1)] * PARTITIONS for number in range(5)]
