"""The tables of micro-batches with less memory than state, with and without Spark."""

from __future__ import annotations

from typing import Any

__all__ = ["tight_groups", "tight_memory"]

_MOVED = ["read", "written"]


def _table(heads: list[str], lines: list[list[str]]) -> str:
    first, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *lines))
    return "\n".join([first, "|---" * len(heads) + "|", *rest])


def tight_memory(figures: dict[str, Any]) -> str:
    """Return what micro-batches take with less memory than state, and Flink with as many rows."""
    heads = ["memory, of our files", "keys", "micro-batch", "CPU, JVM", "Python", "pages read"]
    heads += _MOVED if "read MB" in figures["limits"][0]["hot"] else []
    if "flink" in figures:
        heads += ["Flink, rows", "and a checkpoint", "CPU", "pages read"]
    lines: list[list[str]] = []
    beside = figures.get("flink", {}).get("limits", [{}] * len(figures["limits"]))
    for found, flink in zip(figures["limits"], beside, strict=True):
        for name in ("hot", "cold"):
            one, other = found[name], flink.get(name)
            cells = [f"{found['limit'] / 1e6:,.0f} MB, {1 / found['share']:.0%}", name]
            cells += [f"{one[what]:.2f} s" for what in ("seconds", "jvm", "python")]
            cells += [f"{one['faults']:,.0f}", *_moved(one)]
            if "flink" in figures:
                cells += [f"{other[what]:.2f} s" if other else "" for what in ("rows", "seconds", "jvm")]
                cells.append(f"{other['faults']:,.0f}" if other else "")
            lines.append(cells)
    return _table(heads, lines)


def tight_groups(figures: dict[str, Any]) -> str:
    """Return what micro-batches take with less memory than key groups, without Spark."""
    heads = [
        "memory, of the files",
        "keys of the rows",
        "micro-batch",
        "the first",
        "CPU",
        "faults that read",
    ]
    heads += _MOVED if "read MB" in figures["limits"][0]["hot"] else []
    lines: list[list[str]] = []
    for found in figures["limits"]:
        for name in ("hot", "cold"):
            one = found[name]
            cells = [f"{found['limit'] / 1e6:,.0f} MB, {1 / found['share']:.0%}", name]
            cells += [f"{one[what]:.2f} s" for what in ("seconds", "first", "cpu")]
            lines.append([*cells, f"{one['faults']:,.0f}", *_moved(one)])
    return _table(heads, lines)


def _moved(found: dict[str, Any]) -> list[str]:
    """Return what was read from the disk and written, if that is known."""
    return [f"{found[f'{what} MB']:,.0f} MB" for what in _MOVED if f"{what} MB" in found]
