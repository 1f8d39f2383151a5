"""Keeps the modules of a Python worker out of its garbage collections."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext

__all__ = ["freeze_modules"]


@cache
def freeze_modules() -> None:
    """Exempt all objects of the worker from garbage collection; call it at the start of a task.

    Spark collects garbage after each task. With pandas and PyArrow imported, a collection visits 90,000
    objects, and takes several times as long as a task of few rows. The objects of modules live as long as the
    worker anyway. Only the first task of a worker does this, since later ones find live state as well.
    """
    if TaskContext.get() is not None:
        gc.freeze()
