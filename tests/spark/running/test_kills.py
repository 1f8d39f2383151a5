"""A killed driver or executor changes no micro-batch; `make soak-kills` kills at random moments."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kill_child
import pytest
from kill_driver import compared, run, settings_of
from kill_jobs import write_input
from pyspark.sql import SparkSession
from standalone import cluster

pytestmark = pytest.mark.spark


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
