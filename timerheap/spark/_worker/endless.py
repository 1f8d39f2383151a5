"""Warns on the driver that ``availableNow`` does not end a query with processing time.

Only a running query knows its trigger, so the driver looks it up when a task tells of the run.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql import SparkSession

from timerheap.spark._worker.runs import QueryRun

__all__ = ["warn_if_endless"]

_log = logging.getLogger("timerheap")

_BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"


def warn_if_endless(spark: SparkSession, run: QueryRun, execution: Any) -> None:
    """Log a warning if ``availableNow`` will not end a run with processing time."""
    conf = execution.sparkSessionForStream().conf()
    if (execution.trigger().toString(), conf.get(_BATCHES_WITHOUT_ROWS)) != ("AvailableNowTrigger", "true"):
        return
    _log.warning(
        "availableNow will not end query %s: it uses processing time, with_idleness or with_wall_clock, for "
        "which Spark runs micro-batches without rows for ever. To end it when all rows have been read, call "
        'spark.conf.set("%s", False) before it starts; later timers then fire in the next run',
        run.query,
        _BATCHES_WITHOUT_ROWS,
    )
