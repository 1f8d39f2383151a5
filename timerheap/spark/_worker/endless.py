"""Says in the driver's log that ``availableNow`` will not end a query which has a clock.

Only a running query knows its trigger. So a task that runs the operator tells the driver of which query it
is, and the driver looks.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

__all__ = ["Runs", "runs"]

_log = logging.getLogger("timerheap")

_BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"

Ids = frozenset[tuple[str | None, str | None]]
"""Runs of a query, each its id and the id of the run."""

Runs = Accumulator[Ids]
"""A task calls ``add``."""


class _WarnsOnce(AccumulatorParam[Ids]):
    """On the driver, `spark` is the session whose queries these are; in a task it is None."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None,)

    def zero(self, value: Ids) -> Ids:
        return frozenset()

    def addInPlace(self, value1: Ids, value2: Ids) -> Ids:
        for query, _ in value2 - value1:
            if self._spark is not None and _never_ends(self._spark, query):
                _log.warning(
                    "availableNow will not end query %s: it has processing time or with_idleness, for which "
                    "Spark runs micro-batches without rows for ever. To end it when all rows have been read, "
                    'call spark.conf.set("%s", False) before it starts; timers that are due later fire in '
                    "the next run",
                    query,
                    _BATCHES_WITHOUT_ROWS,
                )
        return value1 | value2


def runs(spark: SparkSession) -> Runs:
    """Return an accumulator that warns of each run of a query that ``availableNow`` will not end."""
    return spark.sparkContext.accumulator(frozenset(), _WarnsOnce(spark))


def _never_ends(spark: SparkSession, query: str | None) -> bool:
    try:
        execution: Any = spark.streams.get(str(query))._jsq.streamingQuery()  # type: ignore[union-attr]
        conf = execution.sparkSessionForStream().conf()
        found = execution.trigger().toString(), conf.get(_BATCHES_WITHOUT_ROWS)
        return found == ("AvailableNowTrigger", "true")
    except (
        Exception
    ) as e:  # it has ended already, or this Spark is another inside: that must not end the query
        _log.debug("the trigger of query %s is not known: %s", query, e)
        return False
