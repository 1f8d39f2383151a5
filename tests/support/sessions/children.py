"""Programs in processes of their own, which import the helpers of the tests as the tests do."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["PROGRAMS", "helpers", "import_path"]

SUPPORT = Path(__file__).resolve().parents[1]
PROGRAMS = SUPPORT / "programs"


def helpers() -> list[str]:
    """Return the folders of tests/support."""
    return sorted(str(folder) for folder in SUPPORT.glob("[a-z]*"))


def import_path() -> dict[str, str]:
    """Return the setting with which a program imports the helpers, too."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*helpers(), os.environ.get("PYTHONPATH")]))}
