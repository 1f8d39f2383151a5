"""The figures of sentences: names for numbers that are computed from the files of benchmarks.

In a page, ``10.8<!-- session_20000: vectorized beside Spark -->`` is the figure of that name, with as many
decimals as there are. Figures that no program of today writes are in ``results/recorded.json``, with when,
where and how they were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from capacity_table import loading, settled

Named = dict[str, float]


def session(figures: dict[str, Any]) -> Named:
    found = {}
    for name, label in {"columns": "vectorized", "rows": "row by row"}.items():
        variant = figures["variants"][name]
        found[f"{label}, Python us"] = variant["python_ns_a_row"] / 1000
        if "to_spark" in variant:
            found[f"{label} beside Spark"] = variant["to_spark"]
    return found


def _cpu(one: dict[str, Any]) -> float:
    return (one["jvm"] or 0) + (one["python"] or 0)


def asof(figures: dict[str, Any]) -> Named:
    batch = figures["batch"]
    ours = _cpu(batch["timerheap"])
    return {
        "beside Spark": ours / _cpu(batch["spark"]),
        **{f"{name} beside ours": _cpu(batch[name]) / ours for name in ("duckdb", "polars")},
    }


def over(figures: dict[str, Any]) -> Named:
    batch = figures["batch"]
    return {"beside Spark": _cpu(batch["timerheap"]) / _cpu(batch["spark"])}


def processors(figures: dict[str, Any]) -> Named:
    found = {}
    for name, job in figures["jobs"].items():
        found[f"{name}, less"] = job["spark"]["cpu"] / job["timerheap"]["cpu"]
        found[f"{name}, s"] = job["timerheap"]["cpu"]
    return found | {"rows": figures["rows"]}


def kafka(figures: dict[str, Any]) -> Named:
    def cpu(variants: tuple[str, ...], rate: int) -> float:
        runs = [run for run in figures["runs"] if run["variant"] in variants and run["rate"] == rate]
        return median(run["us_a_row"]["jvm"] + (run["us_a_row"]["python"] or 0) for run in runs)

    ours = ("rows-arrival", "rows", "columns-arrival", "columns")
    found = {
        f"beside Flink, {rate:,}": cpu(ours, rate) / cpu(("flink",), rate) for rate in (1000, 10_000, 100_000)
    }
    waits = [run["rows"]["p50"] / 1000 for run in figures["runs"] if run["variant"] in ours]
    return found | {"least wait, s": min(waits), "most wait, s": max(waits)}


def real_time(figures: dict[str, Any]) -> Named:
    cases = {case["case"]: case for case in figures["cases"]}
    pauses = [pause for case in cases if case.startswith("real time") for pause in cases[case]["pauses, s"]]
    p50, p90 = cases["micro-batches"]["all"][:2]
    found: Named = {"micro-batches, p50": p50, "micro-batches, p90": p90, "longest pause, s": max(pauses)}
    return found | {f"of {every} s, %": 100 * max(pauses) / every for every in (10, 60, 300)}


def tight_memory(figures: dict[str, Any]) -> Named:
    whole = figures["limits"][0]
    return {"files, GB": whole["limit"] * whole["share"] / 1e9}


def skew(figures: list[dict[str, Any]]) -> Named:
    channels = {one["step"]: one for one in figures if one["case"] == "channels"}
    rows = next(one for one in figures if one["case"] == "a hot key" and one["step"] == "rows")
    return {
        "channels, ms": channels["all have rows"]["seconds"] * 1000,
        "channels, KB": channels["all have rows"]["written"] / 1000,
        "a hot key, rows, us": 1e6 * rows["seconds"] / rows["n"],
    }


def peers(figures: dict[str, Any]) -> Named:
    group = next(
        group
        for group in figures["groups"]
        if group["n"] == 1_000_000 and group["unit"] == "ns" and "push_many" in group["ours"]
    )
    return {"push_many, ns": median(group["ours"]["push_many"])}


SENTENCES: dict[str, Callable[[Any], Named]] = {
    **dict.fromkeys(("session_timeout", "session_20000", "session_100000"), session),
    "asof": asof,
    "over": over,
    "processors": processors,
    "kafka": kafka,
    "real_time": real_time,
    "tight_memory": tight_memory,
    "capacity_settled": settled,
    "recovery": loading,
    "skew": skew,
    "peers": peers,
}
