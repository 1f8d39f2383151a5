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
SUPPORT = Path(__file__).resolve().parents[2] / "support"


def test_every_operator_runs_on_spark_connect(tmp_path: Path) -> None:
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
    tumbled = [["a", 0, 1], ["a", 2000, 1], ["b", 0, 1]]
    both = {
        "rows": rows,
        "columns": timers,
        "two inputs": sorted([key, at, side] for key, at, n in rows if n > 0 for side in (1, 2)),
        "rules": [["a", 0, 1], ["a", 3000, 1], ["b", 5, 1]],
        "calls": [["a", 0], ["a", 6000], ["b", 10]],
        "results": [["a", 0, 1], ["b", 5, 1]],
        "side output": [["a", 2]],
        "window operator": tumbled,
        "tumble": tumbled,
        "hop": [["a", -2000, 1], ["a", 0, 2], ["a", 2000, 1], ["b", -2000, 1], ["b", 0, 1]],
        "cumulate": [["a", 0, 1], ["a", 0, 2], ["b", 0, 1], ["b", 0, 1]],
        "session": [["a", 0, 1], ["a", 3000, 1], ["b", 5, 1]],
        "sql": tumbled,
        "ranks": [["a", 0, 2]],
    }
    processors, counts = ["processor", "processor in pandas"], [["a", 0, 2], ["b", 0, 1]]
    groups = {"groups of results": [["a", 4], ["b", 2]]}
    assert found["batch"] == both | groups | dict.fromkeys(processors, counts)
    counts = [["a", 0, 2], ["b", 0, 2]]
    alarms = {"alarms": [["a", 0, -1], ["b", 0, -1]]}
    assert found["streams"] == both | dict.fromkeys(processors, counts) | alarms
    refused = found["refused"]
    assert found["progress"] == {"watermark": 97_999, "fired_timers": 3, "keys": 2}
    assert len(refused) == 3
    assert all("not supported on Spark Connect" in message for message in refused)
