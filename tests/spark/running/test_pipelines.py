"""The example of declarative pipelines, run by Spark's own program, with rows in between."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from local_spark import found_by, without_spark

from timerheap.spark import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pipeline"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Pipeline:
    """The example in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.incoming = folder / "incoming"
        shutil.copytree(EXAMPLE, self.folder)
        self.incoming.mkdir()
        specification = self.folder / "spark-pipeline.yml"
        text = specification.read_text().replace("/tmp/overdue-orders", str(folder))
        specification.write_text(f'{text}  spark.sql.pipelines.execution.maxConcurrentFlows: "1"\n')

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = without_spark() | {"JAVA_HOME": str(ensure_java())}
        environ |= dict.fromkeys(["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"], sys.executable)
        environ |= {"SPARK_CONF_DIR": str(self.folder), "SPARK_TESTING": "1"}  # the server takes a free port
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), *arguments]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)

    def completed(self, *arguments: str) -> None:
        for _ in range(5):
            run = self.run(*arguments)
            if "failed to connect back" not in run.stdout:  # as on a machine that is busy with others
                break
        assert run.returncode == 0, f"{run.stdout[-5000:]}\n{run.stderr[-2000:]}"

    def add(self, rows: Iterable[tuple[str, str, str, int]]) -> None:
        """Add orders: id, customer, event, and the minute after noon."""
        lines = [
            json.dumps({"id": id_, "customer": who, "event": event, "at": at(minute).isoformat()})
            for id_, who, event, minute in rows
        ]
        (self.incoming / f"{len(list(self.incoming.iterdir()))}.json").write_text("\n".join(lines))

    def table(self, name: str) -> list[tuple[Any, ...]]:
        folder = self.folder / "spark-warehouse" / name
        rows = [
            tuple(row.values())
            for path in folder.glob("*.parquet")
            for row in pq.read_table(path, coerce_int96_timestamp_unit="us").to_pylist()
        ]
        return sorted(rows)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def due(minute: int) -> datetime:
    """Return a time as the tables have it: in the session's zone, which is UTC."""
    return at(minute).replace(tzinfo=None)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pytest.importorskip("pyspark.pipelines.cli", reason="needs PySpark 4.3 with its extra pipelines")
    return Pipeline(tmp_path)


@pytest.mark.in_turn(20)
@pytest.mark.timeout(7200)  # four runs of a program
def test_state_outlives_a_run_and_ends_with_a_full_refresh(pipeline: Pipeline) -> None:
    pipeline.add([("a", "ann", "placed", 0), ("b", "bob", "placed", 10), ("c", "ann", "placed", 20)])
    pipeline.completed("dry-run")
    assert pipeline.table("overdue") == []
    pipeline.completed("run")
    assert len(pipeline.table("orders")) == 3
    assert pipeline.table("overdue") == []
    pipeline.add([("b", "bob", "paid", 30), ("d", "bob", "placed", 90)])  # the watermark comes to 85 minutes
    pipeline.completed("run")
    assert pipeline.table("overdue") == [("a", due(60)), ("c", due(80))]
    assert pipeline.table("orders_per_hour") == [(due(0), 3)]
    counts = [(who, n, word) for who, n, word, _ in pipeline.table("orders_of_customers")]
    assert counts == [
        ("ann", 2, "insert"), ("bob", 1, "insert"), ("bob", 2, "update_postimage")
    ]  # fmt: skip
    pipeline.add([("e", "eve", "placed", 200)])
    pipeline.completed("run", "--full-refresh-all")
    assert len(pipeline.table("orders")) == 6
    assert pipeline.table("overdue") == [("a", due(60)), ("c", due(80)), ("d", due(150))]


def test_the_specification_has_the_settings_that_the_command_prints() -> None:
    command = [sys.executable, "-m", "timerheap", "settings", "--format", "yaml"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed in (EXAMPLE / "spark-pipeline.yml").read_text()


@pytest.mark.in_turn
@pytest.mark.timeout(3600)
def test_functions_run_in_flows_after_those_that_write_their_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines.cli", reason="needs PySpark 4.3 with its extra pipelines")
    found = found_by("pipeline_program.py", tmp_path)
    first, second = "2026-01-01 00:00:00", "2026-01-01 00:00:10"
    assert found["tables"] == {
        "rows": [["a", "1", "2"], ["a", "2", "3"]],
        "side": [["a", "1"]],
        "chain": [["a", first, second, "1"]],
        "sql": [["a", first, "1"]],
        "changes": [["1", "1", "delete"], ["1", "1", "insert"], ["2", "1", "insert"]],
    }
    errors = found["errors"]
    assert 'use timerheap.spark.pipeline_table(spark, "default.nothing", "' in errors["no such table"]
    assert 'use timerheap.spark.pipeline_table(spark, "default.nothing", "' in errors["no schema"]
    assert 'write "DATABASE.raw"' in errors["no database"]
    assert "'k' of type bigint, where the table has string" in errors["a different type"]
    assert "whose runs would not end" in errors["processing time"]
    assert "must read its tables with spark.readStream.table()" in errors["sql"]
