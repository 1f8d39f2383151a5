"""Messages that tasks send to the driver, which logs each once."""

from __future__ import annotations

import logging

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

__all__ = ["Notices", "notices"]

_log = logging.getLogger("timerheap")

Notices = Accumulator[frozenset[str]]
"""Messages; a task calls ``add``, and the driver receives them when the task has succeeded."""


class _LoggedOnce(AccumulatorParam[frozenset[str]]):
    def zero(self, value: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def addInPlace(self, value1: frozenset[str], value2: frozenset[str]) -> frozenset[str]:
        if TaskContext.get() is None:  # on the driver
            for message in sorted(value2 - value1):
                _log.warning("%s", message)
        return value1 | value2


def notices(spark: SparkSession) -> Notices:
    """Return an accumulator that logs each new message as a warning of the logger "timerheap"."""
    return spark.sparkContext.accumulator(frozenset(), _LoggedOnce())
