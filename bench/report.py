"""Turn pytest-benchmark's JSON of bench/test_heap.py into a table of ratios and a short JSON of its own.

$ python bench/report.py heap.json [ratios.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def ratios(report: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each operation and n: medians in ns a timer, or bytes, on both sides, and peer / ours."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for run in report["benchmarks"]:
        info = run["extra_info"]
        value = info["bytes"] if "bytes" in info else run["stats"]["median"] * 1e9 / info["timers"]
        found.setdefault((info["operation"], info["n"]), {})[info["side"]] = value
    return [
        {
            "operation": operation,
            "n": n,
            "unit": "bytes" if operation == "bytes a timer" else "ns",
            "timerheap": round(sides["timerheap"], 1),
            "heapq + set": round(sides["heapq + set"], 1),
            "ratio": round(sides["heapq + set"] / sides["timerheap"], 2),
        }
        for (operation, n), sides in found.items()
        if len(sides) == 2
    ]


def main(source: str, target: str | None = None) -> None:
    rows = ratios(json.loads(Path(source).read_text()))
    print(f"{'operation':24}{'n':>9}{'timerheap':>14}{'heapq + set':>14}{'ratio':>9}")
    for row in rows:
        ours, peer = (f"{row[side]:,.0f} {row['unit']}" for side in ("timerheap", "heapq + set"))
        print(f"{row['operation']:24}{row['n']:>9,}{ours:>14}{peer:>14}{row['ratio']:>8.1f}x")
    if target:
        Path(target).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
