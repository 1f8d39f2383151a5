"""A changed query goes on after an old one over Kafka and Delta: no row is lost, and none is read twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import streams
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from kafka_broker import Broker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy
from timerheap.spark import EventTime, continue_from, process

KAFKA, DELTA = pytest.mark.world("kafka"), pytest.mark.world("delta")
ROW = "k string, at long"
DELAY = 3_000
WAIT = 20_000


class Visit(NamedTuple):
    """A row, with its own millisecond, and the partition of the topic in which it is."""

    k: str
    at: int
    partition: int


def visits(seed: int, partitions: int, first: int = 0, rows: int = 300) -> list[Visit]:
    """Return rows out of order by less than the delay, in each partition some."""
    draw = random.Random(seed)
    times = list(range(first, first + 1_000 * rows, 1_000))
    found = [
        Visit(f"k{draw.randrange(20)}", at + draw.randrange(1_000), draw.randrange(partitions))
        for at in times
    ]
    return sorted(found, key=lambda visit: visit.at + draw.randrange(DELAY))


class Counted(KeyedProcessFunction):
    """Counts the rows of each key, and tells the count again some time after each."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value["at"] + WAIT)
        yield self.name, value["k"], value["at"], self.count.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield self.name, ctx.get_current_key(), timestamp, -self.count.value()


def counted(df: DataFrame, name: str, max_parallelism: int = 8, channel: str | None = None) -> DataFrame:
    return process(
        df,
        "k",
        Counted(name),
        "rule string, k string, at bigint, n bigint",
        EventTime("at", channel=channel),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=max_parallelism,
        name=name,
    )


def run(result: DataFrame, checkpoint: Path, table: Path, kind: str) -> None:
    """Run a query until it has read all there is."""
    writer = result.writeStream.format(kind).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(table))
    try:
        query.awaitTermination()
    finally:
        query.stop()


def compare(
    found: Iterable[tuple[Any, ...]], wanted: Iterable[tuple[Any, ...]], tell: Callable[..., None], job: str
) -> None:
    """Compare what rule "a" has written with what it writes in one run over all rows."""
    was, should = (Counter(row for row in rows if row[0] == "a") for rows in (found, wanted))
    assert should
    tell(
        job,
        kills=0,
        rows=should.total(),
        lost=(should - was).total(),
        doubled=(was - should).total(),
    )
    assert was == should


# ---- Kafka


