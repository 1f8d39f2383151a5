"""The session-timeout job: each event moves the timer of its key, and timers that fire are emitted.

Run as ``python bench/session_timeout.py [--events N] [--batches N] [--rounds N] [--sample N] [--json FILE]``.
The figures of other keys, rows, micro-batches and cores are those of session_shapes.py.

Every variant is a streaming query over the same Parquet files, with its own checkpoint, a Parquet sink and
the RocksDB state store. All must emit the same (key, timestamp) pairs.
"""

from __future__ import annotations

import argparse
import heapq
import os
import pickle
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from figures import write_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from usage import Cpu, cpu

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap._demo.replay import spark_session
from timerheap.spark._exchange.frames import rows_of
from timerheap.spark._exchange.observed import OBSERVED
from timerheap.spark._exchange.pack import OBSERVATION, PACKED, Packer

SCHEMA = "key string, at bigint"
SETTINGS = {  # of all variants
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000_000,
    "spark.sql.execution.arrow.maxBytesPerBatch": 2**31 - 1,  # no limit
}
SPAN = 60_000  # event time of one batch, ms
GAP = (
    150_000  # more than two spans, so that the next batch moves a key's timer before the watermark passes it
)


# ---- The data


@dataclass(frozen=True)
class Job:
    """The size of the job: `batches` batches of `events` rows, with `keys` keys in total.

    The keys are strings, or numbers of the type bigint, and a row has `payload` more columns, of numbers.
    """

    events: int
    batches: int
    keys: int
    key: str = "string"
    payload: int = 0

    @property
    def schema(self) -> str:
        """The schema of the rows."""
        return ", ".join([f"key {self.key}, at bigint", *(f"c{i} double" for i in range(self.payload))])

    @property
    def result(self) -> str:
        """The schema of the results."""
        return f"key {self.key}, at bigint"

    def write(self, directory: Path, files: int) -> None:
        """Write `files` Parquet files per batch, and one row that closes all sessions.

        A window slides over the keys, so each key appears in consecutive batches only. Every batch
        contains every key of the window at least once; the other rows are random. As in a partitioned log,
        all rows of a key are in the same file of a batch, in order of time.
        """
        directory.mkdir()
        rng = np.random.default_rng(0)
        step = self.keys // (2 * self.batches)
        live = self.keys - (self.batches - 1) * step
        for batch in range(self.batches):
            every = np.arange(batch * step, batch * step + live)
            keys = np.concatenate([every, rng.choice(every, self.events - live)])
            rng.shuffle(keys)
            at = np.sort(rng.integers(batch * SPAN, (batch + 1) * SPAN, self.events))
            for file in range(files):
                mine = keys % files == file
                self._write(directory, batch, file, keys[mine], at[mine])
        closing = self.batches * SPAN + 10 * GAP
        self._write(directory, self.batches, 0, np.array([self.keys]), np.array([closing]))

    def _write(self, directory: Path, batch: int, file: int, keys: np.ndarray, at: np.ndarray) -> None:
        path = directory / f"{batch:03}-{file:03}.parquet"
        rng = np.random.default_rng((batch, file))
        columns = {f"c{i}": rng.random(len(keys)) for i in range(self.payload)}
        names = _names(keys) if self.key == "string" else keys
        pq.write_table(pa.table({"key": names, "at": at, **columns}), path)
        os.utime(path, (batch, batch))  # a file source reads the oldest files first


