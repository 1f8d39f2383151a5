"""How long rows that have come wait for others, so that they are one step: not at all while few come.

A step costs almost as much for one row as for many. The waits of all tasks end at the same times of the
clock, so that what they send comes together, too.
"""

from __future__ import annotations

import math
import time
from typing import Any

LINGER = "spark.timerheap.realTime.linger"
"""Name of the setting with the ms that a row waits at most, on all of its way."""

_MEMORY = 0.2  # seconds after which what has come counts for a third
_TO_PACK, _TO_RUN = 0.75, 0.25  # the shares of the two stages in the wait
_NAP = 0.02  # seconds without a look whether the input has ended
_HELD = 25  # rows that a socket holds for sure, if they are small; then Spark waits
_MANY_ROWS, _MANY_MESSAGES = 200.0, 50.0  # a second


def to_pack(task: Any) -> tuple[float, float]:
    """Return `longest` and `many` of the rows of a task of the source."""
    return _seconds(task) * _TO_PACK, _MANY_ROWS


def to_run(task: Any) -> tuple[float, float]:
    """Return `longest` and `many` of the messages to a task that runs key groups."""
    return _seconds(task) * _TO_RUN, _MANY_MESSAGES


def _seconds(task: Any) -> float:
    return int(task.getLocalProperty(LINGER)) / 1000


class Linger:
    """The waits of one task.

    longest: seconds that a row waits at most
    many: rows wait only while more than these come in a second
    """

    def __init__(self, longest: float, many: float) -> None:
        self._longest, self._many = longest, many * _MEMORY
        self._recent, self._at = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Return how long from now on the rows that have come wait."""
        if not self._longest or self._recent_at(time.monotonic()) <= self._many:
            return 0.0
        return self._longest - time.time() % self._longest

    def nap(self) -> float:
        """Return for how many seconds at most a task may leave what comes in the socket."""
        rate = self._recent_at(time.monotonic()) / _MEMORY
        return min(_NAP, _HELD / max(rate, 1.0))

    def came(self, rows: int) -> None:
        """Count rows that have come."""
        now = time.monotonic()
        self._recent, self._at = self._recent_at(now) + rows, now

    def _recent_at(self, now: float) -> float:
        return self._recent * math.exp((self._at - now) / _MEMORY)
