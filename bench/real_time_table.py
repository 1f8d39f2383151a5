"""The tables of real-time mode: from the figures of real_time.py and of many_timers.py."""

from __future__ import annotations

from typing import Any

from markdown_table import begin, line

__all__ = ["many_sessions", "many_timers", "real_time"]

REAL_TIME = {
    **{f"real time, {rate}": f"{rate} rows a second" for rate in ("1,000", "5,000", "10,000", "25,000")},
    **{f"real time, {rate}, no wait": f"{rate} rows a second, `linger=0`" for rate in ("1,000", "10,000")},
    "a lone row in 2 s": "a row every two seconds from each source",
    "idle": "no rows",
    "idle, clock 20": "no rows, the watermark follows the clock every 20 ms",
    "idle, clock 100": "the same every 100 ms",
    "micro-batches": "micro-batches, 1,000 rows a second",
    "Scala": "Spark's transformWithState in Scala, 1,000 rows a second",
    "real time, by the clock": "timers of processing time, 1,000 rows a second",
    "Scala, by the clock": "timers of processing time of transformWithState in Scala",
    "the JVM alone": "Spark's source, shuffle and sink alone, 1,000 rows a second",
}
MANY_TIMERS = {"rows": "row by row", "columns": "vectorized"}


def real_time(figures: dict[str, Any]) -> str:
    """Return the cases of real-time mode, in ms from when a timer is due to its result."""
    lines = begin(
        "| | p50 | p90 | p99 | with the pauses of epochs: p50, p90, p99 | pauses, s | cores, JVM | Python |"
    )
    for case in figures["cases"]:
        inside = [f"{value:g}" for value in case["inside"][:3]] or [""] * 3
        every = ", ".join(f"{value:g}" for value in case["all"][:3])
        pauses = [value for value in case["pauses, s"] if value > 0.1]
        between = " to ".join(f"{value:g}" for value in sorted({min(pauses), max(pauses)})) if pauses else ""
        cells = [*inside, every, between, f"{case['cores, JVM']:.2f}", f"{case['cores, Python']:.2f}"]
        lines.append(line(REAL_TIME.get(case["case"], case["case"]), *cells))
    return "\n".join(lines)


def many_timers(figures: dict[str, Any]) -> str:
    """Return how long rows wait while very many timers are due, in ms."""
    lines = begin(
        "| | timers of one second | fired within | rows meanwhile wait: p50, p99, longest | others "
        "| cores, JVM | Python |"
    )
    for case in figures["cases"]:
        meanwhile, others = case["waits of rows meanwhile, ms"], case["others, ms"]
        waits = [", ".join(f"{found[at]:g} ms" for at in (0, 2, 3)) for found in (meanwhile, others)]
        cells = [f"{case['timers']:,}", f"{case['fired in s']:g} s", *waits]
        lines.append(
            line(
                MANY_TIMERS[case["case"]], *cells, f"{case['cores, JVM']:.2f}", f"{case['cores, Python']:.2f}"
            )
        )
    return "\n".join(lines)


def many_sessions(figures: dict[str, Any]) -> str:
    """Return how late timers are while many fire in each of several seconds, in ms."""
    lines = begin(
        "| | keys | timers a second | timers late: p50, p90, p99 | rows meanwhile wait: p50, p99 "
        "| cores, JVM | Python |"
    )
    for case in figures["cases"]:
        late, waits = case["timers late, ms"], case["waits of rows meanwhile, ms"]
        cells = [f"{case['timers'] + figures['pending']:,}", f"{case['timers'] / figures['within']:,.0f}"]
        cells += [", ".join(f"{value:g} ms" for value in late[:3]), f"{waits[0]:g} ms, {waits[2]:g} ms"]
        lines.append(
            line(
                MANY_TIMERS[case["case"]], *cells, f"{case['cores, JVM']:.2f}", f"{case['cores, Python']:.2f}"
            )
        )
    return "\n".join(lines)
