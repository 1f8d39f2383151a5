"""Nexmark on Flink, Spark and timerheap: events per second, CPU per event, and whether rows are equal.

$ make bench-nexmark ARGS="--events 200000 [--queries q5 q7] [--rounds 3] [--json FILE]"
"""

from __future__ import annotations

import argparse
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
from nexmark.flink import QUERIES as FLINK_QUERIES
from nexmark.flink import Flink

ENGINES = ("flink", "spark", "timerheap")


class Bench:
    """Both engines and the files, in a folder of their own."""

    def __init__(self, spark: SparkSession, flink: Flink, directory: Path, scratch: Path) -> None:
        self.spark, self.flink, self.directory, self.scratch = spark, flink, directory, scratch

    def measure(self, name: str) -> dict[str, Any]:
        """Run a query once on each engine that has it."""
        took: dict[str, Any] = {}
        if name in FLINK_QUERIES:
            took["flink"] = self.flink.run(name, self.directory, self._sink(name))
        for engine, queries in (("spark", on_spark.SPARK), ("timerheap", on_spark.TIMERHEAP)):
            if name in queries:
                work = self._work()
                took[engine] = on_spark.run(self.spark, queries[name], self.directory, work, self._sink(name))
        return took

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


def figures(rounds: list[dict[str, Any]], events: int) -> dict[str, dict[str, float]]:
    """Return the medians over the rounds, for each engine: events per second, and CPU in us per event."""
    found = {}
    for engine in rounds[0]:
        runs = [one[engine] for one in rounds]
        took = {"rate": statistics.median(events / run.seconds for run in runs)}
        for name in ("cpu", "python"):
            took[name] = statistics.median(getattr(run, name) * 1e6 / events for run in runs)
        found[engine] = took
    return found


def line(name: str, found: dict[str, dict[str, float]], verdict: str) -> str:
    """Return a line of the table; timerheap's column is Spark's where a query is plain Spark."""
    found = {"timerheap": found.get("spark", {}), **found}
    cells = [f"{found[engine]['rate']:11,.0f}" if found.get(engine) else f"{'-':>11}" for engine in ENGINES]
    cells += [f"{found[engine]['cpu']:11.2f}" if found.get(engine) else f"{'-':>11}" for engine in ENGINES]
    ratio = (
        f"{found['timerheap']['cpu'] / found['flink']['cpu']:8.2f}x" if found.get("flink") else f"{'-':>9}"
    )
    python = f"{found['timerheap']['python']:9.2f}" if found["timerheap"] else f"{'-':>9}"
    return f"{name:4}{''.join(cells)}{python}{ratio}  {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1_000_000, help="events in a micro-batch of Spark")
    parser.add_argument("--rounds", type=int, default=3, help="0 only compares the rows")
    parser.add_argument("--queries", nargs="+", default=on_spark.NAMES, choices=on_spark.NAMES)
    parser.add_argument("--unchecked", action="store_true", help="do not compare the rows")
    parser.add_argument("--keep", type=Path, help="a folder for the files, which are used again")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    all_figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        directory = (options.keep or scratch) / f"events-{options.events}-{options.batch}"
        if not directory.exists():
            generator.write(directory, options.events, options.batch)
        flink = Flink(log=scratch / "flink.log")
        with spark_session(scratch / "spark.log", on_spark.SETTINGS) as spark:
            bench = Bench(spark, flink, directory, scratch)
            if options.rounds:
                bench.measure("q0")  # warms both up
            print(f"{'':4}{'events per second':>33}{'CPU us per event':>33}{'of it':>9}{'CPU':>9}")
            print(f"{'':4}{''.join(f'{engine:>11}' for engine in ENGINES) * 2}{'Python':>9}{'/ Flink':>9}")
            for name in options.queries:
                try:
                    found = figures(
                        [bench.measure(name) for _ in range(options.rounds)] or [{}], options.events
                    )
                    verdict = "" if options.unchecked else bench.verdict(name)
                except Exception as error:
                    found, verdict = {}, f"failed: {str(error).splitlines()[0]}"
                all_figures[name] = {**found, "rows": verdict}
                print(line(name, found, verdict), flush=True)
                for used in scratch.glob("tmp*"):
                    shutil.rmtree(used)
        flink.close()
    write_json(options.json, all_figures)


if __name__ == "__main__":
    main()
