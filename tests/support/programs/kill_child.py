"""The victim of the kill driver: runs a query to its end, from where its checkpoint is.

Its argument is a JSON file: `work`, `input`, `settings` of Spark, `query`, `killer`, the arguments of a
`Killer` or null, `wanted`, that of a `SaveKiller`, `settles`, whether keys settle in each save, `twins`,
whether tasks wait for their twins, `sink`, one of `SINKS`, `checkpoint`, where that is if not in `work`, and
`changed`, whether it stops now and then for a new version of the query, which goes on by `continue_from`.
Output goes to `work`/out/<batch>.<process>.json, complete or not at all. What happens is told on standard
output, a line each: the JVM's process id first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
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

from timerheap.spark import continue_from

SINKS = ("rows", "arrow", "files")
"""Ways to the output: ``collect`` or ``toArrow`` in foreachBatch, or a sink of Parquet files."""

ALWAYS = "[0, 8, 1000, 1, 0]"
"""All keys settle in each save, in ranges of 8."""


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


def start(spark: SparkSession, spec: dict[str, Any], version: int | None = None) -> StreamingQuery:
    """Start the query of a child in any session; its own settings are left out.

    version: of a query that is changed, from 0
    """
    work, sink = Path(spec["work"]), spec.get("sink", "rows")
    checkpoint = str(spec.get("checkpoint") or work / "checkpoint")
    if version is not None:
        old, checkpoint = f"{checkpoint}-{version - 1}", f"{checkpoint}-{version}"
        spark.conf.set("spark.sql.shuffle.partitions", 2 + version % 3)
    if version:
        print("changes", version, flush=True)
        result = continue_from(spark, old, checkpoint, lambda: query_of(spark, spec, version))
        print("changed", version, flush=True)
    else:
        result = query_of(spark, spec, version)
    out = result.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    if sink == "files":
        return out.start(str(work / "files"), format="parquet")
    return out.foreachBatch(writer(work / "out", sink)).start()


def query_of(spark: SparkSession, spec: dict[str, Any], version: int | None = None) -> DataFrame:
    killer: Any = kill_jobs.Killer(*spec["killer"]) if spec["killer"] else None
    if spec.get("wanted"):
        killer = kill_jobs.SaveKiller(Path(spec["wanted"]))
    options = {} if version is None else {"version": version}
    result = kill_jobs.QUERIES[spec["query"]](read_stream(spark, Path(spec["input"])), killer, **options)
    # The same text in each sink.
    result = result.select([result[name].cast("string") for name in result.columns])
    if killer is not None:
        result = result.mapInArrow(killer.behind, result.schema)
    if spec["twins"]:
        result = result.mapInArrow(kill_jobs.Twins(Path(spec["work"]) / "twins").__call__, result.schema)
    return result


def follow(query: StreamingQuery, spec: dict[str, Any]) -> None:
    """Wait for the end of a query."""
    if spec.get("sink") == "files":
        copy_files(query, Path(spec["work"]) / "files", Path(spec["work"]) / "out")
    query.awaitTermination()
    print("settled", settled_keys(query), flush=True)


def settled_keys(query: StreamingQuery) -> int:
    """Return how many keys had settled after a micro-batch, at most."""
    each = [[row.asDict().get("metrics") for row in p.observedMetrics.values()] for p in query.recentProgress]
    return max((sum(row["settled_keys"] for row in rows if row) for rows in each), default=0)


def run_changed(spark: SparkSession, spec: dict[str, Any]) -> None:
    """Run a query to its end, each version of it until the sink has a micro-batch or two of it.

    Spark may not have committed the last one.
    """
    work = Path(spec["work"])
    written = work / ("files/_spark_metadata" if spec["sink"] == "files" else "out")
    versions = work / "versions"
    versions.mkdir(exist_ok=True)

    def batches() -> int:
        return len({file.name.split(".")[0] for file in written.glob("[0-9]*")})

    def stop(query: StreamingQuery, most: int, stopped: threading.Event) -> None:
        while query.isActive:
            if batches() >= most:
                stopped.set()
                query.stop()
            time.sleep(0.005)

    while True:
        version, stopped = len(list(versions.iterdir())), threading.Event()
        query, before = start(spark, spec, version), batches()
        stopper = threading.Thread(target=stop, args=(query, before + 1 + version % 2, stopped))
        stopper.start()
        follow(query, spec)
        stopper.join()
        if not stopped.is_set():
            return
        if any((work / f"checkpoint-{version}" / "commits").glob("[0-9]*")):
            (versions / f"{version:03}").touch()


def main(spec: dict[str, Any]) -> None:
    if spec.get("settles"):
        os.environ["TIMERHEAP_SETTLING"] = ALWAYS
    for module in (kill_jobs, processes):
        cloudpickle.register_pickle_by_value(module)
    spark = start_spark(Path(spec["work"]) / "spark", settings=spec["settings"])
    print("up", spark.sparkContext._gateway.proc.pid, flush=True)
    if spec.get("changed"):
        run_changed(spark, spec)
    else:
        follow(start(spark, spec), spec)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
