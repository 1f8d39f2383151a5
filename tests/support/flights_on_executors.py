"""Given to spark-submit by test_executors.py: what each executor imports, and the demo's query on them all.

Its argument is a directory with a replay in ``flights``. What it has to tell goes to ``answer.json`` there.
"""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
from flights import micro_batches, start_replay
from pyspark.sql import SparkSession

import timerheap.spark


def imported(batches):
    import timerheap._native._core

    for _ in batches:
        yield pa.record_batch(
            [[os.getcwd()], [timerheap._native._core.__file__]], names=["directory", "module"]
        )


def main(directory: Path) -> None:
    spark = SparkSession.builder.config(map=timerheap.spark.settings()).getOrCreate()
    # A barrier stage starts all its tasks at once: one on each executor, as each has one core.
    both = spark.range(0, 2, numPartitions=2).mapInArrow(
        imported, "directory string, module string", barrier=True
    )
    answer = {"imported": {row.directory: row.module for row in both.collect()}}
    query = start_replay(spark, directory)
    answer["micro-batches"] = len(list(micro_batches(query)))
    answer["query"] = str(query.id)
    spark.stop()
    (directory / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
