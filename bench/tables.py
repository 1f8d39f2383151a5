"""Writes tables of docs/performance.md from the figures of benchmarks.

Run as ``python bench/tables.py out`` after `make bench`, `bench-latency`, `bench-kafka` or `bench-nexmark`. A
table is between ``<!-- NAME -->``, for out/NAME.json, and ``<!-- end -->``; those without a file stay as they
are.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"
MARKED = re.compile(r"<!-- (session_\w+|latency|kafka|nexmark) -->\n.*?<!-- end -->", re.DOTALL)
NAMES = {
    "columns": "timerheap, vectorized (`BatchProcessFunction`)",
    "columns-arrival": "the same in order of arrival",
    "rows": "timerheap, row by row (`KeyedProcessFunction`)",
    "rows-arrival": "the same in order of arrival",
    "no-op": "timerheap's packing, and an operator that discards the rows",
    "results": "timerheap's packing, and an operator that only returns as many results",
    "heapq": "timerheap's packing, and `heapq` and a dict that are pickled as a whole",
    "spark": "Spark's timers (`transformWithStateInPandas`)",
}


def table(figures: dict[str, Any]) -> str:
    """Return the variants of a run as a table, with the ratio to Spark's timers or to the no-op."""
    variants = figures["variants"]
    base, beside = ("spark", "Spark's timers") if "spark" in variants else ("no-op", "the packing alone")
    lines = [f"| | rows/s | beside {beside} | CPU a row, JVM | CPU a row, Python |", "|---|---|---|---|---|"]
    for name, label in NAMES.items():
        if (found := variants.get(name)) is not None:
            jvm, python = (f"{found[f'{side}_ns_a_row'] / 1000:,.1f} us" for side in ("jvm", "python"))
            rate, ratio = found["rows_per_second"], found[f"to_{base}"]
            lines.append(f"| {label} | {rate:,.0f} | {ratio:.{1 if ratio > 2 else 2}f}x | {jvm} | {python} |")
    return "\n".join(lines)


SMALL = {
    "groupBy": "`groupBy().count()`",
    "mapInArrow": "`mapInArrow` that returns its rows, without state",
    "columns": "timerheap, vectorized",
    "rows": "timerheap, row by row",
}
ARRIVALS = {
    "timerheap": "timerheap, row by row",
    "transformWithState": "`transformWithStateInPandas`",
    "groupBy": "`groupBy()`, without timers",
}


def latency(figures: dict[str, Any]) -> str:
    """Return the small micro-batches, and the rows that arrive steadily, as a table each."""
    parts = (small, figures["rows"]), (arrivals, figures["arrivals"])
    return "\n\n".join(write(part) for write, part in parts if part)


def small(sizes: dict[str, Any]) -> str:
    """Return the small micro-batches as a table."""
    heads = [f"{int(rows):,} rows | beside `groupBy()` | after a pause" for rows in sizes]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 3 * len(heads)) + "|"]
    for name, label in SMALL.items():
        cells = [label]
        for variants in sizes.values():
            found, base = variants[name], variants["groupBy"]["seconds"]
            took, ratio, idle = found["seconds"], found["seconds"] / base, found["idle"]
            cells += [f"{took * 1000:,.0f} ms", f"{ratio:.2f}x", f"{idle * 1000:,.0f} ms"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def arrivals(rates: dict[str, Any]) -> str:
    """Return the rows that arrive steadily as a table."""
    heads = (
        "| rows a second | | row to result, p50 | p99 | timer to result, p50 | p99 | cores, JVM | Python |"
    )
    lines = [heads, "|---" * 8 + "|"]
    for rate, variants in rates.items():
        for name, label in ARRIVALS.items():
            found = variants[name]
            waits = [found[what] or {} for what in ("rows", "timers")]
            times = [f"{wait[p]:,.0f} ms" if wait else "" for wait in waits for p in ("p50", "p99")]
            cells = [f"{int(rate):,}", label, *times, f"{found['jvm']:.2f}", f"{found['python']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


ENGINES = ("flink", "spark", "timerheap")


def nexmark(figures: dict[str, Any]) -> str:
    """Return the queries as a table; the ratio is timerheap's, or Spark's where a query is plain Spark."""
    labels = ("Flink", "Spark", "timerheap")
    heads = [f"{label}, {what}" for what in ("events/s", "CPU") for label in labels]
    lines = [f"| | {' | '.join(heads)} | CPU beside Flink | rows |", "|---" * 9 + "|"]
    for name, found in figures.items():
        engines = [found.get(engine) for engine in ENGINES]
        cells = [f"{one['rate']:,.0f}" if one else "" for one in engines]
        cells += [f"{one['cpu']:.2f} us" if one else "" for one in engines]
        ours = found.get("timerheap") or found["spark"]
        ratio = f"{ours['cpu'] / found['flink']['cpu']:.2f}x" if "flink" in found else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {found['rows']} |")
    return "\n".join(lines)


KAFKA = {
    "flink": "Flink",
    "rows-arrival": "timerheap, row by row, in order of arrival",
    "rows": "timerheap, row by row",
    "columns-arrival": "timerheap, vectorized, in order of arrival",
    "columns": "timerheap, vectorized",
    "spark": "`transformWithStateInPandas`",
}


def kafka(figures: dict[str, Any]) -> str:
    """Return the engines between two topics as a table; each number is a median over the rounds."""
    lines = [
        "| rows a second | | row to result, p50 | p90 | p99 | timer to result, p50 | p90 | p99 "
        "| CPU a row, JVM | Python | broker |",
        "|---" * 11 + "|",
    ]
    runs = figures["runs"]
    for rate in dict.fromkeys(run["rate"] for run in runs):
        for variant, label in KAFKA.items():
            found = [run for run in runs if (run["variant"], run["rate"]) == (variant, rate)]
            if not found:
                continue
            processed = median(run["processed"] for run in found)
            waits = [
                f"{median(values):,.0f} ms"
                if all(values := [(run[what] or {}).get(p) for run in found])
                else ""
                for what in ("rows", "timers")
                for p in ("p50", "p90", "p99")
            ]
            if any(run["missing"]["rows"] for run in found):
                waits = [f"falls behind: {processed:,.0f} rows a second", *[""] * 5]
            used = [median(run["us_a_row"][who] for run in found) for who in ("jvm", "python", "broker")]
            cells = [f"{rate:,}", label, *waits, *(f"{us:,.1f} us" if us else "" for us in used)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


WRITERS = {"latency": latency, "kafka": kafka, "nexmark": nexmark}


def main() -> None:
    folder = Path(sys.argv[1])

    def written(mark: re.Match[str]) -> str:
        file = folder / f"{mark[1]}.json"
        if not file.exists():
            return mark[0]
        write = WRITERS.get(mark[1], table)
        return f"<!-- {mark[1]} -->\n\n{write(json.loads(file.read_text()))}\n\n<!-- end -->"

    PAGE.write_text(MARKED.sub(written, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
