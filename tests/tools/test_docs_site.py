"""The documentation of which versions is put side by side, and what the switcher offers."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

TOOL: dict[str, Any] = runpy.run_path(
    str(Path(__file__).resolve().parents[2] / "tools/docs_site.py"), run_name="docs_site"
)


def test_the_last_patch_of_each_minor_version_is_shown_the_newest_first() -> None:
    tags = ["v0.9.0", "v0.10.1", "v0.10.0", "v0.9.12", "v0.9.2", "v1.0.0rc1", "other"]
    assert TOOL["newest"](tags) == {"0.10.1": "v0.10.1", "0.9.12": "v0.9.12"}
    assert TOOL["newest"]([]) == {}


def test_one_version_is_preferred() -> None:
    entries = TOOL["switcher"](["0.10.1", "0.9.12"], "/timerheap/")
    assert [entry["url"] for entry in entries] == [
        "/timerheap/dev/",
        "/timerheap/0.10.1/",
        "/timerheap/0.9.12/",
    ]
    assert [entry["version"] for entry in entries if entry["preferred"]] == ["0.10.1"]
    assert [entry["version"] for entry in TOOL["switcher"]([], "/") if entry["preferred"]] == ["dev"]
