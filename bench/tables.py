"""Writes the figures of the documentation and of the README: tables, and numbers in sentences.

Run as ``make tables`` after benchmarks. It takes those files out/NAME.json that have figures of a known
benchmark into bench/results/, and writes

- what is between ``<!-- NAME -->`` and ``<!-- end -->`` in each page from bench/results/NAME.json, with the
  date, the machine, the versions, the rounds and the spread,
- the number before ``<!-- NAME: FIGURE -->`` with the decimals that it has, from the same file by
  `sentences.SENTENCES`, or from the record NAME of bench/results/recorded.json,
- what is between ``<!-- summary -->`` and ``<!-- end -->`` from all files, by `summary.RATIOS`,
- what is between ``<!-- NAME: TABLE -->`` at the beginning of a line and ``<!-- end -->`` from that record.

What has no file stays as it is. `tests/tools/test_bench_tables.py` fails if a page and a file disagree, and
`tests/house/test_page_figures.py` if a page has a figure that no file has.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from capacity_table import billions, loading, phases
from changes_table import beside_flink, beside_spark, means
from cost_table import of_cost, of_sinks, small_queries
from markdown_table import begin, line
from real_time_table import many_sessions, many_timers, real_time
from sentences import SENTENCES
from summary import summary
from tight_table import tight_groups, tight_memory

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
RECORDED = "recorded.json"
MARKED = re.compile(r"<!-- (?!end )(\w+) -->\n.*?<!-- end -->", re.DOTALL)
TABLE = re.compile(r"^<!-- (\w+): ([^>]+) -->\n.*?<!-- end -->", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(\d[\d,]*(?:\.(\d+))?)<!-- (\w+): ([^>]+) -->")
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
    lines = begin(f"| | rows/s | beside {beside} | CPU a row, JVM | CPU a row, Python |")
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
    lines = begin(f"| {line(*heads)}")
    for name, label in SMALL.items():
        cells = [label]
        for variants in sizes.values():
            found, base = variants[name], variants["groupBy"]["seconds"]
            took, ratio, idle = found["seconds"], found["seconds"] / base, found["idle"]
            cells += [f"{took * 1000:,.0f} ms", f"{ratio:.2f}x", f"{idle * 1000:,.0f} ms"]
        lines.append(line(*cells))
    return "\n".join(lines)


def arrivals(rates: dict[str, Any]) -> str:
    """Return the rows that arrive steadily as a table."""
    heads = (
        "| rows a second | | row to result, p50 | p99 | timer to result, p50 | p99 | cores, JVM | Python |"
    )
    lines = begin(heads)
    for rate, variants in rates.items():
        for name, label in ARRIVALS.items():
            found = variants[name]
            waits = [found[what] or {} for what in ("rows", "timers")]
            times = [f"{wait[p]:,.0f} ms" if wait else "" for wait in waits for p in ("p50", "p99")]
            cells = [f"{int(rate):,}", label, *times, f"{found['jvm']:.2f}", f"{found['python']:.2f}"]
            lines.append(line(*cells))
    return "\n".join(lines)


READER = "q0"
LITTLE = 0.15  # us an event: what is less, without the reader, has no ratio


def nexmark(figures: dict[str, Any]) -> str:
    """Return CPU an event of each query, and how timerheap's is to the better one of Flink's two plans.

    "After the start" is of events beyond the first 200,000; "without q0" is that minus the same of q0.
    """
    queries = figures["queries"]
    means = nexmark_means(queries)
    reader = _reader(queries)
    heads = ["Flink, heap", "with mini-batches", "Flink, RocksDB", "with mini-batches", "timerheap"]
    heads += ["beside heap", "beside RocksDB", "after the start", "without q0"]
    heads += ["events/s, Flink", "timerheap", "events", "rows"]
    lines = begin(f"| {line(*heads)}")
    for name, found in queries.items():
        columns = [found.get(column) for column in COLUMNS]
        cells = [f"{one['cpu']:.2f} us" if one else "" for one in columns]
        ratios = _ratios(found, None if name == READER else reader)
        cells += [f"{ratio:.2f}x" if ratio is not None else "" for ratio in ratios]
        rates = [
            max((one["rate"] for one in columns[:-1] if one), default=None),
            columns[-1] and columns[-1]["rate"],
        ]
        cells += [*(f"{rate:,.0f}" if rate else "" for rate in rates), f"{found.get('events', 0):,}"]
        lines.append(line(name, *cells, found.get("rows", "")))
    cells = [f"**{mean:.2f}x**" if mean is not None else "" for mean in means]
    lines.append(line("geometric mean", *[""] * len(COLUMNS), *cells, *[""] * 4))
    return "\n".join(lines)


def nexmark_means(queries: dict[str, Any]) -> list[float | None]:
    """Return the geometric means over the queries, without the reader, of each ratio."""
    reader = _reader(queries)
    columns = zip(*(_ratios(found, reader) for name, found in queries.items() if name != READER), strict=True)
    means: list[float | None] = []
    for column in columns:
        values = [max(ratio, 0.01) for ratio in column if ratio is not None]
        means.append(prod(values) ** (1 / len(values)) if values else None)
    return means


def _ratios(found: dict[str, Any], reader: dict[str, float] | None) -> list[float | None]:
    """Return the ratios of a query, the last one without what the reader takes, if that is known."""
    return [
        _ratio(found, "heap", "cpu"),
        _ratio(found, "rocksdb", "cpu"),
        _ratio(found, "heap", "beyond"),
        _ratio(found, "heap", "beyond", reader) if reader is not None else None,
    ]


def _reader(queries: dict[str, Any]) -> dict[str, float] | None:
    """Return what the reader takes of each side."""
    if READER not in queries:
        return None
    return {side: _least(queries[READER], side, "beyond") or 0.0 for side in ("heap", "timerheap")}


COLUMNS = ("heap", "heap-mini", "rocksdb", "rocksdb-mini", "timerheap")


def _least(found: dict[str, Any], side: str, what: str) -> float | None:
    """Return the smallest figure of the columns of a side, such as "heap" and "heap-mini"."""
    own = [found[one] for one in COLUMNS if one.partition("-")[0] == side and one in found]
    return min((one[what] for one in own if what in one), default=None)


def _ratio(found: dict[str, Any], side: str, what: str, less: dict[str, float] | None = None) -> float | None:
    """Return timerheap's figure by that of a side; `less` is taken off both, if enough is left."""
    ours, theirs = _least(found, "timerheap", what), _least(found, side, what)
    if ours is None or theirs is None:
        return None
    if less:
        ours, theirs = max(ours - less["timerheap"], 0.0), theirs - less[side]
        if theirs < LITTLE:
            return None
    return ours / theirs


