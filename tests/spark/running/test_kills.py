"""A killed driver or executor changes no micro-batch; `make soak-kills` kills at random moments."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kill_child
import pytest
from kill_driver import WANTED, compared, run, settings_of
from kill_jobs import PLACES, write_input
from pyspark.sql import SparkSession
from standalone import cluster

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]


@pytest.mark.parametrize(("what", "query"), [("driver", "rows"), ("executors", "twice")])
def test_a_kill_changes_no_micro_batch(spark: SparkSession, tmp_path: Path, what: str, query: str) -> None:
    write_input(tmp_path / "in", seed=1, batches=3, rows=60, keys=20)
    spec: dict[str, Any] = {"input": str(tmp_path / "in"), "query": query, "killer": None, "twins": False}
    kill_child.start(spark, spec | {"work": tmp_path / "undisturbed"}).awaitTermination()

    marker = tmp_path / "killed"
    with cluster(tmp_path / "cluster") if what != "driver" else nullcontext() as where:
        disturbed = {"killer": (what, marker, 1), "settings": settings_of(where)}
        found = run(tmp_path / "disturbed", spec | disturbed)
    found.add(compared(tmp_path / "undisturbed" / "out", tmp_path / "disturbed" / "out"))

    assert marker.exists()
    assert not found.differences
    assert found.batches >= 3  # a processor has one more, without rows
    assert found.rows > 0
    if what == "driver":
        assert found.starts > 1, "killed within a micro-batch, and started again"
    else:
        assert found.starts == 1, found.ended


class Soon(random.Random):
    """Draws times near the lower end."""

    def uniform(self, a: float, b: float) -> float:
        return super().uniform(a, a + (b - a) / 8)


def test_kills_while_a_query_is_changed_change_no_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The sink skips a micro-batch that it has, and each version is stopped when it has just written one."""
    write_input(tmp_path / "in", seed=2, batches=4, rows=60, keys=20)
    spec: dict[str, Any] = {"input": str(tmp_path / "in"), "query": "continued", "killer": None}
    spec |= {"twins": False, "work": tmp_path / "undisturbed"}
    kill_child.start(spark, spec).awaitTermination()

    disturbed = {"changed": True, "sink": "files", "settings": settings_of(None)}
    found = run(tmp_path / "disturbed", spec | disturbed, 2, "change", Soon(1))
    found.add(compared(tmp_path / "undisturbed" / "out", tmp_path / "disturbed" / "out"))
    assert not found.differences
    assert not found.errors
    assert found.kills == 2
    assert found.batches >= 4
    assert found.rows > 0


@pytest.mark.parametrize("place", PLACES)
def test_a_worker_that_dies_while_keys_settle_changes_no_micro_batch(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    write_input(tmp_path / "in", seed=3, batches=5, rows=120, keys=30)
    spec: dict[str, Any] = {"input": str(tmp_path / "in"), "query": "values-columns", "killer": None}
    spec["twins"] = False
    kill_child.start(spark, spec | {"work": tmp_path / "undisturbed"}).awaitTermination()

    wanted = tmp_path / "disturbed" / WANTED
    disturbed = {"settles": True, "wanted": wanted, "settings": settings_of(None)}
    found = run(tmp_path / "disturbed", spec | disturbed, 2, place, Soon(1))
    found.add(compared(tmp_path / "undisturbed" / "out", tmp_path / "disturbed" / "out"))
    assert not found.differences
    assert not found.errors
    assert found.kills
    assert found.settled
    assert found.rows > 0
