"""Every ratio to a peer that the documentation has, in one table, and a check that none got worse.

``make tables`` puts the table into the pages. ``make bench-check`` compares the files out/NAME.json with
those of bench/results/, and fails if timerheap takes more than 5 % more CPU beside a peer than there. A ratio
counts, not a figure, since both sides ran on the same machine in turn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from changes_table import means

RESULTS = Path(__file__).resolve().parent / "results"
WORSE = 1.05


@dataclass(frozen=True)
class Ratio:
    """What timerheap takes beside a peer: CPU by CPU, so less is better.

    file: the results that have both
    job, peer: what is compared, and with what
    goal: the most that it should be, None where there is no goal
    value: computes it from the figures, None where they do not have both
    """

    file: str
    job: str
    peer: str
    goal: float | None
    value: Callable[[dict[str, Any]], float | None]


def _cpu(found: dict[str, Any]) -> float:
    return float(found["cpu"] if "cpu" in found else found["jvm"] + found["python"])


def _of(*places: tuple[str, ...]) -> Callable[[dict[str, Any]], float | None]:
    """Return what divides the CPU at the first place by that at the second."""

    def value(figures: dict[str, Any]) -> float | None:
        found: list[float] = []
        for place in places:
            at: Any = figures
            for name in place:
                at = at.get(name)
                if at is None:
                    return None
            found.append(_cpu(at))
        return found[0] / found[1]

    return value


def _session(variant: str, base: str) -> Callable[[dict[str, Any]], float | None]:
    def value(figures: dict[str, Any]) -> float | None:
        both = [figures["variants"].get(name) for name in (variant, base)]
        if None in both:
            return None
        ours, theirs = (one["jvm_ns_a_row"] + one["python_ns_a_row"] for one in both)
        return float(ours / theirs)

    return value


def _kafka(variant: str, rate: int) -> Callable[[dict[str, Any]], float | None]:
    def value(figures: dict[str, Any]) -> float | None:
        both = []
        for name in (variant, "flink"):
            runs = [run for run in figures["runs"] if (run["variant"], run["rate"]) == (name, rate)]
            if not runs:
                return None
            used = [run["us_a_row"] for run in runs]
            both.append(median(one["jvm"] + (one["python"] or 0) for one in used))
        return both[0] / both[1]

    return value


def _mean_of(ours: str, theirs: str) -> Callable[[dict[str, Any]], float | None]:
    """Return the geometric mean of the ratios of jobs that have both sides."""

    def value(figures: dict[str, Any]) -> float | None:
        jobs = figures.get("jobs", figures).values()
        found = [_cpu(job[ours]) / _cpu(job[theirs]) for job in jobs if theirs in job]
        return geometric_mean(found) if found else None

    return value


def _nexmark(*sides: str) -> Callable[[dict[str, Any]], float | None]:
    def value(figures: dict[str, Any]) -> float | None:
        found = []
        for name, query in figures["queries"].items():
            theirs = [query[side]["cpu"] for side in sides if side in query]
            if name != "q0" and theirs and "timerheap" in query:
                found.append(query["timerheap"]["cpu"] / min(theirs))
        return geometric_mean(found) if found else None

    return value


def _patterns(peer: str) -> Callable[[dict[str, Any]], float | None]:
    def value(figures: dict[str, Any]) -> float | None:
        names = [name.removesuffix(", CSV") for name in figures if name.endswith(", CSV")]
        both = [(figures[f"{name}, CSV"], figures.get(f"{name}, {peer}")) for name in names]
        found = [_cpu(ours) / _cpu(theirs) for ours, theirs in both if theirs]
        return geometric_mean(found) if found else None

    return value


def _tight(figures: dict[str, Any]) -> float | None:
    """Return the ratio of cold keys with the least memory."""
    if "limits" not in figures.get("flink", {}):
        return None
    ours, theirs = figures["limits"][-1]["cold"], figures["flink"]["limits"][-1]["cold"]
    return float((ours["jvm"] + ours["python"]) / theirs["jvm"])


def _sink(figures: dict[str, Any]) -> float | None:
    runs = figures["runs"]
    rows = max(run["rows"] for run in runs)
    both = {run["sink"]: _cpu(run) for run in runs if run["rows"] == rows}
    return both["once"] / both["spark"]


def _peer(operation: str, peer: str) -> Callable[[dict[str, Any]], float | None]:
    """Return the ratio of an operation on the largest heap."""

    def value(figures: dict[str, Any]) -> float | None:
        groups = [one for one in figures["groups"] if operation in one["ours"] and peer in one["peers"]]
        if not groups:
            return None
        group = max(groups, key=lambda one: one["n"])
        return float(median(group["ours"][operation]) / median(group["peers"][peer]))

    return value


RATIOS = (
    Ratio(
        "session_20000",
        "session timers, row by row, 20,000 rows",
        "`transformWithStateInPandas`",
        None,
        _session("rows", "spark"),
    ),
    Ratio(
        "session_timeout",
        "session timers, vectorized, 1,000,000 rows",
        "packing alone",
        1 / 0.7,
        _session("columns", "no-op"),
    ),
    Ratio(
        "session_timeout",
        "session timers, row by row, 1,000,000 rows",
        "packing alone",
        1 / 0.55,
        _session("rows", "no-op"),
    ),
    Ratio(
        "nexmark",
        "Nexmark, 4,000,000 events, mean of the queries",
        "Flink, heap",
        0.45,
        _nexmark("heap", "heap-mini"),
    ),
    Ratio("nexmark", "the same", "Flink, RocksDB", None, _nexmark("rocksdb", "rocksdb-mini")),
    Ratio(
        "changes_flink",
        "results that change, mean of ten jobs",
        "Flink, heap",
        0.6,
        lambda figures: means(figures)[0],
    ),
    Ratio("changes_flink", "the same", "Flink, RocksDB", 0.35, lambda figures: means(figures)[1]),
    Ratio(
        "changes",
        "a count that is kept up to date",
        "`groupBy()` in update mode",
        0.8,
        _of(("update", "inserts, count"), ("update", "spark, count")),
    ),
    Ratio("windows", "windows, mean of the shapes", "Spark's own", None, _mean_of("timerheap", "spark")),
    Ratio(
        "asof_flink",
        "`join_asof` of a stream",
        "Flink's temporal join",
        None,
        _of(("timerheap",), ("flink",)),
    ),
    Ratio("over", "OVER on a batch", "Spark's own", None, _of(("batch", "timerheap"), ("batch", "spark"))),
    Ratio("patterns", "patterns, mean", "Flink SQL", None, _patterns("Flink")),
    Ratio(
        "processors",
        "stateful processors, mean of the jobs",
        "Spark's own operator",
        None,
        _mean_of("timerheap", "spark"),
    ),
    Ratio("kafka", "Kafka to Kafka, 1,000 rows a second", "Flink", None, _kafka("rows-arrival", 1000)),
    Ratio("kafka_real_time", "the same in real-time mode", "Flink", 2.5, _kafka("real-time-rows", 1000)),
    Ratio("kafka", "Kafka to Kafka, 10,000 rows a second", "Flink", None, _kafka("rows-arrival", 10000)),
    Ratio("kafka_real_time", "the same in real-time mode", "Flink", 2.5, _kafka("real-time-rows", 10000)),
    Ratio("kafka", "Kafka to Kafka, 100,000 rows a second", "Flink", None, _kafka("columns-arrival", 100000)),
    Ratio("kafka_sink", "`append_kafka`, 100,000 rows", "Spark's sink", None, _sink),
    Ratio("tight_memory", "cold keys with the least memory", "Flink, RocksDB", 1.5, _tight),
    Ratio(
        "peers", "push many timers, the largest heap", "Flink's own queue", None, _peer("push_many", "Flink")
    ),
    Ratio(
        "peers",
        "pop all that is due, the same",
        "Flink's own queue",
        None,
        _peer("pop_due, all due", "Flink"),
    ),
)


def ratios(folder: Path = RESULTS) -> Iterator[tuple[Ratio, float]]:
    """Yield the ratios whose files a folder has, and their values."""
    for ratio in RATIOS:
        file = folder / f"{ratio.file}.json"
        if file.exists():
            value = ratio.value(json.loads(file.read_text())["figures"])
            if value is not None:
                yield ratio, value


def summary(folder: Path = RESULTS) -> str:
    """Return the table of all ratios, with their goals."""
    lines = ["| | beside | CPU | goal | |", "|---|---|---|---|---|"]
    for ratio, value in ratios(folder):
        goal = "" if ratio.goal is None else f"{ratio.goal:.2f}x"
        missed = "missed" if ratio.goal is not None and value > ratio.goal else ""
        lines.append(f"| {ratio.job} | {ratio.peer} | {value:.2f}x | {goal} | {missed} |")
    return "\n".join(lines)


def size(ratio: Ratio, folder: Path) -> dict[str, Any]:
    """Return how many rows the runs of a folder had: a start weighs less where they are more."""
    arguments = json.loads((folder / f"{ratio.file}.json").read_text()).get("about", {}).get("arguments", {})
    return {name: arguments[name] for name in ("events", "rows") if name in arguments}


def worse(before: Path, after: Path) -> list[str]:
    """Return a line for each ratio that is more than 5 % above what it was, with as many rows."""
    known = dict(ratios(before))
    return [
        f"{ratio.job}, beside {ratio.peer}: {known[ratio]:.2f}x before, {value:.2f}x now"
        for ratio, value in ratios(after)
        if ratio in known and size(ratio, before) == size(ratio, after) and value > WORSE * known[ratio]
    ]


def main() -> None:
    after = Path(sys.argv[1])
    print(summary(after))
    for ratio, _ in ratios(after):
        if (RESULTS / f"{ratio.file}.json").exists() and size(ratio, RESULTS) != size(ratio, after):
            print(f"not compared, since bench/results has {size(ratio, RESULTS)}: {ratio.job}")
    if found := worse(RESULTS, after):
        sys.exit("\n".join(["", "more CPU beside a peer than in bench/results:", *found]))


if __name__ == "__main__":
    main()