KAFKA = {
    "flink": "Flink",
    "rows-arrival": "timerheap, row by row, in order of arrival",
    "rows": "timerheap, row by row",
    "columns-arrival": "timerheap, vectorized, in order of arrival",
    "columns": "timerheap, vectorized",
    "spark": "`transformWithStateInPandas`",
    "real-time-rows": "timerheap in real-time mode, row by row, in order of arrival",
    "real-time-columns": "timerheap in real-time mode, vectorized, in order of arrival",
}


def kafka(figures: dict[str, Any]) -> str:
    """Return the engines between two topics as a table; each number is a median over the rounds."""
    lines = begin(
        "| rows a second | | row to result, p50 | p90 | p99 | timer to result, p50 | p90 | p99 "
        "| CPU a row, JVM | Python | broker |"
    )
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
            lines.append(line(*cells))
    return "\n".join(lines)


def _rates(found: dict[str, Any], labels: dict[str, str], rows: int) -> list[str]:
    """Return a line for each variant: rows a second, and CPU a row."""
    lines = []
    for name, label in labels.items():
        if (took := found.get(name)) is not None:
            jvm, python = (
                f"{took[side] * 1e6 / rows:.2f} us" if took[side] else "" for side in ("jvm", "python")
            )
            lines.append(f"| {label} | {rows / took['seconds']:,.0f} | {jvm} | {python} |")
    return lines


