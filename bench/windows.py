"""Compare TUMBLE and HOP on a stream with Spark's own window(), in rows per second end to end.

$ python bench/windows.py [--events N] [--batches N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy
from timerheap._demo.replay import spark_session

KEYS, SPAN = 100, 2 * 3_600_000  # event time over all batches, ms
MINUTE = 60_000
SHAPES = {  # slide and size
    "HOP 1 h / 10 s": (10_000, 60 * MINUTE),
    "HOP 1 h / 10 min": (10 * MINUTE, 60 * MINUTE),
    "TUMBLE 1 min": (MINUTE, MINUTE),
}
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


def by_timerheap(slide: int, size: int, local: str) -> Callable[[DataFrame], DataFrame]:
    """Return the query with timerheap's windows."""

    def query(df: DataFrame) -> DataFrame:
        options: dict[str, Any] = {"watermark": WATERMARK, "local": local, "max_parallelism": 8}
        if slide == size:
            windows = timerheap.spark.tumble(df, "at", size, **options)
        else:
            windows = timerheap.spark.hop(df, "at", slide, size, **options)
        return windows.group_by("key").agg(F.count("*").alias("n")).select("key", "window_start", "n")

    return query


def variants(slide: int, size: int) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Return the variants, which take turns."""
    ours = {local: by_timerheap(slide, size, local) for local in ("jvm", "arrow")}
    return {"spark": by_spark(slide, size)} | ours


def run(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame], schema: str, data: Path, work: Path
) -> float:
    """Run a query and return the median seconds of a micro-batch with rows, without the first."""
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(data))
    writer = query(df).writeStream.option("checkpointLocation", str(work / "checkpoint"))
    stream = writer.trigger(availableNow=True).start(str(work / "sink"), format="parquet")
    stream.awaitTermination()
    full = [batch for batch in stream.recentProgress if batch.numInputRows]
    took = [batch.durationMs["triggerExecution"] / 1000 for batch in full]
    return statistics.median(took[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="in a micro-batch")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        schema = write(root / "data", options.events, options.batches)
        with spark_session(root / "spark.log") as spark:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1_000_000)
            names = ("spark", "jvm", "arrow", "jvm/spark", "arrow/spark")
            print(f"{'rows/s':18}" + "".join(f"{name:>12}" for name in names), flush=True)
            for name, query in variants(10 * MINUTE, 60 * MINUTE).items():
                run(spark, query, schema, root / "data", root / f"warm-up {name}")
            for shape, (slide, size) in SHAPES.items():
                rates, results = {}, []
                for name, query in variants(slide, size).items():
                    work = root / f"{shape} {name}".replace("/", "of")
                    rates[name] = options.events / run(spark, query, schema, root / "data", work)
                    results.append(spark.read.parquet(str(work / "sink")))
                for result in results[1:]:
                    # Spark's watermark is one batch behind, so Spark may emit fewer windows, but equal ones.
                    assert not min(result.exceptAll(results[0]).count(), results[0].exceptAll(result).count())
                figures[shape] = rates
                print(
                    f"{shape:18}"
                    + "".join(f"{rate:12,.0f}" for rate in rates.values())
                    + "".join(f"{rates[local] / rates['spark']:11.1f}x" for local in ("jvm", "arrow")),
                    flush=True,
                )
    if options.json:
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
