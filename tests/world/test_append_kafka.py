"""`append_kafka`: a repeated micro-batch is in the topic once, and other rows in its place are an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from confluent_kafka import Producer
from kafka_broker import Broker, committed
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.errors import UnsupportedError
from timerheap.spark import append_kafka

pytestmark = pytest.mark.world("kafka")

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


class Job:
    """Counts by key, from files into a topic, as JSON."""

    def __init__(self, spark: SparkSession, broker: Broker, work: Path) -> None:
        self.spark, self.broker, self.work = spark, broker, work
        self.topic = broker.topic(2)
        self.sent: list[tuple[str, int]] = []
        self.counts: dict[int, int] = {}

    def add(self, keys: list[int]) -> None:
        streams.write_batches(self.work / "in", [[{"k": key, "v": "x"} for key in keys]], SCHEMA)
        for key in sorted({*keys}):
            self.counts[key] = self.counts.get(key, 0) + keys.count(key)
            self.sent.append((str(key), self.counts[key]))

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda df: df, **options: Any) -> None:
        rows = streams.read_stream(self.spark, self.work / "in")
        counts = timerheap.spark.aggregate_changes(rows, "k", F.count("*").alias("n"))
        counts = counts.where("_change_type IN ('insert', 'update_postimage')")
        found = change(counts.select(F.col("k").cast("string").alias("key"), F.expr("string(n) AS value")))
        write = append_kafka(self.broker.address, self.topic, options=options or None)
        writer = found.writeStream.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.work / "checkpoint")).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        commits = self.work / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)

    def messages(self) -> list[tuple[str, int]]:
        found = committed(self.broker, self.topic)
        return sorted((message.key().decode(), int(message.value())) for message in found)


@pytest.fixture
def job(spark: SparkSession, broker: Broker, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


def test_repeated_micro_batches_are_written_once(job: Job) -> None:
    """As after a driver that died between the two commits. What a task has left open is aborted."""
    for keys in ([1, 2, 3, 3], [2, 3], [4, 4, 1]):
        job.add(keys)
        job.run()
        job.forget_last_commit()
    job.run()
    assert job.messages() == sorted(job.sent)
    query = json.loads((job.work / "checkpoint/metadata").read_text())["id"]
    for partition in range(2):
        left = {"bootstrap.servers": job.broker.address, "transactional.id": f"timerheap-{query}-{partition}"}
        producer = Producer(left)
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(job.topic, "99", "left open")
        producer.flush()
    job.add([1, 2, 3, 4, 5, 6])
    job.run()
    assert job.messages() == sorted(job.sent)


def test_a_repetition_with_different_rows_is_an_error(job: Job) -> None:
    job.add([1, 2, 3])
    job.run()
    job.forget_last_commit()
    with pytest.raises(
        StreamingQueryException, match=r"micro-batch 0 must have the rows with which it was wri"
    ):
        job.run(lambda df: df.withColumn("value", F.expr("value || '0'")))
    job.run()
    assert job.messages() == sorted(job.sent)


def test_an_older_copy_of_the_checkpoint_is_an_error(job: Job) -> None:
    job.add([1, 2])
    job.run()
    for _ in range(2):
        job.add([1, 2])
        job.run()
    for name in ("commits", "offsets"):
        for path in (job.work / "checkpoint" / name).glob("*[12]*"):
            path.unlink()
    with pytest.raises(
        StreamingQueryException, match=r"got micro-batch 1, and topic .* has micro-batch 2 of it"
    ):
        job.run()
    assert job.messages() == sorted(job.sent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda df: df.drop("value"), r"must have the columns key, value and partition, .* got \['key'\]"),
        (lambda df: df.withColumn("at", F.lit(1)), r"got \['key', 'value', 'at'\]"),
        (lambda df: df.withColumn("key", F.lit(1)), "key must be of type string or binary, got int; cast it"),
        (
            lambda df: df.withColumn("partition", F.lit(7)),
            "a row was not written to topic .*: .*[Uu]nknown partition",
        ),
    ],
)
def test_wrong_columns(job: Job, change: Callable[[DataFrame], DataFrame], message: str) -> None:
    job.add([1])
    with pytest.raises(StreamingQueryException, match=message):
        job.run(change)
    assert job.messages() == []


def test_wrong_arguments(spark: SparkSession) -> None:
    with pytest.raises(TypeError, match="topic must be a str, got 1"):
        append_kafka("broker:9092", 1)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"options must not have 'group.id', which append_kafka\(\) sets, got 'g'"
    ):
        append_kafka("broker:9092", "t", options={"group.id": "g"})
    with pytest.raises(UnsupportedError, match="must be called in foreachBatch of a streaming query"):
        append_kafka("broker:9092", "t")(spark.range(1).select(F.col("id").cast("string").alias("value")), 0)
