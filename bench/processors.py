"""Stateful processors in timerheap beside the same classes in Spark's own transformWithState.

Run as ``python bench/processors.py [--rows N] [--batches N] [--jobs NAME ...] [--json FILE]``.

Each micro-batch has one row a key, from three sets of keys in turn. Both implementations read the same files,
batch by batch in turn, so what disturbs the machine disturbs both. The processor time is that of the JVM and
of all Python workers, less that of the JVM's compilers, which is much at first and nothing in the long run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import usage
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark import transform_with_state, transform_with_state_in_pandas

_SCHEMA = "key string, at timestamp"
_OUTPUT = "key string, n bigint"
_MINUTE = 60_000
_SETS = 3  # of keys: those of one micro-batch are back two later, after their timers
_OPTIONS = {"spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads"}  # see usage.compiling
_FEWER = 20  # times fewer rows to warm up with


class _Processor(StatefulProcessor):
    def __init__(self, frames: bool) -> None:
        self.frames = frames

    def last(self, rows: Any) -> tuple[int, int]:
        """Return the number of the rows of a key, and the event time of the last one in ms."""
        if self.frames:
            frames = list(rows)
            return sum(map(len, frames)), frames[-1]["at"].iloc[-1].value // 1_000_000
        found = list(rows)
        return len(found), int(found[-1].at.timestamp() * 1000)

    def out(self, key: Any, n: int) -> Any:
        """Return a result."""
        return pd.DataFrame({"key": [key[0]], "n": [n]}) if self.frames else Row(key=key[0], n=n)

    def close(self) -> None:
        """Do nothing."""


class Session(_Processor):
    """Moves the timer of a key to half a minute after its last row, and emits the session's rows."""

    mode = "EventTime"

    def init(self, handle: Any) -> None:
        """Ask for the state."""
        self.handle = handle
        self.state = handle.getValueState("session", "n bigint, due bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Move the timer."""
        n, at = self.last(rows)
        found = self.state.get()
        if found is not None:
            n += found[0]
            self.handle.deleteTimer(found[1])
        self.handle.registerTimer(at + _MINUTE // 2)
        self.state.update((n, at + _MINUTE // 2))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Emit the session."""
        found = self.state.get()
        self.state.clear()
        yield self.out(key, found[0])


class Count(_Processor):
    """Emits the number of rows of the key so far."""

    mode = "None"
    ttl: int | None = None

    def init(self, handle: Any) -> None:
        """Ask for the state."""
        self.state = handle.getValueState("count", "n bigint", self.ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count."""
        n, _ = self.last(rows)
        found = self.state.get()
        n += 0 if found is None else found[0]
        self.state.update((n,))
        yield self.out(key, n)


class CountWithTtl(Count):
    """A `Count` that forgets a key after an hour."""

    mode = "ProcessingTime"
    ttl = 60 * _MINUTE


class Append(_Processor):
    """Appends the event time of each row to a list."""

    mode = "None"

    def init(self, handle: Any) -> None:
        """Ask for the state."""
        self.state = handle.getListState("times", "at bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Append."""
        _, at = self.last(rows)
        self.state.appendValue((at,))
        return iter(())


JOBS: dict[str, type[Any]] = {
    "session timer": Session,
    "running count": Count,
    "list append": Append,
    "time to live": CountWithTtl,
}


def _result(df: DataFrame, job: type[Any], frames: bool, ours: bool) -> DataFrame:
    processor, mode = job(frames), job.mode
    if ours:
        run = transform_with_state_in_pandas if frames else transform_with_state
        return run(df, "key", processor, _OUTPUT, "Append", mode)
    groups = df.groupBy("key")
    theirs = groups.transformWithStateInPandas if frames else groups.transformWithState
    result: DataFrame = theirs(processor, _OUTPUT, "Append", mode)
    return result


def _cpu(jvm: int) -> float:
    return sum(usage.cpu(jvm)) - usage.compiling(jvm)


def _write(directory: Path, batch: int, rows: int) -> None:
    numbers = np.arange(rows) + batch % _SETS * rows
    np.random.default_rng(batch).shuffle(numbers)
    keys = pa.array([f"user-{number:08}" for number in numbers.tolist()])
    at = pa.array(np.linspace(batch * _MINUTE, (batch + 1) * _MINUTE - 1, rows).astype("datetime64[ms]"))
    whole = directory / f".{batch:05}"
    pq.write_table(pa.table({"key": keys, "at": at.cast(pa.timestamp("us", "UTC"))}), whole)
    whole.rename(directory / f"{batch:05}.parquet")


def measure(
    spark: SparkSession, job: type[Any], frames: bool, rows: int, batches: int, warm_up: int, scratch: Path
) -> dict[str, Any]:
    """Run both implementations in turn; return the median seconds and processor seconds of a micro-batch.

    Those that warm up the JVM have fewer rows, but for the last, whose timers fire in the first that is
    measured.
    """
    jvm = usage.jvm_of(spark)
    queries, figures = {}, {}
    for name in ("spark", "timerheap"):
        source = scratch / name
        source.mkdir(parents=True)
        df = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        result = _result(df.withWatermark("at", "0 seconds"), job, frames, ours=name == "timerheap")
        writer = result.writeStream.format("noop").option("checkpointLocation", str(scratch / f"{name}.to"))
        queries[name], figures[name] = writer.start(), []
    for batch in range(warm_up + batches):
        for name, query in queries.items():
            _write(scratch / name, batch, rows if batch >= warm_up - 1 else rows // _FEWER)
            before = _cpu(jvm)
            query.processAllAvailable()
            cpu = _cpu(jvm) - before
            done = [progress for progress in query.recentProgress if progress.numInputRows][-1]
            if batch >= warm_up:
                figures[name].append((done.durationMs["triggerExecution"] / 1000, cpu))
    for query in queries.values():
        query.stop()
    shutil.rmtree(scratch)
    return {
        name: {
            "seconds": statistics.median(seconds for seconds, _ in found),
            "cpu": statistics.median(spent := [cpu for _, cpu in found]),
            "spread": [min(spent), max(spent)],
        }
        for name, found in figures.items()
    }


def table(result: dict[str, Any]) -> str:
    """Return the report as text."""
    rows = result["rows"]
    lines = [
        f"{rows:,} rows a micro-batch, one a key, {result['partitions']} shuffle partitions; medians of "
        f"{result['batches']} micro-batches",
        f"{'':24}{'rows/s':>20}{'CPU us a row':>22}{'':>10}",
        f"{'':24}{'Spark':>10}{'timerheap':>10}{'Spark':>12}{'timerheap':>10}{'times less':>12}",
    ]
    for name, found in result["jobs"].items():
        spark, ours = found["spark"], found["timerheap"]
        cells = f"{rows / spark['seconds']:10,.0f}{rows / ours['seconds']:10,.0f}"
        cpu = f"{spark['cpu'] / rows * 1e6:12,.0f}{ours['cpu'] / rows * 1e6:10,.0f}"
        lines.append(f"{name:24}{cells}{cpu}{spark['cpu'] / ours['cpu']:12.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows a micro-batch")
    parser.add_argument("--batches", type=int, default=4, help="measured micro-batches of each query")
    parser.add_argument("--warm-up", type=int, default=12, help="micro-batches before that, at least one")
    parser.add_argument("--partitions", type=int, default=2, help="shuffle partitions")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB")
    parser.add_argument("--styles", nargs="+", choices=["Row", "pandas"], default=["Row", "pandas"])
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "rows": arguments.rows,
        "batches": arguments.batches,
        "partitions": arguments.partitions,
        "cores": os.cpu_count(),
        "jobs": {},
    }
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
        scratch = Path(directory)
        with spark_session(scratch / "spark.log", _OPTIONS) as spark:
            spark.conf.set("spark.sql.shuffle.partitions", arguments.partitions)
            spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)  # else some never rest
            spark.conf.set("spark.sql.streaming.pollingDelay", "1s")  # of one query while the other one runs
            for style in arguments.styles:
                for name in arguments.jobs:
                    found = measure(
                        spark,
                        JOBS[name],
                        style == "pandas",
                        arguments.rows,
                        arguments.batches,
                        arguments.warm_up,
                        scratch / "job",
                    )
                    result["jobs"][f"{name}, {style}"] = found
                    print(table(result), flush=True)
    write_json(arguments, result)


if __name__ == "__main__":
    main()
