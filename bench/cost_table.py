"""The tables of what a query costs, and a sink: from the figures of cost.py and of kafka_sink.py."""

from __future__ import annotations

from typing import Any

__all__ = ["of_cost", "of_sinks", "small_queries"]

HOURS = 730  # of a month


def _dollars(found: dict[str, Any], prices: dict[str, float]) -> tuple[float, float]:
    """Return what an hour of a query costs: its cores, and the requests of its checkpoint."""
    cores = (found["jvm"] + found["python"]) * prices["core"]
    return cores, found["batches"] * 3600 * prices["batch"]


def of_cost(figures: dict[str, Any]) -> str:
    """Return both tables: by rate and trigger, and by the number of queries."""
    prices = figures["prices"]
    lines = [
        "| rows a second | trigger | micro-batches a second | cores, JVM | Python | dollars an hour, cores "
        "| requests |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in figures["rates"]:
        cores, requests = _dollars(one, prices)
        cells = [f"{one['rate']:,}", one["trigger"], f"{one['batches']:.2f}"]
        cells += [f"{one['jvm']:.2f}", f"{one['python']:.2f}", f"{cores:.3f}", f"{requests:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| queries | tenants in all | cores | of a tenant | memory | of a tenant "
        "| dollars a month for 1,000 tenants |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in figures["many"]:
        tenants = one["tenants"]
        cores = one["jvm"] + one["python"]
        month = sum(_dollars(one, prices)) * HOURS * 1000 / tenants
        cells = [f"{one['queries']:,}", f"{tenants:,}", f"{cores:.2f}", f"{cores / tenants:.4f}"]
        cells += [
            f"{one['memory'] / 1e6:,.0f} MB",
            f"{one['memory'] / 1e6 / tenants:,.1f} MB",
            f"{month:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of_sinks(figures: dict[str, Any]) -> str:
    """Return what a micro-batch takes that writes to Kafka, with each sink."""
    names = {"spark": "Spark's sink", "once": "`append_kafka`"}
    lines = [
        "| rows | | a micro-batch | CPU a row, JVM | Python | CPU beside Spark's |",
        "|---|---|---|---|---|---|",
    ]
    base = 0.0
    for run in figures["runs"]:
        cpu, us = run["jvm"] + run["python"], 1e6 / run["rows"] / figures["batches"]
        base = cpu if run["sink"] == "spark" else base
        cells = [f"{run['rows']:,}", names[run["sink"]], f"{run['seconds'] * 1000:,.0f} ms"]
        cells += [f"{run[side] * us:,.1f} us" for side in ("jvm", "python")]
        lines.append(f"| {' | '.join(cells)} | {cpu / base:.2f}x |")
    return "\n".join(lines)


def small_queries(figures: dict[str, Any]) -> dict[str, float]:
    """Return how many times the cores of a tenant in one query for all a query for each of them takes."""
    each = max((one for one in figures["many"] if one["queries"] > 1), key=lambda one: one["queries"])
    whole = max((one for one in figures["many"] if one["queries"] == 1), key=lambda one: one["tenants"])
    small, shared = ((one["jvm"] + one["python"]) / one["tenants"] for one in (each, whole))
    return {"cores beside one query": small / shared}
