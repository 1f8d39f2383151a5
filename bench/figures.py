"""The file of a benchmark's figures."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_json"]


def write_json(path: Path | None, figures: object) -> None:
    """Write the figures to a file, whose directory is made if there is none; None writes nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n")
