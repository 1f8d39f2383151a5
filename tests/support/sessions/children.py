"""Programs in processes of their own, which import the helpers of the tests as the tests do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "helpers", "import_path", "told"]

SUPPORT = Path(__file__).resolve().parents[1]
PROGRAMS = SUPPORT / "programs"


def helpers() -> list[str]:
    """Return the folders of tests/support."""
    return sorted(str(folder) for folder in SUPPORT.glob("[a-z]*"))


def import_path() -> dict[str, str]:
    """Return the setting with which a program imports the helpers, too."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*helpers(), os.environ.get("PYTHONPATH")]))}


def told(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a program in a folder, and return what it has told, a JSON object in each line."""
    run = subprocess.run(
        [sys.executable, PROGRAMS / program, folder, *arguments],
        env=os.environ | import_path(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:]
    found: dict[str, Any] = {}
    for line in run.stdout.splitlines():
        found |= json.loads(line)
    return found
