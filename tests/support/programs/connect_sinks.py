"""Keeps tables up to date on a session of Spark Connect, whose server it starts; prints what is refused.

Its argument is a JSON file: `work`, `input`, a folder of `write_batches`, `settings` of Spark, `delta`, a
table to make, and `postgres` and `kafka`, where the other queries write, as in sink_child.py. A program of
its own: a process whose session is of Spark Connect can have no other.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from local_spark import FILES, home_without_archives
from pyspark.sql import SparkSession
from sink_child import TABLE_OF_LAKE, sinks
from streams import read_stream

from timerheap.errors import ArgumentValueError
from timerheap.spark import ensure_java


def main(spec: dict[str, Any]) -> None:
    ensure_java()
    work = Path(spec["work"])
    os.environ["SPARK_HOME"] = str(home_without_archives(work))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    own = {
        "spark.sql.streaming.checkpointFileManagerClass": FILES,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.remote("local[2]").config(map=own | spec["settings"]).getOrCreate()
    spark.sql(TABLE_OF_LAKE.format(name=spec["delta"], kind="delta"))
    for name, sink in sinks(spec).items():
        writer = read_stream(spark, Path(spec["input"])).writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(work / "checkpoints" / name))
        writer.trigger(availableNow=True).start().awaitTermination()
    again = spark.createDataFrame([("another", 1, "insert")], "k string, v long, _change_type string")
    for sink in (sinks(spec)["delta"], sinks(spec)["postgres"]):
        sink(again, 0)
        try:
            sink(again, 1)
        except ArgumentValueError as error:
            print(error)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
