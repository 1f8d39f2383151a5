"""Compare TUMBLE and HOP on a stream with Spark's own window(), in rows per second end to end.

$ python bench/windows.py [--events N] [--batches N] [--json FILE]

The queries of a shape run in one session and take turns, batch by batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from three_ways import Taken, median
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import WatermarkStrategy

KEYS, SPAN = 100, 2 * 3_600_000  # event time over all batches, ms
MINUTE = 60_000
SHAPES = {  # slide and size
    "HOP 1 h / 10 s": (10_000, 60 * MINUTE),
    "HOP 1 h / 10 min": (10 * MINUTE, 60 * MINUTE),
    "TUMBLE 1 min": (MINUTE, MINUTE),
}
SETTINGS = {  # no limit: Spark computes the size of an Arrow batch anew after each row
    "spark.sql.execution.arrow.maxBytesPerBatch": (1 << 31) - 1
}
WARM_UP = "warm-up"
WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(1_000)


def write(folder: Path, events: int, batches: int) -> str:
    """Write the input and return its schema."""
    draw = np.random.default_rng(7)
    folder.mkdir()
    times = np.sort(draw.integers(0, SPAN, events * batches)) + 1_700_000_000_000
    keys = pa.array(draw.integers(0, KEYS, events * batches)).cast(pa.string())
    table = pa.table({"key": keys, "at": pa.array(times * 1000).cast(pa.timestamp("us", "UTC"))})
    for number in range(batches):
        file = folder / f"{number:03}.parquet"
        pq.write_table(table.slice(number * events, events), file)
        os.utime(file, (number, number))
    return "key string, at timestamp"


def by_spark(slide: int, size: int) -> Callable[[DataFrame], DataFrame]:
    """Return the query with Spark's own windows."""

    def query(df: DataFrame) -> DataFrame:
        window = F.window("at", f"{size} milliseconds", f"{slide} milliseconds").alias("w")
        counted = df.withWatermark("at", "1 second").groupBy("key", window).agg(F.count("*").alias("n"))
        return counted.select("key", F.col("w.start").alias("window_start"), "n")

    return query


def by_timerheap(slide: int, size: int) -> Callable[[DataFrame], DataFrame]:
    """Return the query with timerheap's windows."""

    def query(df: DataFrame) -> DataFrame:
        options: dict[str, Any] = {"watermark": WATERMARK, "max_parallelism": 8}
        if slide == size:
            windows = timerheap.spark.tumble(df, "at", size=size, **options)
        else:
            windows = timerheap.spark.hop(df, "at", slide=slide, size=size, **options)
        return windows.groupBy("key").agg(F.count("*").alias("n")).select("key", "window_start", "n")

    return query


def variants(slide: int, size: int) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return the variants, which take turns.

    The warm-up starts the Python workers that have ended while Spark's own windows took over a minute.
    """
    ours = by_timerheap(slide, size)
    return {"spark": by_spark(slide, size), WARM_UP: ours, "timerheap": ours}


def run(spark: SparkSession, slide: int, size: int, schema: str, data: Path, work: Path) -> dict[str, Taken]:
    """Run all variants in turn, micro-batch by micro-batch; return the medians of each without the first."""
    jvm = jvm_of(spark)
    queries, taken = {}, {}
    for name, query in variants(slide, size).items():
        source = work / name / "source"
        source.mkdir(parents=True)
        df = query(spark.readStream.schema(schema).parquet(str(source)))
        writer = df.writeStream.option("checkpointLocation", str(work / name / "checkpoint"))
        queries[name], taken[name] = writer.start(str(work / name / "sink"), format="parquet"), []
    for file in sorted(data.iterdir()):
        for name, running in queries.items():
            before = cpu(jvm)
            os.link(file, work / name / "source" / file.name)
            running.processAllAvailable()
            spent = cpu(jvm).since(before)
            batch = [one for one in running.recentProgress if one.numInputRows][-1]
            seconds = batch.durationMs["triggerExecution"] / 1000
            taken[name].append({"seconds": seconds, "jvm": spent.jvm, "python": spent.python})
    for running in queries.values():
        running.stop()
    return {name: median(batches[1:]) for name, batches in taken.items() if name != WARM_UP}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="in a micro-batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, Taken]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        schema = write(root / "data", options.events, options.batches)
        with spark_session(root / "spark.log", SETTINGS) as spark:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            print(f"{'':18}{'':10}{'rows/s':>12}{'/ spark':>9}{'JVM ns/row':>12}{'Python ns/row':>15}")
            run(spark, 10 * MINUTE, 60 * MINUTE, schema, root / "data", root / "warm-up")
            for shape, (slide, size) in SHAPES.items():
                work = root / shape.replace("/", "of")
                figures[shape] = run(spark, slide, size, schema, root / "data", work)
                spark_seconds = figures[shape]["spark"]["seconds"]
                results = [spark.read.parquet(str(work / name / "sink")) for name in figures[shape]]
                for result in results[1:]:
                    # Spark's watermark is one batch behind, so Spark may emit fewer windows, but equal ones.
                    assert not min(result.exceptAll(results[0]).count(), results[0].exceptAll(result).count())
                for name, took in figures[shape].items():
                    rate = f"{options.events / took['seconds']:12,.0f}{spark_seconds / took['seconds']:8.2f}x"
                    spent = [took[side] * 1e9 / options.events for side in ("jvm", "python")]
                    print(f"{shape:18}{name:10}{rate}{spent[0]:12,.0f}{spent[1]:15,.0f}", flush=True)
    write_json(options, figures)


if __name__ == "__main__":
    main()
