"""MATCH_RECOGNIZE on a batch: rows per second end to end.

$ python bench/patterns.py [--rows N] [--keys N] [--rounds N] [--json FILE]

Amounts and events of many keys in one Parquet file, and four patterns: three rising payments and a fall
within an hour, a V of an amount, A B+ C, and an A that no B follows. Spark reads the file, and drops the
matches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession

import timerheap.spark

HOUR = 3_600_000
QUERIES = {
    "fraud": """MEASURES A.ts AS start, LAST(amount) AS last PATTERN (A B B C) WITHIN INTERVAL '1' HOUR
        DEFINE B AS amount > PREV(amount), C AS amount < A.amount""",
    "V": """MEASURES A.ts AS start, LAST(DOWN.amount) AS low, LAST(UP.amount) AS high
        PATTERN (A DOWN+ UP+) WITHIN INTERVAL '1' HOUR
        DEFINE DOWN AS amount < PREV(amount), UP AS amount > PREV(amount)""",
    "A B+ C": """MEASURES A.ts AS start, COUNT(B.*) AS n PATTERN (A B+ C) WITHIN INTERVAL '1' HOUR
        DEFINE A AS kind = 0, B AS kind = 1, C AS kind = 2""",
    "silence": """MEASURES A.ts AS start PATTERN (A N*) WITHIN INTERVAL '10' MINUTE
        DEFINE A AS kind = 0, N AS kind <> 1""",
}


def write(file: Path, rows: int, keys: int) -> None:
    """Write a day of rows."""
    draw = np.random.default_rng(7)
    times = np.sort(draw.integers(0, 24 * HOUR, rows))
    columns = {
        "k": draw.integers(0, keys, rows),
        "ts": pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
        "amount": np.round(draw.random(rows) * 100, 2),
        "kind": draw.integers(0, 4, rows),
    }
    pq.write_table(pa.table(columns), file, row_group_size=250_000)


def run(spark: SparkSession, clause: str) -> float:
    """Return the seconds of one query, whose matches are dropped."""
    query = f"SELECT * FROM rows MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clause})"
    began = time.perf_counter()
    timerheap.spark.sql(spark, query).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.parquet"
        write(file, args.rows, args.keys)
        found = {}
        with spark_session(Path(folder) / "spark.log") as spark:
            spark.read.parquet(str(file)).createOrReplaceTempView("rows")
            for name, clause in QUERIES.items():
                seconds = [run(spark, clause) for _ in range(args.rounds + 1)][1:]  # the first one compiles
                found[name] = args.rows / statistics.median(seconds)
                print(f"{name:10} {found[name]:>12,.0f} rows/s, load {os.getloadavg()[0]:.1f}", flush=True)
        write_json(args.json, found)


if __name__ == "__main__":
    main()
