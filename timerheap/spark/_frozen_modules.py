"""The modules of a Python worker, which are exempt from garbage collection before a task makes its objects.

Spark collects garbage after each task. With pandas and PyArrow imported, a collection visits 90,000 objects,
and takes several times as long as a task of few rows. The objects of modules live as long as the worker
anyway. So the first task of a worker exempts them, and once more the first with an operator, which imports
more; later tasks find live state as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark import TaskContext


class _Exempt:
    """Which modules of this worker are exempt."""

    any = False
    of_operators = False


def freeze_modules() -> None:
    """Exempt the modules of a worker that packs rows, in its first task."""
    if not _Exempt.any and TaskContext.get() is not None:
        gc.freeze()
        _Exempt.any = True


def freeze_operator_modules(load: Callable[[], object]) -> None:
    """Exempt the modules that `load` imports, those of an operator, in its first task in a worker."""
    # What `load` returns is dropped before: a user's function that is exempt and refers to itself would live
    # as long as the worker, with all that it has made.
    if _Exempt.of_operators or TaskContext.get() is None:
        return
    enabled = gc.isenabled()
    gc.disable()  # so that all it makes is in the youngest generation, which is quickly searched
    try:
        load()
    finally:
        if enabled:
            gc.enable()
    gc.collect(0)
    gc.freeze()
    _Exempt.any = _Exempt.of_operators = True
