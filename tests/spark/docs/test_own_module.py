"""The project of the guide to modules of one's own: workers find it from any folder, and its test passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_spark import JAVA_OPTIONS

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).resolve().parents[3] / "examples/own_project"


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_test_of_the_project_passes(tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path / "project")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.in_turn
def test_workers_find_the_module_from_another_folder_if_it_is_shipped(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    main = (project / "main.py").read_text()
    shipping, rest = main.split("spark.sparkContext.addPyFile")
    line, rest = rest.split("\n", 1)
    # The same query, first without the line, then with it, in one session.
    query = "def query():\n" + "".join(f"    {code}\n" for code in rest.splitlines())
    attempt = "try:\n    query()\nexcept Exception as error:\n    print(error)"
    program = f"{attempt}\nspark.sparkContext.addPyFile{line}\nquery()\n"
    (project / "main.py").write_text(f"{shipping}\n{query}\n{program}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # PYTHONSAFEPATH would keep the script's own folder from the path.
    done = run(project / "main.py", cwd=elsewhere, PYTHONSAFEPATH="", JDK_JAVA_OPTIONS=JAVA_OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ModuleNotFoundError: No module named 'parcels'" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["1 3600000", "2 5400000"]
