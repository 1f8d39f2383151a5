"""Objects that a worker's garbage collections need not visit."""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark import TaskContext

_done = 0  # 1: by a task that packs rows; 2: by an operator, which imports more


def freeze_modules(load: Callable[[], object] | None = None) -> None:
    """Exempt the modules of the worker from garbage collection; call it before a task makes its objects.

    Spark collects garbage after each task. With pandas and PyArrow imported, a collection visits 90,000
    objects, and takes several times as long as a task of few rows. The objects of modules live as long as the
    worker anyway. Only the first task of a worker does this, and the first with an operator, since later ones
    find live state as well.

    `load` imports the modules of an operator. What it returns is dropped before: a user's function that is
    exempt and refers to itself would live as long as the worker, with all that it has made.
    """
    global _done
    level = 1 if load is None else 2
    if _done < level and TaskContext.get() is not None:
        if load is not None:
            gc.disable()  # so that all it makes is in the youngest generation, which is quickly searched
            try:
                load()
            finally:
                gc.enable()
            gc.collect(0)
        gc.freeze()
        _done = level
