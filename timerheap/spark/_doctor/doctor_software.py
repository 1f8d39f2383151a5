"""What `doctor` checks without a task: Python, packages, the native module, Spark and its settings."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import pyspark
from pyspark.sql import SparkSession

from timerheap._native._core import TimerHeap
from timerheap.spark._compat import jvm, on_connect
from timerheap.spark._settings import of_application, settings

_OLDEST_JAVA = 17
_PACKAGES = ("timerheap", "pyspark", "numpy", "pandas", "pyarrow", "protobuf", "grpcio")


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes
    ----------
    subject : str
        What was checked.
    status : str
        "ok", "warning", "failed", or "unknown".
    found : str
        What was found.
    remedy : str
        What to do, "" if nothing.
    """

    subject: str
    status: str
    found: str
    remedy: str = ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages in this process."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def native_fault() -> str:
    """Return what is wrong with the native module in this process, "" if nothing."""
    heap = TimerHeap()
    for at in (3, 1, 2):
        heap.push(at, at)
    order = [heap.pop()[0] for _ in range(3)]
    return "" if order == [1, 2, 3] else f"timers came out in the order {order}"


def check_software() -> Iterator[Finding]:
    """Check this process."""
    libc = " ".join(platform.libc_ver()).strip()
    system = f"{platform.system()} {platform.release()} {platform.machine()} {libc}".strip()
    supported = (3, 11) <= sys.version_info[:2] <= (3, 14) and platform.python_implementation() == "CPython"
    yield Finding(
        "Python",
        "ok" if supported else "failed",
        f"{platform.python_implementation()} {platform.python_version()} on {system}",
        "" if supported else "use CPython 3.11 to 3.14",
    )
    shown = ", ".join(f"{name} {number}" for name, number in versions().items() if name != "python")
    yield Finding("packages", "ok", shown)
    fault = native_fault()
    remedy = "install the wheel of this platform again" if fault else ""
    yield Finding("native module", "failed" if fault else "ok", fault or "loads and orders timers", remedy)


def check_spark(spark: SparkSession) -> Iterator[Finding]:
    """Check Spark and Java."""
    same = spark.version.split("-")[0].split(".")[:2] == pyspark.__version__.split(".")[:2]
    kind = "Spark Connect" if on_connect(spark) else "a classic session"
    yield Finding(
        "Spark",
        "ok" if same and spark.version >= "4.1" else "failed",
        f"{spark.version}, {kind}, PySpark {pyspark.__version__}",
        "" if same else "install the version of PySpark that the server has",
    )
    if on_connect(spark):
        yield Finding("Java", "unknown", "Spark Connect does not show the server's")
        return
    java = str(jvm(spark).java.lang.System.getProperty("java.specification.version"))
    vendor = str(jvm(spark).java.lang.System.getProperty("java.vendor"))
    right = int(java.rpartition(".")[2]) >= _OLDEST_JAVA
    remedy = "" if right else f"use Java {_OLDEST_JAVA} or newer"
    yield Finding("Java", "ok" if right else "failed", f"{java} of {vendor}", remedy)
    master = str(spark.sparkContext.master).partition("[")[0].partition(":")[0]
    cores = spark.sparkContext.defaultParallelism
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    few = partitions <= 4 * max(cores, 1)
    yield Finding(
        "cluster",
        "ok" if few else "warning",
        f"master {master}, {cores} cores, {partitions} shuffle partitions",
        "" if few else "set spark.sql.shuffle.partitions to the number of cores before the first start",
    )


def check_spark_settings(spark: SparkSession) -> Iterator[Finding]:
    """Check the settings that timerheap is about."""
    wanted = settings(portable=True)
    needed = next(iter(wanted))
    for name, value in wanted.items():
        found = spark.conf.get(name, None)
        if found == value:
            yield Finding(name, "ok", value)
        elif name == needed and not (found and "RocksDB" in found):
            remedy = "set it in the session before a stream starts: python -m timerheap settings"
            yield Finding(name, "failed", f"{found}", remedy)
        elif name == needed:
            yield Finding(name, "ok", f"{found}")
        else:
            where = "for the application" if of_application(name) else "in the session"
            yield Finding(name, "warning", f"{found}", f"set it to {value} {where}: queries are faster")
