"""Rows from a topic reach a keyed function, and its results reach a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_broker import Broker, messages
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy

pytestmark = pytest.mark.world("kafka")


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000, name="silent")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp // 1000


def test_alerts_of_a_topic_reach_a_topic(
    spark: SparkSession, broker: Broker, tmp_path: Path, tell: Callable[..., None]
) -> None:
    source, sink = broker.topic(2), broker.topic(1)
    producer = Producer({"bootstrap.servers": broker.address})
    readings = [("a", 0, 0), ("a", 0, 30), ("b", 1, 10), ("a", 0, 500), ("b", 1, 500)]
    for sensor, partition, second in readings:
        producer.produce(source, json.dumps({"sensor": sensor, "second": second}), partition=partition)
    producer.flush()
    kafka = {"kafka.bootstrap.servers": broker.address}
    rows = (
        spark.readStream.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest").load()
    )
    read = rows.select(
        F.from_json(F.col("value").cast("string"), "sensor string, second long").alias("reading"), "partition"
    ).select("reading.sensor", F.timestamp_seconds("reading.second").alias("at"), "partition")
    results = timerheap.spark.process(
        read,
        key="sensor",
        function=Silent(),
        output_schema="sensor string, silent long",
        event_time=timerheap.spark.EventTime("at", channel="partition"),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"),
    )
    query = (
        results.select(F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .options(**kafka, topic=sink, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    alerts = [json.loads(message.value()) for message in messages(broker, sink)]
    found = {(alert["sensor"], alert["silent"]) for alert in alerts}
    assert found == {("a", 90), ("b", 70)}
    tell("Kafka to Kafka, two partitions", kills=0, rows=len(readings), lost=0, doubled=0)
