"""A driver that runs queries of lake_jobs.py until it is killed or one of them fails.

Its argument is a JSON file: `work`, `settings` of Spark, `broker`, `topic`, `sink` and `once`, topics,
`namespace` of Iceberg's tables, `at_most`, messages in a micro-batch, and `queries`, names in
`lake_jobs.QUERIES`. It tells its JVM's process id on standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lake_jobs
from local_spark import start_spark
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark


def start(spark: SparkSession, name: str, spec: dict[str, Any]) -> None:
    work, (function, sink) = Path(spec["work"]), lake_jobs.QUERIES[name]
    result = lake_jobs.alerts(spark, spec["broker"], spec["topic"], function(), spec["at_most"])
    name = name.replace(" ", "_")
    if sink.startswith("kafka"):
        value = F.struct("sensor", F.unix_millis("silent_at").alias("silent_at"))
        result = result.select(F.col("sensor").alias("key"), F.to_json(value).alias("value"))
    if sink == "kafka, once":
        write = timerheap.spark.append_kafka(spec["broker"], spec["once"])
        once = result.writeStream.foreachBatch(write)
        timerheap.spark.start(once.option("checkpointLocation", str(work / "checkpoints" / name)))
        return
    if sink == "kafka":
        result = result.mapInArrow(lake_jobs.Gate(work / "gate"), result.schema)
    writer = result.writeStream.format(sink).option("checkpointLocation", str(work / "checkpoints" / name))
    if sink == "kafka":
        writer = writer.option("kafka.bootstrap.servers", spec["broker"]).option("topic", spec["sink"])
        timerheap.spark.start(writer)
    elif sink == "delta":
        timerheap.spark.start(writer, str(work / "tables" / name))
    else:
        table = f"ice.{spec['namespace']}.{name}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (sensor string, silent_at timestamp) USING iceberg")
        timerheap.spark.start(writer, table=table)


def main(spec: dict[str, Any]) -> None:
    cloudpickle.register_pickle_by_value(lake_jobs)
    spark = start_spark(Path(spec["work"]) / "spark", settings=spec["settings"])
    context: Any = spark.sparkContext
    print("up", context._gateway.proc.pid, flush=True)
    for name in spec["queries"]:
        start(spark, name, spec)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
