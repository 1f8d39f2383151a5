"""How far the watermark rises in a step while many timers are due, so that rows do not wait for all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from timerheap import TimerHeap

_LEAST = 200  # timers of a step
_SAMPLE = 4096  # timers of a key group that are looked at
_SHORT, _LONG = 0.02, 0.05  # seconds that a step is to take


class Slices:
    """The steps of the key groups of a task, from the watermark that they have reached to the newest one.

    A watermark that rises in several steps is one that any source might have had. Timers of one ms fire in
    one step, however many they are.
    """

    def __init__(self) -> None:
        self._most = 5_000  # timers of a step
        self._is_cut = False

    def reach(self, timers: Iterable[TimerHeap], before: int, newest: int) -> int:
        """Return up to which watermark timers fire in this step, which is behind `before`.

        timers: the event-time timers of each key group
        before, newest: the watermarks of the last step and of the query
        """
        reached = newest
        for heap in timers:
            if heap.count_due(newest) > self._most:
                stride = max(1, len(heap) // _SAMPLE)
                some = heap.timestamps[::stride]
                at = min(self._most // stride, len(some) - 1)
                reached = min(reached, max(int(np.partition(some, at)[at]), before + 1))
        self._is_cut = reached < newest
        return reached

    def took(self, seconds: float) -> None:
        """Fit the number of timers of the next step to the time that this one took."""
        if seconds > _LONG:
            self._most = max(self._most // 2, _LEAST)
        elif self._is_cut and seconds < _SHORT:
            self._most *= 2
