"""The programs of docs/recipes/kafka-and-delta.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["START", "blocks", "reader"]

PAGE = Path(__file__).resolve().parents[3] / "docs/recipes/kafka-and-delta.md"
START = "writer = (\n"
"""With this line a block begins to start its query."""


def blocks() -> list[str]:
    """Return the blocks of Python."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def reader() -> Any:
    """Return the page's function that drops repeated messages."""
    names: dict[str, Any] = {}
    (block,) = (block for block in blocks() if "def distinct(" in block)
    exec(block, names)
    return names["distinct"]
