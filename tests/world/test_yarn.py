"""The recipes of docs/operations/deployment.md on YARN with HDFS, and on a standalone cluster.

The demo's query runs on an environment that was packed as the page says; the first micro-batch is followed by
SIGKILL for the driver or for an executor, and the alerts equal those of pandas.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alerts as alerts_of
import pandas as pd
import pytest
import recipes
from flights import read_flights, write_replay
from hadoop import Hadoop
from standalone import cluster

pytestmark = [pytest.mark.world("hadoop"), pytest.mark.soak]

MICRO_BATCHES = 4
SETTINGS = {
    "spark.executor.instances": 2,
    "spark.executor.cores": 1,
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.submit.pyFiles": "flights.py,overdue.py",
    "spark.scheduler.minRegisteredResourcesRatio": 1,  # wait for both
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.locality.wait": 0,  # a fast task would let the others wait for its executor
    "spark.sql.shuffle.partitions": 2,
    "spark.ui.enabled": "false",
}
# Containers find Spark where the machine has it, instead of 400 MB that are uploaded for each application.
YARN = {"spark.yarn.jars": f"local:{recipes.SPARK}/jars/*", "spark.yarn.report.interval": "200ms"}


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights().query("month == 1")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, flights: pd.DataFrame) -> Iterator[Path]:
    """A folder with a packed environment, the job, and its input."""
    work = tmp_path_factory.mktemp("recipes")
    recipes.pack(work)
    write_replay(flights, work / "replay" / "flights", MICRO_BATCHES)
    yield work
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    folder = tmp_path_factory.mktemp("hadoop")
    with Hadoop(folder) as started:
        yield started
    shutil.rmtree(folder)  # copies of an environment


def check(*arguments: Any) -> dict[str, Any]:
    """Check the alerts, and that each executor has imported timerheap from its archive."""
    alerts, told, flights, victim, tell, where = arguments
    answer = alerts_of.check(alerts, told, flights, MICRO_BATCHES, victim, tell, where)
    for directory, module in answer["imported"].items():
        assert Path(directory, "environment") in Path(module).parents
    return answer


def on_yarn(hadoop: Hadoop, work: Path, block: str, victim: str) -> tuple[Path, Path]:
    """Run a recipe on YARN; return copies of the alerts, and what the job told."""
    run = f"{victim}-{len(list(work.glob('*.json')))}"
    told = work / f"{run}.json"
    hadoop.files("-put", "-p", work / "replay", f"/{run}")  # the order of the files is that of their times
    command = block.replace(" job.py", f" job.py /{run} {told} {victim}")
    try:
        recipes.run(command, work, SETTINGS | YARN, HADOOP_CONF_DIR=hadoop.configuration)
    except AssertionError as error:
        error.add_note(hadoop.logs())
        raise
    hadoop.files("-get", f"/{run}/alerts", work / run)
    return work / run, told


def test_in_cluster_mode_yarn_starts_a_killed_driver_again(
    hadoop: Hadoop, work: Path, flights: pd.DataFrame, tell: Callable[..., None]
) -> None:
    block, _ = recipes.blocks("YARN", "sh")
    alerts, told = on_yarn(hadoop, work, block, "driver")
    answer = check(alerts, told, flights, "driver", tell, "YARN, cluster mode, checkpoint on HDFS")
    assert all("/appcache/application_" in directory for directory in answer["imported"])


def test_in_client_mode_yarn_replaces_a_killed_executor(
    hadoop: Hadoop, work: Path, flights: pd.DataFrame, tell: Callable[..., None]
) -> None:
    _, block = recipes.blocks("YARN", "sh")
    hadoop.files("-mkdir", "-p", "/envs")
    hadoop.files("-put", work / "environment.tar.gz", "/envs")
    alerts, told = on_yarn(hadoop, work, block, "executor")
    check(alerts, told, flights, "executor", tell, "YARN, client mode, checkpoint on HDFS")


def test_the_recipe_for_a_standalone_cluster(
    work: Path, flights: pd.DataFrame, tell: Callable[..., None], tmp_path: Path
) -> None:
    (block,) = recipes.blocks("Standalone", "sh")
    told = tmp_path / "told.json"
    shutil.copytree(work / "replay", tmp_path / "replay")
    with cluster(tmp_path / "cluster") as spark:
        command = block.replace("spark://host:7077", spark.url)
        command = command.replace(" job.py", f" job.py {tmp_path}/replay {told} executor")
        recipes.run(command, work, SETTINGS | {"spark.cores.max": 2})
    check(tmp_path / "replay/alerts", told, flights, "executor", tell, "standalone cluster")