class Topic:
    """A topic of visits."""

    def __init__(self, spark: SparkSession, broker: Broker, partitions: int) -> None:
        self.spark, self.broker, self.name = spark, broker, broker.topic(partitions)

    def send(self, rows: Iterable[Visit]) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address})  # knows partitions that have come
        for visit in rows:
            value = json.dumps({"k": visit.k, "at": visit.at})
            producer.produce(self.name, value, partition=visit.partition)
        assert producer.flush(60) == 0

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions."""
        admin = self.broker.admin()
        admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(60)

    def read(self, reader: Any, **options: Any) -> DataFrame:
        where = {"kafka.bootstrap.servers": self.broker.address, "subscribe": self.name}
        messages = reader.format("kafka").options(**where, **options).load()
        value = F.from_json(F.col("value").cast("string"), ROW).alias("value")
        return messages.select(value, "partition", "offset").select("value.*", "partition", "offset")

    def stream(self, **options: Any) -> DataFrame:
        return self.read(self.spark.readStream, **{"startingOffsets": "earliest"} | options)


@KAFKA
def test_a_topic_with_more_partitions_goes_on(
    spark: SparkSession, broker: Broker, tmp_path: Path, tell: Callable[..., None]
) -> None:
    topic, sink = Topic(spark, broker, 2), tmp_path / "sink"
    rows = visits(1, 2)
    topic.send(rows[:200])
    run(counted(topic.stream(maxOffsetsPerTrigger=90), "a", 8, "partition"), tmp_path / "1", sink, "parquet")
    topic.send(rows[200:])
    topic.grow(3)
    topic.send(visits(2, 3, first=300_000))

    def changed() -> DataFrame:
        stream = topic.stream(maxOffsetsPerTrigger=150)
        return counted(stream, "b", channel="partition").union(counted(stream, "a", 5, "partition"))

    with streams.configured(spark, shuffle_partitions=3):
        run(continue_from(spark, tmp_path / "1", tmp_path / "2", changed), tmp_path / "2", sink, "parquet")
    topic.send(visits(3, 3, first=600_000))
    with streams.configured(spark, shuffle_partitions=3):
        run(continue_from(spark, tmp_path / "1", tmp_path / "2", changed), tmp_path / "2", sink, "parquet")
    run(
        counted(topic.stream(), "a", channel="partition"), tmp_path / "0", tmp_path / "undisturbed", "parquet"
    )
    found = streams.rows(spark.read.parquet(str(sink)))
    assert len({row for row in found if row[0] == "b"}) == len([row for row in found if row[0] == "b"]) > 600
    compare(
        found,
        streams.rows(spark.read.parquet(str(tmp_path / "undisturbed"))),
        tell,
        "continue_from, Kafka, partitions added",
    )


@KAFKA
def test_a_backfill_from_an_archive_goes_live_on_its_topic(
    spark: SparkSession, broker: Broker, tmp_path: Path, tell: Callable[..., None]
) -> None:
    """The archive has the offsets of the topic, and the stream begins after them."""
    topic, archive, sink = Topic(spark, broker, 3), str(tmp_path / "archive"), tmp_path / "sink"
    rows = visits(4, 2)  # the third partition has no row in the archive
    topic.send(rows[:200])
    topic.read(spark.read).repartitionByRange(3, "at").write.parquet(archive)
    topic.send(rows[200:])
    topic.send(visits(5, 3, first=300_000))
    past = spark.readStream.schema(f"{ROW}, partition int, offset long").parquet(archive)
    run(counted(past, "a", channel="partition"), tmp_path / "1", sink, "parquet")

    read = spark.read.parquet(archive).groupBy("partition").agg((F.max("offset") + 1).alias("next")).collect()
    starting = json.dumps({topic.name: {"2": -2} | {str(row["partition"]): row["next"] for row in read}})

    def live() -> DataFrame:
        stream = topic.stream(startingOffsets=starting, maxOffsetsPerTrigger=100)
        return counted(stream, "a", 5, "partition")

    result = continue_from(spark, tmp_path / "1", tmp_path / "2", live, sources=[None])
    run(result, tmp_path / "2", sink, "parquet")
    run(
        counted(topic.stream(), "a", channel="partition"), tmp_path / "0", tmp_path / "undisturbed", "parquet"
    )
    found, wanted = (streams.rows(spark.read.parquet(str(path))) for path in (sink, tmp_path / "undisturbed"))
    compare(found, wanted, tell, "continue_from, files, then Kafka")


# ---- Delta


class Table:
    """A table of visits, and one of results."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark, self.path, self.sink = spark, str(work / "visits"), work / "sink"

    def add(self, rows: list[Visit], versions: int) -> None:
        """Append rows in so many versions of the table."""
        each = -(-len(rows) // versions)
        for at in range(0, len(rows), each):
            df = self.spark.createDataFrame([visit[:2] for visit in rows[at : at + each]], ROW)
            df.coalesce(1).write.format("delta").mode("append").save(self.path)

    def stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("delta").options(**options).load(self.path)

    def written(self, sink: Path | None = None) -> list[tuple[Any, ...]]:
        return streams.rows(self.spark.read.format("delta").load(str(sink or self.sink)))

    def batches(self) -> list[int]:
        """Return the micro-batches that the table of results has taken, in the order of its versions."""
        logs = sorted((self.sink / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return [action["txn"]["version"] for action in actions if "txn" in action]


def forget_the_last_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as if the driver had died after the sink's commit, and before Spark's."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


@DELTA
def test_a_delta_table_has_each_row_once_after_changes(
    spark: SparkSession, tmp_path: Path, tell: Callable[..., None]
) -> None:
    """Each version is stopped between the commit of the table of results and Spark's own."""
    table, rows = Table(spark, tmp_path), visits(6, 1, rows=600)
    table.add(rows[:200], versions=2)
    run(
        counted(table.stream(startingVersion=0, maxFilesPerTrigger=1), "a"),
        tmp_path / "1",
        table.sink,
        "delta",
    )

    def changed() -> DataFrame:
        stream = table.stream(startingVersion=0, maxFilesPerTrigger=1)
        return counted(stream, "b", 4).union(counted(stream, "a", 5))

    for more in (rows[200:400], rows[400:500]):
        forget_the_last_commit(tmp_path / "1")
        forget_the_last_commit(tmp_path / "2") if (tmp_path / "2").exists() else None
        table.add(more, versions=2)
        with streams.configured(spark, shuffle_partitions=3):
            result = continue_from(spark, tmp_path / "1", tmp_path / "2", changed)
            run(result, tmp_path / "2", table.sink, "delta")

    table.add(rows[500:], versions=1)
    forget_the_last_commit(tmp_path / "2")
    result = continue_from(
        spark,
        tmp_path / "2",
        tmp_path / "3",
        lambda: counted(table.stream(startingVersion=0, maxFilesPerTrigger=1), "a"),
        forget=["b"],
    )
    run(result, tmp_path / "3", table.sink, "delta")
    assert table.batches() == sorted({*table.batches()})
    run(counted(table.stream(startingVersion=0), "a"), tmp_path / "0", tmp_path / "undisturbed", "delta")
    compare(table.written(), table.written(tmp_path / "undisturbed"), tell, "continue_from, Delta to Delta")


@DELTA
def test_a_backfill_of_a_version_goes_live_after_it(
    spark: SparkSession, tmp_path: Path, tell: Callable[..., None]
) -> None:
    """The past is a version of the table, in the order of time, and the stream begins with the next one."""
    table, rows = Table(spark, tmp_path), visits(7, 1, rows=500)
    table.add(rows[:300], versions=3)
    past = spark.read.format("delta").option("versionAsOf", 2).load(table.path)
    past.repartitionByRange(3, "at").write.parquet(str(tmp_path / "past"))
    table.add(rows[300:], versions=3)
    files = spark.readStream.schema(ROW).parquet(str(tmp_path / "past"))
    run(counted(files, "a"), tmp_path / "1", table.sink, "delta")
    result = continue_from(
        spark,
        tmp_path / "1",
        tmp_path / "2",
        lambda: counted(table.stream(startingVersion=3, maxFilesPerTrigger=1), "a", 5),
        sources=[None],
    )
    run(result, tmp_path / "2", table.sink, "delta")
    run(counted(table.stream(startingVersion=0), "a"), tmp_path / "0", tmp_path / "undisturbed", "delta")
    compare(
        table.written(), table.written(tmp_path / "undisturbed"), tell, "continue_from, a version, then Delta"
    )
