"""Messages that tasks send to the driver, which logs one about each matter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from timerheap.spark._compat import accumulator

__all__ = ["Notice", "Notices", "each", "notices"]

_log = logging.getLogger("timerheap")


class Notice(NamedTuple):
    """A message.

    Parameters
    ----------
    about : str
        The driver logs only the first message about it.
    text : str
    """

    about: str
    text: str


Notices = Accumulator[frozenset[Notice]]
"""Messages; a task calls ``add``, and the driver receives them when the task has succeeded."""


class _LoggedOnce(AccumulatorParam[frozenset[Notice]]):
    def zero(self, value: frozenset[Notice]) -> frozenset[Notice]:
        return frozenset()

    def addInPlace(self, value1: frozenset[Notice], value2: frozenset[Notice]) -> frozenset[Notice]:
        known = {notice.about: notice for notice in value1}
        for notice in sorted(value2):
            if notice.about not in known:
                known[notice.about] = notice
                if TaskContext.get() is None:  # on the driver
                    _log.warning("%s", notice.text)
        return frozenset(known.values())


def each(messages: Iterable[str]) -> frozenset[Notice]:
    """Return messages that the driver logs all, each once."""
    return frozenset(Notice(message, message) for message in messages)


def notices(spark: SparkSession) -> Notices:
    """Return an accumulator that logs new messages as warnings of the logger "timerheap"."""
    return accumulator(spark, frozenset(), _LoggedOnce())
