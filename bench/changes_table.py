"""The tables of results that change: beside Spark's update mode, over few and many keys, and beside Flink."""

from __future__ import annotations

from math import prod
from typing import Any

COUNTS = {"count": "`count(*)`", "five": "count, sum, average, least and largest"}
FLINK = ("heap", "heap-mini", "rocksdb", "rocksdb-mini")
SIDES = {"heap": FLINK[:2], "rocksdb": FLINK[2:]}
OURS = "timerheap"


def beside_spark(figures: dict[str, Any]) -> str:
    """Return the aggregates beside `groupBy()` in update mode, and the micro-batches of 10,000 changes."""
    parts = []
    if "update" in figures:
        parts.append(_update(figures["update"]))
    if "scaling" in figures:
        parts.append(_scaling(figures["scaling"]))
    return "\n\n".join(parts)


def _update(taken: dict[str, Any]) -> str:
    lines = ["| | rows/s | CPU a row, JVM | Python | CPU beside Spark's |", "|---|---|---|---|---|"]
    for what, label in COUNTS.items():
        base = taken[f"spark, {what}"]
        for kind, shown in (
            ("spark", f"`groupBy()` in update mode: {label}"),
            ("inserts", "`aggregate_changes` of rows that only come"),
            ("changes", "`aggregate_changes` of rows that change"),
        ):
            found = taken[f"{kind}, {what}"]
            cells = [shown, f"{found['rate']:,.0f}", f"{found['jvm']:.2f} us", f"{found['python']:.2f} us"]
            cells.append(f"{found['cpu'] / base['cpu']:.2f}x")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _scaling(taken: dict[str, Any]) -> str:
    lines = ["| keys | a micro-batch | CPU, JVM | Python | CPU beside the fewest |", "|---|---|---|---|---|"]
    base = next(iter(taken.values()))["cpu"]
    for keys, found in taken.items():
        times = (f"{found[name] * 1000:,.0f} ms" for name in ("seconds", "jvm", "python"))
        lines.append(f"| {' | '.join([f'{int(keys):,}', *times])} | {found['cpu'] / base:.2f}x |")
    return "\n".join(lines)


def beside_flink(figures: dict[str, Any]) -> str:
    """Return CPU a row of each job, and how timerheap's is to the better one of Flink's two plans."""
    heads = ["", "Flink, heap", "with mini-batches", "Flink, RocksDB", "with mini-batches", "timerheap"]
    heads += ["beside heap", "beside RocksDB", "rows/s, Flink", "timerheap", "rows", "tables"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, found in figures["jobs"].items():
        columns = [found.get(column) for column in (*FLINK, OURS)]
        cells = [f"{one['cpu']:.2f} us" if one else "" for one in columns]
        cells += [_shown(ratio(found, side)) for side in SIDES]
        rates = [one["rate"] for one in columns[:-1] if one]
        cells += [f"{max(rates):,.0f}" if rates else ""]
        cells += [f"{found[OURS]['rate']:,.0f}", f"{found['rows']:,}", found.get("table", "")]
        lines.append(f"| {' | '.join([name, *cells])} |")
    cells = [f"**{_shown(mean)}**" if mean else "" for mean in means(figures)]
    lines.append(f"| geometric mean | {' | '.join([*[''] * 5, *cells, *[''] * 4])} |")
    return "\n".join(lines)


def means(figures: dict[str, Any]) -> list[float | None]:
    """Return the geometric means of the ratios to Flink's heap and to its RocksDB."""
    found: list[float | None] = []
    for side in SIDES:
        ratios = [one for job in figures["jobs"].values() if (one := ratio(job, side)) is not None]
        found.append(prod(ratios) ** (1 / len(ratios)) if ratios else None)
    return found


def ratio(job: dict[str, Any], side: str) -> float | None:
    """Return timerheap's CPU by that of the better plan of a side."""
    theirs = [job[column]["cpu"] for column in SIDES[side] if column in job]
    return job[OURS]["cpu"] / min(theirs) if theirs else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"
