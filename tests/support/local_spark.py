"""The Spark of the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession

from timerheap.spark.java import ensure_java

STREAMING = "org.apache.spark.sql.execution.streaming"
ROCKSDB = f"{STREAMING}.state.RocksDBStateStoreProvider"
# Spark's default runs two programs, readlink and chmod, for every file of a checkpoint on a local disk.
FILES = f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"


def start_spark(
    scratch: os.PathLike[str] | str, cores: int = 2, settings: Mapping[str, object] = MappingProxyType({})
) -> SparkSession:
    """Start a quiet local Spark, in which a task may fail once, with RocksDB as the state store."""
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
        .config("spark.sql.execution.arrow.maxBytesPerBatch", (1 << 31) - 1)
        .config("spark.sql.shuffle.partitions", 2)  # each costs a Python worker in every micro-batch
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1000)
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", True)
        .config(map={name: str(value) for name, value in settings.items()})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
