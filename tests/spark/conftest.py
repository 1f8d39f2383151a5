"""One Spark for all tests of this folder, and functions that its workers can load."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anything
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from timerheap.spark.java import ensure_java

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STREAMING = "org.apache.spark.sql.execution.streaming"
ROCKSDB = f"{STREAMING}.state.RocksDBStateStoreProvider"
# Spark's default runs two programs, readlink and chmod, for every file of a checkpoint on a local disk.
FILES = f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"


def start_spark(scratch: os.PathLike[str] | str, cores: int = 2) -> SparkSession:
    """A quiet local Spark in which a task may fail once, as timerheap wants it."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{cores},2]")
        .appName("timerheap tests")
        .config("spark.driver.host", "localhost")
        # A short life: optimising code would cost the tests more than it gives.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.local.dir", f"{scratch}/local")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)  # each costs a Python worker in every micro-batch
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1000)
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", True)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def carried_to_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of tests and examples are pickled by value: no worker can import their modules."""
    imported = [value for value in vars(request.module).values() if isinstance(value, ModuleType)]
    examples = [module for module in imported if EXAMPLES in Path(module.__file__ or "/").parents]
    modules = [request.module, anything, *examples]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
