"""The watermark of an operator behind others: the lowest that their tasks have told of."""

from __future__ import annotations

from collections.abc import Mapping

from timerheap.spark._real_time.bursts import Seen
from timerheap.timer import MIN_WATERMARK


class Followed:
    """What the tasks of operators have reached.

    delay: by how many ms the watermark stays behind theirs
    tasks: how many there are; while one has not told of its watermark, there is none
    """

    def __init__(self, delay: int, tasks: int) -> None:
        self._delay, self._tasks = delay, tasks
        self._reached: dict[str, int] = {}

    def limit(self, seen: Mapping[str, Seen]) -> int:
        """Return the watermark, given what tasks have told since the last call."""
        self._reached.update((name, one.newest) for name, one in seen.items())
        if len(self._reached) < self._tasks:
            return MIN_WATERMARK
        return max(min(self._reached.values()) - self._delay, MIN_WATERMARK)