def _names(keys: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(keys).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("user-", digits, "")


def expected(directory: Path) -> pd.DataFrame:
    """Return the expected output: each key once, at its last event plus the gap, but not the closing row."""
    events = pd.read_parquet(directory, columns=["key", "at"])
    last = events[events["at"] < events["at"].max()].groupby("key", as_index=False)["at"].max()
    return last.assign(at=last["at"] + GAP)


def difference(emitted: pd.DataFrame, wanted: pd.DataFrame) -> str:
    """Describe the difference between two bags of rows; return an empty string if they are equal."""
    both = emitted.groupby(["key", "at"]).size().rename("emitted").to_frame()
    both = both.join(wanted.groupby(["key", "at"]).size().rename("wanted"), how="outer").fillna(0)
    wrong = both[both["emitted"] != both["wanted"]]
    return f"{len(wrong)} rows differ, such as\n{wrong.head()}" if len(wrong) else ""


# ---- The variants


class Columns(BatchProcessFunction):
    """timerheap in columns, with one timer per key, which a registration moves."""

    one_timer_per_key = True

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.key_hashes, ctx.timestamps + GAP)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.key_hashes).column("key")
        yield pa.record_batch([keys, pa.array(due.timestamps)], names=["key", "at"])


class Rows(KeyedProcessFunction):
    """timerheap row by row, as in Flink: the function stores the old timestamp to delete the timer."""

    def open(self, runtime_context: Any) -> None:
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        old = self.timer.value()
        if old is not None:
            ctx.timer_service().delete_event_time_timer(old)
        new = ctx.timestamp() + GAP
        ctx.timer_service().register_event_time_timer(new)
        self.timer.update(new)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        self.timer.clear()
        yield ctx.get_current_key(), timestamp


def timerheap_process(
    function: BatchProcessFunction | KeyedProcessFunction, order: str
) -> Callable[..., DataFrame]:
    def variant(events: DataFrame) -> DataFrame:
        return timerheap.spark.process(
            events,
            key="key",
            function=function,
            output_schema=_result(events),
            event_time="at",
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            order=order,
        )

    return variant


def _result(events: DataFrame) -> str:
    return f"key {events.schema['key'].dataType.simpleString()}, at bigint"


def packed(events: DataFrame) -> Any:
    """Group the output of timerheap's pack stage by label, one for each shuffle partition."""
    packer = Packer("key", [("key", "key")], "at", None)
    return events.mapInArrow(lambda batches: packer(batches), PACKED).groupBy("label")


class Nothing(StatefulProcessor):
    """Discards the packed rows, to measure the cost of the pack stage and the exchange alone."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for _ in rows:
            pass
        return iter(())


def no_op(events: DataFrame) -> DataFrame:
    return packed(events).transformWithStateInPandas(Nothing(), _result(events), "Append", "None")


def heapq_blob(events: DataFrame) -> DataFrame:
    """Python's heapq and a dict, pickled into one blob of state per partition.

    A key has one entry in the heap. If its timer has been moved when the entry is due, the entry is pushed
    again. That is twice as fast as one entry per move, since the blob stays small.
    """
    return packed(events).applyInPandasWithState(
        _heapq_group, _result(events), "timers binary", "append", "NoTimeout"
    )


def _heapq_group(label: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    heap, timers = pickle.loads(state.get[0]) if state.exists else ([], {})
    seen = pd.concat(frames)
    blobs: dict[bool, list[pa.RecordBatch]] = {True: [], False: []}
    for sequence, blob in zip(seen["sequence"], seen["blob"], strict=True):
        observation = sequence == OBSERVATION
        blobs[observation].append(
            pa.ipc.open_stream(blob).read_next_batch() if observation else rows_of(blob)[0]
        )
    observed = pa.Table.from_batches(blobs[True], OBSERVED)
    if blobs[False]:
        rows = pa.Table.from_batches(blobs[False])
        due = (rows["at"].to_numpy() + GAP).tolist()
        moved = dict(zip(rows["key"].to_pylist(), due, strict=True))
        heap += [(timer, key) for key, timer in moved.items() if key not in timers]
        heapq.heapify(heap)
        timers.update(moved)
    watermark = pc.max(observed["max_timestamp"]).as_py() - 1
    fired = []
    while heap and heap[0][0] <= watermark:
        timer, key = heap[0]
        if timers[key] > timer:
            heapq.heapreplace(heap, (timers[key], key))
        else:
            heapq.heappop(heap)
            del timers[key]
            fired.append((key, timer))
    state.update((pickle.dumps((heap, timers), pickle.HIGHEST_PROTOCOL),))
    if fired:
        yield pd.DataFrame(fired, columns=["key", "at"])


class SparkTimers(StatefulProcessor):
    """Spark's own timers, moved once for all rows of a key in a batch."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.timer = handle.getValueState("timer", "timer bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        new = max(int(frame["at"].max()) for frame in rows) + GAP
        old = self.timer.get()
        if old is not None:
            self.handle.deleteTimer(old[0])
        self.handle.registerTimer(new)
        self.timer.update((new,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        self.timer.clear()
        yield pd.DataFrame({"key": [key[0]], "at": [expiredTimerInfo.getExpiryTimeInMs()]})


def spark_timers(events: DataFrame) -> DataFrame:
    timed = events.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "0 seconds")
    return timed.groupBy("key").transformWithStateInPandas(
        SparkTimers(), _result(events), "Append", "EventTime"
    )


VARIANTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns": timerheap_process(Columns(), "event_time"),
    "columns-arrival": timerheap_process(Columns(), "arrival"),
    "rows": timerheap_process(Rows(), "event_time"),
    "rows-arrival": timerheap_process(Rows(), "arrival"),
    "no-op": no_op,
    "heapq": heapq_blob,
    "spark": spark_timers,
}


