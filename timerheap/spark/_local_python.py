"""Whether the Python with which a local Spark starts its workers has timerheap."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

from pyspark.sql import SparkSession

from timerheap.spark._compat import on_connect, sends_files

_IMPORTS = "import timerheap.spark"


def worker_trouble(spark: SparkSession) -> str | None:
    """Return what keeps local workers from starting, and what to do; None for nothing that is known."""
    if on_connect(spark) or _may_have_it(spark):
        return None
    python = spark.sparkContext.pythonExec
    found = shutil.which(python)
    if found is not None and _home(found) == _home(sys.executable):
        return None
    why = _failure(python)
    if why is None:
        return None
    return (
        f"PYSPARK_PYTHON must be a Python that has timerheap, got {python!r}, with which Spark starts its "
        f"workers ({why}); activate the environment that has timerheap, or set "
        f"PYSPARK_PYTHON={sys.executable}, before the program starts"
    )


def _may_have_it(spark: SparkSession) -> bool:
    """Return whether workers may have timerheap from elsewhere: on a cluster, or from files that are sent."""
    return not str(spark.sparkContext.master).startswith("local") or sends_files(spark)


def _home(python: str) -> str:
    return os.path.realpath(os.path.dirname(python))  # the interpreter itself is a link in each environment


@cache
def _failure(python: str) -> str | None:
    """Return the last line of what an interpreter says when it imports timerheap, None if it can."""
    try:
        subprocess.run([python, "-c", _IMPORTS], check=True, capture_output=True, text=True)
    except OSError as e:
        return str(e)
    except subprocess.CalledProcessError as e:
        return str(e.stderr).strip().rpartition("\n")[2]
    return None
