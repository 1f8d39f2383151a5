"""Results that change, beside Spark's update mode: rows a second, and CPU of the JVM and of Python.

$ make bench-changes ARGS="--parts update scaling [--rounds 3]"

update: aggregates of 100,000 keys in micro-batches of 1,000,000 rows, beside ``groupBy()`` in update mode
scaling: micro-batches of 10,000 changes over 100,000 keys and over 10,000,000

All variants take turns, and figures are medians. There is a checkpoint after each micro-batch. CPU is
without the JVM's compilers, as in changes_flink.py, which has what Flink takes for such queries: each start
of a query compiles anew, and these are of seconds. What the compilers have taken is beside it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from usage import Meter, jvm_of

from timerheap.spark import aggregate_changes

CHANGE_TYPE = "_change_type"
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:-UseDynamicNumberOfCompilerThreads",  # see usage.compiling
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
ROW_GROUP = 250_000
SIDES = ("jvm", "python", "compilers")
Taken = dict[str, Any]


# ---- One run of a query over the files of a folder, a micro-batch each


def sides(meter: Meter) -> Taken:
    """Return the CPU seconds of the JVM without its compilers, of these, and of Python."""
    used, compiled = meter.read()
    return {"jvm": used.jvm + used.others - compiled, "python": used.python, "compilers": compiled}


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(spark: SparkSession, df: DataFrame, work: Path, mode: str = "append") -> Taken:
    """Run a query over all files; its rows are dropped."""
    meter = Meter(jvm_of(spark))
    writer = df.writeStream.option("checkpointLocation", str(work)).outputMode(mode).format("noop")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    used, progress = sides(meter), query.recentProgress
    seconds = sum(one.durationMs["triggerExecution"] for one in progress) / 1000
    return {"seconds": seconds, "rows": sum(one.numInputRows for one in progress), **used}


def medians(rounds: list[Taken]) -> Taken:
    """Return the medians of figures, by input row, and how far the CPU of the rounds is apart."""
    n = rounds[0]["rows"]
    total = [(one["jvm"] + one["python"]) * 1e6 / n for one in rounds]
    return {
        "rows": n,
        "rate": n / statistics.median(one["seconds"] for one in rounds),
        **{side: statistics.median(one[side] for one in rounds) * 1e6 / n for side in SIDES},
        "cpu": statistics.median(total),
        "spread": [min(total), max(total)],
    }


def in_turn(variants: dict[str, Callable[[], Taken]], rounds: int) -> dict[str, Taken]:
    """Return the medians of all rounds but the first, in which variants take turns."""
    taken: dict[str, list[Taken]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, action in variants.items():
            taken[name].append(action())
    return {name: medians(each[1:]) for name, each in taken.items()}


def write(folder: Path, tables: Iterator[pa.Table]) -> None:
    """Write a file for each micro-batch; Spark takes the oldest file first."""
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        file = folder / f"{number:05}.parquet"
        pq.write_table(table, file, row_group_size=ROW_GROUP)
        os.utime(file, (number, number))


# ---- Beside Spark's update mode


def inserted(rows: int, batches: int, keys: int) -> Iterator[pa.Table]:
    draw = np.random.default_rng(5)
    for _ in range(batches):
        yield pa.table({"k": draw.integers(0, keys, rows), "v": draw.integers(0, 10_000, rows) / 100})


def changed(rows: int, batches: int, keys: int) -> Iterator[pa.Table]:
    """Yield inserts, and from the second micro-batch on a third of updates of rows of the one before it."""
    before: pa.Table | None = None
    for table in inserted(rows, batches, keys):
        updates = rows // 6 if before is not None else 0
        new = table.slice(0, rows - 2 * updates).append_column(
            CHANGE_TYPE, pa.array(["insert"] * (rows - 2 * updates))
        )
        parts = [new]
        if before is not None:
            old = before.slice(0, updates)
            after = old.set_column(1, "v", table.column("v").slice(0, updates))
            parts += [
                each.append_column(CHANGE_TYPE, pa.array([word] * updates))
                for each, word in ((old, "update_preimage"), (after, "update_postimage"))
            ]
        before = new.drop_columns([CHANGE_TYPE])
        yield pa.concat_tables(parts)


def update(bench: Bench) -> dict[str, Taken]:
    """Return the figures of aggregates."""
    rows, batches = bench.options.rows, 4
    for name, tables in (("inserted", inserted), ("changed", changed)):
        write(bench.scratch / name, tables(rows, batches, 100_000))
    spark = bench.spark
    some: dict[str, Callable[[], list[Any]]] = {
        "count": lambda: [F.count("*").alias("n")],
        "five": lambda: [
            F.count("*").alias("n"),
            *(f("v").alias(f.__name__) for f in (F.sum, F.avg, F.min, F.max)),
        ],
    }
    variants: dict[str, Callable[[], Taken]] = {}
    for what, calls in some.items():

        def sparks(calls: Any = calls) -> Taken:
            df = stream(spark, bench.scratch / "inserted").groupBy("k").agg(*calls())
            return run(spark, df, bench.work(), "update")

        def ours(source: str, calls: Any = calls) -> Taken:
            df = aggregate_changes(stream(spark, bench.scratch / source), "k", *calls())
            return run(spark, df, bench.work())

        variants[f"spark, {what}"] = sparks
        variants[f"inserts, {what}"] = lambda ours=ours: ours("inserted")  # type: ignore[misc]
        variants[f"changes, {what}"] = lambda ours=ours: ours("changed")  # type: ignore[misc]
    return in_turn(variants, bench.options.rounds)


# ---- The same micro-batch over few and over many keys


def scaling(bench: Bench) -> dict[str, Taken]:
    """Return what a micro-batch of 10,000 changes takes, by the number of keys."""
    found, spark, changes = {}, bench.spark, 10_000
    for keys in (int(float(size)) for size in bench.options.keys):
        folder, work = bench.scratch / f"scaling-{keys}", bench.work()
        (folder / "in").mkdir(parents=True)
        query = Growing(spark, folder, work)
        for first in range(0, keys, 1_000_000):
            of = np.arange(first, min(first + 1_000_000, keys))
            query.step(pa.table({"k": of, "v": of % 97 * 1.0, CHANGE_TYPE: ["insert"] * len(of)}))
        draw, values = np.random.default_rng(2), np.arange(keys) % 97 * 1.0
        steps = []
        for number in range(bench.options.steps + 3):
            of = draw.choice(keys, changes // 2, replace=False)
            new = values[of] + 1
            table = pa.table(
                {
                    "k": np.concatenate([of, of]),
                    "v": np.concatenate([values[of], new]),
                    CHANGE_TYPE: ["update_preimage"] * len(of) + ["update_postimage"] * len(of),
                }
            )
            values[of] = new
            took = query.step(table)
            if number >= 3:
                steps.append(took)
        query.stop()
        found[str(keys)] = {
            name: statistics.median(one[name] for one in steps) for name in ("seconds", *SIDES)
        }
        total = [one["jvm"] + one["python"] for one in steps]
        found[str(keys)] |= {"cpu": statistics.median(total), "spread": [min(total), max(total)]}
        shutil.rmtree(folder)
    return found


class Growing:
    """A query of aggregates that gets one micro-batch after the other."""

    def __init__(self, spark: SparkSession, folder: Path, work: Path) -> None:
        self.spark, self.folder, self.steps = spark, folder, 0
        df = spark.readStream.schema(f"k bigint, v double, {CHANGE_TYPE} string").parquet(str(folder / "in"))
        calls = [F.count("*").alias("n"), F.sum("v").alias("total")]
        writer = aggregate_changes(df, "k", *calls).writeStream.format("noop")
        self.query = writer.option("checkpointLocation", str(work)).start()

    def step(self, table: pa.Table) -> Taken:
        draft = self.folder / f"{self.steps:05}.parquet"
        pq.write_table(table, draft, row_group_size=ROW_GROUP)
        self.steps += 1
        meter = Meter(jvm_of(self.spark))
        draft.rename(self.folder / "in" / draft.name)
        self.query.processAllAvailable()
        used = sides(meter)
        progress = [one for one in self.query.recentProgress if one.numInputRows][-1]
        assert progress.numInputRows == len(table)
        seconds = progress.durationMs["triggerExecution"] / 1000
        return {"seconds": seconds, **used}

    def stop(self) -> None:
        self.query.stop()


# ---- All of it


@dataclass
class Bench:
    options: argparse.Namespace
    spark: SparkSession
    scratch: Path

    def work(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch)) / "checkpoint"


PARTS: dict[str, Callable[[Bench], dict[str, Taken]]] = {"update": update, "scaling": scaling}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=[*PARTS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="in a micro-batch, of update")
    parser.add_argument("--keys", nargs="+", default=["1e5", "1e7"], help="of scaling")
    parser.add_argument("--steps", type=int, default=11, help="micro-batches that count, of scaling")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, Taken]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        with spark_session(scratch / "spark.log", SETTINGS) as spark:
            bench = Bench(options, spark, scratch)
            for part in options.parts:
                begun = time.monotonic()
                figures[part] = PARTS[part](bench)
                for name, took in figures[part].items():
                    shown = ", ".join(
                        f"{of} {took[of]:.3f}" for of in ("seconds", *SIDES, "cpu") if of in took
                    )
                    rate = f"{took['rate']:,.0f} rows/s, " if "rate" in took else ""
                    print(f"{part:12}{name:20}{rate}{shown}", flush=True)
                print(f"{part} took {time.monotonic() - begun:.0f} s", flush=True)
                write_json(options, figures)


if __name__ == "__main__":
    main()
