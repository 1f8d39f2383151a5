"""Systems beside Spark, each started when a test first wants it, and a table of what was done to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterator
from datetime import date
from typing import Any

import pyspark
import pytest
from by_value import by_value
from connectors import connectors, newest_with, published, running
from jars import Unreachable
from kafka_broker import KAFKA, Broker
from local_spark import running_spark
from object_store import ObjectStore
from pyspark.sql import SparkSession

COLUMNS = ("job", "kills", "rows", "lost", "doubled")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what a soak test may be given: ``make soak-world ARGS="--kills 60 --seed 7"``."""
    parser.addoption("--kills", type=int, default=40, help="kills of a soak test")
    parser.addoption("--seed", type=int, default=None, help="of its choices; by default a new one")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test its turn in each fourth run, but for those of a soak: most of them start systems."""
    if item.get_closest_marker("soak") is None:
        item.add_marker(pytest.mark.in_turn(4))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what runs on a different version of PySpark: each test runs on the newest that can run it."""
    for item in items:
        marks = list(item.iter_markers("world"))
        if marks:
            version = newest_with(*(part for mark in marks for part in mark.args))
            if version != running:
                item.add_marker(
                    pytest.mark.skip(f"runs on PySpark {version}, the newest with its connectors")
                )


def skip_unreachable() -> Generator[None, Any, Any]:
    """Skip a test whose parts cannot be fetched, and say which."""
    try:
        return (yield)
    except Unreachable as error:
        pytest.skip(str(error))


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(skip_unreachable)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(skip_unreachable)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker for all tests that do not kill it."""
    with Broker(tmp_path_factory.mktemp("kafka") / "broker") as started:
        yield started


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 endpoint."""
    with ObjectStore() as started:
        yield started


@pytest.fixture(scope="session")
def world_settings(tmp_path_factory: pytest.TempPathFactory, object_store: ObjectStore) -> dict[str, str]:
    """Settings of a Spark with all connectors of its version, in this process or in another."""
    settings = {"spark.jars": ",".join(map(str, connectors())), **object_store.settings}
    if "delta" in published[running]:
        lake = tmp_path_factory.mktemp("lake")
        settings |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": str(lake / "iceberg"),
        }
    return settings


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, world_settings: dict[str, str]) -> Iterator[SparkSession]:
    """A local Spark with all connectors of its version."""
    with running_spark(tmp_path_factory.mktemp("spark"), world_settings) as session:
        yield session


@pytest.fixture(scope="module", autouse=True)
def carried_to_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickle the functions of this test module, of the helpers and of the examples by value."""
    with by_value(request.module):
        yield


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a soak test, also in its output if it fails."""
    given = request.config.getoption("seed")
    seed = random.randrange(10_000) if given is None else given
    print(f"--seed {seed}")
    return int(seed)


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that adds a line to the table at the end: ``tell(job, kills=, rows=, lost=, doubled=)``."""

    def add(job: str, **figures: object) -> None:
        request.node.user_properties.append(("world", {"job": job, **figures}))

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, and write it with the versions to out/world, for docs/operations/what-ran.md."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    lines = [
        [str(value.get(column, "")) for column in COLUMNS]
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == "world"
    ]
    if not lines:
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *lines, strict=True)]
    terminalreporter.section(f"PySpark {pyspark.__version__}")
    for job, *figures in (COLUMNS, *lines):
        terminalreporter.write_line("  ".join([job.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]))
    config = terminalreporter.config
    suite = "soak-world" if config.option.markexpr == "soak" else "test-world"
    out = config.rootpath / "out/world" / f"{suite}-{running}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    artifacts = sorted(artifact for part in published[running].values() for artifact in part)
    figures: dict[str, Any] = {
        "command": f"make {suite}",
        "date": date.today().isoformat(),
        "pyspark": pyspark.__version__,
    }
    out.write_text(
        json.dumps(figures | {"artifacts": [*artifacts, KAFKA], "table": [COLUMNS, *lines]}, indent=1)
    )
