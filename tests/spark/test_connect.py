"""On Spark Connect functions run as on a classic session, and what needs the JVM is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_spark import JAVA_OPTIONS

pytestmark = pytest.mark.spark
SUPPORT = Path(__file__).resolve().parents[1] / "support"


def test_functions_windows_and_processors_run_on_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    program = [sys.executable, str(SUPPORT / "connect_program.py"), str(tmp_path)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    environ["JDK_JAVA_OPTIONS"] = JAVA_OPTIONS
    run = subprocess.run(program, env=environ, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-5000:]
    found = json.loads((tmp_path / "found.json").read_text())
    rows = [["a", 0, 1], ["a", 1000, -1], ["a", 3000, 2], ["a", 4000, -1], ["b", 5, 1], ["b", 1005, -1]]
    timers = [[key, at, at] for key, at, n in rows if n == -1]
    windows = [["a", 0, 1], ["a", 2000, 1], ["b", 0, 1]]
    refused = found.pop("refused")
    assert found == {
        "rows": rows,
        "columns": timers,
        "stream": rows,
        "two inputs": sorted([key, at, side] for key, at, n in rows if n > 0 for side in (1, 2)),
        "processor": [["a", 0, 2], ["b", 0, 1]],
        "processor in pandas": [["a", 0, 1], ["a", 0, 2], ["b", 0, 1], ["b", 0, 2]],
        "results": [["a", 0, 1], ["b", 5, 1]],
        "side output": [["a", 2]],
        "groups of results": [["a", 4], ["b", 2]],
        "window operator": windows,
        "windows in Arrow": windows,
        "windows in the JVM": windows,
    }
    assert len(refused) == 5
    assert all("not supported on Spark Connect" in message for message in refused)
