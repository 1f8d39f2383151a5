"""What `doctor` checks where queries run: Python workers, their disks, sockets and clocks; checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap._private import is_private
from timerheap.spark._compat import checkpoint_manager, hadoop_files, hadoop_path, on_connect
from timerheap.spark._continued.checkpoint_files import CheckpointFiles
from timerheap.spark._doctor.doctor_software import Finding, native_fault, versions

_TASKS = 8
_LEAST_FREE = 1 << 30  # bytes
_FEWEST_FILES = 1024
_LARGEST_SKEW = 2.0  # seconds
_DIRECTORIES = "SPARK_LOCAL_DIRS"


def looked_at(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what there is where this task runs, as JSON."""
    for _ in batches:
        pass
    yield pa.record_batch([[json.dumps(_place())]], names=["place"])


def _place() -> dict[str, Any]:
    directory = os.environ.get(_DIRECTORIES, tempfile.gettempdir()).split(",")[0]
    found: dict[str, Any] = {"versions": versions(), "fault": native_fault(), "now": time.time()}
    found["free"] = shutil.disk_usage(directory).free if os.path.isdir(directory) else -1
    found["writable"] = os.access(directory, os.W_OK)
    umask = os.umask(0o077)
    os.umask(umask)
    found["umask"] = umask
    found["unix"] = hasattr(socket, "AF_UNIX")
    sockets = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_DIR")
    found["private"] = sockets is None or is_private(sockets)
    try:
        import resource

        found["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows
        found["files"] = -1
    return found


def check_workers(spark: SparkSession) -> Iterator[Finding]:
    """Check Python workers, on as many executors as have a task."""
    rows = spark.range(0, _TASKS, 1, _TASKS).mapInArrow(looked_at, "place string").collect()
    places = [json.loads(row.place) for row in rows]
    mine = versions()
    others = sorted(
        {
            f"{name} {number} instead of {mine[name]}"
            for place in places
            for name, number in place["versions"].items()
            if name in mine and number != mine[name]
        }
    )
    apart = {name.partition(" ")[0] for name in others} & {"timerheap", "pyspark"}
    yield Finding(
        "Python workers",
        "failed" if apart else "warning" if others else "ok",
        f"{len(places)} tasks, {', '.join(others) or 'the versions of the driver'}",
        "install the same wheels on all machines" if others else "",
    )
    faults = sorted({place["fault"] for place in places if place["fault"]})
    yield Finding(
        "native module of workers",
        "failed" if faults else "ok",
        "; ".join(faults) or "loads and orders timers",
        "install the wheel of their platform" if faults else "",
    )
    free, writable = min(place["free"] for place in places), all(place["writable"] for place in places)
    enough = writable and (free < 0 or free >= _LEAST_FREE)
    yield Finding(
        "local disk of workers",
        "ok" if enough else "failed" if not writable else "warning",
        f"{'writable' if writable else 'not writable'}, {max(free, 0) / 1e9:.1f} GB free",
        "" if enough else f"give spark.local.dir ({_DIRECTORIES}) room for twice the live state",
    )
    files = min(place["files"] for place in places)
    yield Finding(
        "open files of workers",
        "ok" if files < 0 or files >= _FEWEST_FILES else "warning",
        f"a limit of {files}",
        "" if files < 0 or files >= _FEWEST_FILES else f"raise it to {_FEWEST_FILES} or more (ulimit -n)",
    )
    closed = all(place["private"] and place["umask"] & 0o022 == 0o022 for place in places)
    yield Finding(
        "sockets of workers",
        "ok" if closed else "warning",
        f"{'Unix sockets can be had' if places[0]['unix'] else 'TCP alone'}, "
        f"umask {places[0]['umask']:03o}, {'closed to other users' if closed else 'open to other users'}",
        "" if closed else "set the umask of executors to 022 or 077",
    )


def check_clock(spark: SparkSession) -> Iterator[Finding]:
    """Check whether the clocks of workers and of Spark agree with that of this process."""
    started = time.time()
    row = spark.range(1).select(F.unix_millis(F.current_timestamp()).alias("now")).collect()[0]
    places = spark.range(0, _TASKS, 1, _TASKS).mapInArrow(looked_at, "place string").collect()
    ended = time.time()
    times = [row.now / 1000, *(json.loads(each.place)["now"] for each in places)]
    skew = max(0.0, started - min(times), max(times) - ended)
    agree = skew <= _LARGEST_SKEW
    yield Finding(
        "clocks",
        "ok" if agree else "warning",
        f"at least {skew:.1f} s apart" if skew else "agree as far as can be seen",
        "" if agree else "let NTP set the clocks: timers by processing time follow that of the driver",
    )
    yield Finding("time zone", "ok", f"{spark.conf.get('spark.sql.session.timeZone')}")


def check_checkpoint(spark: SparkSession, checkpoint: str) -> Iterator[Finding]:
    """Check that files can be written, renamed, listed, read and removed where checkpoints will be."""
    folder = f"{checkpoint.rstrip('/')}/timerheap-doctor-{uuid.uuid4().hex}"
    if on_connect(spark):
        started = time.monotonic()
        spark.range(1).write.parquet(folder)
        count = spark.read.parquet(folder).count()
        yield Finding(
            "checkpoint location",
            "ok" if count == 1 else "failed",
            f"written and read in {time.monotonic() - started:.1f} s; on Spark Connect a folder is left "
            "there, whose name begins with timerheap-doctor",
        )
        return
    files, root = CheckpointFiles(spark, folder), hadoop_path(spark, folder)
    started = time.monotonic()
    try:
        files.write("0", "timerheap")
        right = files.read("0") == "timerheap" and "0" in files.names()
    finally:
        files.remove("")
    right &= not files.exists()
    scheme = hadoop_files(spark, root).getUri().getScheme()
    kind = f"{scheme}, {type_name(checkpoint_manager(spark, root))}"
    yield Finding(
        "checkpoint location",
        "ok" if right else "failed",
        f"{kind}: made, renamed, listed, read and removed a file in {time.monotonic() - started:.1f} s",
        "" if right else "use a file system that Spark supports for checkpoints",
    )
    local = scheme == "file" and not str(spark.sparkContext.master).startswith("local")
    if local:
        yield Finding(
            "checkpoint file system",
            "failed",
            "a local disk, on a cluster",
            "use a location that all machines see, such as hdfs:// or s3a://",
        )


def type_name(of_java: Any) -> str:
    """Return the name of the class of an object of Java."""
    return str(of_java.getClass().getSimpleName())
