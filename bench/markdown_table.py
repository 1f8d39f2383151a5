"""The lines of a table in Markdown."""

from __future__ import annotations


def begin(heads: str) -> list[str]:
    """Return the first lines of a table in Markdown."""
    return [heads, "|---" * (heads.count("|") - 1) + "|"]


def line(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
