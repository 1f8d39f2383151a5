"""Warns on the driver that ``availableNow`` does not end a query with processing time.

Only a running query knows its trigger, so tasks send the driver the id of their query, and the driver looks
up the trigger.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from timerheap.spark._compat import accumulator

__all__ = ["Runs", "runs"]

_log = logging.getLogger("timerheap")

_BATCHES_WITHOUT_ROWS = "spark.sql.streaming.noDataMicroBatches.enabled"

Ids = frozenset[tuple[str | None, str | None]]
"""Runs of queries: the id of the query and the id of the run."""

Runs = Accumulator[Ids]
"""Runs that tasks have added with ``add``."""


class _WarnsOnce(AccumulatorParam[Ids]):
    """Warns of each new run; `spark` is the session of the queries, None in a task."""

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
                    "availableNow will not end query %s: it uses processing time, with_idleness or "
                    "with_wall_clock, for which Spark runs micro-batches without rows for ever. To end it "
                    "when all rows have been read, "
                    'call spark.conf.set("%s", False) before it starts; later timers then fire in the next '
                    "run",
                    query,
                    _BATCHES_WITHOUT_ROWS,
                )
        return value1 | value2


def runs(spark: SparkSession) -> Runs:
    """Return an accumulator that logs a warning for each run that ``availableNow`` will not end."""
    return accumulator(spark, frozenset(), _WarnsOnce(spark))


def _never_ends(spark: SparkSession, query: str | None) -> bool:
    try:
        execution: Any = spark.streams.get(str(query))._jsq.streamingQuery()  # type: ignore[union-attr]
        conf = execution.sparkSessionForStream().conf()
        found = execution.trigger().toString(), conf.get(_BATCHES_WITHOUT_ROWS)
        return found == ("AvailableNowTrigger", "true")
    except Exception as e:  # it has ended, or Spark's internals differ; the query must go on
        _log.debug("cannot look up the trigger of query %s: %s", query, e)
        return False