ASOF = {
    "operator": {
        "operator": "the operator alone, on one thread",
        "duckdb": "DuckDB's `ASOF LEFT JOIN` of the same rows in memory, on one thread",
    },
    "batch": {
        "timerheap": "`join_asof` of a batch, files of Parquet",
        "spark": "Spark's union and `last(..., ignoreNulls)` over a window",
        "duckdb": "DuckDB on the same files",
        "polars": "Polars on the same files",
    },
    "stream": {
        "timerheap": "`join_asof` of a stream",
        "process_two": "the same join as a function of `process_two`",
    },
}
OVER = {
    "operator": {
        "all, own": "the operator alone, on one thread",
        "lag, own": "the same, `LAG` alone",
        "total, own": "the same, `SUM` alone",
        "all, duckdb": "DuckDB on the same rows in memory, on one thread",
        "lag, duckdb": "the same, `LAG` alone",
        "total, duckdb": "the same, `SUM` alone",
    },
    "batch": {
        "timerheap": "`sql` on a batch, files of Parquet",
        "spark": "Spark's own on the same batch",
        "duckdb": "DuckDB on the same files",
    },
    "stream": {"timerheap": "`sql` on a stream"},
}
HEAD = begin("| | rows a second | JVM | Python, or the library |")


def _three_ways(figures: dict[str, Any], labels: dict[str, dict[str, str]], arguments: dict[str, Any]) -> str:
    lines = list(HEAD)
    for kind, names in labels.items():
        rows = arguments["events"] * (1 if kind == "stream" else arguments["batches"])
        lines += _rates(figures.get(kind, {}), names, rows)
    return "\n".join(lines)


def asof_flink(figures: dict[str, Any], arguments: dict[str, Any]) -> str:
    labels = {"timerheap": "`join_asof` of a stream", "flink": "Flink's temporal join"}
    return "\n".join([*HEAD, *_rates(figures, labels, arguments["events"] * arguments["batches"])])


PATTERNS = {"fraud": "fraud", "V": "V", "A B+ C": "`A B+ C`", "silence": "silence"}


