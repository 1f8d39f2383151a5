"""The victim of the kill driver: runs a query to its end, from where its checkpoint is.

Its argument is a JSON file: `work`, `input`, `settings` of Spark, `query`, `killer`, the arguments of a
`Killer` or null, and `twins`, whether tasks wait for their twins. Output goes to
`work`/out/<batch>.<process>.json, complete or not at all. What happens is told on standard output, a line
each: the JVM's process id first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import kill_jobs
import processes
from local_spark import start_spark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from streams import read_stream


def writer(folder: Path) -> Any:
    """Return a function for foreachBatch that writes the rows of a micro-batch, sorted, to a file."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(df: DataFrame, batch: int) -> None:
        rows = sorted(([str(value) for value in row] for row in df.collect()), key=repr)
        file = folder / f"{batch:05}.{os.getpid()}.json"
        file.with_suffix(".draft").write_text(json.dumps(rows))
        file.with_suffix(".draft").rename(file)
        print("wrote", batch, flush=True)

    return write


def start(spark: SparkSession, spec: dict[str, Any]) -> StreamingQuery:
    """Start the query of a child in any session; its own settings are left out."""
    work = Path(spec["work"])
    killer = kill_jobs.Killer(*spec["killer"]) if spec["killer"] else None
    result = kill_jobs.QUERIES[spec["query"]](read_stream(spark, Path(spec["input"])), killer)
    if spec["twins"]:
        result = result.mapInArrow(kill_jobs.Twins(work / "twins").__call__, result.schema)
    out = result.writeStream.foreachBatch(writer(work / "out")).trigger(availableNow=True)
    return out.option("checkpointLocation", str(work / "checkpoint")).start()


def main(spec: dict[str, Any]) -> None:
    for module in (kill_jobs, processes):
        cloudpickle.register_pickle_by_value(module)
    spark = start_spark(Path(spec["work"]) / "spark", settings=spec["settings"])
    print("up", spark.sparkContext._gateway.proc.pid, flush=True)
    start(spark, spec).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
