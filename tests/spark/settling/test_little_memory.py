"""Less memory than the state of key groups takes, a fourth or a twentieth of it, changes no result."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import settled_child
from cgroups import forget, is_in_memory, limited, missing_cgroups

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_cgroups()), reason=missing_cgroups()),
]
KEYS = 1_000_000
BUILDS = KEYS // settled_child.MANY
BATCHES = 12


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def run(folder: Path, limit: int | None = None, **spec: Any) -> dict[str, Any]:
    """Run micro-batches in a process of its own, and return what it tells."""
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(spec | {"folder": str(folder), "keys": KEYS}))
    command = [sys.executable, settled_child.__file__, file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with nullcontext() if limit is None else limited([child.pid], limit):
            told, _ = child.communicate("go\n")
    assert child.returncode == 0, "the kernel ends a process that needs more than the limit"
    found: dict[str, Any] = json.loads(told)
    return found


def test_less_memory_than_state_changes_no_result(tmp_path: Path) -> None:
    if is_in_memory(tmp_path):
        pytest.skip("files of this folder are memory themselves")
    built = tmp_path / "built"
    built.mkdir()
    assert run(built, batches=[0, BUILDS], loses=None)["settled"] == 0
    size = sum(path.stat().st_blocks * 512 for path in files(built / "local"))
    assert size > 200 << 20

    def again(name: str, limit: int | None = None) -> dict[str, Any]:
        """Run the micro-batches that follow, halfway without live files."""
        folder = tmp_path / name
        subprocess.run(["cp", "-a", "--sparse=always", built, folder], check=True)
        forget(files(folder))
        loses = BUILDS + BATCHES // 2
        found = run(folder, limit, batches=[BUILDS, BUILDS + BATCHES], loses=loses)
        shutil.rmtree(folder)
        assert found.pop("loaded") == settled_child.GROUPS
        return found

    plain = again("plain")
    assert plain.pop("settled") == 0
    for share in (4, 20):
        found = again(f"one in {share}", size // share)
        assert found.pop("settled") > KEYS // 2
        assert found == plain, share
