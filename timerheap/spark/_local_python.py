"""Whether the Python with which a local Spark starts its workers has timerheap."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

from pyspark.sql import SparkSession

from timerheap.spark._compat import on_connect

_IMPORTS = "import timerheap.spark"


def worker_trouble(spark: SparkSession) -> str | None:
    """Return what keeps local workers from starting, and what to do; None for nothing that is known."""
    if on_connect(spark) or not spark.sparkContext.master.startswith("local"):
        return None
    python = spark.sparkContext.pythonExec
    found = shutil.which(python)
    if found is not None and _home(found) == _home(sys.executable):
        return None
    why = _failure(python)
    if why is None:
        return None
    return (
        f"Spark starts its Python workers with {python!r}, which has no timerheap ({why}); activate the "
        f"environment that has it, or set PYSPARK_PYTHON={sys.executable}, before the program starts"
    )


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