# ---- Running and reporting


@dataclass(frozen=True)
class Run:
    """The result of a query: rows per second of each full batch but the first, and the timers fired.

    The CPU time is that of all batches, in ns a row.
    """

    rates: list[float]
    fired: int
    closing_fired: int
    closing_seconds: float
    jvm: float = 0.0
    python: float = 0.0


def run(variant: str, spark: SparkSession, job: Job, source: Path, scratch: Path, files: int) -> Run:
    """Run one variant over the files in `source`, with its output in `scratch`/output.

    The rates exclude the first batch, in which the Python workers start. Most timers fire in the closing
    batch; Spark's own timers need another batch without data, since the watermark is one batch behind.
    """
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    events = spark.readStream.schema(job.schema).option("maxFilesPerTrigger", files).parquet(str(source))
    before = cpu(jvm)
    emitted = VARIANTS[variant](events).observe("emitted", F.count(F.lit(1)).alias("rows"))
    query = (
        emitted.writeStream.option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(scratch / "output"), format="parquet")
    )
    query.awaitTermination()
    used = Cpu(*(seconds * 1e9 / (job.batches * job.events) for seconds in cpu(jvm).since(before)))
    progress = query.recentProgress
    seconds = [p.durationMs["triggerExecution"] / 1000 for p in progress]
    rows = [p.observedMetrics["emitted"]["rows"] for p in progress]
    full = range(1, job.batches)
    return Run(
        rates=[progress[batch].numInputRows / seconds[batch] for batch in full],
        fired=sum(rows),
        closing_fired=sum(rows[job.batches :]),
        closing_seconds=sum(seconds[job.batches :]),
        jvm=used.jvm,
        python=used.python,
    )


