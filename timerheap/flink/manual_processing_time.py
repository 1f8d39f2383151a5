"""A processing time that tests set."""

from __future__ import annotations

from concurrent.futures import Future

from timerheap._arguments import int64
from timerheap.flink.processing_time import SchedulingService

__all__ = ["ManualProcessingTimeService"]


class ManualProcessingTimeService(SchedulingService):
    """A processing time that changes only when it is set; callbacks run in the thread that sets it.

    A callback is due when the clock is set to its timestamp or a later time. A callback registered for the
    past also waits until the clock is set.

    Parameters
    ----------
    now : int, default 0
        The initial time, epoch milliseconds.
    jump : bool, default False
        If False, the clock advances from callback to callback and shows the due time of each while it runs.
        If True, the clock shows the new time before the first callback runs.

    Notes
    -----
    Flink: ``TestProcessingTimeService``, which jumps. If a callback raises, `set_current_time` raises; the
    callback is removed, and all others wait for the next call.

    Examples
    --------
    >>> clock = ManualProcessingTimeService()
    >>> called = []
    >>> _ = clock.register_timer(5, called.append)
    >>> clock.set_current_time(4); called
    []
    >>> clock.set_current_time(6); called
    [5]
    """

    def __init__(self, now: int = 0, *, jump: bool = False) -> None:
        super().__init__()
        self._now = int64("now", now)
        self._jump = jump

    def get_current_processing_time(self) -> int:
        """Return the current time, epoch milliseconds."""
        return self._now

    def set_current_time(self, timestamp: int) -> None:
        """Set the clock to `timestamp` and call the due callbacks, earliest first.

        Callbacks registered by a callback are called too if they are due by `timestamp`. The clock may be
        set back.

        Raises
        ------
        TypeError, OverflowError
            If `timestamp` is not an int64.
        """
        timestamp = int64("timestamp", timestamp)
        self._now = timestamp if self._jump else min(self._now, timestamp)
        while (task := self._take_due(timestamp)) is not None:
            self._now = max(self._now, task.due)
            self._run(task)
        self._now = max(self._now, timestamp)  # a callback may have set it further

    def advance(self, delta: int) -> None:
        """Advance the clock by `delta` ms, as with `set_current_time`."""
        self.set_current_time(self._now + int64("delta", delta))

    def get_active_timers(self) -> list[tuple[int, int]]:
        """Return the (timestamp, due time) of every scheduled callback, earliest first."""
        tasks = sorted(self._tasks.values(), key=lambda task: (task.due, task.id))
        return [(task.timestamp, task.due) for task in tasks]

    def _due(self, timestamp: int) -> int:
        return timestamp

    def _quiesced(self) -> Future[None]:
        quiesced: Future[None] = Future()
        quiesced.set_result(None)
        return quiesced
