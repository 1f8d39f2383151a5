"""Compare results that change with Flink: a join of two tables, a leaderboard, and queries of Nexmark.

$ python bench/changes_flink.py [--jobs join leaderboard q4 ...] [--columns heap timerheap ...] [--rounds N]

join: two tables of a million keys, of which a tenth is updated; each is the newest row of a stream by key
leaderboard: the ten players with the most points of each of 1,000 groups, of points that players win
q4, q9, q15 to q20: Nexmark, without windows and without what a watermark would allow

Both read the same rows from Parquet files and drop their results, on the same cores, and both have
checkpoints: Flink one at the start and every 10 s, Spark one after each micro-batch. Flink's state is on the
heap or in RocksDB, each without and with mini-batches. CPU is that of all processes of each, without the
compilers of the JVMs. Then each answers once more, and the tables at the end are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from nexmark import changes, compare, generator, streams
from nexmark import spark as on_spark
from nexmark.flink import CHECKPOINTS, COLUMNS, Flink, Run, files
from nexmark.parquet import parquet_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.spark import aggregate_changes, changes_of, join_changes, top_changes

OURS = "timerheap"
CHANGE_TYPE = "_change_type"
LINES = 20_000  # of a reader of Flink, before those of the other one
NAMES = {"int64": "BIGINT", "double": "DOUBLE", "string": "STRING"}
BATCHES = 4


@dataclass(frozen=True)
class Job:
    """A query over tables of its own: its changes, and the same in Flink's SQL."""

    name: str
    tables: dict[str, Callable[[int], Iterator[pa.Table]]]
    ours: Callable[[dict[str, DataFrame]], DataFrame]
    text: str


