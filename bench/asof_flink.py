"""Compare an as-of join of two streams with Flink's temporal join, on the same lines of CSV.

$ python bench/asof_flink.py [--events N] [--batches N] [--rounds N] [--json FILE]

Both read all files from the start, on the same cores, and drop their results. CPU is that of all processes of
each: for Flink a mini-cluster in one JVM, for timerheap Spark's JVM and its Python workers. Then each answers
once more, all rows together, and the answers are compared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from asof import SPAN, START, SYMBOLS
from figures import write_json
from flights import spark_session
from nexmark.flink import Flink, files
from pyspark.sql import DataFrame, SparkSession
from three_ways import SETTINGS, Taken, median
from usage import cpu, jvm_of

import timerheap.spark

LINES = 20_000  # of a reader of Flink, before those of the other one
SCHEMAS = {
    "trades": "symbol string, at bigint, quantity bigint",
    "quotes": "symbol string, at bigint, price double",
}
TEXT = """SELECT t.symbol, t.ms, t.quantity, q.ms AS at_right, q.price FROM trades t
  LEFT JOIN quotes FOR SYSTEM_TIME AS OF t.`at` AS q ON t.symbol = q.symbol"""


def write(folder: Path, events: int, batches: int) -> None:
    """Write trades and quotes twice: a file for each micro-batch of Spark, and one for each reader of Flink.

    Quotes of one symbol have different times: Flink takes that which arrives last, which is any.
    """
    draw, options = np.random.default_rng(7), pc.WriteOptions(include_header=False, quoting_style="none")
    symbols = np.array([f"S{number:04}" for number in range(SYMBOLS)], object)
    for name in SCHEMAS:
        for engine in ("spark", "flink"):
            (folder / engine / name).mkdir(parents=True)
        readers = [(folder / "flink" / name / f"{number}.csv").open("wb") for number in range(2)]
        taken = 0
        for number in range(batches):
            n = events // 2
            times = np.sort(draw.integers(0, SPAN, n)) + START + number * SPAN + draw.integers(0, 500, n)
            of = draw.integers(0, SYMBOLS, n)
            if name == "quotes":
                _, kept = np.unique(times * SYMBOLS + of, return_index=True)
                times, of = times[np.sort(kept)], of[np.sort(kept)]
            values = (
                draw.integers(1, 1000, len(of))
                if name == "trades"
                else draw.integers(0, 10_000, len(of)) / 100
            )
            table = pa.table({"symbol": symbols[of], "at": times, "value": values})
            file = folder / "spark" / name / f"{number:03}.csv"
            pc.write_csv(table, file, options)
            os.utime(file, (number, number))
            for start in range(0, len(table), LINES):
                pc.write_csv(table.slice(start, LINES), readers[taken % 2], options)
                taken += 1
        for reader in readers:
            reader.close()


def joined(spark: SparkSession, folder: Path, batch: bool) -> DataFrame:
    """Return the join by `join_asof`, of a stream with a micro-batch for each file, or of a batch."""
    reader: Any = spark.read if batch else spark.readStream.option("maxFilesPerTrigger", 1)
    sides = [reader.schema(schema).csv(str(folder / "spark" / name)) for name, schema in SCHEMAS.items()]
    return timerheap.spark.join_asof(*sides, "symbol", "at", watermark="1 second")


def by_timerheap(spark: SparkSession, folder: Path, work: Path) -> Taken:
    """Return what the stream takes."""
    jvm = jvm_of(spark)
    before = cpu(jvm)
    writer = joined(spark, folder, batch=False).writeStream.option("checkpointLocation", str(work))
    query = writer.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    used = cpu(jvm).since(before)
    seconds = sum(one.durationMs["triggerExecution"] for one in query.recentProgress) / 1000
    return {"seconds": seconds, "jvm": used.jvm + used.others, "python": used.python}


def tables_of_flink(flink: Flink, folder: Path, delay: str) -> Any:
    """Return an environment with both tables."""
    tables = flink.environment()
    for name, column, more in (
        ("trades", "quantity BIGINT", ""),
        ("quotes", "price DOUBLE", ", PRIMARY KEY (symbol) NOT ENFORCED"),
    ):
        tables.executeSql(
            f"""CREATE TEMPORARY TABLE {name} (symbol STRING, ms BIGINT, {column},
            `at` AS TO_TIMESTAMP_LTZ(ms, 3),
            WATERMARK FOR `at` AS `at` - INTERVAL {delay}{more}) WITH ({files(folder / "flink" / name)})"""
        )
    return tables


def by_flink(flink: Flink, folder: Path) -> Taken:
    """Return what the job takes."""
    took = flink.insert(tables_of_flink(flink, folder, "'1' SECOND"), TEXT, None)
    return {"seconds": took.seconds, "jvm": took.cpu, "python": 0.0}


def differing(spark: SparkSession, flink: Flink, folder: Path, work: Path) -> int:
    """Return how many rows only one of the two has; Flink's watermark waits for the end, so none is late."""
    flink.insert(tables_of_flink(flink, folder, "'30' DAY"), TEXT, work)
    ours = joined(spark, folder, batch=True)
    theirs = spark.read.schema(ours.schema).option("recursiveFileLookup", True).csv(str(work))
    return ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="in a micro-batch, of both inputs")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    taken: dict[str, list[Taken]] = {"timerheap": [], "flink": []}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        folder, n = root / "data", options.events * options.batches
        write(folder, options.events, options.batches)
        flink = Flink(log=root / "flink.log")
        with spark_session(root / "spark.log", SETTINGS) as spark:
            for number in range(options.rounds + 1):  # the first warms both up
                taken["flink"].append(by_flink(flink, folder))
                taken["timerheap"].append(by_timerheap(spark, folder, root / f"checkpoint {number}"))
            figures = {name: median(each[1:]) for name, each in taken.items()}
            print(f"{'':12}{'rows/s':>12}{'JVM us/row':>12}{'Python us/row':>15}")
            for name, took in figures.items():
                jvm, python = (took[side] * 1e6 / n for side in ("jvm", "python"))
                print(f"{name:12}{n / took['seconds']:12,.0f}{jvm:12.2f}{python:15.2f}", flush=True)
            print(f"rows that differ: {differing(spark, flink, folder, root / 'flink rows')}", flush=True)
        flink.close()
    write_json(options, figures)


if __name__ == "__main__":
    main()
