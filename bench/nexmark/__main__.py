"""Nexmark on Flink, Spark and timerheap: events per second, CPU per event, and whether rows are equal.

$ make bench-nexmark ARGS="--events 200000 [--queries q5 q7] [--columns heap timerheap] [--rounds 3]"

Flink has four columns: its state on the heap or in RocksDB, without or with mini-batches. A query that keeps
no state on Flink has only the first, and one of windows has those without mini-batches, which change nothing.
The column timerheap has plain Spark where a query needs no more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession

from nexmark import compare, generator, streams
from nexmark import spark as on_spark
from nexmark.flink import COLUMNS, MINI, Flink
from nexmark.parquet import parquet_jars
from nexmark.plans import Plans, collects, keeps_state
from nexmark.texts import QUERIES as TEXTS

SPARK, OURS = "spark", "timerheap"
WARM_UP = 200_000  # events


class Bench:
    """Both engines and the files, in a folder of their own."""

    def __init__(
        self, spark: SparkSession, flink: Flink, directory: Path, scratch: Path, plans: Plans
    ) -> None:
        self.spark, self.flink, self.directory, self.scratch = spark, flink, directory, scratch
        self.plans = plans

    def columns(self, name: str, wanted: list[str]) -> list[str]:
        """Return the columns that a query has; a second engine of Spark's only if it is not ours."""
        found = []
        if name in TEXTS and name != "q6":
            on_flink = [column for column in COLUMNS if column in wanted]
            plan = self.flink.plan(name, self.directory)
            if not collects(plan):
                on_flink = [column for column in on_flink if column not in MINI]
            found += on_flink if keeps_state(plan) else on_flink[:1]
        if name in on_spark.SPARK and name in on_spark.TIMERHEAP and SPARK in wanted:
            found.append(SPARK)
        return found + [OURS] * (OURS in wanted)

    def measure(self, name: str, column: str) -> Any:
        """Run a query once in a column, and check its plan."""
        sink = self._sink(name)
        if column in COLUMNS:
            plan = self.flink.plan(name, self.directory, column)
            self.plans.check(name, "flink, mini-batch" if column in MINI else "flink", plan)
            return self.flink.run(name, self.directory, sink, column)
        query = on_spark.SPARK[name] if column == SPARK else on_spark.QUERIES[name]
        run = on_spark.run(self.spark, query, self.directory, self._work(), sink)
        self.plans.check(name, column, run.plan)
        return run

    def verdict(self, name: str) -> str:
        """Run a query for its rows on Flink, and on timerheap or Spark; say whether they are equal."""
        work = self._work()
        rows = on_spark.results(self.spark, on_spark.QUERIES[name], self.directory, work)
        ours = compare.final(name, rows)
        source, like = ("q9", self._won()) if name == "q6" else (name, ours)
        self.flink.results(source, self.directory, work / "flink")
        theirs = compare.flink_rows(self.spark, work / "flink", like)
        if name == "q6":
            theirs = self.spark.createDataFrame(compare.model_of_q6(theirs), ours.schema)
        events = streams.events(self.spark, self.directory / "spark", batch=True)
        same = compare.equal(name, ours, theirs) and not compare.invented(name, ours, events)
        return "equal" if same else "NOT EQUAL"

    def _won(self) -> Any:
        return on_spark.QUERIES["q9"](streams.events(self.spark, self.directory / "spark", batch=True))

    def _work(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def _sink(self, name: str) -> Path | None:
        return self._work() / "files" if name == "q10" else None


def figures(runs: list[Any], few: Any | None, events: int) -> dict[str, Any]:
    """Return medians over the rounds: events per second, and CPU in us per event, of which some is compiling.

    `cpu` is without the compilers of the JVM; `spread` has its smallest and its largest value. `beyond` is
    the CPU of each event beyond those of the run `few`, so without what the start of a query takes.
    """
    us = 1e6 / events
    values = [(run.cpu - run.compilers) * us for run in runs]
    beyond = {}
    if few is not None and events > WARM_UP:
        spent = statistics.median(values) / us - few.cpu + few.compilers
        beyond = {"beyond": spent * 1e6 / (events - WARM_UP)}
    return beyond | {
        "rounds": len(runs),
        "rate": statistics.median(events / run.seconds for run in runs),
        "cpu": statistics.median(values),
        "spread": [min(values), max(values)],
        "compilers": statistics.median(run.compilers * us for run in runs),
        "python": statistics.median(run.python * us for run in runs),
        "checkpoints": statistics.median(run.checkpoints for run in runs),
    }


def measured(
    bench: Bench, warming: Bench, name: str, columns: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of a query by column, which take turns, after a run of each on few events."""
    try:
        columns = bench.columns(name, columns)
        for column in columns:
            warming.measure(name, column)
        runs: dict[str, list[Any]] = {column: [] for column in columns}
        for number in range(options.rounds):
            for column in columns:
                if number == 0 or column not in options.once:
                    runs[column].append(bench.measure(name, column))
        # Last, when the JVM has compiled what it will: else a start would seem to take more than it does.
        few = {column: warming.measure(name, column) for column in columns if column in ("heap", OURS)}
        few |= {"heap-mini": few["heap"]} if "heap" in few else {}
    except Exception as error:
        return {"failed": str(error).splitlines()[0]}
    found = {column: figures(of, few.get(column), options.events) for column, of in runs.items() if of}
    return {"events": options.events, **found}


def verdict(bench: Bench, name: str) -> str:
    """Return whether the rows are equal, or what has failed."""
    try:
        return bench.verdict(name)
    except Exception as error:
        return f"failed: {str(error).splitlines()[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = [*COLUMNS, SPARK, OURS]
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=2_000_000, help="events in a micro-batch of Spark")
    parser.add_argument("--rounds", type=int, default=3, help="0 only compares the rows")
    parser.add_argument("--queries", nargs="+", default=on_spark.NAMES, choices=on_spark.NAMES)
    parser.add_argument("--columns", nargs="+", default=everything, choices=everything)
    parser.add_argument("--once", nargs="*", default=[], help="columns that run in the first round only")
    parser.add_argument("--unchecked", action="store_true", help="do not compare the rows")
    parser.add_argument("--record", action="store_true", help="record the plans instead of checking them")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which are used again")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--add", action="store_true", help="keep the other queries of that file")
    options = parser.parse_args()
    columns = [column for column in everything if column in options.columns]
    all_figures: dict[str, Any] = {}
    all_figures["queries"] = (
        json.loads(options.json.read_text())["figures"]["queries"]
        if options.add and options.json.exists()
        else {}
    )
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        directory = (options.keep or scratch) / f"events-{options.events}-{options.batch}"
        if not directory.exists():
            generator.write(directory, options.events, options.batch)
        small = scratch / "small"
        generator.write(small, WARM_UP, WARM_UP)
        flink = Flink(log=scratch / "flink.log", more=parquet_jars())
        with spark_session(scratch / "spark.log", on_spark.SETTINGS) as spark:
            plans = Plans(options.record)
            bench = Bench(spark, flink, directory, scratch, plans)
            warming = Bench(spark, flink, small, scratch, plans)
            print(f"CPU, us an event\n{'':5}{''.join(f'{column:>13}' for column in columns)}", flush=True)
            for name in options.queries:
                found = measured(bench, warming, name, columns, options)
                if not options.unchecked:
                    found["rows"] = verdict(bench, name)
                cells = (f"{found[one]['cpu']:13.2f}" if one in found else f"{'-':>13}" for one in columns)
                print(f"{name:5}{''.join(cells)}  {found.get('failed', found.get('rows', ''))}", flush=True)
                all_figures["queries"][name] = found
                write_json(options, all_figures)
                for used in scratch.glob("tmp*"):
                    shutil.rmtree(used)
        flink.close()


if __name__ == "__main__":
    main()
