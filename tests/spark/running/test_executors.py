"""Runs the demo's query on a master and two workers; Spark sends the wheel to executors in an archive."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import venv_pack
from children import PROGRAMS
from flights import read_flights, write_replay
from overdue import DELAY
from overdue_pandas import final_watermark, overdue_planes
from standalone import cluster, running

import timerheap

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(together=True)]

MICRO_BATCHES = 2
# What executors need: timerheap[spark] less pyspark, which Spark itself puts on their path.
SHIPPED = ("timerheap", "numpy", "pandas", "pyarrow", "google", "dateutil", "pytz", "six", "tzdata")


def pack(archive: Path) -> None:
    """Pack the environment of the tests, without what executors do not need."""
    packed = venv_pack.Env(sys.prefix).exclude("*/site-packages/*")
    for name in SHIPPED:
        packed = packed.include(f"*/site-packages/{name}*")
    packed = packed.exclude("*/tests/*").exclude("*/pyarrow/include/*")
    packed.pack(str(archive), compress_level=0)  # it goes nowhere


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights().query("month == 1")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    work = tmp_path_factory.mktemp("executors")
    yield work
    shutil.rmtree(work)  # three copies of an environment


@pytest.fixture(scope="module")
def answer(work: Path, flights: pd.DataFrame) -> dict[str, Any]:
    """Return the output of flights_on_executors.py; the alerts and Spark's event log are in `work`."""
    if Path(sys.prefix) not in Path(timerheap.__file__).parents:
        pytest.skip("timerheap comes from elsewhere than the environment that would be packed")
    write_replay(flights, work / "flights", MICRO_BATCHES)
    (work / "events").mkdir()
    (work / "driver").mkdir()
    # Spark asks the function for its state on the driver, by a Python of the executors' name.
    (work / "driver" / "environment").symlink_to(sys.prefix)
    pack(work / "environment.tar.gz")
    settings = {
        "spark.archives": f"{work}/environment.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.cores.max": 2,
        "spark.executor.memory": "512m",
        "spark.locality.wait": 0,  # a fast task would let the others wait for its executor
        "spark.scheduler.minRegisteredResourcesRatio": 1,  # wait for both
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": work / "events",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": 2,
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    script = PROGRAMS / "flights_on_executors.py"
    modules = [Path(__file__).parents[3] / "examples" / name for name in ("flights.py", "overdue.py")]
    options += ["--py-files", ",".join(map(str, modules))]
    with cluster(work) as spark:
        submit = running(
            *("spark-submit", "--master", spark.url, *options, script, work, work / "answer.json"),
            directory=work / "driver",
        )
        with submit as process:
            assert process.wait(timeout=600) == 0
    return json.loads((work / "answer.json").read_text())


def test_each_executor_imports_the_compiled_module_from_the_archive(
    answer: dict[str, Any], work: Path
) -> None:
    imported = {Path(directory): Path(module) for directory, module in answer["imported"].items()}
    assert {directory.relative_to(work).parts[0] for directory in imported} == {"worker-1", "worker-2"}
    for directory, module in imported.items():
        assert directory / "environment" in module.parents
    # The archive's Python is a link to this one, which could not have served it alone.
    command = [sys._base_executable, "-I", "-c", "import timerheap"]
    alone = subprocess.run(command, capture_output=True, text=True)
    assert "ModuleNotFoundError: No module named 'timerheap'" in alone.stderr


def test_both_executors_run_tasks_and_the_alerts_equal_those_of_pandas(
    answer: dict[str, Any], work: Path, flights: pd.DataFrame
) -> None:
    assert answer["micro-batches"] == list(range(MICRO_BATCHES))
    got = pd.read_parquet(work / "alerts")
    right = overdue_planes(flights, final_watermark(flights, pd.Timedelta(milliseconds=DELAY)))
    right["since"] = right["since"].map(lambda time: time.value // 1_000_000)
    assert len(got) == len(right) > 0
    assert set(got.itertuples(index=False, name=None)) == set(right.itertuples(index=False, name=None))

    tasks = tasks_of(answer["query"], work / "events")
    assert set(tasks) == {"0", "1"}
    assert min(tasks.values()) >= MICRO_BATCHES, tasks


def tasks_of(query: str, events: Path) -> Counter[str]:
    """Count the tasks of a streaming query that each executor finished, from Spark's event log."""
    (log,) = events.iterdir()
    stages: set[int] = set()
    tasks: Counter[str] = Counter()
    for event in map(json.loads, log.read_text().splitlines()):
        if event["Event"] == "SparkListenerJobStart":
            if event["Properties"].get("sql.streaming.queryId") == query:
                stages.update(event["Stage IDs"])
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages:
            tasks[event["Task Info"]["Executor ID"]] += event["Task End Reason"]["Reason"] == "Success"
    return tasks
