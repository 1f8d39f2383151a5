"""On Spark Connect functions run as on a classic session, and what needs the JVM is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_spark import found_by

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


def test_every_operator_runs_on_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    found = found_by("connect_program.py", tmp_path)
    rows = [["a", 0, 1], ["a", 1000, -1], ["a", 3000, 2], ["a", 4000, -1], ["b", 5, 1], ["b", 1005, -1]]
    timers = [[key, at, at] for key, at, n in rows if n == -1]
    tumbled = [["a", 0, 1], ["a", 2000, 1], ["b", 0, 1]]
    both = {
        "rows": rows,
        "chain": [["a", 0, 2], ["a", 2000, 1], ["a", 4000, 1], ["b", 0, 2]],
        "columns": timers,
        "two inputs": sorted([key, at, side] for key, at, n in rows if n > 0 for side in (1, 2)),
        "rules": [["a", 0, 1], ["a", 3000, 1], ["b", 5, 1]],
        "several rules": rows,
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
        "changes": [["a", 2, 3000, "insert"], ["b", 1, 5, "insert"]],
    }
    processors, counts = ["processor", "processor in pandas"], [["a", 0, 2], ["b", 0, 1]]
    groups = {"groups of results": [["a", 4], ["b", 2]]}
    assert found["batch"] == both | groups | dict.fromkeys(processors, counts)
    counts = [["a", 0, 2], ["b", 0, 2]]
    alarms = {"alarms": [["a", 0, -1], ["b", 0, -1]]}
    assert found["streams"] == both | dict.fromkeys(processors, counts) | alarms
    *refused, of_changes = found["refused"]
    assert "same each time a row is computed, got rand" in of_changes
    assert found["progress"] == {"watermark": 97_999, "fired_timers": 3, "keys": 2, "others": 3}
    assert len(refused) == 2
    assert all("not supported on Spark Connect" in message for message in refused)
