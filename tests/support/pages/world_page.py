"""Writes the tables of docs/operations/what-ran.md, from what the tests beside other systems left in out/.

Run as ``python tests/support/pages/world_page.py`` after `make test-world` and `make soak-world`. A table is
between ``<!-- test-world-4.3 -->``, for the suite and the version of PySpark, and ``<!-- end -->``; those
without a file stay as they are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/operations/what-ran.md"
MARKED = re.compile(r"<!-- ((?:test|soak)-world-[\d.]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(found: re.Match[str]) -> str:
    """Return a marked table anew, if its suite has run."""
    file = ROOT / f"out/world/{found[1]}.json"
    if not file.exists():
        return found[0]
    figures = json.loads(file.read_text())
    head, *lines = figures["table"]
    versions = ", ".join(f"`{name}`" for name in figures["artifacts"])
    rows = ["| " + " | ".join(line) + " |" for line in (head, ["---"] + ["---:"] * (len(head) - 1), *lines)]
    text = f"PySpark {figures['pyspark']}, {figures['date']}, with {versions}:"
    return "\n".join([f"<!-- {found[1]} -->", text, "", *rows, "<!-- end -->"])


if __name__ == "__main__":
    PAGE.write_text(MARKED.sub(table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
