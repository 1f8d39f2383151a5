"""MATCH_RECOGNIZE on a batch: rows per second end to end, and CPU time a row, beside Flink and process().

$ python bench/patterns.py [--rows N] [--keys N] [--rounds N] [--flink] [--json FILE]

Amounts and events of many keys, and four patterns: three rising payments and a fall within an hour, a V of
an amount, A B+ C, and an A that no B follows. Spark reads a Parquet file, and drops the matches; the last
pattern is also written as a process function. With --flink, Flink's SQL and timerheap read the same lines of
CSV, on the same cores; CPU is that of all processes of each. Flink has no PREV and no greedy end: it looks at
the row before in the match, which is the same, and for both the V ends with its first rise. Fraud and silence
are also a KeyedProcessFunction in Java (peers/FlinkPatterns.java), which needs a JDK; it takes rows as they
come, and does not sort them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from nexmark.flink import CACHE, Flink, files
from peers.flink import fetch, find_jdk
from pyspark.sql import DataFrame, Row, SparkSession
from three_ways import Taken, median, spent
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import KeyedProcessFunction, ValueStateDescriptor

HOUR = 3_600_000
SCHEMA = "k bigint, ms bigint, amount double, kind int"
PAST = "AFTER MATCH SKIP PAST LAST ROW"  # not the default of Flink
FRAUD = f"""MEASURES A.ts AS began, LAST(amount) AS ended {PAST}
    PATTERN (A B{{2}} C) WITHIN INTERVAL '1' HOUR
    DEFINE B AS amount > %s, C AS amount < A.amount"""
VEE = f"""MEASURES A.ts AS began, LAST(DOWN.amount) AS low, LAST(UP.amount) AS high
    {PAST} PATTERN (A DOWN+ UP%s) WITHIN INTERVAL '1' HOUR
    DEFINE DOWN AS amount < %s, UP AS amount > %s"""
ABC = f"""MEASURES A.ts AS began, COUNT(B.kind) AS n {PAST}
    PATTERN (A B+ C) WITHIN INTERVAL '1' HOUR DEFINE A AS kind = 0, B AS kind = 1, C AS kind = 2"""
PREV, BEFORE = "PREV(amount)", "LAST(amount, 1)"
QUERIES = {
    "fraud": FRAUD % PREV,
    "V": VEE % ("+", PREV, PREV),
    "A B+ C": ABC,
    "silence": """MEASURES A.ts AS began PATTERN (A N*) WITHIN INTERVAL '10' MINUTE
        DEFINE A AS kind = 0, N AS kind <> 1""",
}
BESIDE = {  # ours, and Flink's
    "fraud": (FRAUD % PREV, FRAUD % BEFORE),
    "V": (VEE % ("", PREV, PREV), VEE % ("", BEFORE, BEFORE)),
    "A B+ C": (ABC, ABC),
    "silence": (QUERIES["silence"], None),
}
JAVA = Path(__file__).with_name("peers") / "FlinkPatterns.java"


def write(folder: Path, rows: int, keys: int) -> None:
    """Write a day of rows, as Parquet and as CSV."""
    draw = np.random.default_rng(7)
    table = pa.table({
        "k": draw.integers(0, keys, rows),
        "ms": np.sort(draw.integers(0, 24 * HOUR, rows)),
        "amount": np.round(draw.random(rows) * 100, 2),
        "kind": draw.integers(0, 4, rows).astype(np.int32),
    })  # fmt: skip
    pq.write_table(table, folder / "rows.parquet", row_group_size=250_000)
    pc.write_csv(table, folder / "rows.csv", pc.WriteOptions(include_header=False))


class Silence(KeyedProcessFunction):
    """The pattern of the same name: of each A, until a B comes or ten minutes have passed."""

    output_schema = "k bigint, start bigint"

    def open(self, runtime_context: Any) -> None:
        self._start = runtime_context.get_state(ValueStateDescriptor("start", "long"))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        """Begin with an A, end with a B."""
        start = self._start.value()
        if start is None:
            if value.kind == 0:
                self._start.update(ctx.timestamp())
                ctx.timer_service().register_event_time_timer(ctx.timestamp() + HOUR // 6 - 1)
        elif value.kind == 1:
            ctx.timer_service().delete_event_time_timer(start + HOUR // 6 - 1)
            yield from self._end(value.k)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[int, int]]:
        """End after ten minutes."""
        yield from self._end(ctx.get_current_key())

    def _end(self, key: int) -> Iterator[tuple[int, int]]:
        yield key, self._start.value()
        self._start.clear()


def dropped(df: DataFrame) -> Callable[[], None]:
    """Return an action that computes rows and drops them."""
    return df.write.format("noop").mode("overwrite").save


def matches(spark: SparkSession, clause: str, table: str = "rows") -> DataFrame:
    """Return the matches of a clause."""
    query = f"SELECT * FROM {table} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clause}) AS m"
    return timerheap.spark.sql(spark, query)


def compiled(folder: Path) -> Path:
    """Compile the functions in Java, into a folder that goes to the classpath."""
    jdk = find_jdk()
    if jdk is None:
        raise RuntimeError("the functions in Java need a JDK to compile them: install openjdk-17-jdk")
    folder.mkdir()
    jars = os.pathsep.join(map(str, fetch(CACHE).parent.glob("*.jar")))
    subprocess.run([jdk / "javac", "-nowarn", "-cp", jars, "-d", folder, JAVA], check=True)
    return folder


def java_job(flink: Flink, file: Path, pattern: str) -> Taken:
    """Return what Flink takes for a KeyedProcessFunction."""
    java = flink.process.pid
    before = cpu(java)
    took, matches = flink.gateway.jvm.FlinkPatterns.run(str(file), pattern)
    print(f"{pattern}: {matches:,} matches", file=sys.stderr)
    return {"seconds": took / 1000, "jvm": sum(cpu(java).since(before)), "python": 0.0}


def flink_job(flink: Flink, file: Path, clause: str) -> Taken:
    """Return what Flink takes."""
    tables = flink.environment()
    tables.executeSql(
        f"""CREATE TEMPORARY TABLE `rows` (k BIGINT, ms BIGINT, amount DOUBLE, kind INT,
        ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND) WITH ({files(file)})"""
    )
    query = f"SELECT * FROM `rows` MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clause}) AS m"
    took = flink.insert(tables, query, None)
    return {"seconds": took.seconds, "jvm": took.cpu, "python": 0.0}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flink", action="store_true", help="run Flink's SQL beside it, on CSV")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Taken] = {}

    def measure(name: str, action: Callable[[], Taken]) -> None:
        found[name] = took = median([action() for _ in range(args.rounds + 1)][1:])  # the first one compiles
        jvm, python = (took[side] * 1e6 / args.rows for side in ("jvm", "python"))
        rate, load = args.rows / took["seconds"], os.getloadavg()[0]
        print(f"{name:24}{rate:12,.0f}{jvm:10.2f}{python:10.2f}{load:8.1f}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, args.rows, args.keys)
        print(f"{'':24}{'rows/s':>12}{'JVM us':>10}{'Python us':>10}{'load':>8}")
        with spark_session(folder / "spark.log") as spark:
            jvm = jvm_of(spark)
            with_time = "*", "timestamp_millis(ms) AS ts"
            rows = spark.read.parquet(str(folder / "rows.parquet")).selectExpr(*with_time)
            rows.createOrReplaceTempView("rows")
            lines = spark.read.schema(SCHEMA).csv(str(folder / "rows.csv")).selectExpr(*with_time)
            lines.createOrReplaceTempView("lines")
            for name, clause in QUERIES.items():
                measure(name, lambda clause=clause: spent(dropped(matches(spark, clause)), jvm))
            silences = timerheap.spark.process(
                rows,
                key="k",
                function=Silence(),
                output_schema=Silence.output_schema,
                event_time="ts",
                watermark="1 second",
            )
            measure("silence, process()", lambda: spent(dropped(silences), jvm))
            if args.flink:
                flink = Flink(log=folder / "flink.log", more=[compiled(folder / "classes")])
                for name, (ours, theirs) in BESIDE.items():
                    action = lambda clause=ours: spent(dropped(matches(spark, clause, "lines")), jvm)  # noqa: E731
                    measure(f"{name}, CSV", action)
                    if theirs is not None:
                        measure(
                            f"{name}, Flink",
                            lambda clause=theirs: flink_job(flink, folder / "rows.csv", clause),
                        )
                for name in ("fraud", "silence"):
                    found_here = matches(spark, QUERIES[name], "lines").count()
                    print(f"{name}: {found_here:,} matches", file=sys.stderr)
                    measure(f"{name}, Java", lambda name=name: java_job(flink, folder / "rows.csv", name))
                flink.close()
    write_json(args, found)


if __name__ == "__main__":
    main()