def upserted(seed: int, value: str) -> Callable[[int], Iterator[pa.Table]]:
    """Return what makes rows of `keys` keys, in an order of their own, and then a tenth of them again."""

    def tables(keys: int) -> Iterator[pa.Table]:
        draw = np.random.default_rng(seed)
        order = draw.permutation(keys)
        at = 0
        for part in [*np.array_split(order, BATCHES), *np.array_split(order[: keys // 10], BATCHES)]:
            values = draw.integers(0, 1_000_000, len(part)) / 100
            ms = np.arange(at, at + len(part))
            at += len(part)
            yield pa.table({"k": part, value: values, "ms": ms})

    return tables


def points(players: int) -> Iterator[pa.Table]:
    """Yield points of a hundredth of a million players each: twenty for each player on average."""
    draw, rows = np.random.default_rng(3), 20 * players
    for number in range(BATCHES):
        n = rows // BATCHES
        of = draw.integers(0, players, n)
        ms = np.arange(number * n, (number + 1) * n)
        yield pa.table({"g": of % 1_000, "player": of, "points": draw.integers(1, 100, n), "ms": ms})


NEWEST = """SELECT k, {0} FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY `at` DESC) AS place FROM {1}) WHERE place = 1"""

JOBS = {
    "join": Job(
        "join",
        {"lefts": upserted(1, "v"), "rights": upserted(2, "w")},
        lambda frames: join_changes(
            *(changes_of(frames[name], "k", "ms").drop("ms") for name in ("lefts", "rights")), "k"
        ),
        f"SELECT l.k, l.v, r.w FROM ({NEWEST.format('v', 'lefts')}) l "
        f"JOIN ({NEWEST.format('w', 'rights')}) r ON l.k = r.k",
    ),
    "leaderboard": Job(
        "leaderboard",
        {"won": points},
        lambda frames: top_changes(
            aggregate_changes(frames["won"], ["g", "player"], F.sum("points").alias("total")),
            "g",
            10,
            [F.desc("total"), F.asc("player")],
            number="place",
        ),
        """SELECT * FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY g ORDER BY total DESC, player) AS place
        FROM (SELECT g, player, SUM(points) AS total FROM won GROUP BY g, player)
        ) WHERE place <= 10""",
    ),
}
SIZES = {"join": 1_000_000, "leaderboard": 100_000}


def write(job: Job, folder: Path, size: int) -> int:
    """Write the tables twice: a file for each micro-batch of Spark, and one for each reader of Flink."""
    rows = 0
    for name, tables in job.tables.items():
        (folder / "spark" / name).mkdir(parents=True)
        (folder / "flink" / name).mkdir(parents=True)
        readers: list[pq.ParquetWriter] = []
        taken = 0
        for number, table in enumerate(tables(size)):
            file = folder / "spark" / name / f"{number:05}.parquet"
            pq.write_table(table, file, row_group_size=250_000)
            os.utime(file, (number, number))
            if not readers:
                into = folder / "flink" / name
                readers = [pq.ParquetWriter(into / f"{n}.parquet", table.schema) for n in range(2)]
            for start in range(0, len(table), LINES):
                readers[taken % 2].write_table(table.slice(start, LINES))
                taken += 1
            rows += len(table)
        for reader in readers:
            reader.close()
    return rows


@dataclass
class Bench:
    """Both engines, and the tables of a job or of Nexmark in a folder."""

    spark: SparkSession
    flink: Flink
    scratch: Path
    folder: Path
    name: str

    def frame(self, batch: bool = False) -> DataFrame:
        """Return the changes of the job, of streams with a micro-batch for each file, or of batches."""
        if self.name in changes.QUERIES:
            return changes.QUERIES[self.name](streams.events(self.spark, self.folder / "spark", batch))
        frames = {}
        for name in JOBS[self.name].tables:
            path = str(self.folder / "spark" / name)
            whole = self.spark.read.parquet(path)
            reader = self.spark.readStream.schema(whole.schema).option("maxFilesPerTrigger", 1)
            frames[name] = whole if batch else reader.parquet(path)
        return JOBS[self.name].ours(frames)

    def by_timerheap(self) -> Run:
        writer = self.frame().writeStream.option("checkpointLocation", str(self._work())).format("noop")
        return on_spark.run_writer(self.spark, writer)

    def by_flink(self, column: str) -> Run:
        if self.name in changes.QUERIES:
            return self.flink.run(self.name, self.folder, column=column)
        with tempfile.TemporaryDirectory() as scratch:
            checkpoints = Path(scratch, "checkpoints")
            checkpoints.mkdir()
            settings = CHECKPOINTS | {
                "execution.checkpointing.dir": checkpoints.as_uri(),
                "state.backend.rocksdb.localdir": str(Path(scratch, "states")),
            }
            tables = self._tables(self.flink.environment(settings=COLUMNS[column] | settings))
            return self.flink.insert(tables, JOBS[self.name].text, None, watched=Path(scratch))

    def _tables(self, tables: Any) -> Any:
        for name in JOBS[self.name].tables:
            schema = pq.read_schema(next((self.folder / "flink" / name).glob("*.parquet")))
            columns = ", ".join(f"{field.name} {NAMES[str(field.type)]}" for field in schema)
            tables.executeSql(
                f"""CREATE TEMPORARY TABLE {name} ({columns}, `at` AS TO_TIMESTAMP_LTZ(ms, 3),
                WATERMARK FOR `at` AS `at`) WITH ({files(self.folder / "flink" / name, "parquet")})"""
            )
        return tables

    def verdict(self) -> str:
        """Return whether the tables at the end are equal."""
        work = self._work()
        found = self._applied(work)
        if self.name in changes.QUERIES:
            self.flink.results(self.name, self.folder, work / "flink")
        else:
            tables = self._tables(self.flink.environment(batch=True))
            self.flink.insert(tables, JOBS[self.name].text, work / "flink")
        theirs = compare.flink_rows(self.spark, work / "flink", found)
        return "equal" if compare.equal(self.name, found, theirs) else "NOT EQUAL"

    def _applied(self, work: Path) -> DataFrame:
        """Run the query, and return the table that its changes make."""
        df = self.frame()
        rows, names = work / "rows", [name for name in df.columns if name != CHANGE_TYPE]

        def keep(some: DataFrame, number: int) -> None:
            some.write.mode("append").parquet(str(rows))

        writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", str(work / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        weight = F.when(F.col(CHANGE_TYPE).isin("insert", "update_postimage"), 1).otherwise(-1)
        every = self.spark.read.parquet(str(rows)).withColumn("weight", weight)
        net = every.groupBy(*names).agg(F.sum("weight").alias("weight")).where("weight <> 0")
        return net.withColumn("copy", F.explode(F.sequence(F.lit(1), "weight"))).select(*names)

    def _work(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))


def figures(runs: list[Run], rows: int) -> dict[str, Any]:
    """Return medians: rows a second, and CPU in us a row without compilers, with Python's part."""
    us = 1e6 / rows
    values = [(run.cpu - run.compilers) * us for run in runs]
    return {
        "rounds": len(runs),
        "rate": statistics.median(rows / run.seconds for run in runs),
        "cpu": statistics.median(values),
        "spread": [min(values), max(values)],
        "compilers": statistics.median(run.compilers * us for run in runs),
        "python": statistics.median(run.python * us for run in runs),
        "checkpoints": statistics.median(run.checkpoints for run in runs),
    }


def main() -> None:
    every = [*JOBS, *changes.QUERIES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", nargs="+", default=every, choices=every)
    parser.add_argument("--columns", nargs="+", default=[*COLUMNS, OURS], choices=[*COLUMNS, OURS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=float, default=1.0, help="by what to multiply the size of a job")
    parser.add_argument("--events", type=int, default=4_000_000, help="of Nexmark")
    parser.add_argument("--batch", type=int, default=500_000, help="events of Nexmark in a micro-batch")
    parser.add_argument("--unchecked", action="store_true", help="do not compare the tables")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        events = scratch / "events"
        if any(name in changes.QUERIES for name in options.jobs):
            generator.write(events, options.events, options.batch)
        flink = Flink(log=scratch / "flink.log", more=parquet_jars())
        with spark_session(scratch / "spark.log", on_spark.SETTINGS) as spark:
            print(
                f"CPU, us a row\n{'':12}{''.join(f'{column:>13}' for column in options.columns)}", flush=True
            )
            for name in options.jobs:
                folder, rows = events, options.events
                if name in JOBS:
                    folder = scratch / name
                    rows = write(JOBS[name], folder, round(SIZES[name] * options.size))
                bench = Bench(spark, flink, scratch, folder, name)
                runs: dict[str, list[Run]] = {column: [] for column in options.columns}
                for _ in range(options.rounds + 1):  # the first warms both up
                    for column in options.columns:
                        runs[column].append(
                            bench.by_timerheap() if column == OURS else bench.by_flink(column)
                        )
                taken = {column: figures(each[1:], rows) for column, each in runs.items()}
                found[name] = {"rows": rows, **taken}
                if not options.unchecked:
                    found[name]["table"] = bench.verdict()
                cells = "".join(f"{taken[column]['cpu']:13.2f}" for column in options.columns)
                print(f"{name:12}{cells}  {found[name].get('table', '')}", flush=True)
                write_json(options, {"jobs": found})
        flink.close()


if __name__ == "__main__":
    main()
