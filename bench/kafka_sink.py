"""What it costs to write rows to Kafka once each: `append_kafka` beside Spark's own sink.

Run as ``make bench-kafka-sink [ARGS="--rows 10000 100000 --rounds 3"]``. Needs Maven Central, for a broker
and Spark's connector.

A query reads rows from files, a micro-batch for each, and writes them to a topic of two partitions. Both
sinks take turns in one session. CPU is that of the JVM and of all Python processes, from start to end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kafka_broker
from connectors import connectors
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from usage import cpu, jvm_of

from timerheap.spark import append_kafka, ensure_java

SINKS = ("spark", "once")
BATCHES = 5  # the first does not count
PARTITIONS = 2


def write_input(spark: SparkSession, folder: Path, rows: int) -> None:
    """Write a file of so many rows for each micro-batch."""
    for batch in range(BATCHES):
        numbers = spark.range(batch * rows, (batch + 1) * rows, numPartitions=PARTITIONS)
        found = numbers.select(
            F.col("id").cast("string").alias("key"), F.repeat(F.hex("id"), F.lit(6)).alias("value")
        )
        found.coalesce(1).write.mode("append").parquet(str(folder))


def run(
    spark: SparkSession, rows: DataFrame, sink: str, address: str, topic: str, work: Path
) -> dict[str, Any]:
    """Write all rows; return the seconds of a micro-batch after the first, and the CPU seconds of all."""
    checkpoint = tempfile.mkdtemp(dir=work)
    spread = rows.repartition(PARTITIONS, "key")
    if sink == "spark":
        writer = spread.writeStream.format("kafka").option("kafka.bootstrap.servers", address)
        writer = writer.option("topic", topic)
    else:
        writer = spread.writeStream.foreachBatch(append_kafka(address, topic))
    before = cpu(jvm_of(spark))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spent = cpu(jvm_of(spark)).since(before)
    seconds = [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress][1:]
    return {"seconds": statistics.median(seconds), "jvm": spent.jvm, "python": spent.python}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000, 100_000], help="in a micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    ensure_java()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        scratch = Path(directory)
        broker = stack.enter_context(kafka_broker.Broker(scratch / "broker"))
        settings = {
            "spark.jars": ",".join(map(str, connectors("kafka"))),
            "spark.sql.shuffle.partitions": PARTITIONS,
        }
        spark = stack.enter_context(spark_session(scratch / "spark.log", settings))
        for count in options.rows:
            folder = scratch / f"in-{count}"
            write_input(spark, folder, count)
            schema = "key string, value string"
            rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
            topic = broker.topic(PARTITIONS)
            runs: dict[str, list[dict[str, Any]]] = {sink: [] for sink in SINKS}
            for _ in range(options.rounds + 1):  # the first warms both up
                for sink in SINKS:
                    runs[sink].append(run(spark, rows, sink, broker.address, topic, scratch))
            for sink, each in runs.items():
                middle = {name: statistics.median(one[name] for one in each[1:]) for name in each[0]}
                found.append({"sink": sink, "rows": count, **middle})
                print(found[-1], flush=True)
            write_json(options, {"batches": BATCHES, "runs": found})


if __name__ == "__main__":
    main()
