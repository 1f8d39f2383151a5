"""The Spark of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyspark
from children import PROGRAMS, import_path
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap.spark import ensure_java

STREAMING = "org.apache.spark.sql.execution.streaming"
ROCKSDB = f"{STREAMING}.state.RocksDBStateStoreProvider"
# Spark's default runs two programs, readlink and chmod, for every file of a checkpoint on a local disk.
FILES = f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"

# What Spark can check and repair of a state by itself: all of it with TIMERHEAP_SPARK_CHECKS=all.
STATE_STORE = "spark.sql.streaming.stateStore"
CHECKS = {
    f"{STATE_STORE}.checkpointFormatVersion": 2,  # which checksums of files need
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": True,
    f"{STATE_STORE}.rowChecksum.enabled": True,
    f"{STATE_STORE}.rowChecksum.readVerificationRatio": 1,  # of each row that is read
    f"{STATE_STORE}.autoSnapshotRepair.enabled": True,
}

# A short life: optimising code would cost the tests more than it gives, and so would freeing it.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
JAVA_OPTIONS += " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
JAVA_OPTIONS += f" -XX:-UsePerfData -Djava.io.tmpdir={tempfile.gettempdir()}"

# Hadoop's own runs chmod for every file and folder, which takes a fifth of what a small query takes.
FILE_SYSTEM = """
public class PlainFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission
    ) {}
}
"""


def start_spark(
    scratch: os.PathLike[str] | str, cores: int = 2, settings: Mapping[str, object] = MappingProxyType({})
) -> SparkSession:
    """Start a quiet local Spark, in which a task may fail once, with RocksDB as the state store."""
    ensure_java()
    os.environ["SPARK_HOME"] = str(home_without_archives(Path(scratch)))
    chosen = os.environ.get("TIMERHEAP_SPARK_CHECKS", "")
    if chosen not in ("", "all"):
        raise ValueError(f'TIMERHEAP_SPARK_CHECKS must be "all" or not set, got {chosen!r}')
    settings = {**(CHECKS if chosen else {}), **settings}
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{cores},2]")
        .appName("timerheap tests")
        .config(map=timerheap.spark.settings())
        .config("spark.driver.host", "localhost")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.local.dir", f"{scratch}/local")
        .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        # Few rows, and each query has code of its own to compile.
        .config("spark.sql.codegen.wholeStage", False)
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.shuffle.partitions", 2)  # each costs a Python worker in every micro-batch
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1000)
        .config(map={name: str(value) for name, value in settings.items()})
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    use_plain_files(session)
    forget_defaults(session)
    return session


@contextmanager
def running_spark(
    scratch: Path, settings: Mapping[str, object] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """Start a Spark as `start_spark` does, and wait for the end of its JVM, which removes its files."""
    session = start_spark(scratch, settings=settings)
    java: Any = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    yield session
    session.stop()
    java.stdin.close()
    java.wait(60)


def home_without_archives(scratch: Path) -> Path:
    """Return a home of Spark whose Python processes import the installed pyspark.

    In Spark's own home there is a zip archive of it, which comes first and holds sources only. Each process
    that Spark starts compiles them, and that takes a second.
    """
    home = scratch / "home"
    if not home.exists():
        home.mkdir(parents=True)
        for name in ("bin", "jars"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


def use_plain_files(spark: SparkSession) -> None:
    """Replace the JVM's file system for local files; see `FILE_SYSTEM`."""
    context: Any = spark.sparkContext
    java, conf, array = context._jvm.java, context._jsc.hadoopConfiguration(), context._gateway.new_array
    compiler = context._jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(FILE_SYSTEM)
    plain = compiler.getClassLoader().loadClass("PlainFiles")
    files = context._jvm.org.apache.hadoop.fs.LocalFileSystem(
        plain.getConstructor(array(java.lang.Class, 0)).newInstance(array(java.lang.Object, 0))
    )
    root = java.net.URI("file:///")
    files.initialize(root, conf)
    methods = java.lang.Class.forName("org.apache.hadoop.fs.FileSystem").getDeclaredMethods()
    (put,) = (method for method in methods if method.getName() == "addFileSystemForTesting")
    put.setAccessible(True)
    arguments = array(java.lang.Object, 3)
    arguments[0], arguments[1], arguments[2] = root, conf, files
    put.invoke(None, arguments)


def forget_defaults(spark: SparkSession) -> None:
    """Keep none of Hadoop's 1,100 settings but the file system's: all are sent with every stage and task."""
    context: Any = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()
    # Two of its parts add their settings to all configurations when they are loaded.
    context._jvm.org.apache.hadoop.mapred.JobConf(False)
    context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("file", conf)
    kept = {"fs.AbstractFileSystem.file.impl": conf.get("fs.AbstractFileSystem.file.impl")}
    if conf.get("fs.s3a.access.key"):
        for prefix in ("fs.s3a.", "fs.AbstractFileSystem.s3a."):
            kept |= {f"{prefix}{name}": value for name, value in conf.getPropsWithPrefix(prefix).items()}
    conf.clear()
    for name, value in kept.items():
        conf.set(name, value)


def without_spark() -> dict[str, str]:
    """Return an environment that says nothing of this process's Spark, for a program with one of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    return environ | import_path() | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS}


def found_by(program: str, folder: Path) -> Any:
    """Run a program with a Spark of its own in a folder, and return what it has left in found.json."""
    command = [sys.executable, str(PROGRAMS / program), str(folder)]
    run = subprocess.run(command, env=without_spark(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-5000:]
    return json.loads((folder / "found.json").read_text())
