"""A driver with a query for each kind of table, all of the same rows, that kills itself as it writes.

Its argument is a JSON file: `work`, `input`, a folder of `write_batches`, `settings` of Spark, `delta`,
`iceberg`, `postgres` and `kafka`, where each query writes, `lake`, the folders of the lakes' tables, and
`kills`, each a name, one of these queries or "together", the first micro-batch in which it may happen, and a
moment: in the "middle" of a write, or while PostgreSQL is "applying" it. "together" is when all queries have
written this micro-batch. Each kill happens once. It tells on standard output its JVM's process id, and each
micro-batch that is written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psycopg
from confluent_kafka import Consumer, TopicPartition
from local_spark import start_spark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from streams import read_stream

from timerheap.spark import aggregate_changes, merge_into, upsert_jdbc, upsert_kafka

__all__ = ["TABLE_OF_LAKE", "TABLE_OF_POSTGRES", "jdbc_url"]

TABLE_OF_LAKE = "CREATE TABLE {name} (at timestamp, k string, x double, v bigint) USING {kind}"
TABLE_OF_POSTGRES = """
    CREATE TABLE {name} (at timestamptz, k text UNIQUE NULLS NOT DISTINCT, x double precision, v bigint)
"""
# Holds a statement that changes the table for a second.
SLOW = """
    CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(1); RETURN NULL; END';
    CREATE OR REPLACE TRIGGER slow BEFORE DELETE ON "{table}" FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""
AGGREGATED = ("delta", "postgres")  # queries with an operator and its state
Sink = Callable[[Any, int], None]


def jdbc_url(server: str) -> str:
    """Return what JDBC takes, of what `psycopg.connect` takes."""
    parts = dict(part.split("=") for part in server.split())
    return f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"


class Kills:
    """Kills the driver where a plan says so."""

    def __init__(self, spec: dict[str, Any], jvm: int) -> None:
        self._spec, self._jvm = spec, jvm
        self._done = Path(spec["work"]) / "kills"
        self._done.mkdir(exist_ok=True)
        self._plan = [entry for entry in spec["kills"] if not (self._done / entry[0]).exists()]
        self._together = threading.Barrier(4, timeout=300)

    def around(self, query: str, sink: Sink) -> Sink:
        """Return a function for foreachBatch."""

        def write(batch: Any, batch_id: int) -> None:
            due = [(name, moment) for name, of, at, moment in self._plan if of == query and at <= batch_id]
            over = threading.Event()
            for name, moment in due[:1]:
                self._kill_when(name, getattr(self, f"_{moment}_{query}")(), over)
            sink(batch, batch_id)
            over.set()
            if ["together", batch_id] in [entry[1:3] for entry in self._plan]:
                self._together.wait()
                self._kill("after the writes")
            print("wrote", query, batch_id, flush=True)

        return write

    def _kill(self, name: str) -> NoReturn:
        (self._done / name).touch()
        os.execv("/bin/sh", ["sh", "-c", f"kill -STOP {self._jvm}; kill -KILL {self._jvm} $$"])

    def _kill_when(self, name: str, come: Callable[[], bool], over: threading.Event) -> None:
        """Kill when something has come to pass, unless the write is over: some write nothing."""

        def watch() -> None:
            while not over.is_set():
                if come():
                    self._kill(name)
                time.sleep(0.001)

        threading.Thread(target=watch, daemon=True).start()

    def _files(self, folder: str) -> Callable[[], bool]:
        before = set(Path(folder).rglob("*.parquet"))
        return lambda: bool(set(Path(folder).rglob("*.parquet")) - before)

    def _middle_delta(self) -> Callable[[], bool]:
        return self._files(self._spec["lake"][0])

    def _middle_iceberg(self) -> Callable[[], bool]:
        return self._files(self._spec["lake"][1])

    def _middle_kafka(self) -> Callable[[], bool]:
        where = self._spec["kafka"]
        place = TopicPartition(where["topic"], 0)
        consumer = Consumer({"bootstrap.servers": where["servers"], "group.id": "kills", "log_level": 0})
        _, before = consumer.get_watermark_offsets(place, timeout=60)
        return lambda: consumer.get_watermark_offsets(place, timeout=60)[1] > before

    def _in_postgres(self, query: str, *values: str) -> Callable[[], bool]:
        connection = psycopg.connect(self._spec["postgres"]["server"], autocommit=True)
        return lambda: connection.execute(query, values).fetchone() is not None

    def _middle_postgres(self) -> Callable[[], bool]:
        """Rows are in the staging table: its file has a size, also before they are committed."""
        staging = f'"{self._spec["postgres"]["table"]}__changes"'
        return self._in_postgres(
            "SELECT 1 FROM pg_class WHERE pg_relation_size(to_regclass(%s)) > 0", staging
        )

    def _applying_postgres(self) -> Callable[[], bool]:
        with psycopg.connect(self._spec["postgres"]["server"]) as connection:
            connection.execute(SLOW.format(table=self._spec["postgres"]["table"]))
        return self._in_postgres(
            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'DO $timerheap%%' AND wait_event = 'PgSleep'"
        )


def sinks(spec: dict[str, Any]) -> dict[str, Sink]:
    """Return the function of each query."""
    database, kafka, user = spec["postgres"], spec["kafka"], {"user": "postgres"}
    lakes = {name: merge_into(spec[name], "k") for name in ("delta", "iceberg") if name in spec}
    return lakes | {
        "postgres": upsert_jdbc(jdbc_url(database["server"]), database["table"], "k", properties=user),
        "kafka": upsert_kafka(kafka["servers"], kafka["topic"], "k", trust_key=True),
    }


def result(changes: DataFrame) -> DataFrame:
    """Return the same rows as the result of an operator: each is the sum of one row."""
    aggregates = F.sum("v").alias("v"), F.sum("x").alias("x"), F.sum(F.unix_micros("at")).alias("at")
    return aggregate_changes(changes, "k", *aggregates).withColumn("at", F.timestamp_micros("at"))


def main(spec: dict[str, Any]) -> None:
    os.environ["TZ"] = "America/New_York"  # neither the session's nor that of a database
    time.tzset()
    work = Path(spec["work"])
    spark = start_spark(work / "spark", settings=spec["settings"])
    jvm = spark.sparkContext._gateway.proc.pid
    print("up", jvm, flush=True)
    kills = Kills(spec, jvm)
    queries = [
        (result if name in AGGREGATED else lambda changes: changes)(read_stream(spark, Path(spec["input"])))
        .writeStream.foreachBatch(kills.around(name, sink))
        .option("checkpointLocation", str(work / "checkpoints" / name))
        .trigger(availableNow=True)
        .start()
        for name, sink in sinks(spec).items()
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
