"""Less memory than the state of key groups takes, a fourth or a twentieth of it, changes no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import settled_child
from cgroups import is_in_memory, limited, missing_cgroups
from children import import_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_cgroups()), reason=missing_cgroups()),
]
KEYS = 600_000
BUILDS = KEYS // settled_child.MANY
BATCHES = 8
OWN = 36 << 20
"""Bytes that a worker has of its own: objects, and a copy of a group's part when that is stored anew.

Of two machines with the same Python and libraries one needed 24 million, and one 32.
"""


def run(folder: Path, limit: int | None = None, **spec: Any) -> dict[str, Any]:
    """Run micro-batches in a process of its own, and return what it tells."""
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(spec | {"folder": str(folder), "keys": KEYS}))
    command = [sys.executable, settled_child.__file__, file]
    env = os.environ | import_path()
    env.pop("TIMERHEAP_SETTLING", None)
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with nullcontext() if limit is None else limited([child.pid], limit):
            told, _ = child.communicate("go\n")
    assert child.returncode == 0, "the kernel ends a process that needs more than the limit"
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.mark.in_turn(5)
def test_less_memory_than_state_changes_no_result(tmp_path: Path) -> None:
    if is_in_memory(tmp_path):
        pytest.skip("files of this folder are memory themselves")

    def found(name: str, limit: int | None = None) -> dict[str, Any]:
        """Run all micro-batches, in the middle of the last ones without live files."""
        folder = tmp_path / name
        folder.mkdir()
        told = run(folder, limit, batches=[0, BUILDS + BATCHES], loses=BUILDS + BATCHES // 2)
        assert told.pop("loaded") == settled_child.GROUPS
        return told

    plain = found("plain")
    assert plain.pop("settled") == 0
    live = (tmp_path / "plain" / "local").rglob("*.*")
    size = sum(path.stat().st_blocks * 512 for path in live if path.is_file())
    assert size > 100 << 20
    for share in (4, 20):
        one = found(f"one in {share}", OWN + size // share)
        assert one.pop("settled") > KEYS // 2
        assert one == plain, share
