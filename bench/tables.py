"""Writes the tables of the session timeout in docs/performance.md from the figures of `make bench`.

Run as ``python bench/tables.py out``. A table is between ``<!-- NAME -->``, for out/NAME.json, and
``<!-- end -->``; those without a file stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"
MARKED = re.compile(r"<!-- (session_\w+) -->\n.*?<!-- end -->", re.DOTALL)
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


def main() -> None:
    folder = Path(sys.argv[1])

    def written(mark: re.Match[str]) -> str:
        file = folder / f"{mark[1]}.json"
        if not file.exists():
            return mark[0]
        return f"<!-- {mark[1]} -->\n\n{table(json.loads(file.read_text()))}\n\n<!-- end -->"

    PAGE.write_text(MARKED.sub(written, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
