"""Writes pages of the documentation as Jupyter notebooks, into examples/notebooks.

Run as ``python tests/support/pages/notebooks.py``, which needs nothing but Python. The code of the pages and
its output are tested, and a test compares the notebooks with what this module makes of the pages.
"""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "PAGES", "notebook"]

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples/notebooks"
DOCS = ROOT / "docs"
PAGES = {
    "first-steps": [DOCS / "first-steps.md"],
    "silent-sensors": [DOCS / "recipes/index.md", DOCS / "recipes/silent-sensors.md"],
    "patterns": [DOCS / "guides/index.md", DOCS / "guides/patterns.md"],
}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r"\{[\w:]+\}`~?([^`<]*?)(?: <[^`]*>)?`")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)")  # of a page that is not beside the notebook


def prose(text: str) -> str:
    """Return text of a page without the roles and links that only the documentation resolves."""
    return LINK.sub(r"\1", ROLE.sub(r"`\1`", text)).strip()


def cells(page: Path, text: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page; a block of text directly after one of Python is its output."""
    end, fences = 0, list(FENCE.finditer(text))
    for fence in fences:
        before = prose(text[end : fence.start()])
        end = fence.end()
        if before:
            yield {"cell_type": "markdown", "metadata": {}, "source": before}
            last: dict[str, Any] = {}
        language, code = fence[1], fence[2]
        if language == "python" and ">>> " in code:
            yield from sessions(code)
        elif language == "python":
            last = code_cell(code.strip())
            yield last
        elif language == "text" and not before and last.get("cell_type") == "code":
            last["outputs"] = [{"output_type": "stream", "name": "stdout", "text": code}]
        elif not language.startswith("{"):
            yield {"cell_type": "markdown", "metadata": {}, "source": f"```{language}\n{code}```"}
    if rest := prose(text[end:]):
        yield {"cell_type": "markdown", "metadata": {}, "source": rest}


def sessions(code: str) -> Iterator[dict[str, Any]]:
    """Yield a cell for each expression of an interpreter session that shows a value."""
    lines = ""
    for example in doctest.DocTestParser().get_examples(code):
        lines += example.source
        if example.want:
            value = {"text/plain": example.want.rstrip()}
            shown = {"output_type": "execute_result", "data": value, "metadata": {}, "execution_count": None}
            yield code_cell(lines.strip(), shown)
            lines = ""
    if lines:
        yield code_cell(lines.strip())


def code_cell(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "source": source,
        "outputs": list(outputs),
    }


def notebook(name: str) -> str:
    """Return the notebook of pages; of the first of several, only the code, with which the others begin."""
    *shared, page = PAGES[name]
    found = [cell for path in shared for cell in cells(path, path.read_text("utf-8")) if "outputs" in cell]
    title, *others = cells(page, page.read_text("utf-8"))
    numbered = [each | {"id": str(number)} for number, each in enumerate([title, *found, *others])]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": numbered, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / f"{name}.ipynb").write_text(notebook(name), encoding="utf-8")