def measure(spark: SparkSession, job: Job, sample: Job, rounds: int, scratch: Path) -> dict[str, Any]:
    """Run every variant once per round, in turn, and compare its output with `expected`.

    Spark's own timers run on `sample`, all others on `job`. A run of the no-op before each round warms up the
    JVM, and starts the workers that have ended while Spark's own timers, which need fewer, ran.

    Raises
    ------
    ValueError
        If the output of a variant is wrong.
    """
    files = spark.sparkContext.defaultParallelism
    sources = {}
    for name, size in (("all", job), ("sample", sample)):
        size.write(scratch / name, files)
        sources[name] = size, scratch / name, expected(scratch / name)
    runs: dict[str, list[Run]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        run("no-op", spark, job, scratch / "all", scratch / f"warm-up-{number}", files)
        for variant in VARIANTS:
            size, source, wanted = sources["sample" if variant == "spark" else "all"]
            place = scratch / f"{variant}-{number}"
            done = run(variant, spark, size, source, place, files)
            runs[variant].append(done)
            print(
                f"round {number + 1} of {rounds}: {variant:16} {statistics.median(done.rates):11,.0f} rows/s",
                file=sys.stderr,
            )
            if variant != "no-op":
                expect(spark, job, variant, place, wanted)
    return report(runs, job, sample, rounds)


def expect(spark: SparkSession, job: Job, variant: str, place: Path, wanted: pd.DataFrame) -> None:
    """Raise a ValueError if what a variant has emitted to `place`/output is not what it should."""
    emitted = spark.read.schema(job.result).parquet(str(place / "output")).toPandas()
    if wrong := difference(emitted, wanted):
        raise ValueError(f"{variant} has not emitted what it should: {wrong}")


def report(runs: dict[str, list[Run]], job: Job, sample: Job, rounds: int) -> dict[str, Any]:
    """Return the medians over the rounds and their ratios."""
    rates = {v: statistics.median(rate for done in all_ for rate in done.rates) for v, all_ in runs.items()}
    return {
        "job": asdict(job),
        "sample": asdict(sample),
        "rounds": rounds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "variants": {
            variant: {
                "rows_per_second": rates[variant],
                **{f"to_{other}": rates[variant] / rates[other] for other in ("no-op", "heapq", "spark")},
                "fired": all_[0].fired,
                "fired_at_the_end": all_[0].closing_fired,
                "seconds_at_the_end": statistics.median(done.closing_seconds for done in all_),
                "jvm_ns_a_row": statistics.median(done.jvm for done in all_),
                "python_ns_a_row": statistics.median(done.python for done in all_),
                "every_rate": [done.rates for done in all_],
            }
            for variant, all_ in runs.items()
        },
    }


def table(result: dict[str, Any]) -> str:
    """Return the report as text."""
    job, sample = Job(**result["job"]), Job(**result["sample"])
    ratios = ("to_no-op", "to_heapq", "to_spark")
    lines = [
        f"Session timeout: {job.batches} batches of {job.events:,} rows, {job.keys:,} keys "
        f"(Spark's own timers: {sample.batches} of {sample.events:,}, {sample.keys:,}); "
        f"medians of {result['rounds']} rounds without their first batches",
        f"{'':16}{'rows/s':>12}{'/ no-op':>9}{'/ heapq':>9}{'/ Spark':>9}{'fired':>12}{'closing':>10}"
        f"{'JVM ns':>9}{'Python ns':>10}",
    ]
    for name, v in result["variants"].items():
        compared = "".join(f"{v[ratio]:9.{1 if v[ratio] >= 10 else 2}f}" for ratio in ratios)
        lines.append(
            f"{name:16}{v['rows_per_second']:12,.0f}{compared}{v['fired']:12,}"
            f"{v['seconds_at_the_end']:8.1f} s{v['jvm_ns_a_row']:9,.0f}{v['python_ns_a_row']:10,.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="rows a batch, and keys altogether")
    parser.add_argument("--batches", type=int, default=4, help="2 or more")
    parser.add_argument("--rounds", type=int, default=5, help="how often each variant runs")
    parser.add_argument("--sample", type=int, default=20_000, help="rows a batch for Spark's own timers")
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    if arguments.batches < 2:
        parser.error(f"--batches {arguments.batches}: the first batch does not count, so there must be 2")
    job, sample = (Job(n, arguments.batches, n) for n in (arguments.events, arguments.sample))
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as directory:
        scratch = Path(directory)
        with spark_session(scratch / "spark.log", SETTINGS) as spark:
            result = measure(spark, job, sample, arguments.rounds, scratch)
    print(table(result))
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
