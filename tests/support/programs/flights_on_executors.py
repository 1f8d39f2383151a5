"""Given to spark-submit: what each executor imports, and the demo's query on them all.

Its arguments are a directory with a replay in ``flights``, on any file system that Spark reads; a local file
for what it has to tell, as JSON; and what it kills after the first micro-batch: "nothing", an "executor" or
the "driver".
"""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from flights import micro_batches, start_replay
from pyspark.sql import SparkSession

import timerheap.spark


def imported(batches):
    import timerheap._native._core

    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    jvm = int(daemon.rpartition(")")[2].split()[1])
    for _ in batches:
        yield pa.record_batch(
            [[os.getcwd()], [timerheap._native._core.__file__], [jvm]], names=["directory", "module", "jvm"]
        )


def main(directory: Path, told: Path, victim: str = "nothing") -> None:
    spark = SparkSession.builder.config(map=timerheap.spark.settings()).getOrCreate()
    # A barrier stage starts all its tasks at once: one on each executor, as each has one core.
    both = spark.range(0, 2, numPartitions=2).mapInArrow(
        imported, "directory string, module string, jvm long", barrier=True
    )
    executors = both.collect()
    answer = {"imported": {row.directory: row.module for row in executors}}
    victims = {"driver": os.getppid(), "executor": executors[0].jvm}
    killed = told.with_suffix(".killed")
    query = start_replay(spark, directory)
    batches = []
    for progress in micro_batches(query):
        batches.append(progress.batchId)
        if victim in victims and not killed.exists():
            killed.write_text(str(progress.batchId))
            os.kill(victims[victim], signal.SIGKILL)
    answer["micro-batches"] = batches
    answer["query"] = str(query.id)
    spark.stop()
    told.write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
