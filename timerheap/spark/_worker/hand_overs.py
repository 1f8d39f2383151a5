"""Counts where the key groups of each micro-batch came from, which the driver logs.

A key group that is loaded from the state store costs as much as its state; one that is handed over, or
continued, costs what changed. Whoever measures that reads the messages of the logger "timerheap" at level
DEBUG on the driver, one for each successful task, for example::

    key groups of a task: 0 new, 3 continued in the same worker, 5 handed over, 0 loaded from the state store
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from timerheap.spark._compat import accumulator

__all__ = ["Counts", "HandOvers", "hand_overs"]

_log = logging.getLogger("timerheap")


class Counts(NamedTuple):
    """Numbers of key groups, each counted once in a micro-batch."""

    new: int = 0
    continued: int = 0
    handed_over: int = 0
    loaded: int = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


HandOvers = Accumulator[Counts]
"""Counts; a task calls ``add``, and the driver receives the sum when the task has succeeded."""


class _Logged(AccumulatorParam[Counts]):
    def zero(self, value: Counts) -> Counts:
        return Counts()

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        if TaskContext.get() is None:  # on the driver
            _log.debug(
                "key groups of a task: %d new, %d continued in the same worker, %d handed over, %d loaded "
                "from the state store",
                *value2,
            )
        return value1.plus(value2)


def hand_overs(spark: SparkSession) -> HandOvers:
    """Return an accumulator that logs what it receives."""
    return accumulator(spark, Counts(), _Logged())
