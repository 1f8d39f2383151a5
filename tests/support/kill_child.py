"""The victim of the kill driver: runs a query to its end, from where its checkpoint is.

Its argument is a JSON file: `work`, `input`, `settings` of Spark, `query`, `killer`, the arguments of a
`Killer` or null, `twins`, whether tasks wait for their twins, `sink`, one of `SINKS`, and `checkpoint`,
where that is if not in `work`. Output goes to `work`/out/<batch>.<process>.json, complete or not at all. What
happens is told on standard output, a line each: the JVM's process id first.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kill_jobs
import processes
import pyarrow.parquet as pq
from local_spark import start_spark
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from streams import read_stream

SINKS = ("rows", "arrow", "files")
"""Ways to the output: ``collect`` or ``toArrow`` in foreachBatch, or a sink of Parquet files."""


def write_rows(folder: Path, batch: int, rows: Iterable[Iterable[Any]]) -> None:
    """Write the rows of a micro-batch, sorted, to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{batch:05}.{os.getpid()}.json"
    texts = sorted(([str(value) for value in row] for row in rows), key=repr)
    file.with_suffix(".draft").write_text(json.dumps(texts))
    file.with_suffix(".draft").rename(file)
    print("wrote", batch, flush=True)


def writer(folder: Path, sink: str) -> Any:
    """Return a function for foreachBatch that writes the rows of a micro-batch."""

    def write(df: DataFrame, batch: int) -> None:
        if sink == "rows":
            rows: Iterable[Iterable[Any]] = df.collect()
        else:
            rows = (row.values() for row in df.toArrow().to_pylist())
        write_rows(folder, batch, rows)

    return write


def copy_files(query: StreamingQuery, files: Path, out: Path) -> None:
    """Write the rows of each micro-batch that a sink of files commits, until the query ends."""
    log, seen, ended = files / "_spark_metadata", set[str](), False
    while not ended:
        ended = query.awaitTermination(0.1)
        for batch in sorted({name.name for name in log.glob("[0-9]*")} - seen, key=int):
            seen.add(batch)
            if any(out.glob(f"{int(batch):05}.*.json")):
                continue
            entries = map(json.loads, (log / batch).read_text().splitlines()[1:])
            parts = [pq.read_table(entry["path"].removeprefix("file://")) for entry in entries]
            write_rows(out, int(batch), (row.values() for part in parts for row in part.to_pylist()))


def start(spark: SparkSession, spec: dict[str, Any]) -> StreamingQuery:
    """Start the query of a child in any session; its own settings are left out."""
    work, sink = Path(spec["work"]), spec.get("sink", "rows")
    killer = kill_jobs.Killer(*spec["killer"]) if spec["killer"] else None
    result = kill_jobs.QUERIES[spec["query"]](read_stream(spark, Path(spec["input"])), killer)
    # The same text in each sink.
    result = result.select([result[name].cast("string") for name in result.columns])
    if killer is not None:
        result = result.mapInArrow(killer.behind, result.schema)
    if spec["twins"]:
        result = result.mapInArrow(kill_jobs.Twins(work / "twins").__call__, result.schema)
    checkpoint = str(spec.get("checkpoint") or work / "checkpoint")
    out = result.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    if sink == "files":
        return out.start(str(work / "files"), format="parquet")
    return out.foreachBatch(writer(work / "out", sink)).start()


def main(spec: dict[str, Any]) -> None:
    for module in (kill_jobs, processes):
        cloudpickle.register_pickle_by_value(module)
    spark = start_spark(Path(spec["work"]) / "spark", settings=spec["settings"])
    print("up", spark.sparkContext._gateway.proc.pid, flush=True)
    query = start(spark, spec)
    if spec.get("sink") == "files":
        copy_files(query, Path(spec["work"]) / "files", Path(spec["work"]) / "out")
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