def patterns(figures: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Return the patterns of batches, and those beside Flink."""
    sides = ("CSV", "Flink", "Java")
    names = {name: name for name in figures if not name.endswith(sides)}
    lines = [*HEAD, *_rates(figures, names, arguments["rows"])]
    beside = [name.removesuffix(", CSV") for name in figures if name.endswith(", CSV")]
    if beside:
        lines += ["", *begin("| the same lines of CSV | timerheap | Flink SQL | a Flink function in Java |")]
    for name in beside:
        found = (figures.get(f"{name}, {side}") for side in sides)
        cells = (one and f"{(one['jvm'] + one['python']) * 1e6 / arguments['rows']:.2f} us" for one in found)
        lines.append(f"| {name} | {' | '.join(cell or '' for cell in cells)} |")
    return "\n".join(lines)


def windows(figures: dict[str, Any], arguments: dict[str, Any]) -> str:
    """Return the shapes of windows beside Spark's own."""
    lines = begin("| | Spark | timerheap | | CPU a row, Spark | timerheap, JVM | Python |")
    rows = arguments["events"]
    for shape, found in figures.items():
        spark, ours = found["spark"], found["timerheap"]
        rates = [rows / one["seconds"] for one in (spark, ours)]
        ratio = rates[1] / rates[0]
        cells = [f"{rate:,.0f}" for rate in rates] + [f"{ratio:.{0 if ratio > 10 else 1}f}x"]
        cells += [f"{value * 1e6 / rows:.1f} us" for value in (spark["jvm"], ours["jvm"], ours["python"])]
        lines.append(line(shape, *cells))
    return "\n".join(lines)


def processors(figures: dict[str, Any]) -> str:
    """Return stateful processors beside Spark's own operator."""
    rows = figures["rows"]
    lines = begin("| | Spark, CPU a row | timerheap, CPU a row | |")
    for name, found in figures["jobs"].items():
        spark, ours = (found[side]["cpu"] * 1e6 / rows for side in ("spark", "timerheap"))
        lines.append(f"| {name} | {spark:,.0f} us | {ours:,.0f} us | {spark / ours:.1f}x less |")
    return "\n".join(lines)


def latency_choices(figures: dict[str, Any]) -> str:
    """Return what each choice of settings is worth."""
    heads = ["timerheap, p50", "beside the first", "p99", "micro-batch", "cores", "`groupBy()`, p50", "p99"]
    lines = begin(f"| {line(*heads)}")
    base = next(iter(figures["choices"].values()))["timerheap"]["p50"]
    for name, found in figures["choices"].items():
        ours, theirs = found["timerheap"], found["groupBy"]
        cells = [f"{ours['p50']:,.0f} ms", f"{ours['p50'] / base:.2f}x", f"{ours['p99']:,.0f} ms"]
        cells += [f"{ours['batch']:,.0f} ms", f"{ours['cores']:.2f}"]
        cells += [f"{theirs['p50']:,.0f} ms", f"{theirs['p99']:,.0f} ms"]
        lines.append(line(name, *cells))
    return "\n".join(lines)


def state(figures: dict[str, Any]) -> str:
    """Return micro-batches while more and more timers are pending."""
    lines = begin(
        "| | pending timers | micro-batch | beside the smallest | CPU, JVM | Python | written | idle |"
    )
    for master, found in figures["masters"].items():
        for job in found["jobs"]:
            idle = job["add_after_idling"]
            label = (
                "`heapq` and a dict that are pickled as a whole" if job["variant"] == "heapq" else "timerheap"
            )
            cells = [
                f"{label}, {master}",
                f"{job['timers']:,}",
                f"{job['add']:.2f} s",
                f"{job['ratio']:.2f}x",
            ]
            cells += [f"{job['jvm']:.2f} s", f"{job['python']:.2f} s", f"{job['written'] / 1000:,.0f} KB"]
            lines.append(line(*cells, "" if idle is None else f"{idle:.2f} s"))
    return "\n".join(lines)


def skew(figures: list[dict[str, Any]]) -> str:
    """Return the steps of each case, with the CPU of all and of each of n."""
    lines = begin("| | n | step | CPU | of each | written |")
    case = None
    for one in figures:
        shown = "" if one["case"] == case else one["case"]
        case, each = one["case"], 1e6 * one["seconds"] / one["n"]
        took = f"{one['seconds']:.3f} s | {f'{each / 1000:,.1f} ms' if each >= 1000 else f'{each:,.1f} us'}"
        lines.append(f"| {shown} | {one['n']:,} | {one['step']} | {took} | {one['written'] / 1e6:,.2f} MB |")
    return "\n".join(lines)


def first_contact(figures: dict[str, Any]) -> str:
    """Return what each statement of the README's program takes."""
    lines = begin("| statement | |")
    lines += [f"| {one['what']} | {one['seconds']:.1f} s |" for one in figures["steps"]]
    return "\n".join([*lines, f"| in all | {figures['seconds']:.1f} s |"])


PEERS = {
    "push_many": "push many",
    "remove_many": "remove many",
    "reschedule_many": "reschedule many",
    "pop_due, all due": "pop all that is due",
    "pop_due, 10 % due": "pop the 10 % that are due",
    "pop_due, 1 % due": "pop the 1 % that are due",
    "push": "one push",
    "pop": "one pop",
    "remove": "one remove",
    "bytes a timer": "bytes a timer",
}
PEER_HEADS = {
    "heapq + set": "`heapq` + `set`",
    "sortedcontainers": "`sortedcontainers`",
    "Flink": "Flink's own queue",
}


def peers(figures: dict[str, Any]) -> str:
    """Return the operations by number of timers, and beside peers with as many as the most of them."""
    sizes = sorted({group["n"] for group in figures["groups"] if group["unit"] == "ns"})
    most, found = sizes[-1], {}
    for group in figures["groups"]:
        for method, values in group["ours"].items():
            found[method, group["n"]] = group, median(values)
    heads = [*(f"{n:,} timers" for n in sizes), *PEER_HEADS.values()]
    lines = begin(f"| {line(*heads)}")
    for method, label in PEERS.items():
        if (method, most) not in found:
            continue
        unit = "bytes" if found[method, most][0]["unit"] == "bytes" else "ns"
        cells = [f"{found[method, n][1]:,.0f} {unit}" if (method, n) in found else "" for n in sizes]
        group, ours = found[method, most]
        for name in PEER_HEADS:
            values = group["peers"].get(name)
            theirs = median(values) if values else None
            if theirs is None:
                cells.append("")
            elif unit == "bytes":
                cells.append(f"{theirs:,.0f} bytes")
            else:
                cells.append(f"{theirs / ours:.{0 if theirs > 10 * ours else 1}f}x")
        lines.append(line(label, *cells))
    return "\n".join(lines)


def capacity_settled(figures: dict[str, Any]) -> str:
    """Return what billions of keys need."""
    load = loading(json.loads((RESULTS / "recovery.json").read_text())["figures"])
    heads, *rows = billions(figures, _records(RESULTS), load)
    return "\n".join([*begin(line(*heads)), *(line(*row) for row in rows)])


def recovery(figures: dict[str, Any]) -> str:
    """Return what a load takes, phase by phase."""
    heads, *rows = phases(figures)
    return "\n".join([*begin(line(*heads)), *(line(*row) for row in rows)])


WRITERS: dict[str, Any] = {
    "latency": lambda figures, _: latency(figures),
    "first_contact": lambda figures, _: first_contact(figures),
    "state": lambda figures, _: state(figures),
    "skew": lambda figures, _: skew(figures),
    "peers": lambda figures, _: peers(figures),
    "kafka": lambda figures, _: kafka(figures),
    "kafka_real_time": lambda figures, _: kafka(figures),
    "nexmark": lambda figures, _: nexmark(figures),
    "asof": lambda figures, arguments: _three_ways(figures, ASOF, arguments),
    "over": lambda figures, arguments: _three_ways(figures, OVER, arguments),
    "asof_flink": asof_flink,
    "patterns": patterns,
    "changes": lambda figures, _: beside_spark(figures),
    "changes_flink": lambda figures, _: beside_flink(figures),
    "cost": lambda figures, _: of_cost(figures),
    "kafka_sink": lambda figures, _: of_sinks(figures),
    "windows": windows,
    "processors": lambda figures, _: processors(figures),
    "real_time": lambda figures, _: real_time(figures),
    "many_timers": lambda figures, _: many_timers(figures),
    "many_sessions": lambda figures, _: many_sessions(figures),
    "latency_choices": lambda figures, _: latency_choices(figures),
    "tight_memory": lambda figures, _: tight_memory(figures),
    "tight_memory_large": lambda figures, _: tight_memory(figures),
    "tight_groups": lambda figures, _: tight_groups(figures),
    "tight_groups_settled": lambda figures, _: tight_groups(figures),
    "capacity_settled": lambda figures, _: capacity_settled(figures),
    "recovery": lambda figures, _: recovery(figures),
    **{f"session_{name}": lambda figures, _: table(figures) for name in ("timeout", "20000", "100000")},
}


def _beside_flink(heap: float | None, rocksdb: float | None, *_: Any) -> dict[str, float]:
    return {"beside heap": heap or 0.0, "beside RocksDB": rocksdb or 0.0}


COMPUTED = SENTENCES | {
    "nexmark": lambda figures: _beside_flink(*nexmark_means(figures["queries"])),
    "changes_flink": lambda figures: _beside_flink(*means(figures)),
    "cost": small_queries,
}


def measured(document: dict[str, Any]) -> str:
    """Return when, where and with what the figures of a file were measured."""
    about = document["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rounds = about["arguments"].get("rounds")
    parts = [
        f"{about['date']}, {about['machine']}, {about['memory']}, load {about['load']}",
        versions,
        f"`{about['program']}`",
    ]
    if rounds:
        parts.append(f"medians of {rounds} round{'s' * (rounds != 1)}")
    if rounds != 1 and (spreads := sorted(_spreads(document["figures"]))):
        parts.append(f"the rounds of a figure are {median(spreads):.0%} apart, at most {spreads[-1]:.0%}")
    return f"*{'; '.join(parts)}.*"


def _spreads(figures: Any) -> Iterator[float]:
    """Yield how far the rounds of each figure are apart, as a part of their middle."""
    if isinstance(figures, dict):
        if "spread" in figures:
            low, high = figures["spread"]
            if high:
                yield (high - low) / ((high + low) / 2)
        for value in figures.values():
            yield from _spreads(value)


def filled(text: str, folder: Path = RESULTS) -> str:
    """Return a page with the tables of the files in a folder."""

    def written(mark: re.Match[str]) -> str:
        if mark[1] == "summary":
            return f"<!-- summary -->\n\n{summary(folder)}\n\n<!-- end -->"
        file = folder / f"{mark[1]}.json"
        if mark[1] not in WRITERS or not file.exists():
            return mark[0]
        document = json.loads(file.read_text())
        body = WRITERS[mark[1]](document["figures"], document["about"]["arguments"])
        return f"<!-- {mark[1]} -->\n\n{body}\n\n{measured(document)}\n\n<!-- end -->"

    def recorded(mark: re.Match[str]) -> str:
        record = _records(folder).get(mark[1])
        if record is None:
            return mark[0]
        head, *rows = record["tables"][mark[2]]
        lines = [*begin(line(*head)), *(line(*row) for row in rows)]
        return "\n".join(
            [f"<!-- {mark[1]}: {mark[2]} -->", "", *lines, "", _when(record), "", "<!-- end -->"]
        )

    def figure(mark: re.Match[str]) -> str:
        number, decimals, name, which = mark.groups()
        if (found := sentences(name, folder)) is not None:
            number = f"{found[which]:,.{len(decimals or '')}f}"
        return f"{number}<!-- {name}: {which} -->"

    return FIGURE.sub(figure, TABLE.sub(recorded, MARKED.sub(written, text)))


def sentences(name: str, folder: Path = RESULTS) -> dict[str, float] | None:
    """Return the figures for sentences of a file or of a record, by their names."""
    if name not in COMPUTED:
        record = _records(folder).get(name)
        return None if record is None else record.get("figures", {})
    file = folder / f"{name}.json"
    return COMPUTED[name](json.loads(file.read_text())["figures"]) if file.exists() else None


def _records(folder: Path) -> dict[str, Any]:
    file = folder / RECORDED
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _when(record: dict[str, Any]) -> str:
    return f"*{'; '.join(record[what] for what in ('date', 'machine', 'how'))}.*"


def pages() -> list[Path]:
    """Return the pages that may have figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench" / "README.md"]


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    for file in map(Path, (path for folder in sys.argv[1:] for path in Path(folder).glob("*.json"))):
        if file.stem in WRITERS:
            shutil.copy(file, RESULTS)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
